"""Zero, whatever the prompt."""

from benchmark_utils.solver import PromptSolver


class Solver(PromptSolver):
    """Zero, whatever the prompt."""

    name = "Zero"
    method = "zero"
