"""Gradients divided by their spectral norm: the modular scale without the flattening of singular values."""

from benchmark_utils.solver import OptimizerSolver


class Solver(OptimizerSolver):
    """Gradients divided by their spectral norm: the modular scale without the flattening of singular values."""

    name = "spectral"
    solved = ("erasure",)
    once = ()
