"""Many small least-squares problems at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy.lib.stride_tricks import sliding_window_view

__all__ = ["Regression", "regress"]

_WELL = 1e-2  # 1 - R^2 of a column given those before it, down to which normal equations keep twelve digits
_CONSTANT = 1e-12  # spread of a column over its size, below which it carries nothing but rounding
_CANCEL = (
    1e6  # coefficient over target, in units of column lengths, above which products of coefficients lose their digits
)
_EPS = float(np.finfo(np.float64).eps)


class Regression(NamedTuple):
    """Fits with an intercept at each time; rows of m targets: the reward, then the first columns of the next time.

    Where columns are collinear the rank is below k, and the coefficients are the smallest in units of the columns.
    """

    coef: Float[np.ndarray, "R T m k"]
    intercept: Float[np.ndarray, "R T m"]
    residuals: Float[np.ndarray, "R T m n"] | None
    rank: Int[np.ndarray, "R T"]


def regress(
    columns: Sequence[Shaped[np.ndarray, "R n T _"]],
    target: Float[np.ndarray, "R n T"],
    n_next: int,
    arm: Bool[np.ndarray, "R n T"] | None = None,
    ridge: float = 0.0,
    residuals: bool = False,
) -> Regression:
    """Regress, at each time, the target and the first columns of the next time on (1, columns).

    Columns are centred and scaled. Well-conditioned problems are solved by their normal equations, the others by a singular
    value decomposition, without the directions that are rounding or whose coefficients would be.

    Parameters
    ----------
    columns : parts of the k regressors without the constant, which ranks do not count.
    target : the reward.
    n_next : how many columns are targets one time earlier; at the last time their targets are zero.
    arm : which observations take part; None is all. Residuals of the others are 0.
    ridge : weight of the squared coefficients, the intercept apart.
    residuals : whether to compute them.

    Returns
    -------
    Regression
    """
    R, n, T = target.shape
    k = sum(part.shape[-1] for part in columns)
    # rows (columns, target) of t = 1, 2, ..: a window from t on ends in the first columns of t + 1
    flat = np.empty((R, T * (k + 1) + n_next, n))
    flat[:, T * (k + 1) :] = 0
    rows = flat[:, : T * (k + 1)].reshape(R, T, k + 1, n)
    start = 0
    for part in columns:
        rows[:, :, start : start + part.shape[-1]] = part.transpose(0, 2, 3, 1)
        start += part.shape[-1]
    rows[:, :, k] = target.transpose(0, 2, 1)

    def windows(array: np.ndarray) -> np.ndarray:
        return np.moveaxis(sliding_window_view(array, k + 1 + n_next, axis=1)[:, :: k + 1], -1, 2)

    means = flat @ np.full(n, 1 / n)
    flat -= means[..., None]
    W, mean = windows(flat), windows(means)
    if arm is not None:
        w = arm.transpose(0, 2, 1).astype(np.float64)[..., None]
        of_arm = (W @ w)[..., 0] / np.maximum(w.sum(2), 1)
        W = (W - of_arm[..., None]) * w.swapaxes(2, 3)
        mean = mean + of_arm
    X = W[:, :, :k]
    product = W @ X.swapaxes(2, 3)
    coef, rank = _solve(W, X, product, np.sqrt(n) * np.abs(mean[:, :, :k]), ridge)
    intercept = mean[:, :, k:] - (coef @ mean[:, :, :k, None])[..., 0]
    return Regression(coef, intercept, W[:, :, k:] - coef @ X if residuals else None, rank)


def _solve(
    W: np.ndarray, X: np.ndarray, product: np.ndarray, level: np.ndarray, ridge: float
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (R, T, m, k) and ranks (R, T), from W X' by elimination, or from W and X themselves."""
    R, T, width, k = product.shape
    A = np.array(product.reshape(R * T, width, k).transpose(2, 1, 0), order="C")  # the batch last: long vectors
    length = np.sqrt(A[range(k), range(k)])
    size = level.reshape(R * T, k).T
    unit = np.where((length <= _CONSTANT * size) & (ridge == 0), 0, np.sqrt(length**2 + ridge))
    scale = np.divide(1, unit, out=np.zeros_like(unit), where=unit > 0)
    A[range(k), range(k)] += ridge
    A *= scale[:, None]
    A[:, :k] *= scale
    lowest = np.ones(R * T)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for j in range(k):
            lowest = np.minimum(lowest, A[j, j])  # 1 - R^2 of column j given those before it
            for i in range(j + 1, k):
                A[i, i:] -= A[j, i] / A[j, j] * A[j, i:]
            A[j, j + 1 :] /= A[j, j]
        for j in reversed(range(k)):
            for i in range(j + 1, k):
                A[j, k:] -= A[j, i] * A[i, k:]
        coef = (A[:, k:] * scale[:, None]).transpose(2, 1, 0)
    coef = np.array(coef, order="C").reshape(R, T, width - k, k)
    rank = np.full((R, T), k)
    ill = np.nonzero(~(lowest > _WELL).reshape(R, T))
    if len(ill[0]):
        noise = (size * scale).max(0, initial=0).reshape(R, T)[ill]  # rounding of the centred columns
        of_column = scale.T.reshape(R, T, k)[ill]
        penalty = np.sqrt(ridge) * of_column[..., None] * np.eye(k)
        scaled = np.concatenate([X[ill] * of_column[..., None], penalty], axis=-1)
        targets = np.concatenate([W[ill][:, k:], np.zeros((len(scaled), width - k, k))], axis=-1)
        U, s, V = np.linalg.svd(scaled, full_matrices=False)
        along = targets @ V.swapaxes(1, 2)
        cancels = np.abs(along) > _CANCEL * s[:, None] * np.linalg.norm(targets, axis=2, keepdims=True)
        kept = (s > (1e-13 + 4 * _EPS * noise[:, None]) * s[:, :1]) & ~cancels.any(1)
        inverse = np.divide(1, s, out=np.zeros_like(s), where=kept)
        coef[ill] = (along * inverse[:, None]) @ U.swapaxes(1, 2) * of_column[:, None]
        rank[ill] = kept.sum(1)
    return coef, rank
