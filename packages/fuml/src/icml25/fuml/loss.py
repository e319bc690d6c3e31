"""The training objective: category credibility learning for every view and for their fusion (Eqs. 4 and 9)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .membership import check_classes, check_labels
from .model import FUMLOutput

__all__ = ["category_credibility_loss", "fuml_loss"]

LOG_FLOOR = 1e-7


def category_credibility_loss(
    r: Float[Tensor, "*batch classes"], y: Int[Tensor, "*batch"], reduction: str = "mean"
) -> Float[Tensor, "..."]:
    """Binary cross-entropy of the training credibility, summed over classes (Eq. 4).

    ``sum_k -y_k log r_k - (1 - y_k) log(1 - r_k)`` with one-hot ``y``; the argument of each log is at least 1e-7.

    Args:
        r: training credibility (Eq. 5), in [0, 1], (..., K), K >= 2.
        y: labels in 0..K-1, (...).
        reduction: "mean" or "sum" over the samples, or "none".

    Returns:
        A scalar, or (...) with reduction "none".

    Raises:
        TypeError: y is not of an integer dtype.
        ValueError: K < 2, y has another shape, a label outside 0..K-1, or unknown reduction.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}.")
    check_classes(r, "r")
    check_labels(y, r.shape)
    index = y.long().unsqueeze(-1)
    likelihood = (1 - r).scatter(-1, index, r.gather(-1, index))
    loss = -likelihood.clamp_min(LOG_FLOOR).log().sum(-1)
    return loss if reduction == "none" else getattr(loss, reduction)()


def fuml_loss(
    out: FUMLOutput, y: Int[Tensor, " batch"], sample_weight: Float[Tensor, " batch"] | None = None
) -> Float[Tensor, ""]:
    """Loss of the fused decision plus the loss of every view: ``L = L_ccl(r^a, y) + sum_v L_ccl(r^v, y)`` (Eq. 9).

    Args:
        out: what :class:`~icml25.fuml.FUML` returned when called with ``labels=y``.
        y: labels in 0..K-1, (B,).
        sample_weight: factors >= 0 of the samples' losses before the mean over the batch, (B,).

    Returns:
        The loss, a scalar.

    Raises:
        TypeError: y is not of an integer dtype.
        ValueError: ``out`` was computed without labels or with other labels; y or sample_weight has another shape; a
            label outside 0..K-1.
    """
    if out.labels is None:
        raise ValueError("out has no training credibility: call the model with labels=y before fuml_loss(out, y).")
    check_labels(y, out.credibility.shape)
    if out.labels is not y and not torch.equal(out.labels.long(), y.long()):
        raise ValueError("out was computed with other labels than y.")
    if sample_weight is not None and sample_weight.shape != y.shape:
        raise ValueError(f"sample_weight must have shape {tuple(y.shape)}, got {tuple(sample_weight.shape)}.")
    r = torch.cat([out.credibility.unsqueeze(0), out.view_credibility])
    loss = category_credibility_loss(r, y.expand(r.shape[:-1]), reduction="none").sum(0)
    return (loss if sample_weight is None else sample_weight * loss).mean()
