"""RoPE; beyond the training length read as it is, by position interpolation, or by YaRN (without further training)."""

from benchmark_utils.solver import PositionSolver


class Solver(PositionSolver):
    """RoPE; beyond the training length read as it is, by position interpolation, or by YaRN (without further training)."""

    name = "RoPE"
    parameters = {"reading": ["plain", "interpolation", "yarn"]}  # noqa: RUF012
    position = "rope"

    def _every_seed(self):
        return self.reading == "plain"
