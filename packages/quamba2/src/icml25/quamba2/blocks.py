"""What quantized Mamba and Mamba2 blocks share: scales, the convolution, cached states, the residual."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from .cache import QuantizedStateCache
from .config import QuambaConfig
from .hadamard import hadamard_transform
from .linear import W4A8Linear, W4A16Linear, W8A8Linear
from .quantizer import ExactModule, integer_dtype, quantize_to, scale_of
from .scan import causal_conv

__all__ = ["QuambaBlock", "QuambaMixer", "make_projection", "rms_norm"]


def make_projection(config: QuambaConfig, n_in: int, n_out: int, bias: bool = False) -> Any:
    """An empty quantized layer for the mode of the configuration."""
    if config.weight_bits != 4:
        return W8A8Linear(n_in, n_out, bias, config.w8_granularity, config.weight_bits)
    kind = W4A16Linear if config.activation_bits is None else W4A8Linear
    return kind(n_in, n_out, bias, config.group_size)


def rms_norm(x: Float[Tensor, "... d"], weight: Float[Tensor, "d"], eps: float, group: int) -> Float[Tensor, "... d"]:
    """x / rms(x) * weight in float32, the rms over groups of channels."""
    grouped = x.float().view(*x.shape[:-1], -1, group)
    return (grouped * torch.rsqrt(grouped.pow(2).mean(-1, keepdim=True) + eps)).view(x.shape) * weight


class QuambaMixer(ExactModule):
    """Base of the quantized mixers.

    Parameters
    ----------
    layer : number of the block.
    dims : sizes, from ``QuambaModelConfig.dims``.
    config : what is quantized.
    n_x : groups of channels of x (and of states) that share a scale.
    conv_channels : channels of the convolution.
    scales : names and sizes of further scales of activations.
    """

    projections: tuple[str, ...] = ()
    in_proj: Any
    out_proj: Any
    conv_weight: Tensor
    conv_weight_scale: Tensor
    conv_bias: Tensor | None
    channel_group: Tensor
    scale_in: Tensor
    scale_out: Tensor
    scale_conv_x: Tensor
    scale_state: Tensor

    def __init__(
        self,
        layer: int,
        dims: SimpleNamespace,
        config: QuambaConfig,
        n_x: int,
        conv_channels: int,
        scales: dict[str, tuple[int, ...]],
    ) -> None:
        super().__init__()
        self.layer, self.dims = layer, dims
        heads = getattr(dims, "num_heads", None)
        self.channels = (dims.intermediate_size,) if heads is None else (heads, dims.head_dim)
        self.bits, self.hadamard = config.activation_bits, config.hadamard
        self.a16 = self.bits is None
        self.state_bits = None if self.a16 else config.state_bits
        self._own("conv_weight", (conv_channels, dims.conv_kernel), torch.int8)
        if config.weight_bits > 8:
            self._own("conv_weight", (conv_channels, dims.conv_kernel), integer_dtype(config.weight_bits))
        self._own("conv_weight_scale", (conv_channels if config.conv_granularity == "channel" else 1,))
        self._own("conv_bias", (conv_channels,)) if dims.use_conv_bias else self.register_buffer("conv_bias", None)
        if self.bits is not None:
            self._own("channel_group", (dims.intermediate_size,), torch.int16)
            names: dict[str, tuple[int, ...]] = {"in": (), "out": (), "conv_x": (n_x,), **scales}
            if self.state_bits:
                names["state"] = (n_x, dims.state_size)
            for name, shape in names.items():
                self._own(f"scale_{name}", shape)

    def load_conv_(self, conv: Any, bits: int) -> None:
        """Fill the convolution: integers with one scale per channel or per tensor."""
        weight = conv.weight[:, 0]
        largest = weight.abs().amax(1) if len(self.conv_weight_scale) == len(weight) else weight.abs().amax()[None]
        scale = scale_of(largest, bits)
        self._fill(conv_weight=quantize_to(weight, scale[:, None], bits), conv_weight_scale=scale)
        if self.conv_bias is not None:
            self._fill(conv_bias=conv.bias)

    def load_scales_(self, table: dict[str, Tensor], channel_group: Tensor) -> None:
        """Fill the scales of activations."""
        self._fill(channel_group=channel_group)
        self._fill(**{f"scale_{name}": s for name, s in table.items() if f"scale_{name}" in self._buffers})

    def _quantize(self, x: Tensor, scale: Tensor) -> Tensor:
        assert self.bits is not None
        return quantize_to(x, scale, self.bits)

    def _of_channels(self, scale: Shaped[Tensor, "K *rest"]) -> Shaped[Tensor, "d *rest"]:
        return scale[self.channel_group.long()]

    def _convolve(
        self, x: Shaped[Tensor, "b l c"], scale: Tensor | None, cache: QuantizedStateCache | None
    ) -> Float[Tensor, "b l c"]:
        """SiLU of the convolution of integers (with their scale) or floats, after what the cache holds of the past."""
        past = None if cache is None else cache.conv[self.layer]
        if past is None:
            past = x.new_zeros(len(x), self.dims.conv_kernel - 1, x.shape[2])
        if past.shape[2] != x.shape[2] or past.is_floating_point() != x.is_floating_point():
            raise ValueError(f"cache was filled by a model of another width or mode (conv of layer {self.layer})")
        padded = torch.cat([past.to(x), x], 1)
        if cache is not None:
            cache.conv[self.layer] = padded[:, x.shape[1] :].clone()
        gain = self.conv_weight_scale if scale is None else self.conv_weight_scale * scale
        y = causal_conv(padded.float(), self.conv_weight.float()) * gain  # products of integers: exact in float32
        return F.silu(y if self.conv_bias is None else y + self.conv_bias)

    @property
    def keeps_integers(self) -> bool:
        """Whether cached SSM states are integers."""
        return bool(self.state_bits) and not self.a16

    def _past_state(self, cache: QuantizedStateCache | None) -> Tensor | None:
        state = None if cache is None else cache.state[self.layer]
        if state is None:
            return None
        expected = (*self.channels, self.dims.state_size)
        if state.shape[1:] != expected or state.is_floating_point() == self.keeps_integers:
            raise ValueError(f"cache was filled by a model of another width or mode (state of layer {self.layer})")
        if not self.keeps_integers:
            return state
        return state * self._of_channels(self.scale_state).view(state.shape[1:])

    def _keep_state(self, cache: QuantizedStateCache | None, state: Float[Tensor, "b *d N"]) -> None:
        if cache is None:
            return
        if self.keeps_integers:
            assert self.state_bits is not None
            state = quantize_to(state, self._of_channels(self.scale_state).view(state.shape[1:]), self.state_bits)
        cache.state[self.layer] = state

    def _project_in(self, hidden: Float[Tensor, "b l d"], scale: Tensor | None) -> Shaped[Tensor, "b l p"]:
        """in_proj: integers with these scales, or floats."""
        if scale is None:
            return self.in_proj.floating(hidden)
        return self._quantize(self.in_proj.integer(self._quantize(hidden, self.scale_in), self.scale_in), scale)

    def _project_out(self, y: Float[Tensor, "b l d"], dtype: torch.dtype) -> Float[Tensor, "b l d_model"]:
        if self.hadamard:
            y = hadamard_transform(y)
        if self.a16:
            return self.out_proj.floating(y.to(dtype))
        return self.out_proj.integer(self._quantize(y, self.scale_out), self.scale_out)


class QuambaBlock(ExactModule):
    """Norm, mixer, residual."""

    norm_weight: Tensor

    def __init__(self, dims: SimpleNamespace, mixer: QuambaMixer) -> None:
        super().__init__()
        self.dims, self.mixer = dims, mixer
        self._own("norm_weight", (dims.hidden_size,))

    def forward(
        self,
        hidden: Float[Tensor, "b l d"],
        dtype: torch.dtype,
        cache: QuantizedStateCache | None = None,
        mask: Float[Tensor, "b l 1"] | None = None,
    ) -> Float[Tensor, "b l d"]:
        """hidden + mixer(norm(hidden)); activations that are not quantized are in ``dtype``."""
        normed = rms_norm(hidden, self.norm_weight, self.dims.layer_norm_epsilon, self.dims.hidden_size)
        if self.mixer.a16:
            normed = normed.to(dtype)
        if mask is not None:
            mask = mask.to(normed)
            normed = normed * mask
        residual = hidden.float() if self.dims.residual_in_fp32 else hidden
        return residual + self.mixer(normed, cache, mask).to(residual.dtype)
