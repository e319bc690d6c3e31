"""What to quantize, and how."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["MODES", "QuambaConfig"]

# mode -> bits of weights, bits of activations (None: the model's own dtype)
MODES: dict[str, tuple[int, int | None]] = {"w8a8": (8, 8), "w4a8": (4, 8), "w4a16": (4, None)}


@dataclass(frozen=True)
class QuambaConfig:
    """Settings of :func:`quantize`; the defaults are the paper's.

    Parameters
    ----------
    mode : "w8a8", "w4a8" or "w4a16": bits of weights and activations.
    head_groups, channel_groups : m and n of sort-and-cluster, heads per SSD group and channels per head cluster
        (4 and 4; clipped to what there is).
    stat : statistic of a channel over calibration, "max" (paper) or "mean" (largest mean of |x| over a sequence: the
        official code).
    normalize : cluster profiles of unit norm (True) or raw magnitudes.
    channel_cluster : "dp" (optimal contiguous segments) or "kmeans" (the official code's).
    group_size : input columns that share one 4-bit scale (128).
    gptq : minimise the output error of 4-bit weights by GPTQ; None is True for 4 bits, and False for 8.
    hadamard : rotate the residual stream and the input of out_proj.
    reorder : sort and cluster the channels of x (Mamba2, 8-bit activations); without it x has one scale.
    per_state_group : one scale of B and C per SSD group; without it one for all.
    state_bits : 8 for cached SSM states in int8, None for float32. 16-bit activations keep float32 states.
    quantize_embedding, quantize_lm_head : quantize them to the weights' bits too.
    w8_granularity : scales of 8-bit weights per output "channel", or per "tensor" (the official code).
    conv_granularity : scales of the convolution's weights per "tensor" (the paper), or per "channel", which costs as
        little time and keeps channels of very uneven weights apart.
    percentile : clip x after the convolution at this share of |x|, in (0, 1]; None is the maximum for Mamba2, and for
        Mamba1 0.9995 (0.99999 up to 130 M parameters).
    percdamp : damping of GPTQ's Hessian, a share of its mean diagonal.
    seed : of k-means.

    Raises
    ------
    ValueError: naming the field and what it may be.
    """

    mode: str = "w8a8"
    head_groups: int = 4
    channel_groups: int = 4
    stat: str = "max"
    normalize: bool = True
    channel_cluster: str = "dp"
    group_size: int = 128
    gptq: bool | None = None
    hadamard: bool = True
    reorder: bool = True
    per_state_group: bool = True
    state_bits: int | None = 8
    quantize_embedding: bool = True
    quantize_lm_head: bool = True
    w8_granularity: str = "channel"
    conv_granularity: str = "tensor"
    percentile: float | int | None = None
    percdamp: float | int = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        granularities = ("channel", "tensor")
        choices = {
            "mode": tuple(MODES),
            "stat": ("max", "mean"),
            "channel_cluster": ("dp", "kmeans"),
            "w8_granularity": granularities,
            "conv_granularity": granularities,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in ("head_groups", "channel_groups", "group_size", "seed"):
            value, least = getattr(self, name), 0 if name == "seed" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be at least {least} and an integer, got {value!r}")
        flags = ("normalize", "hadamard", "reorder", "per_state_group", "quantize_embedding", "quantize_lm_head")
        for name in (*flags, "gptq"):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (name == "gptq" and value is None):
                raise ValueError(f"{name} must be True or False, got {value!r}")
        if self.gptq and self.weight_bits != 4:
            four = ", ".join(mode for mode, (bits, _) in MODES.items() if bits == 4)
            raise ValueError(f"gptq is for 4-bit weights (modes {four}), got mode {self.mode!r}")
        if isinstance(self.state_bits, float) or self.state_bits not in (None, 8, self.activation_bits):
            raise ValueError(f"state_bits must be 8 or None (float32), got {self.state_bits!r}")
        for name, value in (("percentile", self.percentile), ("percdamp", self.percdamp)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise ValueError(f"{name} must be a number, got {value!r}")
        if self.percentile is not None and not 0 < self.percentile <= 1:
            raise ValueError(f"percentile must be in (0, 1] or None, got {self.percentile}")
        if not 0 < self.percdamp < float("inf"):
            raise ValueError(f"percdamp must be positive and finite, got {self.percdamp}")

    @property
    def weight_bits(self) -> int:
        """Bits of the weights."""
        return MODES[self.mode][0]

    @property
    def activation_bits(self) -> int | None:
        """Bits of activations, None for the model's own dtype."""
        return MODES[self.mode][1]

    @property
    def uses_gptq(self) -> bool:
        """Whether weights are found by GPTQ."""
        return self.weight_bits == 4 if self.gptq is None else self.gptq

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON takes them."""
        return asdict(self)
