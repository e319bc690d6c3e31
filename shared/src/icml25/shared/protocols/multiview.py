"""Multi-view classification with conflicting views: the test sets and what is measured on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.metrics import roc_auc_score, roc_curve

__all__ = ["accuracy_by_rejection", "conflicting_views", "scale_views", "uncertainty_auroc", "uncertainty_fpr95"]


def scale_views(train: Sequence[np.ndarray], *others: Sequence[np.ndarray]) -> tuple[list[np.ndarray], ...]:
    """Scale every feature to [0, 1] on the training rows; other rows may fall outside.

    Parameters
    ----------
    train : views of the training set, each (n, d_v).
    *others : views of further sets.

    Returns
    -------
    tuple of lists of float32 arrays, for the training set and the others.
    """
    low = [view.min(0) for view in train]
    spread = [np.where(np.ptp(view, axis=0) > 0, np.ptp(view, axis=0), 1) for view in train]
    return tuple(
        [((view - a) / b).astype(np.float32) for view, a, b in zip(views, low, spread, strict=True)]
        for views in (train, *others)
    )


def conflicting_views(
    views: Sequence[np.ndarray],
    y: np.ndarray,
    reference: tuple[Sequence[np.ndarray], np.ndarray],
    seed: int,
    *,
    noise_ratio: float = 0.1,
    sigma: float = 0.5,
    conflict_ratio: float = 0.4,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Copy views with noise in some rows and a view of another class in others.

    ``noise_ratio`` of the rows get N(0, sigma) in some views (how many is drawn from 0..V-1); then ``conflict_ratio``
    of the rows, drawn anew, get one view replaced by that of a random reference sample of another class.

    Parameters
    ----------
    views : (n, d_v) each, scaled to [0, 1].
    y : labels, (n,).
    reference : views and labels of the training set, where the foreign views come from.
    seed : of the draws.
    noise_ratio, conflict_ratio : shares of rows.
    sigma : standard deviation of the noise.

    Returns
    -------
    The changed copies, and a boolean mask (n, V) of the cells touched.
    """
    rng = np.random.default_rng(seed)
    pool, pool_labels = reference
    out = [view.copy() for view in views]
    n, n_views = len(y), len(views)
    touched = np.zeros((n, n_views), dtype=bool)
    for i in rng.choice(n, size=int(noise_ratio * n), replace=False):
        for v in rng.choice(n_views, size=rng.integers(n_views), replace=False).tolist():
            out[v][i] += rng.normal(0, sigma, out[v].shape[1])
            touched[i, v] = True
    for i in rng.choice(n, size=int(conflict_ratio * n), replace=False):
        v = int(rng.integers(n_views))
        out[v][i] = pool[v][rng.choice(np.flatnonzero(pool_labels != y[i]))]
        touched[i, v] = True
    return out, touched


def uncertainty_auroc(normal: np.ndarray, conflict: np.ndarray) -> float:
    """Probability that a row of the conflicting set is more uncertain than one of the normal set (ties count half)."""
    return float(roc_auc_score(np.r_[np.zeros(len(normal)), np.ones(len(conflict))], np.r_[normal, conflict]))


def uncertainty_fpr95(normal: np.ndarray, conflict: np.ndarray) -> float:
    """Share of conflicting rows taken for normal at the threshold that keeps 95 % of the normal rows."""
    known = np.r_[np.ones(len(normal)), np.zeros(len(conflict))]
    fpr, tpr, _ = roc_curve(known, -np.r_[normal, conflict], drop_intermediate=False)
    return float(fpr[np.searchsorted(tpr, 0.95)])


def accuracy_by_rejection(
    correct: np.ndarray, uncertainty: np.ndarray, keep: Sequence[float] = (1.0, 0.9, 0.8, 0.7)
) -> list[float]:
    """Accuracy of the most certain rows.

    Parameters
    ----------
    correct : whether each row's label is right, (n,).
    uncertainty : of each row, (n,).
    keep : shares of rows kept.

    Returns
    -------
    One accuracy per share. Rows of equal uncertainty are kept in their order.
    """
    order = np.argsort(uncertainty, kind="stable")
    return [float(correct[order[: max(1, round(share * len(order)))]].mean()) for share in keep]
