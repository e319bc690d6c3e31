"""Generalisation bounds for next-token prediction, with every constant in the open."""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from icml25.ntp_bounds.baselines import hoeffding, norm_based, parameter_counting
from icml25.ntp_bounds.bound import BoundReport, Graph, Mixing, bound, sweep
from icml25.ntp_bounds.covering import (
    composition_cover,
    entropy_frobenius,
    entropy_maurey,
    entropy_spectral,
    greedy_cover,
    greedy_packing,
    lipschitz_image,
    log_cover,
    product_cover,
)
from icml25.ntp_bounds.lipschitz import LipschitzReport, lipschitz
from icml25.ntp_bounds.rademacher import dudley, massart, rademacher_finite, rademacher_linear
from icml25.ntp_bounds.sources import MarkovChain
from icml25.ntp_bounds.spec import DecoderSpec, MatrixNorms

if TYPE_CHECKING:
    from icml25.ntp_bounds.experiments import measure_gap, rademacher_lower

__version__ = _version("icml25-ntp-bounds")
_NEED_TORCH = ("measure_gap", "rademacher_lower")
__all__ = [
    "BoundReport",
    "DecoderSpec",
    "Graph",
    "LipschitzReport",
    "MarkovChain",
    "MatrixNorms",
    "Mixing",
    "__version__",
    "bound",
    "composition_cover",
    "dudley",
    "entropy_frobenius",
    "entropy_maurey",
    "entropy_spectral",
    "greedy_cover",
    "greedy_packing",
    "hoeffding",
    "lipschitz",
    "lipschitz_image",
    "log_cover",
    "massart",
    "measure_gap",
    "norm_based",
    "parameter_counting",
    "product_cover",
    "rademacher_finite",
    "rademacher_linear",
    "rademacher_lower",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first asked for."""
    if name in _NEED_TORCH:
        try:
            from icml25.ntp_bounds import experiments
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "torch":
                raise
            raise ImportError(f"{name} needs torch: pip install 'icml25-ntp-bounds[torch]'", name="torch") from error
        return getattr(experiments, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
