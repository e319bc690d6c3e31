"""Massart's bound for 100 decoders that were fixed beforehand."""

from benchmark_utils.solver import BoundSolver


class Solver(BoundSolver):
    """Massart's bound for 100 decoders that were fixed beforehand."""

    name = "Massart"
    kind = "Massart"
