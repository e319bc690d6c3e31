"""Dual-reliable fusion (DRF, Section 3.5): views weigh more when they are certain and agree with the others.

All functions take the views along the first axis, (V, ..., K) or (V, ...).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from .membership import uncertainty

__all__ = ["FUSIONS", "conflict", "drf", "fuse", "fusion_weights"]

FUSIONS = ("drf", "average", "uncertainty", "conflict")


def conflict(view_memberships: Float[Tensor, "views *batch classes"]) -> Float[Tensor, "views *batch"]:
    """How far each view is from the others: ``o^v = 1/(V-1) sum_{j != v} (1 - cos(m^v, m^j))`` (Eq. 7).

    Computed in O(V K) per sample from ``sum_j cos(m^v, m^j) = n^v . sum_j n^j`` with ``n`` the normalised memberships.
    The cosine with an all-zero membership is 0; a single view has conflict 0.

    Args:
        view_memberships: memberships in [0, 1], (V, ..., K).

    Returns:
        Conflict in [0, 1], (V, ...).
    """
    n_others = max(view_memberships.shape[0] - 1, 1)
    norm = torch.linalg.vector_norm(view_memberships, dim=-1, keepdim=True)
    n = view_memberships / norm.masked_fill(norm == 0, torch.inf)
    others = n.sum(0) - n
    cosines = (n * others).sum(-1)
    total = min(view_memberships.shape[0] - 1, 1) - cosines / n_others
    return total.clamp(0, 1)  # the clamp only removes rounding


def fusion_weights(
    u: Float[Tensor, "views *batch"], o: Float[Tensor, "views *batch"], mode: str = "drf"
) -> Float[Tensor, "views *batch"]:
    """Weights of the views: ``w = softmax_v((1 - u^v)(1 - o^v))`` (Eq. 8).

    Args:
        u: uncertainty of each view in [0, 1], (V, ...).
        o: conflict of each view in [0, 1], (V, ...).
        mode: "drf" (both factors), "uncertainty" (1 - u alone), "conflict" (1 - o alone) or "average" (equal weights).

    Returns:
        Weights that sum to 1 over the views, (V, ...).

    Raises:
        ValueError: unknown mode.
    """
    if mode == "drf":
        reliability = (1 - u) * (1 - o)
    elif mode == "uncertainty":
        reliability = 1 - u
    elif mode == "conflict":
        reliability = 1 - o
    elif mode == "average":
        reliability = torch.zeros_like(u)
    else:
        raise ValueError(f"fusion mode must be one of {FUSIONS}, got {mode!r}.")
    return reliability.softmax(0)


def fuse(
    view_memberships: Float[Tensor, "views *batch classes"], weights: Float[Tensor, "views *batch"]
) -> Float[Tensor, "*batch classes"]:
    """Fused membership ``m^a = sum_v w^v m^v`` (Eq. 8).

    Args:
        view_memberships: memberships, (V, ..., K).
        weights: weights of the views, (V, ...).

    Returns:
        Fused membership, (..., K).
    """
    return (weights.unsqueeze(-1) * view_memberships).sum(0)


def drf(
    view_memberships: Float[Tensor, "views *batch classes"],
    view_credibility: Float[Tensor, "views *batch classes"],
    mode: str = "drf",
) -> Float[Tensor, "*batch classes"]:
    """Fuse the memberships of all views at once (Eqs. 6-8), so the order of the views plays no role.

    Args:
        view_memberships: memberships in [0, 1], (V, ..., K).
        view_credibility: their credibilities, (V, ..., K): Eq. 5 in training, Eq. 2 at test time.
        mode: see :func:`fusion_weights`.

    Returns:
        Fused membership in [0, 1], (..., K). The decision is its :func:`~icml25.fuml.credibility`.

    Raises:
        ValueError: unknown mode.
    """
    weights = fusion_weights(uncertainty(view_credibility), conflict(view_memberships), mode)
    return fuse(view_memberships, weights)
