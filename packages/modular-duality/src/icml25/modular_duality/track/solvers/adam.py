"""Adam, of optax."""

from benchmark_utils.solver import OptimizerSolver


class Solver(OptimizerSolver):
    """Adam, of optax."""

    name = "Adam"
    solved = ("curve",)
    once = ("transfer",)
