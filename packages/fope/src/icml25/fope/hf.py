"""FoPE inside transformers' Llama-like models: convert, extend, load."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from functools import cache as memoise
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from icml25.fope.config import FopeConfig, check_config
from icml25.fope.embedding import FourierPositionEmbedding, rotate

# SmolLM and SmolLM2 are of the Llama class.
_SUPPORTED = (
    "LlamaAttention",
    "MistralAttention",
    "Qwen2Attention",
    "Qwen3Attention",
    "OlmoAttention",
    "Olmo2Attention",
)
_STORED = "rotary_emb."


class FopeRotary(FourierPositionEmbedding):
    """The table as a model's ``rotary_emb``: called once per forward pass, for all layers."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Tables of ``position_ids`` (b, t), computed in float32 and cast to the dtype of ``x``, as transformers does."""
        cos, sin = self._tables(position_ids)
        return cos.to(x.dtype), sin.to(x.dtype)


def _attention_forward(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    cache: Any = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of the supported classes; only ``rotate`` differs from theirs, as its tables have a head axis."""
    q, k, v = self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)
    if (limit := getattr(self.config, "clip_qkv", None)) is not None:  # OLMo
        q, k, v = (x.clamp(-limit, limit) for x in (q, k, v))
    if self.norm == "width":  # OLMo2
        q, k = self.q_norm(q), self.k_norm(k)
    heads = (*hidden_states.shape[:-1], -1, self.head_dim)
    q, k, v = q.view(heads), k.view(heads), v.view(heads)
    if self.norm == "head":  # Qwen3
        q, k = self.q_norm(q), self.k_norm(k)
    cos, sin = position_embeddings
    q, k, v = rotate(q.transpose(1, 2), cos, sin), rotate(k.transpose(1, 2), cos, sin), v.transpose(1, 2)
    cache = past_key_values if cache is None else cache  # the older name
    if cache is not None:
        k, v = cache.update(k, v, self.layer_idx, kwargs)
    implementation = self.config._attn_implementation
    attend = self.eager if implementation == "eager" else ALL_ATTENTION_FUNCTIONS[implementation]
    dropout = self.attention_dropout if self.training else 0.0
    if self.window is not None:
        kwargs["sliding_window"] = self.window
    out, weights = attend(self, q, k, v, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs)
    return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1)), weights


@memoise
def _fope_attention(base: type[nn.Module]) -> type[nn.Module]:
    """The attention class with its forward replaced; still an instance of the class that transformers looks for."""
    norm = {"Qwen3Attention": "head", "Olmo2Attention": "width"}.get(base.__name__, "")
    if base.__name__ == "MistralAttention":
        window = property(lambda self: getattr(self.config, "sliding_window", None))
    else:
        window = property(lambda self: getattr(self, "sliding_window", None))
    eager = staticmethod(sys.modules[base.__module__].eager_attention_forward)
    members = {"forward": _attention_forward, "norm": norm, "window": window, "eager": eager, "__module__": __name__}
    return type(f"Fope{base.__name__}", (base,), members)


def __getattr__(name: str) -> Any:
    """The converted attention classes by their names, which is how pickle finds them."""
    base = name.removeprefix("Fope")
    if base == name or base not in _SUPPORTED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    family = base.removesuffix("Attention").lower()
    return _fope_attention(getattr(import_module(f"transformers.models.{family}.modeling_{family}"), base))


def convert_model(model: PreTrainedModel, config: FopeConfig) -> PreTrainedModel:
    """Replace RoPE by FoPE in a transformers model, in place; all weights stay.

    Parameters
    ----------
    model : Llama, SmolLM, Mistral, Qwen2, Qwen3, OLMo or OLMo2, with any head.
    config : settings. ``theta`` should be the model's own if it is pretrained, and ``max_train_length`` the length that it
        is (or will be) trained at, which is not its ``max_position_embeddings``.

    Returns
    -------
    PreTrainedModel: the same object; ``model.config.fope`` holds the settings, ``model.state_dict()`` the coefficients. Load
    what it saves by ``load_fope``.

    Raises
    ------
    TypeError: another class, or a model that was converted before.
    NotImplementedError: partial rotary embedding, or a scaled one (``rope_type`` other than "default").
    ValueError: settings that do not fit the model's head dimension.

    Warns
    -----
    UserWarning: ``theta`` differs from the model's.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model must be a transformers PreTrainedModel, got {type(model).__name__}")
    check_config(config)
    if isinstance(getattr(_body(model), "rotary_emb", None), FourierPositionEmbedding):
        raise TypeError(f"model ({type(model).__name__}) has FoPE already; extend_model extends it, load_fope loads it")
    _install(model, config)
    model.config.fope = config.to_dict()
    return model


def _install(model: PreTrainedModel, config: FopeConfig) -> None:
    body, attentions = _parts(model)
    settings = getattr(model.config, "rope_parameters", None) or {}
    partial = settings.get("partial_rotary_factor", getattr(model.config, "partial_rotary_factor", None))
    if partial is not None and partial != 1:
        raise NotImplementedError(f"partial_rotary_factor = {partial}: FoPE rotates whole heads only")
    if (kind := settings.get("rope_type", "default")) != "default":
        raise NotImplementedError(
            f"rope_type = {kind!r}: FoPE replaces the frequencies and with them this scaling; set the model's "
            "rope_parameters to the default ones first (FopeConfig has a `yarn` of its own)"
        )
    theta = settings.get("rope_theta", getattr(model.config, "rope_theta", config.theta))
    if theta != config.theta:
        warnings.warn(
            f"theta = {config.theta:g}, but the model was built with rope_theta = {theta:g}; weights that were trained "
            "with it need the same theta",
            stacklevel=3,
        )
    rotary = FopeRotary(attentions[0].head_dim, model.config.num_key_value_heads, config)
    for attention in attentions:
        attention.__class__ = _fope_attention(type(attention))
        if hasattr(attention, "_old_forward"):  # accelerate's hooks call what they wrapped
            attention._old_forward = MethodType(type(attention).forward, attention)
    _place(body, rotary)


def _body(model: PreTrainedModel) -> Any:
    """The module with ``rotary_emb`` and ``layers``, without a head."""
    return getattr(model, model.base_model_prefix, model)


def _parts(model: PreTrainedModel) -> tuple[Any, list[Any]]:
    """The module with ``rotary_emb``, and its attentions."""
    body = _body(model)
    attentions = [getattr(layer, "self_attn", None) for layer in getattr(body, "layers", ())]
    names = {f"{type(a).__module__.split('.')[0]}.{type(a).__name__}" for a in attentions}
    wanted = {f"transformers.{name}" for name in _SUPPORTED}
    if not names or not names <= wanted or not hasattr(body, "rotary_emb"):
        found = ", ".join(sorted(names)) or "none"
        raise TypeError(
            f"model ({type(model).__name__}) is not supported: its attentions are {found}; expected {', '.join(_SUPPORTED)}"
        )
    return body, attentions


def _place(body: Any, rotary: FourierPositionEmbedding) -> None:
    """Put the table where the old one was, with accelerate's hook if there is one."""
    old = body.rotary_emb
    device = next((t.device for t in old.buffers()), None)
    if device is not None and device.type != "meta":
        rotary.to(device)
    body.rotary_emb = rotary.train(body.training)
    if hasattr(old, "_hf_hook"):
        from accelerate.hooks import add_hook_to_module

        add_hook_to_module(rotary, old._hf_hook)


def extend_model(
    model: PreTrainedModel,
    new_length: int,
    generator: torch.Generator | None = None,
    *,
    yarn: Mapping[str, Any] | None = None,
) -> PreTrainedModel:
    """Prepare a FoPE model for training on at another length, in place (see ``FourierPositionEmbedding.extend``).

    Parameters
    ----------
    model : a converted model.
    new_length : L' in tokens; L itself to change nothing but ``yarn``.
    generator : source of the new coefficients' noise; None takes the seed of the settings plus ``new_length``.
    yarn : YaRN's settings (see ``FopeConfig``); None keeps the model's.

    Returns
    -------
    PreTrainedModel: the same object, with ``model.config.fope`` at the new length.

    Raises
    ------
    TypeError: the model was not converted.
    """
    body = _body(model) if isinstance(model, PreTrainedModel) else None
    if body is None or not isinstance(getattr(body, "rotary_emb", None), FourierPositionEmbedding):
        raise TypeError(f"model ({type(model).__name__}) has no FoPE; convert_model converts it")
    longer = body.rotary_emb.extend(new_length, generator, yarn=yarn)
    _place(body, longer)
    model.config.fope = longer.config.to_dict()
    return model


def load_fope(path: str | Path, **kwargs: Any) -> PreTrainedModel:
    """Load a converted model that ``save_pretrained`` stored, with the very coefficients that it was trained with.

    Parameters
    ----------
    path : folder.
    kwargs : as for transformers' ``from_pretrained`` (``dtype``, ``device_map``, ``attn_implementation`` ...).

    Returns
    -------
    PreTrainedModel of the class that was saved, in evaluation mode.

    Raises
    ------
    FileNotFoundError: there is no such folder, or no safetensors file in it.
    ValueError: the model in it is not a converted one or not of a class of transformers; its coefficients are missing, do
        not fit its settings or cannot be read.
    TypeError: ``output_loading_info``, which this does not give.
    """
    if kwargs.get("output_loading_info"):
        raise TypeError("output_loading_info is not supported: load_fope returns the model alone")
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"path must be a folder with config.json, got {folder}")
    config = AutoConfig.from_pretrained(folder)
    settings = getattr(config, "fope", None)
    if settings is None:
        raise ValueError(f"{folder} holds no FoPE model: its config.json has no 'fope'")
    try:
        fope = FopeConfig(**settings)
    except TypeError as error:
        raise ValueError(f"{folder / 'config.json'} holds no valid 'fope' settings: {error}") from error
    stored = _stored_tables(folder)
    name = (config.architectures or ["none"])[0]
    architecture = getattr(transformers, name, None)
    if architecture is None:
        raise ValueError(
            f"the class of the model in {folder} is {name}, which transformers does not have; build it, call convert_model "
            "and load the state into it"
        )
    # transformers would list the table's entries as unexpected
    quiet = type(architecture.__name__, (architecture,), {"_keys_to_ignore_on_load_unexpected": [r"rotary_emb\."]})
    model = quiet.from_pretrained(folder, config=config, **kwargs)
    model.__class__ = architecture
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # said when it was converted
        _install(model, fope)
    rotary = _body(model).rotary_emb
    if missing := set(rotary.state_dict()) - set(stored):
        raise ValueError(f"{folder} lacks the coefficients {', '.join(sorted(missing))}")
    try:
        rotary.load_state_dict(stored)
    except RuntimeError as error:
        raise ValueError(
            f"the coefficients stored in {folder} do not fit the settings in its config.json: {error}"
        ) from error
    return model


def _stored_tables(folder: Path) -> dict[str, Tensor]:
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.is_file():
        names = {file for key, file in json.loads(index.read_text())["weight_map"].items() if _STORED in key}
    found = {}
    for name in sorted(names):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is missing")
        try:
            with safe_open(folder / name, framework="pt") as file:
                found |= {key.rpartition(_STORED)[2]: file.get_tensor(key) for key in file.keys() if _STORED in key}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{folder / name} cannot be read: {error}") from error
    return found
