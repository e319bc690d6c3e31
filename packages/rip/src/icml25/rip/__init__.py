"""R.I.P.: judge prompts by their rejected responses and reward gaps, and keep those worth training on."""

from importlib.metadata import version as _version

from icml25.rip.baselines import (
    ChosenRewardFilter,
    GapFilter,
    IFDFilter,
    JaccardFilter,
    PerplexityFilter,
    RandomFilter,
    RejectedRewardFilter,
)
from icml25.rip.filter import RIPFilter
from icml25.rip.pairing import pair
from icml25.rip.self_rip import SelfRIPResult, self_rip
from icml25.rip.streaming import StreamingRIP

__version__ = _version("icml25-rip")
__all__ = [
    "ChosenRewardFilter",
    "GapFilter",
    "IFDFilter",
    "JaccardFilter",
    "PerplexityFilter",
    "RIPFilter",
    "RandomFilter",
    "RejectedRewardFilter",
    "SelfRIPResult",
    "StreamingRIP",
    "__version__",
    "pair",
    "self_rip",
]
