"""Valid instruments by the Cross Auxiliary-based independent Test (CAT) condition, then two-stage least squares."""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from icml25.cat_iv.auxiliary import (
    WeakInstrumentError,
    WeakInstrumentWarning,
    auxiliary,
    cat_score,
    first_stage_f,
    pair_scores,
    residualise,
)
from icml25.cat_iv.effects import two_stage_least_squares
from icml25.cat_iv.independence import chi2_p_value, distance_correlation, permutation_p_value
from icml25.cat_iv.search import best_subsets
from icml25.cat_iv.simulate import make_anlce

if TYPE_CHECKING:
    from icml25.cat_iv.selector import CATSelector, NoValidSetError

__version__ = _version("icml25-cat-iv")
__all__ = [
    "CATSelector",
    "NoValidSetError",
    "WeakInstrumentError",
    "WeakInstrumentWarning",
    "__version__",
    "auxiliary",
    "best_subsets",
    "cat_score",
    "chi2_p_value",
    "distance_correlation",
    "first_stage_f",
    "make_anlce",
    "pair_scores",
    "permutation_p_value",
    "residualise",
    "two_stage_least_squares",
]


def __getattr__(name: str) -> Any:
    """Import the estimator, and scikit-learn with it, when it is first asked for."""
    if name in ("CATSelector", "NoValidSetError"):
        from icml25.cat_iv import selector

        return getattr(selector, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
