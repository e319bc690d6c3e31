"""Adam with decoupled weight decay 0.01, of optax."""

from benchmark_utils.solver import OptimizerSolver


class Solver(OptimizerSolver):
    """Adam with decoupled weight decay 0.01, of optax."""

    name = "AdamW"
    solved = ("text",)
    once = ()
