"""Mean label of the nearest examples."""

from benchmark_utils.solver import PromptSolver


class Solver(PromptSolver):
    """Mean label of the nearest examples."""

    name = "kNN"
    method = "neighbours"
