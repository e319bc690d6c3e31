"""Green and red tokens (Kirchenbauer et al., 2023), as transformers has them: bias 2, a quarter of the tokens green."""

from icml25.shared.tracks.watermarking.message_solver import MessageSolver


def warm_up():
    """Load what the clock should not see."""
    import transformers.generation.logits_process  # noqa: F401

    import icml25.shared.tracks.watermarking.messaging  # noqa: F401


def scheme(bias=2.0, greenlist_ratio=0.25):
    """Writes by ``WatermarkingConfig``; reads by the processor's own green lists, each bigram counted once."""
    import hashlib

    import numpy as np
    import torch
    from scipy.special import bdtrc
    from transformers import WatermarkingConfig

    from icml25.shared.tracks.watermarking.messaging import Scheme

    class KGW(Scheme):
        multi_bit = False
        sequences = 64

        def config(self, key, message):
            number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest()) | 1
            return WatermarkingConfig(bias=bias, greenlist_ratio=greenlist_ratio, hashing_key=number)

        def reader(self, key, bits, vocab_size):
            processor = self.config(key, "").construct_processor(vocab_size, "cpu")
            green = {}

            def is_green(before, token):
                if before not in green:
                    green[before] = np.zeros(vocab_size, dtype=bool)
                    green[before][processor._get_greenlist_ids(torch.tensor([before])).numpy()] = True
                return green[before][token]

            def read(texts):
                p = np.ones(len(texts))
                for i, text in enumerate(texts):
                    bigrams = set(zip(text[:-1].tolist(), text[1:].tolist(), strict=True))
                    hits = sum(is_green(*bigram) for bigram in bigrams)
                    if hits:
                        p[i] = bdtrc(hits - 1, len(bigrams), int(vocab_size * greenlist_ratio) / vocab_size)
                return None, p, None

            return read

    return KGW()


def write_and_read(arrays, params):
    """Write and read."""
    from icml25.shared.tracks.watermarking.messaging import measure_messages

    return measure_messages(arrays, params, scheme)


class Solver(MessageSolver):
    """Green and red tokens, as transformers has them; says only that a text is marked."""

    name = "KGW"
    file = __file__
