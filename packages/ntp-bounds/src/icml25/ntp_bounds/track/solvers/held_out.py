"""Hoeffding's bound for one decoder on held-out sequences: the practical certificate."""

from benchmark_utils.solver import BoundSolver


class Solver(BoundSolver):
    """Hoeffding's bound for one decoder on held-out sequences: the practical certificate."""

    name = "held-out"
    kind = "held-out"
