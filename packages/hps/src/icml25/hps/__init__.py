"""Hard preference sampling (HPS): preference training on scored lists of responses at the cost of pairs."""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from icml25.hps.losses import bt_loss, hps_full_loss, hps_loss, pl_loss
from icml25.hps.metrics import reward_margin, rm_dpo, rm_r_dpo
from icml25.hps.sampling import hard_negative_weights, sample_hard_negative
from icml25.hps.schedule import GammaSchedule

if TYPE_CHECKING:
    from icml25.hps.pairs import to_preference_pairs
    from icml25.hps.trainer import DataCollatorForResponses, HPSConfig, HPSTrainer

__version__ = _version("icml25-hps")
_NEED_TRL = {
    "DataCollatorForResponses": "trainer",
    "HPSConfig": "trainer",
    "HPSTrainer": "trainer",
    "to_preference_pairs": "pairs",
}
__all__ = [
    "DataCollatorForResponses",
    "GammaSchedule",
    "HPSConfig",
    "HPSTrainer",
    "__version__",
    "bt_loss",
    "hard_negative_weights",
    "hps_full_loss",
    "hps_loss",
    "pl_loss",
    "reward_margin",
    "rm_dpo",
    "rm_r_dpo",
    "sample_hard_negative",
    "to_preference_pairs",
]


def __getattr__(name: str) -> Any:
    """Import what needs TRL or datasets when it is first asked for."""
    if name in _NEED_TRL:
        from importlib import import_module

        try:
            module = import_module(f"icml25.hps.{_NEED_TRL[name]}")
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in ("accelerate", "datasets", "pyarrow", "transformers", "trl"):
                raise
            raise ImportError(f"{name} needs {error.name}: pip install 'icml25-hps[trl]'", name=error.name) from error
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
