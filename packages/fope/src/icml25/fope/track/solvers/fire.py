"""FIRE: a learned function of relative progress (Li et al., 2024)."""

from benchmark_utils.solver import PositionSolver


class Solver(PositionSolver):
    """FIRE: a learned function of relative progress (Li et al., 2024)."""

    name = "FIRE"
    position = "fire"
    paper_only = True
