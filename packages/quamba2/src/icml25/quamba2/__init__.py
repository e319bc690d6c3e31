"""Post-training quantization of Mamba and Mamba2 language models to 8 and 4 bits (Quamba2, ICML 2025)."""

from typing import TYPE_CHECKING, Any

from .cache import QuantizedStateCache
from .config import QuambaConfig
from .gptq import gptq_quantize
from .graph import fast_scan
from .hadamard import fuse_hadamard_, hadamard_matrix, hadamard_transform
from .linear import W4A8Linear, W4A16Linear, W8A8Linear, pack_int4, unpack_int4
from .mixed import search_mixed
from .observers import Scales, calibrate
from .quantizer import SymmetricQuantizer
from .reorder import GroupSpec, reorder_, sort_and_cluster
from .scan import selective_scan, selective_step, ssd_chunk_scan, ssd_step

if TYPE_CHECKING:
    from .model import QuambaForCausalLM, QuambaModelConfig, quantize

__all__ = [
    "GroupSpec",
    "QuambaConfig",
    "QuambaForCausalLM",
    "QuambaModelConfig",
    "QuantizedStateCache",
    "Scales",
    "SymmetricQuantizer",
    "W4A8Linear",
    "W4A16Linear",
    "W8A8Linear",
    "calibrate",
    "fast_scan",
    "fuse_hadamard_",
    "gptq_quantize",
    "hadamard_matrix",
    "hadamard_transform",
    "pack_int4",
    "quantize",
    "reorder_",
    "search_mixed",
    "selective_scan",
    "selective_step",
    "sort_and_cluster",
    "ssd_chunk_scan",
    "ssd_step",
    "unpack_int4",
]
__version__ = "0.1.0"

_LAZY = ("QuambaForCausalLM", "QuambaModelConfig", "quantize")  # these need transformers


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from . import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
