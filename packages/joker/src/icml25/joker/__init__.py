"""Joker: kernel machines trained through their dual, in memory that never holds rows times features."""

from icml25.joker.estimators import JokerClassifier, JokerRegressor
from icml25.joker.features import RandomFeatures
from icml25.joker.kernels import kernel_function, mean_sqdist_gamma
from icml25.joker.losses import EpsilonInsensitive, Hinge, Huber, Logistic, Loss, Squared, SquaredHinge
from icml25.joker.solver import DualResult, solve_dual
from icml25.joker.trust_region import minimise_block

__version__ = "0.1.0"

__all__ = [
    "DualResult",
    "EpsilonInsensitive",
    "Hinge",
    "Huber",
    "JokerClassifier",
    "JokerRegressor",
    "Logistic",
    "Loss",
    "RandomFeatures",
    "Squared",
    "SquaredHinge",
    "kernel_function",
    "mean_sqdist_gamma",
    "minimise_block",
    "solve_dual",
]
