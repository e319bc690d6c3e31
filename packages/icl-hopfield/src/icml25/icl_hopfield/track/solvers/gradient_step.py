"""One step of gradient descent from zero."""

from benchmark_utils.solver import PromptSolver


class Solver(PromptSolver):
    """One step of gradient descent from zero."""

    name = "GD step"
    method = "gradient_step"
