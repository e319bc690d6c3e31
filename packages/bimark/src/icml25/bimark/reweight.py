"""Bit-flip unbiased reweighting of a distribution, one layer and many."""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

__all__ = ["bit_flip_reweight", "multilayer_reweight"]


def bit_flip_reweight(
    probs: Shaped[Tensor, "..."],
    mask_v1: Shaped[Tensor, "..."],
    e: Shaped[Tensor, "..."],
    base_scale: float | int = 1.0,
) -> Float[Tensor, "batch vocab"]:
    """One layer: heads (e = 1) moves probability from V0 to V1, tails (e = 0) as much the other way.

    With P1 the probability of V1, V1 is scaled by 1 ± d1 and V0 by 1 ∓ d0, where d1 = min(base_scale, (1 - P1)/P1) and
    d0 = d1 P1/(1 - P1) keep the sum. The mean over a fair e is ``probs``. Where V1 or V0 has no probability,
    nothing changes.

    Parameters
    ----------
    probs : (B, V) float32 or float64, rows sum to one.
    mask_v1 : (V,) or (B, V) bool, True on V1.
    e : (B,) or (1,), directions 0 or 1.
    base_scale : how much may be moved, in (0, 1].

    Returns
    -------
    (B, V), rows sum to one up to rounding.

    Raises
    ------
    ValueError: base_scale outside (0, 1], shapes that don't fit, directions other than 0 and 1, or rows that aren't
    distributions. TypeError: probabilities of another dtype, or a partition that isn't bool.

    Source: bit-flip reweighting.
    """
    _check_scale(base_scale)
    fits = probs.ndim == 2 and tuple(mask_v1.shape) in (
        tuple(probs.shape),
        tuple(probs.shape[1:]),
        (1, *probs.shape[1:]),
    )
    if not fits or e.ndim != 1 or len(e) not in (1, len(probs)):
        raise ValueError(
            f"probs {tuple(probs.shape)}, mask_v1 {tuple(mask_v1.shape)} and e {tuple(e.shape)} don't fit; expected "
            "(B, V), (V,) or (B, V), and (B,)"
        )
    _check_values(probs, "mask_v1", mask_v1, "e", e)
    return _layer(probs, mask_v1.bool(), 2 * e.to(probs.dtype)[:, None] - 1, base_scale)


def multilayer_reweight(
    probs: Shaped[Tensor, "..."],
    partitions: Shaped[Tensor, "..."],
    directions: Shaped[Tensor, "..."],
    base_scale: float | int = 1.0,
) -> Float[Tensor, "batch vocab"]:
    """All layers in turn, each on the outcome of the one before.

    Parameters
    ----------
    probs : (B, V) float32 or float64, rows sum to one.
    partitions : (d, V) bool, True on V1 of each layer.
    directions : (B, d), 0 or 1.
    base_scale : of every layer, in (0, 1].

    Returns
    -------
    (B, V), rows sum to one. The mean over all 2^d directions is ``probs``.

    Raises
    ------
    ValueError: base_scale outside (0, 1], shapes that don't fit, directions other than 0 and 1, or rows that aren't
    distributions. TypeError: probabilities of another dtype, or a partition that isn't bool.

    Source: multilayer reweighting.
    """
    _check_scale(base_scale)
    fits = probs.ndim == partitions.ndim == directions.ndim == 2 and partitions.shape[1] == probs.shape[1]
    if not fits or directions.shape[1] != len(partitions) or len(directions) not in (1, len(probs)):
        raise ValueError(
            f"probs {tuple(probs.shape)}, partitions {tuple(partitions.shape)} and directions "
            f"{tuple(directions.shape)} don't fit; expected (B, V), (d, V), (B, d)"
        )
    _check_values(probs, "partitions", partitions, "directions", directions)
    return reweight_layers(probs, partitions[:, None], directions, base_scale)


def reweight_layers(
    probs: Float[Tensor, "batch k"],
    members: Bool[Tensor, "layers #batch k"],
    directions: Shaped[Tensor, "#batch layers"],
    base_scale: float | int,
) -> Float[Tensor, "batch k"]:
    """All layers on k candidates per row; ``members`` says for each candidate whether it is in V1 of each layer."""
    signs = 2 * directions.to(probs.dtype) - 1
    for layer, member in enumerate(members):
        probs = _layer(probs, member, signs[:, layer, None], base_scale)
    return probs / probs.sum(-1, keepdim=True)


def _layer(probs: Tensor, in_v1: Tensor, sign: Tensor, base_scale: float | int) -> Tensor:
    p1 = torch.linalg.vecdot(probs, in_v1.to(probs.dtype))[:, None].clamp(max=1)
    odds = (1 - p1) / p1  # P0 / P1; infinite or 0 where one side has nothing, which then stays as it is
    d1 = odds.clamp(max=base_scale)
    d0 = (base_scale / odds).clamp(max=1)  # d1 P1 / P0
    return torch.addcmul(probs, probs, torch.where(in_v1, sign * d1, -sign * d0))


def _check_scale(base_scale: float | int) -> None:
    if isinstance(base_scale, bool) or not isinstance(base_scale, (int, float)):
        raise TypeError(f"base_scale must be a number, got {base_scale!r}")
    if not 0 < base_scale <= 1:
        raise ValueError(f"base_scale must be in (0, 1], got {base_scale}")


def _check_values(probs: Tensor, name_of_v1: str, in_v1: Tensor, name_of_e: str, e: Tensor) -> None:
    if probs.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"probs must be float32 or float64, got {probs.dtype}")
    if in_v1.dtype != torch.bool:
        raise TypeError(f"{name_of_v1} must be bool, got {in_v1.dtype}")
    if not ((e == 0) | (e == 1)).all():
        raise ValueError(f"{name_of_e} must be 0 or 1")
    if not (probs >= 0).all() or not ((probs.sum(-1) - 1).abs() <= 1e-3).all():
        raise ValueError("probs must be finite, not negative, and sum to one in each row")
