"""Posterior mean with the true noise and the training prior, per prompt."""

from benchmark_utils.solver import PromptSolver


class Solver(PromptSolver):
    """Posterior mean with the true noise and the training prior, per prompt."""

    name = "Bayes"
    method = "bayes"
    compared = ("probes",)
