"""Quantized Mamba and Mamba2 language models, and how they are made."""

import copy
import hashlib
import json
import math
import warnings
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.models.mamba2.modeling_mamba2 import Mamba2CausalLMOutput

from .blocks import QuambaBlock, make_projection, rms_norm
from .cache import QuantizedStateCache
from .config import QuambaConfig
from .gptq import gptq_quantize
from .graph import architecture_of, batches_of
from .hadamard import RotatedLinear, fuse_hadamard_, untie_head_
from .linear import QuantizedEmbedding
from .mamba1 import QuambaMamba1Mixer
from .mamba2 import QuambaMamba2Mixer
from .observers import Scales, calibrate, channel_statistics, layer_groups
from .quantizer import ExactModule, quantize_to
from .reorder import reorder_, sort_and_cluster

__all__ = ["QuambaForCausalLM", "QuambaModelConfig", "quantize"]

_warned_about_mamba1 = False


class QuambaModelConfig(PreTrainedConfig):
    """What ``config.json`` of a quantized model says.

    Parameters
    ----------
    architecture : "mamba1" or "mamba2".
    dims_of_base : sizes of the float model.
    quantization : fields of :class:`QuambaConfig`.
    x_groups : per layer, how many scales x has.
    a16_blocks : numbers of the blocks whose activations are not quantized (W4AX).
    config_hash : of all of the above, also kept beside the weights.

    Raises
    ------
    ValueError: config_hash is not that of the other fields.
    """

    model_type = "quamba2"

    def __init__(
        self,
        architecture: str = "mamba2",
        dims_of_base: dict[str, Any] | None = None,
        quantization: dict[str, Any] | None = None,
        x_groups: list[int] | None = None,
        a16_blocks: list[int] | None = None,
        config_hash: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.architecture, self.dims_of_base, self.quantization = architecture, dims_of_base, quantization
        self.x_groups, self.a16_blocks = x_groups, a16_blocks
        self.vocab_size, self.hidden_size = ((dims_of_base or {}).get(key, 0) for key in ("vocab_size", "hidden_size"))
        self.num_hidden_layers = len(x_groups or [])
        derived = ("vocab_size", "hidden_size", "num_hidden_layers", "tie_word_embeddings")
        others: dict[str, Any] = {"tie_word_embeddings": False} | {k: v for k, v in kwargs.items() if k not in derived}
        super().__init__(**others)
        self.config_hash = self.fingerprint().hex()
        if config_hash not in (None, self.config_hash):
            raise ValueError(
                f"config_hash {config_hash} does not belong to this configuration, whose hash is {self.config_hash}"
            )

    def fingerprint(self) -> bytes:
        """SHA-256 of the fields that decide what the tensors mean."""
        fields = [self.architecture, self.dims_of_base, self.quantization, self.x_groups, self.a16_blocks or []]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest()

    @property
    def dims(self) -> SimpleNamespace:
        """Sizes of the float model, as attributes."""
        dims = SimpleNamespace(**(self.dims_of_base or {}))
        low, high = dims.time_step_limit
        dims.time_step_limit = (low, math.inf if high is None else high)
        return dims

    @property
    def quamba(self) -> QuambaConfig:
        """What was quantized, and how."""
        return QuambaConfig(**(self.quantization or {}))


class QuambaForCausalLM(PreTrainedModel, GenerationMixin):
    """A quantized Mamba or Mamba2 language model, made by :func:`quantize` or ``from_pretrained``.

    ``generate`` and ``save_pretrained`` are those of transformers. Weights, embedding, convolution and cached states are
    stored as integers (4-bit ones two per byte), in memory and on disk; ``.to(dtype)`` changes the activations that are
    not quantized, and neither integers nor scales.

    Parameters
    ----------
    config : sizes and settings; the new model holds zeros.
    """

    config_class = QuambaModelConfig
    config: Any
    activation: Tensor
    fingerprint: Tensor
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _no_split_modules = ["QuambaBlock"]  # noqa: RUF012
    _is_stateful = True
    is_quamba = True
    # regular expressions of the names that stay float32 whatever dtype is loaded
    _keep_in_fp32_modules_strict = ["scale", "bias", "norm", "A_log", "D"]  # noqa: RUF012

    def __init__(self, config: QuambaModelConfig) -> None:
        super().__init__(config)
        if not config.dims_of_base or not config.quantization:
            raise ValueError("config lacks dims_of_base or quantization: is this the folder of a quantized model?")
        dims, quamba, a16 = config.dims, config.quamba, config.a16_blocks or []
        mixer = {"mamba1": QuambaMamba1Mixer, "mamba2": QuambaMamba2Mixer}[config.architecture]
        if quamba.quantize_embedding:
            self.embeddings: Any = QuantizedEmbedding(dims.vocab_size, dims.hidden_size, quamba.weight_bits)
        else:
            self.embeddings = nn.Embedding(dims.vocab_size, dims.hidden_size)
        blocks = [mixer(i, dims, quamba, n) for i, n in enumerate(config.x_groups or [])]
        self.layers: Any = nn.ModuleList([QuambaBlock(dims, block) for block in blocks])
        for i in a16:
            blocks[i].a16 = True
        self.norm_f: Any = _FinalNorm(dims.hidden_size, quamba.activation_bits is not None and quamba.quantize_lm_head)
        if quamba.quantize_lm_head:
            self.lm_head: Any = make_projection(quamba, dims.hidden_size, dims.vocab_size)
        else:
            self.lm_head = nn.Linear(dims.hidden_size, dims.vocab_size, bias=False)
        self.register_buffer("activation", torch.zeros(()))  # its dtype is that of activations that stay float
        self.register_buffer("fingerprint", torch.zeros(32, dtype=torch.uint8))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: every tensor is filled by quantize or from a file."""

    @property
    def dtype(self) -> torch.dtype:
        """dtype of activations that are not quantized."""
        return self.activation.dtype

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.activation.device

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load what ``save_pretrained`` wrote; arguments and result are those of transformers.

        Raises
        ------
        ValueError: configuration and weights were not saved together; tensors are missing, unknown or of other shapes.
        """
        wanted = kwargs.pop("output_loading_info", False)
        loaded: Any = super().from_pretrained(*args, **kwargs, output_loading_info=True)
        model, info = loaded
        wrong = {kind: sorted(map(str, info[kind])) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")}
        if any(wrong.values()):
            found = "; ".join(f"{kind}: {', '.join(keys)}" for kind, keys in wrong.items() if keys)
            raise ValueError(f"the checkpoint does not hold the tensors of this model ({found})")
        stored = bytes(model.fingerprint.tolist())
        if stored != model.config.fingerprint():
            raise ValueError(
                f"the weights belong to the configuration with config_hash {stored.hex()}, but config.json has "
                f"{model.config.config_hash}"
            )
        return (model, info) if wanted else model

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # forward makes a QuantizedStateCache

    def get_input_embeddings(self) -> Any:
        """The embedding: a module that gives dequantized rows."""
        return self.embeddings

    def set_a16_blocks(self, mask: Sequence[bool | int]) -> None:
        """Choose the blocks that run with unquantized activations (W4A16) in a W4A8 model; weights are shared.

        Parameters
        ----------
        mask : one truth value per block.

        Raises
        ------
        ValueError: wrong length, other values, or the model is not W4A8.
        """
        if self.config.quantization["mode"] != "w4a8":
            raise ValueError(
                f"blocks can be switched in mode 'w4a8' only, this model is {self.config.quantization['mode']!r}"
            )
        if len(mask) != len(self.layers):
            raise ValueError(f"mask must have one value per block ({len(self.layers)}), got {len(mask)}")
        if any(flag not in (0, 1) for flag in mask):
            raise ValueError(f"mask must hold truth values, got {mask!r}")
        for block, flag in zip(self.layers, mask, strict=True):
            block.mixer.a16 = bool(flag)
        self.config.a16_blocks = [i for i, flag in enumerate(mask) if flag]
        self._seal()

    def _seal(self) -> None:
        """Write the configuration's hash beside the weights."""
        self.config.config_hash = self.config.fingerprint().hex()
        sealed = torch.tensor(list(self.config.fingerprint()), dtype=torch.uint8)
        self.fingerprint = sealed.to(self.fingerprint.device)

    def forward(
        self,
        input_ids: Any = None,
        inputs_embeds: Any = None,
        cache: Any = None,
        labels: Int[Tensor, "b l"] | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        use_cache: bool | None = None,
        attention_mask: Tensor | None = None,
        logits_to_keep: int = 0,
        cache_params: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Logits of the next tokens, like the float model's.

        Parameters
        ----------
        input_ids : (b, l) token ids.
        inputs_embeds : (b, l, d_model) instead of input_ids.
        cache, cache_params : what an earlier call returned as ``cache`` (two names of one argument).
        labels : (b, l); gives ``loss``, shifted inside; -100 is ignored.
        output_hidden_states : also return the input of each block and the last norm's output.
        return_dict : False for a tuple.
        use_cache : return a cache (True unless the model trains).
        attention_mask : (b, l) or longer, 0 at padding, whose inputs are zeroed.
        logits_to_keep : only the last so many positions; 0 for all.

        Returns
        -------
        Mamba2CausalLMOutput with float32 ``logits`` (b, l, vocab).

        Raises
        ------
        TypeError: what is no tensor, ids that are no integers. ValueError: neither or both of input_ids and inputs_embeds, or both of cache
            and cache_params; no token, an id out of the vocabulary, shapes that do not fit; embeddings that are NaN or
            infinite; a mask of other values than 0 and 1; a cache of another kind, depth, batch, width or mode.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        if cache is not None and cache_params is not None and cache is not cache_params:
            raise ValueError("cache and cache_params are two names of one argument, but two caches came")
        cache = cache if cache is not None else cache_params
        use_cache = not self.training if use_cache is None else use_cache
        if cache is None and use_cache:
            cache = QuantizedStateCache(len(self.layers))
        hidden = self._checked_embedding(input_ids, inputs_embeds)
        batch, length, _ = hidden.shape
        if cache is not None:
            _check_cache(cache, len(self.layers), batch)
        if logits_to_keep < 0:
            raise ValueError(f"logits_to_keep must be at least 0, got {logits_to_keep}")
        _require_tensor("attention_mask", attention_mask)
        if attention_mask is not None and (
            attention_mask.ndim != 2 or len(attention_mask) != batch or attention_mask.shape[1] < length
        ):
            raise ValueError(
                f"attention_mask must be ({batch}, {length}) or longer, got shape {tuple(attention_mask.shape)}"
            )
        mask = None
        if attention_mask is not None and not bool(((attention_mask == 0) | (attention_mask == 1)).all()):
            raise ValueError("attention_mask must hold zeros and ones")
        if attention_mask is not None and length > 1 and not bool((attention_mask == 1).all()):
            mask = attention_mask[:, -length:, None].to(hidden)
        seen = []
        for block in self.layers:
            if output_hidden_states:
                seen.append(hidden)
            hidden = block(hidden, self.dtype, cache, mask)
        if cache is not None:
            cache.advance(length)
        hidden = self.final(hidden)
        if output_hidden_states:
            seen.append(hidden)
        logits = self.head(hidden[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        states: Any = cache if use_cache else None  # transformers declares a class of its own
        output = Mamba2CausalLMOutput(
            loss=loss, logits=logits, cache=states, hidden_states=tuple(seen) if output_hidden_states else None
        )
        return output.to_tuple() if return_dict is False else output

    def embed(self, ids: Int[Tensor, "b l"]) -> Float[Tensor, "b l d"]:
        """Rows of the embedding: float32 when activations are integers, else in the dtype of activations."""
        return self._stream(self.embeddings(ids))

    def _stream(self, hidden: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        return hidden.to(self.dtype) if self.config.quamba.activation_bits is None else hidden.float()

    def _checked_embedding(self, ids: Any, given: Any) -> Float[Tensor, "b l d"]:
        _require_tensor("input_ids", ids)
        _require_tensor("inputs_embeds", given)
        if ids is None:
            if given.ndim != 3 or given.shape[2] != self.config.hidden_size or given.numel() == 0:
                raise ValueError(f"inputs_embeds must be (b, l, {self.config.hidden_size}), got {tuple(given.shape)}")
            if not bool(torch.isfinite(given).all()):
                raise ValueError("inputs_embeds is NaN or infinite")
            return self._stream(given)
        if ids.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
            raise TypeError(f"input_ids must hold integers, got dtype {ids.dtype}")
        if ids.ndim != 2 or ids.numel() == 0:
            reason = "has length 0" if ids.ndim == 2 and len(ids) else f"has shape {tuple(ids.shape)}"
            raise ValueError(f"input_ids {reason}; expected (b, l) with at least one token")
        low, high = (int(v) for v in ids.aminmax())
        if low < 0 or high >= self.config.vocab_size:
            bad = low if low < 0 else high
            raise ValueError(f"input_ids holds token id {bad}, outside 0..{self.config.vocab_size - 1}")
        return self.embed(ids.long())

    def final(self, hidden: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        """The last norm."""
        return rms_norm(hidden, self.norm_f.weight, self.config.dims.layer_norm_epsilon, hidden.shape[-1])

    def head(self, hidden: Float[Tensor, "b l d"]) -> Float[Tensor, "b l v"]:
        """float32 logits of normed states."""
        if isinstance(self.lm_head, nn.Linear):
            return self.lm_head(hidden.to(self.lm_head.weight.dtype)).float()
        bits = self.config.quamba.activation_bits
        if bits is None:
            return self.lm_head.floating(hidden.to(self.dtype)).float()
        return self.lm_head.integer(quantize_to(hidden, self.norm_f.scale, bits), self.norm_f.scale)

    def footprint(self) -> dict[str, int]:
        """Bytes in memory and on disk by part: embedding, lm_head, projections, conv, scales, float32 and their total."""
        parts = dict.fromkeys(("embedding", "lm_head", "projections", "conv", "scales", "float32"), 0)
        for name, tensor in self.state_dict().items():
            if "scale" in name or name.endswith("channel_group"):
                part = "scales"
            elif name.startswith(("embeddings", "lm_head")):
                part = "embedding" if name.startswith("embeddings") else "lm_head"
            elif "_proj." in name:
                part = "projections"
            elif name.endswith("conv_weight"):
                part = "conv"
            else:
                part = "float32"
            parts[part] += tensor.nbytes
        return parts | {"total": sum(parts.values())}

    def footprint_states(self, batch: int = 1) -> dict[str, int]:
        """Bytes of the cached states of ``batch`` sequences: conv, ssm and their total; independent of length."""
        if not isinstance(batch, int) or batch < 1:
            raise ValueError(f"batch must be at least 1 and an integer, got {batch!r}")
        parts = {"conv": 0, "ssm": 0}
        for block in self.layers:
            mixer, dims = block.mixer, block.mixer.dims
            conv = (dims.conv_kernel - 1) * len(mixer.conv_weight)
            parts["conv"] += batch * conv * (self.activation.itemsize if mixer.a16 else (mixer.bits + 7) // 8)
            wide = 4 if mixer.a16 or not mixer.state_bits else (mixer.state_bits + 7) // 8
            parts["ssm"] += batch * dims.intermediate_size * dims.state_size * wide
        return parts | {"total": sum(parts.values())}


def _require_tensor(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")


def _check_cache(cache: Any, depth: int, batch: int) -> None:
    if not isinstance(cache, QuantizedStateCache):
        raise ValueError(f"cache must be a QuantizedStateCache, got {type(cache).__name__}")
    if len(cache.state) != depth:
        raise ValueError(f"cache is of a model with {len(cache.state)} layers, this one has {depth}")
    rows = cache.batch_size
    if rows not in (None, batch):
        raise ValueError(f"cache holds the states of {rows} sequences, but {batch} came")


class _FinalNorm(ExactModule):
    """Weight of the last norm, and the scale of its output when the head takes integers."""

    def __init__(self, size: int, quantized: bool) -> None:
        super().__init__()
        self._own("weight", (size,))
        if quantized:
            self._own("scale", ())


def _dims_of(model: Any, architecture: str) -> dict[str, Any]:
    """Sizes, read off the modules rather than the configuration."""
    config, block = model.config, model.backbone.layers[0]
    mixer = block.mixer
    dims = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": mixer.intermediate_size,
        "state_size": mixer.ssm_state_size,
        "conv_kernel": mixer.conv_kernel_size,
        "time_step_rank": mixer.time_step_rank,
        "use_bias": mixer.in_proj.bias is not None,
        "use_conv_bias": mixer.conv1d.bias is not None,
        "layer_norm_epsilon": block.norm.variance_epsilon,
        "residual_in_fp32": bool(config.residual_in_fp32),
        "time_step_limit": [0.0, None],
    }
    if architecture == "mamba2":
        low, high = mixer.time_step_limit
        dims |= {
            "num_heads": mixer.num_heads,
            "head_dim": mixer.head_dim,
            "n_groups": mixer.n_groups,
            "norm_group_size": getattr(mixer.norm, "group_size", None) or mixer.intermediate_size,
            "time_step_limit": [low, None if math.isinf(high) else high],
        }
    return dims


@torch.no_grad()
def quantize(
    model: Any,
    calib: Iterable[Any],
    config: Any = None,
    *,
    inplace: bool = False,
    progress: bool = False,
) -> QuambaForCausalLM:
    """Quantize a Mamba or Mamba2 language model after training.

    Sort-and-cluster, rotation, calibration, then block by block rounding or GPTQ on what the quantized blocks before
    it give out.

    Parameters
    ----------
    model : ``MambaForCausalLM`` or ``Mamba2ForCausalLM`` of transformers, in any float dtype, on any device.
    calib : iterable of LongTensors (l,) or (b, l), or of dicts with ``input_ids`` (the paper: 512 sequences of 512
        tokens; 128 of 1024 for GPTQ).
    config : mode and settings; W8A8 by default.
    inplace : use up ``model``, whose weights change and whose blocks are freed one by one, instead of a copy.
    progress : show a bar.

    Returns
    -------
    QuambaForCausalLM on the model's device.

    Raises
    ------
    TypeError: another class of model, or one that is quantized already; a config that is no QuambaConfig.
    ValueError: a model that is rotated; calibration data that is empty or out of the vocabulary; weights or activations
        that are NaN or infinite.
    """
    config = QuambaConfig() if config is None else config
    if not isinstance(config, QuambaConfig):
        raise TypeError(f"config must be a QuambaConfig, got {type(config).__name__}")
    architecture = architecture_of(model)
    if any(isinstance(block.mixer.out_proj, RotatedLinear) for block in model.backbone.layers):
        raise ValueError("model is rotated already by fuse_hadamard_; expected one as trained")
    batches = batches_of(calib, model.config.vocab_size)
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            name = name.replace("backbone.layers.", "layer ")
            raise ValueError(f"the model's weight {name} is NaN or infinite")
    generation = copy.deepcopy(model.generation_config)
    if not inplace:
        model = copy.deepcopy(model)
    model.eval()
    untie_head_(model)
    if config.reorder and config.activation_bits is not None:
        _reorder(model, batches, config, architecture)
    if config.hadamard:
        fuse_hadamard_(model)
    scales = None if config.activation_bits is None else calibrate(model, batches, config)
    groups = [layer_groups(block.mixer, config)[:2] for block in model.backbone.layers]
    quantized = QuambaForCausalLM(
        QuambaModelConfig(
            architecture=architecture,
            dims_of_base=_dims_of(model, architecture),
            quantization=config.to_dict(),
            x_groups=[n for _, n in groups],
            bos_token_id=model.config.bos_token_id,
            eos_token_id=model.config.eos_token_id,
            pad_token_id=model.config.pad_token_id,
            dtype=model.dtype,
        )
    )
    nn.Module.to(quantized, device=model.device, dtype=model.dtype)
    quantized.eval()
    _fill(quantized, model, batches, scales, [index for index, _ in groups], config, progress)
    quantized.generation_config = generation
    quantized._seal()
    return quantized


def _reorder(model: Any, batches: list[Tensor], config: QuambaConfig, architecture: str) -> None:
    global _warned_about_mamba1
    if architecture == "mamba1":
        if not _warned_about_mamba1:
            warnings.warn("reorder=True is ignored: Mamba1 has no heads to sort and cluster", UserWarning, stacklevel=3)
            _warned_about_mamba1 = True
        return
    specs = [
        sort_and_cluster(
            stats,
            block.mixer.n_groups,
            config.head_groups,
            config.channel_groups,
            normalize=config.normalize,
            channel_cluster=config.channel_cluster,
            seed=config.seed,
        )
        for stats, block in zip(channel_statistics(model, batches, config.stat), model.backbone.layers, strict=True)
    ]
    reorder_(model, specs)


class _Collecting(nn.Module):
    """Stands in for a layer that is yet to be quantized: multiplies in float, and sums H = (2/n) X^T X when asked to."""

    def __init__(self, linear: nn.Linear, name: str) -> None:
        super().__init__()
        self.linear, self.name, self.collecting, self.rows = [linear], name, False, 0
        self.hessian = torch.zeros(linear.in_features, linear.in_features, device=linear.weight.device)

    def floating(self, x: Tensor) -> Tensor:
        [linear] = self.linear
        if self.collecting:
            flat = x.reshape(-1, x.shape[-1]).float()
            if not bool(torch.isfinite(flat).all()):
                raise ValueError(f"calibration: the input of {self.name} is NaN or infinite")
            self.hessian.addmm_(flat.T, flat)
            self.rows += len(flat)
        bias = None if self.name.startswith("dt_proj") else linear.bias  # that of dt_proj is added before softplus
        return F.linear(x.to(linear.weight.dtype), linear.weight, bias)

    def integer(self, x: Tensor, x_scale: Tensor) -> Tensor:
        return self.floating(x * x_scale).float()


def _fill(
    quantized: QuambaForCausalLM,
    model: Any,
    batches: list[Tensor],
    scales: Scales | None,
    groups: list[Tensor],
    config: QuambaConfig,
    progress: bool,
) -> None:
    """Move everything over, block by block; with GPTQ each layer sees what the quantized ones before it give out."""
    backbone = model.backbone
    if config.quantize_embedding:
        quantized.embeddings.load_float_(backbone.embeddings.weight)
    else:
        quantized.embeddings.weight.copy_(backbone.embeddings.weight)
    hidden = [quantized.embed(ids.to(quantized.device)) for ids in batches] if config.uses_gptq else []
    for i, block in enumerate(tqdm(quantized.layers, "quantize", disable=not progress, unit="block")):
        old = backbone.layers[i]
        mixer = block.mixer
        block._fill(norm_weight=old.norm.weight)
        mixer.load_float_(old.mixer)
        mixer.load_conv_(old.mixer.conv1d, max(8, config.weight_bits))
        if scales is not None:
            mixer.load_scales_(scales.layers[i], groups[i])
        if config.uses_gptq:
            _gptq_block(block, old.mixer, hidden, quantized.dtype, config)
            hidden = [block(h, quantized.dtype) for h in hidden]
        else:
            for name in mixer.projections:
                _load(getattr(mixer, name), getattr(old.mixer, name), name)
        backbone.layers[i] = nn.Identity()
    quantized.norm_f._fill(weight=backbone.norm_f.weight)
    if not config.quantize_lm_head:
        quantized.lm_head.weight.copy_(model.lm_head.weight)
        return
    if scales is not None:
        quantized.norm_f._fill(scale=scales.head)
    if config.uses_gptq:
        head = _Collecting(model.lm_head, "lm_head")
        head.collecting, kept, quantized.lm_head = True, quantized.lm_head, head
        for h in hidden:
            quantized.head(quantized.final(h))
        quantized.lm_head = kept
        _load(kept, model.lm_head, "lm_head", head, config)
    else:
        quantized.lm_head.load_float_(model.lm_head.weight)


def _gptq_block(block: Any, old: Any, hidden: list[Tensor], dtype: torch.dtype, config: QuambaConfig) -> None:
    mixer = block.mixer
    kept = {name: getattr(mixer, name) for name in mixer.projections}
    for name in mixer.projections:
        setattr(mixer, name, _Collecting(getattr(old, name), f"{name} of layer {mixer.layer}"))
    for name, layer in kept.items():
        collecting = getattr(mixer, name)
        collecting.collecting = True
        for h in hidden:
            block(h, dtype)
        _load(layer, getattr(old, name), name, collecting, config)
        setattr(mixer, name, layer)


def _load(
    layer: Any, linear: nn.Linear, name: str, collected: _Collecting | None = None, config: QuambaConfig | None = None
) -> None:
    bias = None if name == "dt_proj" else linear.bias
    if collected is None or config is None:
        layer.load_float_(linear.weight, bias)
        return
    hessian = collected.hessian * (2 / collected.rows)
    layer.load_quantized_(*gptq_quantize(linear.weight, hessian, 4, layer.group_size, config.percdamp), bias)


# transformers' own loaders know the class once this module is imported
AutoConfig.register(QuambaModelConfig.model_type, QuambaModelConfig, exist_ok=True)
AutoModelForCausalLM.register(QuambaModelConfig, QuambaForCausalLM, exist_ok=True)
