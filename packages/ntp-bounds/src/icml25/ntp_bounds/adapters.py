"""Sizes and norms read from models of torch and of transformers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from icml25.ntp_bounds.checks import check_integer
from icml25.ntp_bounds.models import Block, Decoder
from icml25.ntp_bounds.spec import DecoderSpec, MatrixNorms

EXACT, ITERATIONS, SAFETY = 2048, 50, 1.01
ACTIVATIONS = ("torch.nn.modules.activation.SiLU", "transformers.activations.SiLUActivation")
ROPE_ISOMETRIES = ("default", "linear", "dynamic", "llama3", "proportional")  # YaRN and LongRoPE scale, too


@torch.no_grad()
def matrix_norms(W: Float[Tensor, "a b"], gain: Float[Tensor, " b"] | None = None) -> tuple[MatrixNorms, bool]:
    """Norms of a matrix (behind a gain of its columns), and whether the spectral one is exact.

    It is up to a smaller side of 2048; beyond, it is 1.01 times what 50 power iterations find (from below), at most fro.
    """
    W = W.double() if gain is None else W.double() * gain.double()
    if not torch.isfinite(W).all():
        raise ValueError(f"a matrix of shape {tuple(W.shape)} holds NaN or infinity")
    fro = float(torch.linalg.matrix_norm(W))
    if min(W.shape) <= EXACT:
        gram = W @ W.mT if W.shape[0] <= W.shape[1] else W.mT @ W
        op = math.sqrt(max(float(torch.linalg.eigvalsh(gram)[-1]), 0.0))
        return MatrixNorms(min(op, fro), fro), True
    x = torch.randn(W.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(W.device)
    for _ in range(ITERATIONS):
        x = W.mT @ (W @ (x / x.norm()))
    return MatrixNorms(min(SAFETY * math.sqrt(float(x.norm())), fro), fro), False


def decoder_spec(model: Any, seq_len: int | None, mask: Any) -> DecoderSpec:
    """``DecoderSpec.from_torch``."""
    if not isinstance(model, Decoder):
        raise NotImplementedError(
            f"from_torch reads icml25.ntp_bounds.models.Decoder, got {type(model).__name__}; transformers' Llama and "
            "Mistral are read by from_hf"
        )
    _check_modules(model, lambda kind: kind in (Decoder, Block))
    shell = model.shell
    if seq_len is not None and check_integer(seq_len, "seq_len") > shell.seq_len:
        raise ValueError(f"seq_len must be at most the model's {shell.seq_len}, got {seq_len}")
    m = shell.seq_len if seq_len is None else int(seq_len)
    own = shell.mask[:m, :m] if isinstance(shell.mask, np.ndarray) else shell.mask
    shell = replace(shell, seq_len=m, mask=own)
    if mask is not None and (replace(shell, mask=mask).mask_matrix != shell.mask_matrix).any():
        raise ValueError(f"mask {mask!r} is not the model's, {shell.mask!r}")
    weights: dict[str, tuple[Tensor, Tensor | None]] = {
        name: (model.get_parameter(f"{path}.weight"), None) for name, path in model.paths.items()
    }
    weights["positions"] = model.positions.weight[:m], None
    known = {f"{path}.weight" for path in model.paths.values()}
    if others := [name for name, _ in model.named_parameters() if name not in known]:
        raise NotImplementedError(f"{others[0]} is no part of a Decoder; its effect isn't understood")
    return _measured(shell, weights)


def _check_modules(model: nn.Module, known: Callable[[type], bool]) -> None:
    """Refuse modules of other classes, derived ones included, and hooks, which may do anything."""
    for name, module in model.named_modules():
        kind = type(module)
        if not (kind in (nn.Linear, nn.Embedding, nn.ModuleList) or known(kind)) or getattr(module, "max_norm", None):
            raise NotImplementedError(f"{name or 'the model'} is a {kind.__name__}; its effect isn't understood")
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        if any(not getattr(hook, "__module__", "").startswith("transformers.") for hook in hooks):  # theirs only look
            raise NotImplementedError(f"{name or 'the model'} has a forward hook; its effect isn't understood")


def llama_spec(model: Any, seq_len: int) -> DecoderSpec:
    """``DecoderSpec.from_hf``."""
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", type(model).__name__)
    if kind not in ("llama", "mistral") or getattr(model, "lm_head", None) is None:
        raise NotImplementedError(
            f"from_hf reads Llama and Mistral ...ForCausalLM, got {kind} ({type(model).__name__})"
        )
    if config.hidden_act != "silu":
        raise NotImplementedError(f"model.layers.*.mlp.act_fn: activation {config.hidden_act!r}; silu is understood")
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope not in ROPE_ISOMETRIES:
        raise NotImplementedError(f"model.rotary_emb: rope_type {rope!r} is not known to keep norms")
    if config.head_dim not in (None, config.hidden_size // config.num_attention_heads):
        raise NotImplementedError(f"model.layers.*.self_attn: head_dim {config.head_dim} is not dim / heads")
    home = f"transformers.models.{kind}.modeling_{kind}"
    _check_modules(model, lambda of: of.__module__ == home or f"{of.__module__}.{of.__name__}" in ACTIVATIONS)
    tensors = dict(model.named_parameters())
    layer = "model.layers.{}."
    # a norm's gain and the matrices behind it: (x gain) W^T = x (W gain)^T
    gains = {"input_layernorm": ("Q", "K", "V"), "post_attention_layernorm": ("W1", "W3")}
    parts = {
        "Q": "self_attn.q_proj",
        "K": "self_attn.k_proj",
        "V": "self_attn.v_proj",
        "O": "self_attn.o_proj",
        "W1": "mlp.gate_proj",
        "W3": "mlp.up_proj",
        "W2": "mlp.down_proj",
    }
    used: set[str] = set()

    def take(name: str) -> Tensor:
        used.add(f"{name}.weight")
        if f"{name}.weight" not in tensors:
            raise NotImplementedError(f"{name} has no weight of its own; a fused or tied one isn't understood")
        return tensors[f"{name}.weight"]

    weights: dict[str, tuple[Tensor, Tensor | None]] = {"embedding": (take("model.embed_tokens"), None)}
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    for index in range(config.num_hidden_layers):
        behind = {name: take(layer.format(index) + norm) for norm, names in gains.items() for name in names}
        weights |= {
            f"{index}.{name}": (take(layer.format(index) + path), behind.get(name)) for name, path in parts.items()
        }
    gain = take("model.norm")
    weights["W_out"] = (weights["embedding"][0] if tied else take("lm_head")), gain
    tied_still = tied and bool((gain == 1).all())
    if others := [name for name in tensors if name not in used]:
        raise NotImplementedError(f"{others[0]} is no part of a Llama without biases; its effect isn't understood")
    window = getattr(config, "sliding_window", None)
    notes = () if tied_still or not tied else ("W_out is tied to the embedding but for a gain: counted as a matrix",)
    shell = DecoderSpec(
        vocab=config.vocab_size,
        dim=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        ffn_dim=config.intermediate_size,
        n_layers=config.num_hidden_layers,
        seq_len=seq_len,
        norms=(1.0, 1.0),
        mask=("window", window) if window else "causal",
        norm="rmsnorm",
        rms_eps=config.rms_norm_eps,
        pre_norm=True,
        gated=True,
        tied=tied_still,
        positions=False,
        notes=notes,
    )
    return _measured(shell, weights)


def _measured(shell: DecoderSpec, weights: Mapping[str, tuple[Tensor, Tensor | None]]) -> DecoderSpec:
    for name, shape in shell.shapes.items():
        weight = weights[name][0]
        if sorted(weight.shape) != sorted(shape) or not weight.is_floating_point():
            raise NotImplementedError(
                f"{name} is {weight.dtype} of shape {tuple(weight.shape)}; expected floating point of {shape} (or transposed)"
            )
    found = {name: matrix_norms(*weights[name]) for name in shell.shapes}
    notes = [f"op of {name} is {SAFETY} times a power iteration's" for name, (_, exact) in found.items() if not exact]
    return replace(shell, norms={name: norms for name, (norms, _) in found.items()}, notes=(*shell.notes, *notes))
