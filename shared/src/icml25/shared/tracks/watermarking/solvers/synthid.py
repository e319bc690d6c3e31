"""Tournament sampling (Dathathri et al., 2024), as transformers has it: nine keys, contexts of four tokens."""

from icml25.shared.tracks.watermarking.message_solver import MessageSolver

DEPTH, NGRAM = 9, 5


def warm_up():
    """Load what the clock should not see."""
    import transformers.generation.logits_process  # noqa: F401

    import icml25.shared.tracks.watermarking.messaging  # noqa: F401


def scheme(sequences):
    """Writes by ``SynthIDTextWatermarkingConfig``; reads by the weighted mean of its g-values."""
    import hashlib

    import numpy as np
    import torch
    from scipy.special import ndtr
    from transformers import SynthIDTextWatermarkingConfig

    from icml25.shared.tracks.watermarking.messaging import Scheme

    class SynthID(Scheme):
        multi_bit = False
        bias_contexts = 0

        def config(self, key, message):
            digest = hashlib.blake2b(key.encode(), digest_size=4 * DEPTH).digest()
            return SynthIDTextWatermarkingConfig(
                ngram_len=NGRAM, keys=[int(x) for x in np.frombuffer(digest, dtype="<u4") % 2**20]
            )

        def reader(self, key, bits, vocab_size):
            processor = self.config(key, "").construct_processor(vocab_size, "cpu")
            weights = np.linspace(10, 1, DEPTH)  # as in the detector of its authors

            def read(texts):
                p, lengths = np.ones(len(texts)), np.array([len(text) for text in texts])
                for length in np.unique(lengths[lengths >= NGRAM]):  # equally long ones at once
                    at = np.flatnonzero(lengths == length)
                    ids = torch.from_numpy(np.stack([texts[i] for i in at]))
                    counted = processor.compute_context_repetition_mask(ids).numpy().astype(bool)
                    sums = (processor.compute_g_values(ids).numpy() - 0.5) @ weights
                    n = counted.sum(1).clip(1)
                    p[at] = ndtr(-(sums * counted).sum(1) / np.sqrt(n * (weights**2).sum() / 4))
                return None, p, None

            return read

    SynthID.sequences = sequences
    return SynthID()


def write_and_read(arrays, params):
    """Write and read; a step costs vocabulary x keys, so few sequences but for the synthetic model in the paper's budget."""
    from icml25.shared.tracks.watermarking.messaging import measure_messages

    many = params["budget"] == "paper" and params["model"] == "synthetic"
    return measure_messages(arrays, params, lambda: scheme(100 if many else 10))


class Solver(MessageSolver):
    """Tournament sampling, as transformers has it; says only that a text is marked."""

    name = "SynthID"
    file = __file__
