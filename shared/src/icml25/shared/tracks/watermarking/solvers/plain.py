"""Plain sampling, without a watermark."""

from icml25.shared.tracks.watermarking.message_solver import MessageSolver


def warm_up():
    """Load what the clock should not see."""
    import icml25.shared.tracks.watermarking.messaging  # noqa: F401


def write_and_read(arrays, params):
    """Write."""
    from icml25.shared.tracks.watermarking.messaging import Scheme, measure_messages

    class Plain(Scheme):
        multi_bit = False
        sequences = 64
        bias_contexts = 0

        def config(self, key, message):
            return None

        def reader(self, key, bits, vocab_size):
            return None

    return measure_messages(arrays, params, Plain)


class Solver(MessageSolver):
    """Plain sampling, without a watermark."""

    name = "No watermark"
    file = __file__
