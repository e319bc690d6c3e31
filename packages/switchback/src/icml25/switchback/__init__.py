"""Switchback experiments: designs, estimators of the average treatment effect, and which design to run next."""

from importlib.metadata import version as _version

from icml25.switchback.baselines import difference_in_means, horvitz_thompson, ipw_switchback
from icml25.switchback.designs import (
    Design,
    alternating_day,
    alternating_time,
    bojinov,
    regular_blocks,
    uniform_random,
)
from icml25.switchback.estimators import DRL, LSTD, OLS, OverlapWarning, UnstableLSTDWarning
from icml25.switchback.mdp import LinearMDP, NonlinearMDP, paper_mdp
from icml25.switchback.panel import NotIdentifiedError, Panel
from icml25.switchback.workflow import (
    CarryoverTest,
    Recommendation,
    carryover_test,
    design_gain,
    recommend_design,
    residual_covariance,
    weak_carryover_mse,
)

__version__ = _version("icml25-switchback")
__all__ = [
    "DRL",
    "LSTD",
    "OLS",
    "CarryoverTest",
    "Design",
    "LinearMDP",
    "NonlinearMDP",
    "NotIdentifiedError",
    "OverlapWarning",
    "Panel",
    "Recommendation",
    "UnstableLSTDWarning",
    "__version__",
    "alternating_day",
    "alternating_time",
    "bojinov",
    "carryover_test",
    "design_gain",
    "difference_in_means",
    "horvitz_thompson",
    "ipw_switchback",
    "paper_mdp",
    "recommend_design",
    "regular_blocks",
    "residual_covariance",
    "uniform_random",
    "weak_carryover_mse",
]
