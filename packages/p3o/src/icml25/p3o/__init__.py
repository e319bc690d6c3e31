"""Plastic PPO: a scheduled reset renews the actor's units, inner distillation keeps its policy."""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from icml25.p3o.agent import P3O, PPO
from icml25.p3o.distributions import Categorical, Gaussian, alpha_dkl
from icml25.p3o.metrics import plasticity_report
from icml25.p3o.optim import per_entry_adam, reset_moments
from icml25.p3o.ppo import gae
from icml25.p3o.sbp import SBP, cycle_reset

if _TYPE_CHECKING:
    from icml25.p3o.friction import CycleFriction

__version__ = _version("icml25-p3o")
__all__ = [
    "P3O",
    "PPO",
    "SBP",
    "Categorical",
    "CycleFriction",
    "Gaussian",
    "__version__",
    "alpha_dkl",
    "cycle_reset",
    "gae",
    "per_entry_adam",
    "plasticity_report",
    "reset_moments",
]


def __getattr__(name: str) -> _Any:
    if name == "CycleFriction":  # a gymnasium wrapper: gymnasium is imported by those who use it
        from icml25.p3o.friction import CycleFriction

        return CycleFriction
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
