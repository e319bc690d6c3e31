"""Position allocation of messages to coloured tokens (MPAC, Yoo et al., 2024): four colours, contexts of one token."""

from icml25.shared.tracks.watermarking.message_solver import MessageSolver

COLOURS = 4


def warm_up():
    """Load what the clock should not see."""
    import transformers.generation.logits_process  # noqa: F401

    import icml25.shared.tracks.watermarking.messaging  # noqa: F401


def best_colour_pmf(n):
    """P(largest of four colour counts = k) for k = 0..n, when n tokens are coloured at random."""
    import numpy as np
    from scipy.special import gammaln

    j = np.arange(n + 1)
    poisson = np.exp(
        j * np.log(max(n, 1) / COLOURS) - n / COLOURS - gammaln(j + 1)
    )  # counts are Poisson given their sum
    total = np.exp(n * np.log(max(n, 1)) - n - gammaln(n + 1))
    at_most = np.empty(n + 1)
    for k in j:
        counts = np.where(j <= k, poisson, 0)
        pair = np.convolve(counts, counts)[: n + 1]
        at_most[k] = pair @ pair[::-1] / total
    return np.diff(at_most, prepend=0).clip(0)


def scheme(delta):
    """A digit in base four per position: the context picks position and colouring, the digit's colour is favoured."""
    import hashlib
    from functools import cache

    import numpy as np
    import torch
    from transformers import LogitsProcessor
    from transformers.generation import BaseWatermarkingConfig

    from icml25.shared.tracks.watermarking.messaging import Scheme

    pmf = cache(best_colour_pmf)

    def colouring(key, positions, vocab_size):
        """Position of the digit after a token, and two bits of a keyed hash per token of the vocabulary: its colour."""

        @cache
        def after(token):
            digest = hashlib.shake_128(f"{key} {token}".encode()).digest(8 + -(-vocab_size // 4))
            return int.from_bytes(digest[:8], "little") % positions, digest[8:]

        return after

    class Processor(LogitsProcessor):
        def __init__(self, after, digits):
            self.after, self.digits = after, digits

        def __call__(self, input_ids, scores):
            drawn = [self.after(token) for token in input_ids[:, -1].tolist()]
            packed = np.frombuffer(b"".join(bits for _, bits in drawn), dtype=np.uint8).reshape(len(drawn), -1, 1)
            colours = (packed >> np.array([0, 2, 4, 6], dtype=np.uint8) & 3).reshape(len(drawn), -1)
            digits = self.digits[[position for position, _ in drawn]]
            return scores + delta * torch.from_numpy(colours[:, : scores.shape[1]] == digits[:, None])

    class Config(BaseWatermarkingConfig):
        """Behind all warpers, where transformers puts a watermark."""

        def __init__(self, key, message):
            self.key, self.message = key, message

        def validate(self):
            pass

        def construct_processor(self, vocab_size, device="cpu"):
            bits = np.array([int(bit) for bit in self.message]).reshape(-1, 2)
            return Processor(colouring(self.key, len(bits), vocab_size), 2 * bits[:, 0] + bits[:, 1])

    class MPAC(Scheme):
        def config(self, key, message):
            return Config(key, message)

        def reader(self, key, bits, vocab_size):
            after = colouring(key, bits // 2, vocab_size)

            def read_one(text):
                votes = np.zeros((bits // 2, COLOURS), dtype=int)
                for before, token in set(zip(text[:-1].tolist(), text[1:].tolist(), strict=True)):
                    position, packed = after(before)
                    votes[position, packed[token // 4] >> 2 * (token % 4) & 3] += 1
                digit, best = votes.argmax(1), votes.max(1)  # of ties the first, as in the official code: all decided
                decoded = np.stack([digit // 2, digit % 2], 1).ravel()
                null = np.ones(1)
                for n in votes.sum(1):
                    null = np.convolve(null, pmf(int(n)))
                return decoded, min(1.0, float(null[best.sum() :].sum()))

            def read(texts):
                found = [read_one(text) for text in texts]
                return np.array([f[0] for f in found], dtype=np.int8), np.array([f[1] for f in found]), None

            return read

    return MPAC()


def write_and_read(arrays, params):
    """Write and read."""
    from icml25.shared.tracks.watermarking.messaging import measure_messages

    return measure_messages(arrays, params, lambda: scheme(params["delta"]))


class Solver(MessageSolver):
    """A digit of the message favours one of four colours by ``delta``."""

    name = "MPAC"
    file = __file__
    parameters = {"delta": [1.0, 2.0, 3.0]}  # noqa: RUF012

    def skip(self, problem, budget="", **settings):
        """The strongest setting is left to the paper's budget."""
        if budget != "paper" and self.delta == 3.0:
            return True, "left out of this budget"
        return super().skip(problem, **settings)
