"""Theta log(1/eps), norms ignored: a trend."""

from benchmark_utils.solver import BoundSolver


class Solver(BoundSolver):
    """Theta log(1/eps), norms ignored: a trend."""

    name = "parameter counting"
    kind = "parameter counting"
