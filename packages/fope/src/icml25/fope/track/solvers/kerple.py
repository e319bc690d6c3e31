"""KERPLE's logarithmic kernel (Chi et al., 2022)."""

from benchmark_utils.solver import PositionSolver


class Solver(PositionSolver):
    """KERPLE's logarithmic kernel (Chi et al., 2022)."""

    name = "KERPLE"
    position = "kerple"
    paper_only = True
