"""Muon on the hidden matrices, AdamW at a tenth of its learning rate on the first and the last, of optax.contrib."""

from benchmark_utils.solver import OptimizerSolver


class Solver(OptimizerSolver):
    """Muon on the hidden matrices, AdamW at a tenth of its learning rate on the first and the last, of optax.contrib."""

    name = "Muon"
    solved = ()
    once = ("curve",)
