"""RoPE-A of the paper's toy study: frequencies moved to the nearest full cycle in L."""

from benchmark_utils.solver import PositionSolver


class Solver(PositionSolver):
    """RoPE-A of the paper's toy study: frequencies moved to the nearest full cycle in L."""

    name = "RoPE-A"
    position = "rope-a"
    paper_only = True
