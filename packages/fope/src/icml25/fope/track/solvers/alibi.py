"""ALiBi: a penalty linear in distance (Press et al., 2022)."""

from benchmark_utils.solver import PositionSolver


class Solver(PositionSolver):
    """ALiBi: a penalty linear in distance (Press et al., 2022)."""

    name = "ALiBi"
    position = "alibi"
