"""Stochastic gradient descent with momentum 0.9, of optax."""

from benchmark_utils.solver import OptimizerSolver


class Solver(OptimizerSolver):
    """Stochastic gradient descent with momentum 0.9, of optax."""

    name = "SGD"
    solved = ("curve",)
    once = ()
