"""Fourier position embedding (FoPE): rotary attention that reads beyond the training length."""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from icml25.fope.config import FopeConfig, ablation
from icml25.fope.embedding import FourierPositionEmbedding, Spectrum, rotate
from icml25.fope.eval import passkey_accuracy, passkey_prompts, perplexity_by_length
from icml25.fope.frequencies import cycles, kept_frequencies, noise_std, rope_frequencies, step_eye, yarn_frequencies

if TYPE_CHECKING:
    from icml25.fope.hf import convert_model, extend_model, load_fope

__version__ = _version("icml25-fope")
_NEED_TRANSFORMERS = ("convert_model", "extend_model", "load_fope")
__all__ = [
    "FopeConfig",
    "FourierPositionEmbedding",
    "Spectrum",
    "__version__",
    "ablation",
    "convert_model",
    "cycles",
    "extend_model",
    "kept_frequencies",
    "load_fope",
    "noise_std",
    "passkey_accuracy",
    "passkey_prompts",
    "perplexity_by_length",
    "rope_frequencies",
    "rotate",
    "step_eye",
    "yarn_frequencies",
]


def __getattr__(name: str) -> Any:
    """Import what needs transformers when it is first asked for."""
    if name in _NEED_TRANSFORMERS:
        try:
            from icml25.fope import hf
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in ("transformers", "safetensors"):
                raise
            raise ImportError(f"{name} needs {error.name}: pip install 'icml25-fope[hf]'", name=error.name) from error
        return getattr(hf, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
