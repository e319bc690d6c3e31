"""RoPE; the same weights also read by position interpolation and by YaRN beyond the training length."""

from benchmark_utils.solver import PositionSolver


class Solver(PositionSolver):
    """RoPE; the same weights also read by position interpolation and by YaRN beyond the training length."""

    name = "RoPE"
    position = "rope"
    readings = ("interpolation", "yarn")
    every_seed = True
