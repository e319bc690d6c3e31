"""The float Mamba and Mamba2 blocks of transformers, run through this package's scans, with every activation in sight."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .hadamard import RotatedLinear, hadamard_transform
from .scan import causal_conv, selective_scan, ssd_chunk_scan

__all__ = ["architecture_of", "batches_of", "check_model", "fast_scan"]

_STATES_EVERY = 16  # tokens between the states that calibration sees

Observe = Callable[[int, str, Tensor], None]


def architecture_of(model: Any) -> str:
    """ "mamba1" or "mamba2"; TypeError for anything else."""
    from transformers import Mamba2ForCausalLM, MambaForCausalLM

    for name, kind in (("mamba1", MambaForCausalLM), ("mamba2", Mamba2ForCausalLM)):
        if isinstance(model, kind):
            if model.config.hidden_act not in ("silu", "swish"):
                raise ValueError(f"model.config.hidden_act must be silu, got {model.config.hidden_act!r}")
            return name
    if getattr(model, "is_quamba", False):
        raise TypeError("model is a QuambaForCausalLM, quantized already; expected a float model")
    raise TypeError(f"model must be a MambaForCausalLM or Mamba2ForCausalLM, got {type(model).__name__}")


check_model = architecture_of


def batches_of(calib: Iterable[Any], vocab_size: int) -> list[Tensor]:
    """Calibration sequences as LongTensors (b, l), checked; padded ones are cut to what their mask keeps."""
    if isinstance(calib, (str, bytes, Mapping)) or not isinstance(calib, Iterable):
        raise TypeError(f"calibration data must be an iterable of LongTensors, got {type(calib).__name__}")
    batches = []
    for i, item in enumerate(calib):
        mask = None
        if isinstance(item, Mapping):
            if "input_ids" not in item:
                raise ValueError(f"calibration item {i} has no input_ids, only {', '.join(map(str, item))}")
            item, mask = item["input_ids"], item.get("attention_mask")
        try:
            ids = torch.as_tensor(item)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"calibration item {i} must be a LongTensor or a dict, got {type(item).__name__}") from None
        if ids.numel() == 0 or ids.ndim not in (1, 2):
            raise ValueError(
                f"calibration item {i} has shape {tuple(ids.shape)}; expected (l,) or (b, l) with at least one token"
            )
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise TypeError(f"calibration item {i} has dtype {ids.dtype}; expected integer token ids")
        ids = ids.long().reshape(-1, ids.shape[-1])
        for bad in ids[(ids < 0) | (ids >= vocab_size)].tolist():
            raise ValueError(f"calibration item {i} holds token id {bad}, outside 0..{vocab_size - 1}")
        if mask is not None and torch.as_tensor(mask).shape not in (ids.shape, torch.as_tensor(item).shape):
            raise ValueError(
                f"calibration item {i} has attention_mask of shape {tuple(torch.as_tensor(mask).shape)} for input_ids of "
                f"shape {tuple(ids.shape)}"
            )
        if mask is None or bool(torch.as_tensor(mask).all()):
            batches.append(ids)
        else:
            keep = torch.as_tensor(mask).bool().reshape(ids.shape)
            batches += [row[kept][None] for row, kept in zip(ids, keep, strict=True) if kept.any()]
    if not batches:
        raise ValueError("calibration data is empty; expected at least one sequence")
    return batches


@contextmanager
def fast_scan(model: Any, observe: Observe | None = None) -> Iterator[Any]:
    """Run a float Mamba or Mamba2 model through this package's chunked scans, several times faster on a CPU.

    In the block, forward passes without a cache (training, scoring) use :func:`ssd_chunk_scan` or
    :func:`selective_scan` instead of the torch fallback of transformers; generation is as before.

    Parameters
    ----------
    model : ``MambaForCausalLM`` or ``Mamba2ForCausalLM`` of transformers.
    observe : called with layer, name and tensor of each activation that is quantized.

    Returns
    -------
    Context manager that gives the model.

    Raises
    ------
    TypeError: another class.
    """
    run = {"mamba1": _mamba1, "mamba2": _mamba2}[architecture_of(model)]
    mixers = [block.mixer for block in model.backbone.layers]
    before = [vars(mixer).get("forward") for mixer in mixers]

    def patched(layer: int, mixer: Any, previous: Any) -> MethodType:
        def forward(
            self: Any, hidden_states: Tensor, cache: Any = None, attention_mask: Any = None, **kwargs: Any
        ) -> Any:
            if cache is not None:
                original = previous or partial(type(self).forward, self)
                return original(hidden_states, cache=cache, attention_mask=attention_mask, **kwargs)
            see = partial(observe, layer) if observe else None
            return run(self, hidden_states, attention_mask, see)

        return MethodType(forward, mixer)  # a method, so that a deep copy runs the copy's weights

    for layer, (mixer, previous) in enumerate(zip(mixers, before, strict=True)):
        mixer.forward = patched(layer, mixer, previous)
    try:
        yield model
    finally:
        for mixer, previous in zip(mixers, before, strict=True):
            del mixer.forward
            if previous is not None:
                mixer.forward = previous


See = Callable[[str, Tensor], None] | None


def _project_out(mixer: Any, y: Tensor, see: See) -> Tensor:
    rotated = isinstance(mixer.out_proj, RotatedLinear)
    y = y.to(mixer.out_proj.weight.dtype)
    if see:
        see("out", hadamard_transform(y) if rotated else y)
    return mixer.out_proj(y)


def _convolved(mixer: Any, x: Tensor, mask: Tensor | None) -> Tensor:
    weight = mixer.conv1d.weight[:, 0]
    y = causal_conv(F.pad(x, (0, 0, weight.shape[1] - 1, 0)), weight)
    y = F.silu(y if mixer.conv1d.bias is None else y + mixer.conv1d.bias)
    return y if mask is None else y * mask


def _mask(mask: Tensor | None, hidden: Tensor) -> Tensor | None:
    return None if mask is None else mask[:, :, None].to(hidden.dtype)


def _mamba2(mixer: Any, hidden: Tensor, mask: Tensor | None, see: See) -> Tensor:
    mask = _mask(mask, hidden)
    hidden = hidden if mask is None else hidden * mask
    batch, length, _ = hidden.shape
    d, states, heads = mixer.intermediate_size, mixer.n_groups * mixer.ssm_state_size, mixer.num_heads
    parts = mixer.in_proj(hidden).split([d, d + 2 * states, heads], -1)
    z, dt = parts[0], parts[2]
    x, B, C = _convolved(mixer, parts[1], mask).split([d, states, states], -1)
    if see:
        see("in", hidden)
        for name, value in zip(
            ("z", "x", "B", "C", "dt"), (z, *parts[1].split([d, states, states], -1), dt), strict=True
        ):
            see(name, value)
        for name, value in (("conv_x", x), ("conv_B", B), ("conv_C", C)):
            see(name, value)
    wide = torch.promote_types(hidden.dtype, torch.float32)
    dt = F.softplus(dt.to(wide) + mixer.dt_bias).clamp(*mixer.time_step_limit)
    y, _ = ssd_chunk_scan(
        x.reshape(batch, length, heads, -1),
        dt,
        -mixer.A_log.to(wide).exp(),
        B.reshape(batch, length, mixer.n_groups, -1),
        C.reshape(batch, length, mixer.n_groups, -1),
        mixer.D,
        _STATES_EVERY if see else 32,
        on_states=(lambda state: see("state", state.flatten(2, 3))) if see else None,
    )
    return _project_out(mixer, mixer.norm(y.reshape(batch, length, -1), z), see)


def _mamba1(mixer: Any, hidden: Tensor, mask: Tensor | None, see: See) -> Tensor:
    mask = _mask(mask, hidden)
    hidden = hidden if mask is None else hidden * mask
    inner, z = mixer.in_proj(hidden).chunk(2, -1)
    x = _convolved(mixer, inner, mask)
    dt_low, B, C = mixer.x_proj(x).split([mixer.time_step_rank, mixer.ssm_state_size, mixer.ssm_state_size], -1)
    dt = F.linear(dt_low, mixer.dt_proj.weight)
    if see:
        values = (hidden, inner, z, x, dt_low, B, C, dt)
        for name, value in zip(("in", "x", "z", "conv_x", "dt_low", "B", "C", "dt"), values, strict=True):
            see(name, value)
    wide = torch.promote_types(hidden.dtype, torch.float32)
    y, _ = selective_scan(
        x,
        F.softplus(dt.to(wide) + mixer.dt_proj.bias),
        -mixer.A_log.to(wide).exp(),
        B,
        C,
        mixer.D,
        _STATES_EVERY if see else None,
        on_states=(lambda state: see("state", state)) if see else None,
    )
    return _project_out(mixer, y * F.silu(z.to(wide)), see)
