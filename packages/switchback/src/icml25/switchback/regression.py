"""Many small least-squares problems at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

__all__ = ["LeastSquares", "least_squares"]

_CONSTANT = 1e-12  # spread of a column over its size, below which it carries nothing but rounding
_COLLINEAR = 1e-12  # 1 - R^2 of a column given those before it, below which they are collinear


class LeastSquares(NamedTuple):
    """Fits with an intercept; a column that those before it determine gets the coefficient 0 and lowers the rank."""

    coef: Float[np.ndarray, "*batch m k"]
    intercept: Float[np.ndarray, "*batch m"]
    residuals: Float[np.ndarray, "*batch m n"]
    rank: Int[np.ndarray, "*batch"]


def least_squares(
    X: Float[np.ndarray, "*batch k n"],
    Y: Float[np.ndarray, "*batch m n"],
    weight: Float[np.ndarray, "*batch n"] | None = None,
    ridge: float = 0.0,
) -> LeastSquares:
    """Regress each row of Y on (1, X), in every problem of the batch.

    Columns are centred, then the normal equations in units of each column are solved by Cholesky and corrected once with their
    own residuals: the accuracy of a QR factorisation, without a Python loop over the batch.

    Parameters
    ----------
    X : (*batch, k, n) regressors without the constant, which ranks do not count. Overwritten.
    Y : (*batch, m, n) targets. Overwritten by the residuals.
    weight : (*batch, n) of 0 and 1: which observations take part; None is all. Residuals of the others are 0.
    ridge : weight of the squared coefficients, the intercept apart.

    Returns
    -------
    LeastSquares
    """
    n = X.shape[-1] if weight is None else np.maximum(weight.sum(-1), 1)[..., None]

    def centred(Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean = (Z if weight is None else Z * weight[..., None, :]).sum(-1) / n
        Z -= mean[..., None]
        if weight is not None:
            Z *= weight[..., None, :]
        return Z, mean

    Xc, mean_x = centred(X)
    Yc, mean_y = centred(Y)
    gram = Xc @ np.swapaxes(Xc, -1, -2)
    diagonal = np.einsum("...ii->...i", gram)  # a view
    level = np.abs(mean_x) * np.sqrt(X.shape[-1])
    constant = np.sqrt(diagonal) <= _CONSTANT * level
    diagonal += ridge
    factor, rank = _inverse_cholesky(gram, np.where(constant & (ridge == 0), 0, np.sqrt(diagonal)))
    coef = _solve(factor, Yc @ np.swapaxes(Xc, -1, -2))
    residuals = Yc
    residuals -= coef @ Xc
    step = _solve(factor, residuals @ np.swapaxes(Xc, -1, -2) - ridge * coef)
    residuals -= step @ Xc
    coef += step
    return LeastSquares(coef, mean_y - (coef @ mean_x[..., None])[..., 0], residuals, rank)


def _inverse_cholesky(gram: np.ndarray, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower W with W'W the inverse of the Gram matrix, and its rank; columns without a pivot of their own are left out.

    ``unit`` is the length of each column, 0 for those to leave out: pivots are then 1 - R^2 of a column given those before it.
    """
    k = gram.shape[-1]
    shrink = np.divide(1, unit, out=np.zeros_like(unit), where=unit > 0)
    L = gram * shrink[..., :, None] * shrink[..., None, :]
    rank = np.zeros(gram.shape[:-2], dtype=np.int64)
    W = np.zeros_like(L)
    for j in range(k):
        pivot = L[..., j, j]
        keep = pivot > _COLLINEAR
        rank += keep
        root = np.where(keep, 1 / np.sqrt(np.where(keep, pivot, 1)), 0)
        column = L[..., j:, j] * root[..., None]
        L[..., j + 1 :, j + 1 :] -= column[..., 1:, None] * column[..., None, 1:]
        L[..., j:, j] = column
        W[..., j, :] = -(L[..., j, None, :j] @ W[..., :j, :])[..., 0, :]  # row j of the inverse of L, by substitution
        W[..., j, j] += 1
        W[..., j, :] *= root[..., None]
    return W * shrink[..., None, :], rank


def _solve(W: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Rows of B times the inverse of the Gram matrix."""
    return B @ np.swapaxes(W, -1, -2) @ W
