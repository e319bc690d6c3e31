"""Fuzzy memberships, category credibility and the uncertainty of a decision (Sections 3.2 and 3.4).

A membership vector ``m`` holds, for each class, the *possibility* that a sample belongs to it. The *necessity* of
class k is ``1 - max_{l != k} m_l``: how much the other classes are ruled out. Their mean is the *credibility* of k.
"""

import math
from collections.abc import Sequence
from numbers import Real

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["credibility", "memberships", "training_credibility", "uncertainty"]


def memberships(logits: Float[Tensor, "*batch classes"], p: int | float = 3) -> Float[Tensor, "*batch classes"]:
    """Turn logits into memberships: ``m = ReLU(a / ||a||_p)`` (Eq. 3).

    Memberships don't sum to 1, and are all 0 where no logit is positive. They don't change when all logits of a sample
    are multiplied by a positive number. The gradient is finite everywhere, also at ``a = 0`` (where it is 0): logits
    that are all subnormal numbers of their dtype (in float16 below 6.1e-5) count as 0. NaN and infinity are not caught.

    Args:
        logits: outputs ``a`` of a network, (..., K), finite, K >= 2.
        p: order of the norm, p >= 1 (the paper uses 3).

    Returns:
        Memberships in [0, 1], (..., K).

    Raises:
        ValueError: K < 2, or p is not a finite number >= 1.
    """
    check_classes(logits, "logits")
    check_norm_order(p)
    # m is homogeneous of degree 0, so the largest |a| may be divided out (as a constant) before the power overflows.
    largest = logits.detach().abs().amax(-1, keepdim=True)
    dead = largest < torch.finfo(logits.dtype).tiny
    a = logits.masked_fill(dead, 0.0) / largest.masked_fill(dead, 1.0)
    norm = (a.abs().pow(p).sum(-1, keepdim=True) + dead).pow(1.0 / p)
    return torch.relu(a) / norm


def credibility(m: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch classes"]:
    """Category credibility at test time: ``c_k = (m_k + 1 - max_{l != k} m_l) / 2`` (Eq. 2).

    Args:
        m: memberships in [0, 1], (..., K), K >= 2.

    Returns:
        Credibilities in [0, 1], (..., K).

    Raises:
        ValueError: K < 2.
    """
    check_classes(m, "m")
    values, indices = m.topk(2, dim=-1)
    top, second = values.split(1, dim=-1)
    other = top.expand(m.shape).scatter(-1, indices[..., :1], second)
    return (m + 1 - other) / 2


def training_credibility(
    m: Float[Tensor, "*batch classes"], y: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch classes"]:
    """Category credibility at training time, which uses the label (Eq. 5).

    ``r_y = (m_y + 1 - max_{l != y} m_l) / 2`` and ``r_k = (m_k + 1 - m_y) / 2`` for every other class, so that
    learning ``r_k = 0`` raises the membership of the *true* class (Eq. 2 would raise that of any other class).
    Equal to :func:`credibility` where ``argmax m = y``.

    Args:
        m: memberships in [0, 1], (..., K), K >= 2.
        y: labels in 0..K-1, (...).

    Returns:
        Credibilities in [0, 1], (..., K).

    Raises:
        TypeError: y is not of an integer dtype.
        ValueError: K < 2, y has another shape, or a label is outside 0..K-1.
    """
    check_classes(m, "m")
    check_labels(y, m.shape)
    index = y.long().unsqueeze(-1)
    m_y = m.gather(-1, index)
    best_wrong = m.scatter(-1, index, -math.inf).amax(-1, keepdim=True)
    other = m_y.expand(m.shape).scatter(-1, index, best_wrong)
    return (m + 1 - other) / 2


def uncertainty(c: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
    """Mean binary entropy of the credibilities, in bits: ``u = sum_k H(c_k) / (K ln 2)`` (Eq. 6).

    It is 0 for a one-hot membership and 1 where all memberships are equal (all zero, say). The gradient is finite at
    credibilities of exactly 0 and 1.

    Args:
        c: credibilities in [0, 1], (..., K), K >= 2.

    Returns:
        Uncertainty in [0, 1], (...).

    Raises:
        ValueError: K < 2.
    """
    check_classes(c, "c")
    tiny = torch.finfo(c.dtype).tiny
    d = 1 - c
    entropy = c * c.clamp_min(tiny).log2() + d * d.clamp_min(tiny).log2()
    return entropy.mean(-1).neg().clamp(0, 1)  # the clamp only removes rounding


def check_norm_order(p: object) -> None:
    """Raise ValueError unless ``p`` is a finite number >= 1."""
    if isinstance(p, bool) or not isinstance(p, Real) or not 1 <= float(p) < math.inf:
        raise ValueError(f"p must be a finite number >= 1 (the order of a norm), got {p!r}.")


def check_labels(y: Tensor, shape: Sequence[int], name: str = "y") -> None:
    """Raise unless ``y`` holds one label in 0..K-1 per sample of a tensor of shape (..., K)."""
    *samples, n_classes = shape
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TypeError(f"{name} must be of an integer dtype, got {y.dtype}.")
    if list(y.shape) != samples:
        raise ValueError(f"{name} must have shape {tuple(samples)}, a label per sample, got {tuple(y.shape)}.")
    if y.numel():
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= n_classes:
            raise ValueError(f"{name} must hold labels in 0..{n_classes - 1}, got values from {low} to {high}.")


def check_classes(x: Tensor, name: str) -> None:
    """Raise ValueError unless the last axis of ``x`` holds at least 2 classes."""
    if x.ndim == 0 or x.shape[-1] < 2:
        raise ValueError(f"{name} must have at least 2 classes in its last axis, got shape {tuple(x.shape)}.")
