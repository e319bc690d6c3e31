"""Calibration: static scales of every activation, from running maxima or percentiles (App. C)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .config import QuambaConfig
from .graph import architecture_of, batches_of, fast_scan
from .quantizer import scale_of

__all__ = ["MaxObserver", "PercentileObserver", "Scales", "calibrate", "channel_statistics", "grouped_max"]

_SMALL = 130_000_000  # parameters up to which a Mamba1 model is clipped less


@dataclass(frozen=True)
class Scales:
    """float32 scales of a model's activations.

    Attributes
    ----------
    layers : per layer, by name. Mamba2: in, z, x, B, C, dt and out (scalars), conv_x (K,) for the groups of
        sort-and-cluster, conv_B and conv_C (G,) for SSD groups (or one), state (K, N). Mamba1: in, x, z, dt_low, B, C,
        dt, out (scalars), conv_x (1,), state (1, N).
    head : scale of lm_head's input.
    """

    layers: list[dict[str, Tensor]]
    head: Tensor


def grouped_max(maximum: Float[Tensor, "c *rest"], index: Int[Tensor, "c"], n: int) -> Float[Tensor, "n *rest"]:
    """Maxima of values >= 0 by group along the first axis."""
    wide = index.to(maximum.device).view(-1, *[1] * (maximum.ndim - 1)).expand_as(maximum)
    return maximum.new_zeros(n, *maximum.shape[1:]).scatter_reduce(0, wide, maximum, "amax")


class MaxObserver:
    """Running max|v| over all but the last ``keep`` axes, then by group along the first of these.

    Parameters
    ----------
    index : (c,) group of each channel; None for one scalar.
    n : groups.
    keep : trailing axes that are kept (1).
    """

    def __init__(self, index: Int[Tensor, "c"] | None = None, n: int = 1, keep: int = 1) -> None:
        self.index, self.n, self.keep = index, n, keep
        self.maximum: Tensor | None = None

    def update(self, values: Float[Tensor, "..."]) -> None:
        """Take in a batch."""
        if self.index is None:
            new = values.abs().amax()
        else:
            channels = values.abs().flatten(0, -self.keep - 1).amax(0)
            new = grouped_max(channels, self.index, self.n)
        new = new.float()
        self.maximum = new if self.maximum is None else torch.maximum(self.maximum, new)


class PercentileObserver:
    """A share ``alpha`` of |v| by group, w <- w + rate (current - w) from batch to batch, starting at the first.

    Parameters
    ----------
    index : (c,) group of each channel.
    n : groups.
    alpha : share in (0, 1].
    rate : of the running update (0.01).
    """

    def __init__(self, index: Int[Tensor, "c"], n: int, alpha: float | int, rate: float = 0.01) -> None:
        self.index, self.n, self.alpha, self.rate = index, n, alpha, rate
        self.maximum: Tensor | None = None

    def update(self, values: Float[Tensor, "... c"]) -> None:
        """Take in a batch."""
        current = []
        for group in range(self.n):
            part = values[..., (self.index == group).to(values.device)].abs().float().flatten()
            current.append(part.kthvalue(max(1, math.ceil(self.alpha * len(part)))).values)
        new = torch.stack(current)
        self.maximum = new if self.maximum is None else self.maximum + self.rate * (new - self.maximum)


def layer_groups(mixer: Any, config: QuambaConfig) -> tuple[Tensor, int, Tensor, int]:
    """Group of each channel of x and their number; group of each channel of B (and of C) and their number."""
    spec = getattr(mixer, "group_spec", None)
    if spec is None:
        channel_group, n_channel = torch.zeros(mixer.intermediate_size, dtype=torch.long), 1
    else:
        channel_group, n_channel = spec.channel_group, spec.channel_sizes.numel()
    groups, states = getattr(mixer, "n_groups", 1), mixer.ssm_state_size
    if config.per_state_group:
        return channel_group, n_channel, torch.arange(groups).repeat_interleave(states), groups
    return channel_group, n_channel, torch.zeros(groups * states, dtype=torch.long), 1


def _observers(
    mixer: Any, config: QuambaConfig, mamba1: bool, alpha: float | None
) -> dict[str, MaxObserver | PercentileObserver]:
    channel, n_channel, state, n_state = layer_groups(mixer, config)
    conv_x = MaxObserver(channel, n_channel) if alpha is None else PercentileObserver(channel, n_channel, alpha)
    scalars = ("in", "x", "z", "B", "C", "dt", "out") + (("dt_low",) if mamba1 else ())
    table: dict[str, MaxObserver | PercentileObserver] = {name: MaxObserver() for name in scalars}
    table |= {"conv_x": conv_x, "state": MaxObserver(channel, n_channel, keep=2)}
    if not mamba1:
        table |= {name: MaxObserver(state, n_state) for name in ("conv_B", "conv_C")}
    return table


@torch.no_grad()
def calibrate(model: Any, calib: Iterable[Any], config: QuambaConfig) -> Scales:
    """Static scales of all activations of a float model (App. C).

    The model is taken as it is: reorder and rotate it first, since groups come from :func:`reorder_` and the input of
    out_proj is seen as rotated by :func:`fuse_hadamard_`. States are seen every 16 tokens.

    Parameters
    ----------
    model : ``MambaForCausalLM`` or ``Mamba2ForCausalLM`` of transformers.
    calib : iterable of LongTensors (l,) or (b, l), or of dicts with ``input_ids``.
    config : activation and state bits, percentile, per_state_group.

    Returns
    -------
    Scales

    Raises
    ------
    TypeError: model of another class. ValueError: calibration data that is empty or out of the vocabulary, activations
        that are NaN or infinite, mode without activation scales.
    """
    mamba1 = architecture_of(model) == "mamba1"
    if config.activation_bits is None:
        raise ValueError(f"config.mode {config.mode!r} keeps activations as they are; there is nothing to calibrate")
    batches = batches_of(calib, model.config.vocab_size)
    alpha = config.percentile
    if alpha is None and mamba1:
        alpha = 0.99999 if model.num_parameters() <= _SMALL else 0.9995
    layers = [_observers(block.mixer, config, mamba1, alpha) for block in model.backbone.layers]
    head = MaxObserver()

    def observe(layer: int, name: str, value: Tensor) -> None:
        _require_finite(layer, name, value)
        layers[layer][name].update(value)

    with fast_scan(model, observe):
        for ids in batches:
            hidden = model.backbone(ids.to(model.device), use_cache=False).last_hidden_state
            if not bool(torch.isfinite(hidden).all()):
                raise ValueError("calibration: the input of lm_head is NaN or infinite")
            head.update(hidden)

    def scale(maximum: Tensor | None, name: str) -> Tensor:
        bits = config.state_bits if name == "state" and config.state_bits else config.activation_bits
        assert maximum is not None and bits is not None
        return scale_of(maximum, bits)

    tables = [{name: scale(o.maximum, name) for name, o in table.items()} for table in layers]
    return Scales(tables, scale(head.maximum, "head"))


def _require_finite(layer: int, name: str, value: Tensor) -> None:
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"calibration: {name} of layer {layer} is NaN or infinite")


@torch.no_grad()
def channel_statistics(model: Any, batches: Iterable[Tensor], stat: str) -> list[Float[Tensor, "H P"]]:
    """Per layer of a Mamba2 model, each channel's max|x| ("max"), or the largest mean of |x| over a sequence ("mean")."""
    found: list[Tensor | None] = [None] * len(model.backbone.layers)

    def observe(layer: int, name: str, value: Tensor) -> None:
        _require_finite(layer, name, value)
        if name == "conv_x":
            size = value.abs().float()
            new = (size.amax(1) if stat == "max" else size.mean(1)).amax(0)
            old = found[layer]
            found[layer] = new if old is None else torch.maximum(old, new)

    with fast_scan(model, observe):
        for ids in batches:
            model.backbone(ids.to(model.device), use_cache=False)
    heads = [block.mixer.num_heads for block in model.backbone.layers]
    return [s.view(h, -1) for s, h in zip(found, heads, strict=True) if s is not None]
