"""The symmetric uniform quantizer (Eq. 1), and tensors that keep their dtype."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

__all__ = ["ExactModule", "SymmetricQuantizer", "integer_dtype", "quantize_to", "scale_of"]

FLOOR = 1e-5  # of a maximum: dead groups get a tiny finite scale


def scale_of(maximum: Float[Tensor, "..."], bits: int) -> Float[Tensor, "..."]:
    """s = max|v| / (2^(b-1) - 1), the maximum at least 1e-5; ValueError for one that is NaN, infinite or negative."""
    if not bool((torch.isfinite(maximum) & (maximum >= 0)).all()):
        raise ValueError("the maximum of |values| must be finite and >= 0: are there NaN or infinite values?")
    return maximum.float().clamp(min=FLOOR) / (2 ** (bits - 1) - 1)


def integer_dtype(bits: int) -> torch.dtype:
    """The smallest signed integer that holds so many bits."""
    return torch.int8 if bits <= 8 else torch.int16


def quantize_to(v: Float[Tensor, "..."], scale: Float[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    """q = clamp(round(v / s), -2^(b-1), 2^(b-1) - 1), half to even, in float32 whatever the dtype of v."""
    levels = 2 ** (bits - 1)
    return (v.float() / scale).round_().clamp_(-levels, levels - 1).to(integer_dtype(bits))


class SymmetricQuantizer:
    """Eq. 1: q(v) = clamp(round(v / s), -2^(b-1), 2^(b-1) - 1) with a scale s that is fixed beforehand.

    Parameters
    ----------
    scale : float32, positive and finite; broadcast against v.
    bits : 2 to 16 (8).

    Raises
    ------
    ValueError: bits or scale out of range.
    """

    def __init__(self, scale: Float[Tensor, "..."], bits: int = 8) -> None:
        if not isinstance(bits, int) or not 2 <= bits <= 16:
            raise ValueError(f"bits must be in 2..16, got {bits!r}")
        if not bool((torch.isfinite(scale) & (scale > 0)).all()):
            raise ValueError("scale must be positive and finite everywhere")
        self.scale, self.bits = scale.float(), bits

    @classmethod
    def from_max(cls, maximum: Float[Tensor, "..."], bits: int = 8) -> "SymmetricQuantizer":
        """The quantizer of values up to ``maximum`` = max|v|: s = max / (2^(b-1) - 1), the maximum at least 1e-5.

        Raises
        ------
        ValueError: bits out of range, a maximum that is negative, NaN or infinite.
        """
        return cls(scale_of(maximum, bits), bits)

    def quantize(self, v: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Integers (int8 up to 8 bits, else int16), rounded half to even; ValueError for NaN."""
        if bool(torch.isnan(v).any()):
            raise ValueError("v holds NaN, which no integer stands for")
        return quantize_to(v, self.scale, self.bits)

    def dequantize(self, q: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """float32 values q s."""
        return q.float() * self.scale


class ExactModule(nn.Module):
    """Its own buffers keep their dtype: ``.half()`` or ``.to(dtype)`` must change neither integers nor scales."""

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        return self

    def _own(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        """A buffer of zeros, to be filled."""
        self.register_buffer(name, torch.zeros(shape, dtype=dtype))

    def _fill(self, **values: Shaped[Tensor, "..."]) -> None:
        """Fill buffers with finite values; shapes must agree exactly."""
        for name, value in values.items():
            buffer = self._buffers[name]
            assert buffer is not None and buffer.shape == value.shape, (name, value.shape)
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise ValueError(f"{name} is NaN or infinite")
            self._buffers[name] = value.detach().to(buffer.dtype).clone()
