"""Weights in groups of input columns: rounded to nearest, or by GPTQ (Frantar et al., 2023)."""

import torch
from jaxtyping import Float, Int8
from torch import Tensor

from .quantizer import FLOOR

__all__ = ["gptq_quantize", "round_to_nearest"]


def _group_scale(weight: Tensor, bits: int) -> Tensor:
    """s = 2 max|w| / (2^b - 1) of each row."""
    largest = weight.abs().amax(1)
    if not bool(torch.isfinite(largest).all()):
        raise ValueError("the weight is NaN or infinite")
    return largest.clamp(min=FLOOR) * 2 / (2**bits - 1)


def _round(weight: Tensor, scale: Tensor, bits: int) -> Tensor:
    return (weight / scale).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def round_to_nearest(
    weight: Float[Tensor, "out in"], bits: int, group_size: int
) -> tuple[Int8[Tensor, "out in"], Float[Tensor, "out groups"]]:
    """Symmetric groups of columns: q in -2^(b-1)..2^(b-1)-1 with s = 2 max|w| / (2^b - 1) per row and group."""
    parts = weight.float().split(group_size, dim=1)
    scales = [_group_scale(part, bits) for part in parts]
    q = [_round(part, scale[:, None], bits).to(torch.int8) for part, scale in zip(parts, scales, strict=True)]
    return torch.cat(q, 1), torch.stack(scales, 1)


@torch.no_grad()
def gptq_quantize(
    W: Float[Tensor, "out in"],
    hessian: Float[Tensor, "a b"],
    bits: int = 4,
    group_size: int = 128,
    percdamp: float | int = 0.01,
) -> tuple[Int8[Tensor, "out in"], Float[Tensor, "out groups"]]:
    """Quantize column by column, each column's error made good by the columns after it (Frantar et al., Alg. 1).

    Parameters
    ----------
    W : weight.
    hessian : (2/n) X^T X of the layer's n inputs. Columns with a zero diagonal are dead: their weights become 0.
    bits : 2 to 8 (4).
    group_size : columns that share a scale (128), found at the group's start from the weights updated so far.
    percdamp : added to the diagonal, as a share of its mean (0.01).

    Returns
    -------
    q (out, in) int8, scales (out, ceil(in/group_size)) float32.

    Raises
    ------
    ValueError: shapes that do not fit or are empty, bits or group_size out of range, a weight or hessian that is not finite, or a
        hessian that is not positive definite even when damped.
    """
    if W.ndim != 2 or W.numel() == 0:
        raise ValueError(f"W must be (out, in) and not empty, got shape {tuple(W.shape)}")
    rows, columns = W.shape
    if hessian.shape != (columns, columns):
        raise ValueError(f"hessian must be ({columns}, {columns}) for this W, got {tuple(hessian.shape)}")
    if not 2 <= bits <= 8 or group_size < 1:
        raise ValueError(f"bits must be in 2..8 and group_size at least 1, got {bits} and {group_size}")
    if not bool(torch.isfinite(hessian).all()):
        raise ValueError("hessian must be finite")
    if not bool(torch.isfinite(W).all()):
        raise ValueError("the weight is NaN or infinite")
    W, H = W.float().clone(), hessian.float().clone()
    dead = H.diagonal() == 0
    H.diagonal()[dead] = 1
    W[:, dead] = 0
    H.diagonal().add_(percdamp * H.diagonal().mean())
    lower, failed = torch.linalg.cholesky_ex(H)
    if int(failed):
        raise ValueError(f"hessian with percdamp={percdamp} is not positive definite; raise percdamp")
    upper = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)
    q = torch.empty(rows, columns, dtype=torch.int8, device=W.device)
    scales = []
    for start in range(0, columns, group_size):
        stop = min(start + group_size, columns)
        scale = _group_scale(W[:, start:stop], bits)
        errors = W.new_empty(rows, stop - start)
        for i in range(start, stop):
            column = _round(W[:, i], scale, bits)
            q[:, i] = column.to(torch.int8)
            error = (W[:, i] - column * scale) / upper[i, i]
            W[:, i:stop] -= error[:, None] * upper[i, i:stop]
            errors[:, i - start] = error
        W[:, stop:] -= errors @ upper[start:stop, stop:]
        scales.append(scale)
    return q, torch.stack(scales, 1)
