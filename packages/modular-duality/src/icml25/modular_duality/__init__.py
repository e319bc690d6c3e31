"""Modular duality: update maps that make learning rates transfer across width and depth, for optax and plain JAX."""

from importlib.metadata import version as _version

from icml25.modular_duality import modules, norms
from icml25.modular_duality.compounds import GPT, MLP, Attention, residual
from icml25.modular_duality.modules import Module
from icml25.modular_duality.norms import infer_norms
from icml25.modular_duality.orthogonalize import SCHEDULES, orthogonalize
from icml25.modular_duality.transform import modular_sgd, scale_by_modular_dual

__version__ = _version("icml25-modular-duality")
__all__ = [
    "GPT",
    "MLP",
    "SCHEDULES",
    "Attention",
    "Module",
    "__version__",
    "infer_norms",
    "modular_sgd",
    "modules",
    "norms",
    "orthogonalize",
    "residual",
    "scale_by_modular_dual",
]
