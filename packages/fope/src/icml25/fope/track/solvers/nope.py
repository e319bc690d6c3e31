"""No positions: causality alone tells order."""

from benchmark_utils.solver import PositionSolver


class Solver(PositionSolver):
    """No positions: causality alone tells order."""

    name = "NoPE"
    position = "nope"
