"""Packed weights and the products with them: int8 x int8 and int4 x int8 in integers, int4 x float by small blocks."""

from collections.abc import Iterator
from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8, UInt8
from torch import Tensor

from .gptq import round_to_nearest
from .quantizer import ExactModule, integer_dtype, quantize_to, scale_of

__all__ = [
    "QuantizedEmbedding",
    "W4A8Linear",
    "W4A16Linear",
    "W8A8Linear",
    "integer_matmul",
    "pack_int4",
    "unpack_int4",
]

_BLOCK = 2**18  # weights unpacked at a time: a MiB of float32


def pack_int4(q: Int[Tensor, "*rows n"]) -> UInt8[Tensor, "*rows half"]:
    """Two values per byte, the first in the low nibble; an odd row ends with an empty one.

    Parameters
    ----------
    q : integers in -8..7.

    Returns
    -------
    uint8 (..., ceil(n/2))

    Raises
    ------
    TypeError: q holds no integers. ValueError: a value out of range, a scalar.
    """
    if q.ndim == 0:
        raise ValueError("q must have at least one axis, got a scalar")
    if q.is_floating_point() or q.is_complex() or q.dtype == torch.bool:
        raise TypeError(f"q must hold integers, got dtype {q.dtype}")
    if q.numel() and (q.min() < -8 or q.max() > 7):
        raise ValueError(f"q must be in -8..7, got {int(q.min())}..{int(q.max())}")
    q = F.pad(q, (0, q.shape[-1] % 2)).to(torch.int16) & 15
    return (q[..., 0::2] | q[..., 1::2] << 4).to(torch.uint8)


def unpack_int4(packed: UInt8[Tensor, "*rows half"], n: int) -> Int8[Tensor, "*rows n"]:
    """The inverse of :func:`pack_int4`.

    Parameters
    ----------
    packed : bytes.
    n : values per row.

    Returns
    -------
    int8 (..., n)

    Raises
    ------
    TypeError: packed is not uint8. ValueError: n does not fit the number of bytes.
    """
    if packed.dtype != torch.uint8:
        raise TypeError(f"packed must be uint8, got {packed.dtype}")
    if packed.shape[-1] != (n + 1) // 2:
        raise ValueError(f"packed rows of {packed.shape[-1]} bytes cannot hold n={n} values")
    signed = packed.view(torch.int8)
    out = torch.empty(*packed.shape, 2, dtype=torch.int8, device=packed.device)
    torch.bitwise_right_shift(torch.bitwise_left_shift(signed, 4), 4, out=out[..., 0])
    torch.bitwise_right_shift(signed, 4, out=out[..., 1])
    return out.flatten(-2)[..., :n]


@cache
def _has_int_mm(device: str) -> bool:
    """Whether torch's private int8 product is there and exact on this kind of device."""
    try:
        a = torch.arange(-128, 128, dtype=torch.int8, device=device).repeat(32, 1)
        product = torch._int_mm(a, a.t())
    except (AttributeError, RuntimeError):
        return False
    return bool((product == (a.cpu().long() @ a.cpu().long().T).to(device)).all())


def integer_matmul(x: Int[Tensor, "m k"], weight: Int[Tensor, "n k"]) -> Int[Tensor, "m n"]:
    """x W^T in exact integer arithmetic: int32 for int8, int64 for wider ones; TypeError for others."""
    if x.is_floating_point() or x.is_complex():
        raise TypeError(f"x must hold integers (quantize it first), got dtype {x.dtype}")
    if x.dtype != torch.int8 or weight.dtype != torch.int8:
        return x.long() @ weight.long().t()
    (m, k), n = x.shape, weight.shape[0]
    if m == 0 or not _has_int_mm(x.device.type):
        return x.int() @ weight.int().t()
    if x.device.type == "cuda":  # needs more than 16 rows and sizes that are multiples of 8
        x = F.pad(x, (0, -k % 8, 0, max(-m % 8, 24 - m)))
        weight = F.pad(weight, (0, -k % 8, 0, -n % 8))
    return torch._int_mm(x, weight.t())[:m, :n]


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def _rows(x: Tensor, in_features: int) -> Tensor:
    """x as a matrix; ValueError when its last axis is not the layer's."""
    if x.ndim == 0 or x.shape[-1] != in_features:
        raise ValueError(f"x has shape {tuple(x.shape)}; expected (..., {in_features})")
    return x.reshape(-1, in_features)


class W8A8Linear(ExactModule):
    """y = (x_q W_q^T) s_x s_w + b with int8 (or wider) integers.

    Parameters
    ----------
    in_features, out_features : sizes.
    bias : whether there is one (False).
    granularity : one weight scale per output "channel" or per "tensor".
    bits : of the weights, 2 to 16 (8).

    Raises
    ------
    ValueError: sizes, granularity or bits out of range.
    """

    weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, bias: bool = False, granularity: str = "channel", bits: int = 8
    ) -> None:
        super().__init__()
        _check_sizes(in_features=in_features, out_features=out_features)
        if granularity not in ("channel", "tensor"):
            raise ValueError(f"granularity must be 'channel' or 'tensor', got {granularity!r}")
        if not 2 <= bits <= 16:
            raise ValueError(f"bits must be in 2..16, got {bits}")
        self.in_features, self.out_features, self.bits = in_features, out_features, bits
        self._own("weight", (out_features, in_features), integer_dtype(bits))
        self._own("weight_scale", (out_features if granularity == "channel" else 1,))
        self._own("bias", (out_features,)) if bias else self.register_buffer("bias", None)

    @classmethod
    def from_float(
        cls,
        weight: Float[Tensor, "out in"],
        bias: Float[Tensor, "out"] | None = None,
        granularity: str = "channel",
        bits: int = 8,
    ) -> "W8A8Linear":
        """Round a float weight to nearest."""
        new = cls(weight.shape[1], weight.shape[0], bias is not None, granularity, bits).to(weight.device)
        new.load_float_(weight, bias)
        return new

    def load_float_(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, "out"] | None = None) -> None:
        """Fill this layer with a float weight, rounded to nearest."""
        largest = weight.abs().amax(1) if len(self.weight_scale) == self.out_features else weight.abs().amax()[None]
        scale = scale_of(largest, self.bits)
        self._fill(weight=quantize_to(weight, scale[:, None], self.bits), weight_scale=scale)
        if bias is not None:
            self._fill(bias=bias)

    def forward(self, x: Int[Tensor, "*batch in"], x_scale: Float[Tensor, ""]) -> Float[Tensor, "*batch out"]:
        """float32 outputs of integer inputs x with scale x_scale."""
        y = integer_matmul(_rows(x, self.in_features), self.weight).float() * (self.weight_scale * x_scale)
        if self.bias is not None:
            y += self.bias
        return y.view(*x.shape[:-1], self.out_features)

    integer = forward


class _Int4Linear(ExactModule):
    """Weights in -8..7, two per byte, with a float32 scale per row and group of input columns.

    Parameters
    ----------
    in_features, out_features : sizes.
    bias : whether there is one (False).
    group_size : columns per scale (128), at most in_features; the last group may be smaller.

    Raises
    ------
    ValueError: sizes or group_size less than 1.
    """

    weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None

    def __init__(self, in_features: int, out_features: int, bias: bool = False, group_size: int = 128) -> None:
        super().__init__()
        _check_sizes(in_features=in_features, out_features=out_features, group_size=group_size)
        self.in_features, self.out_features = in_features, out_features
        self.group_size = min(group_size, in_features)
        self._own("weight", (out_features, -(-in_features // 2)), torch.uint8)
        self._own("weight_scale", (out_features, -(-in_features // self.group_size)))
        self._own("bias", (out_features,)) if bias else self.register_buffer("bias", None)

    @classmethod
    def from_float(
        cls, weight: Float[Tensor, "out in"], bias: Float[Tensor, "out"] | None = None, group_size: int = 128
    ) -> "_Int4Linear":
        """Round a float weight to nearest."""
        new = cls(weight.shape[1], weight.shape[0], bias is not None, group_size).to(weight.device)
        new.load_float_(weight, bias)
        return new

    def load_float_(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, "out"] | None = None) -> None:
        """Fill this layer with a float weight, rounded to nearest."""
        self.load_quantized_(*round_to_nearest(weight, 4, self.group_size), bias)

    def load_quantized_(
        self,
        q: Int8[Tensor, "out in"],
        scale: Float[Tensor, "out groups"],
        bias: Float[Tensor, "out"] | None = None,
    ) -> None:
        """Fill this layer with integers in -8..7 and their scales, of :func:`gptq_quantize`."""
        self._fill(weight=pack_int4(q), weight_scale=scale)
        if bias is not None:
            self._fill(bias=bias)

    def _blocks(self) -> Iterator[tuple[slice, Int8[Tensor, "rows in"]]]:
        """Rows of the weight, unpacked a MiB at a time."""
        rows = max(1, _BLOCK // self.in_features)
        for start in range(0, self.out_features, rows):
            block = slice(start, min(start + rows, self.out_features))
            yield block, unpack_int4(self.weight[block], self.in_features)

    def integer(self, x: Int[Tensor, "*batch in"], x_scale: Float[Tensor, ""]) -> Float[Tensor, "*batch out"]:
        """float32 outputs of integer inputs: int32 sums within each group, scaled and added in float32."""
        parts = [part.contiguous() for part in _rows(x, self.in_features).split(self.group_size, dim=1)]
        y = x_scale.new_zeros(len(parts[0]), self.out_features)
        for rows, weight in self._blocks():
            for group, (xs, ws) in enumerate(zip(parts, weight.split(self.group_size, dim=1), strict=True)):
                y[:, rows] += integer_matmul(xs, ws.contiguous()).float().mul_(self.weight_scale[rows, group])
        y *= x_scale
        if self.bias is not None:
            y += self.bias
        return y.view(*x.shape[:-1], self.out_features)

    def floating(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """Outputs of float inputs in their dtype; the weight becomes float a small block at a time."""
        _rows(x, self.in_features)
        if not x.is_floating_point():
            raise TypeError(f"x must be floating, got dtype {x.dtype}")
        y = x.new_empty(*x.shape[:-1], self.out_features)
        for rows, weight in self._blocks():
            scale = self.weight_scale[rows].repeat_interleave(self.group_size, 1)[:, : self.in_features]
            y[..., rows] = F.linear(x, (weight * scale).to(x.dtype))
        return y if self.bias is None else y.add_(self.bias.to(y.dtype))


class W4A8Linear(_Int4Linear):
    """y = sum_g (x_q W_q^T)_g s_{w,g} s_x + b: int8 inputs, 4-bit weights, int32 sums within each weight group."""

    def forward(self, x: Int[Tensor, "*batch in"], x_scale: Float[Tensor, ""]) -> Float[Tensor, "*batch out"]:
        """float32 outputs of integer inputs x with scale x_scale."""
        return self.integer(x, x_scale)


class W4A16Linear(_Int4Linear):
    """y = x (W_q s_w)^T + b: float inputs, 4-bit weights."""

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """Outputs in the dtype of x."""
        return self.floating(x)


class QuantizedEmbedding(ExactModule):
    """Rows of 4-bit (packed), 8-bit or wider integers, each with a float32 scale.

    Parameters
    ----------
    num_embeddings, embedding_dim : sizes.
    bits : 4, 8 or up to 16.
    """

    weight: Tensor
    weight_scale: Tensor

    def __init__(self, num_embeddings: int, embedding_dim: int, bits: int) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.bits = num_embeddings, embedding_dim, bits
        packed = (num_embeddings, -(-embedding_dim // 2)), torch.uint8
        self._own("weight", *(packed if bits == 4 else ((num_embeddings, embedding_dim), integer_dtype(bits))))
        self._own("weight_scale", (num_embeddings,))

    def load_float_(self, weight: Float[Tensor, "rows d"]) -> None:
        """Fill with a float table: s = max|row| / (2^(b-1) - 1)."""
        scale = scale_of(weight.abs().amax(1), self.bits)
        q = quantize_to(weight, scale[:, None], self.bits)
        self._fill(weight=pack_int4(q) if self.bits == 4 else q, weight_scale=scale)

    def forward(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "... d"]:
        """Dequantized rows, float32.

        Raises
        ------
        IndexError: an id out of range.
        """
        flat = ids.reshape(-1)
        rows = self.weight.index_select(0, flat)
        rows = unpack_int4(rows, self.embedding_dim) if self.bits == 4 else rows
        return (rows * self.weight_scale.index_select(0, flat)[:, None]).view(*ids.shape, self.embedding_dim)
