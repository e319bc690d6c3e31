"""Multi-bit watermark of language models that leaves the output distribution unchanged."""

import importlib
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from icml25.bimark.detector import BiMarkDetector, DetectionResult, message_p_value
from icml25.bimark.prf import context_randomness, partitions

if TYPE_CHECKING:
    from icml25.bimark.config import BiMarkConfig
    from icml25.bimark.processor import BiMarkLogitsProcessor
    from icml25.bimark.reweight import bit_flip_reweight, multilayer_reweight

__version__ = _version("icml25-bimark")
__all__ = [
    "BiMarkConfig",
    "BiMarkDetector",
    "BiMarkLogitsProcessor",
    "DetectionResult",
    "__version__",
    "bit_flip_reweight",
    "context_randomness",
    "message_p_value",
    "multilayer_reweight",
    "partitions",
]

_NEED_TORCH = {
    "BiMarkConfig": "config",
    "BiMarkLogitsProcessor": "processor",
    "bit_flip_reweight": "reweight",
    "multilayer_reweight": "reweight",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch or transformers when it is first asked for."""
    if name in _NEED_TORCH:
        return getattr(importlib.import_module(f"icml25.bimark.{_NEED_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
