"""Adjustment for covariates, effects from one instrument each, and the auxiliary variables A_j = Y - beta_j X."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from icml25.cat_iv.checks import (
    Columns,
    as_generator,
    as_matrix,
    as_vector,
    label_columns,
    positions,
    refuse_constant,
    refuse_nonfinite,
    require_whole,
    same_length,
    standardise,
    standardise_columns,
)
from icml25.cat_iv.independence import cross_correlations

__all__ = [
    "WeakInstrumentError",
    "WeakInstrumentWarning",
    "adjust",
    "auxiliary",
    "basis",
    "cat_score",
    "control_function_auxiliary",
    "first_stage_f",
    "pair_scores",
    "require_first_stage",
    "residualise",
]

COLLINEAR = 1e-8  # share of a column's standard deviation that must remain after adjustment


class WeakInstrumentError(ValueError):
    """A candidate has no linear first stage: Cov(X, Z_j) = 0."""


class WeakInstrumentWarning(UserWarning):
    """A selected instrument is weak, or the selected ones disagree on the effect."""


def _problem(Z: Any, x: Any, y: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[Any]]:
    """Checked (Z, x, y) and the names of the columns of Z."""
    Z, names = as_matrix("Z", Z)
    x, y = as_vector("x", x), as_vector("y", y)
    same_length(Z=Z, x=x, y=y)
    columns = [*label_columns("Z", names, Z), ("x", x), ("y", y)]
    refuse_nonfinite(columns)
    refuse_constant(columns)
    return Z, x, y, names


def residualise(
    V: Any, W: Any, regressor: Any = None, *, cross_fit: Any = 5, seed: Any = None
) -> Float[np.ndarray, "n k"]:
    """Residuals of the regression of each column on the covariates (step 1).

    Parameters
    ----------
    V : (n, k) columns to adjust: treatment, outcome and candidates.
    W : (n, d) covariates; they may be linearly dependent.
    regressor : None for ordinary least squares with an intercept; else a scikit-learn regressor, which is fitted
        on the other folds of the rows that it predicts, as predictions in sample leave residuals that are too small.
        It sees standardised columns.
    cross_fit : number of folds for a regressor.
    seed : seed or generator of the folds.

    Returns
    -------
    (n, k) residuals, in the units of V.

    Raises
    ------
    TypeError, ValueError: columns that are not numbers, NaN, lengths that differ, folds or seed out of range.
    """
    (V, names), (W, w_names) = as_matrix("V", V), as_matrix("W", W)
    same_length(V=V, W=W)
    refuse_nonfinite(label_columns("V", names, V) + label_columns("W", w_names, W))
    units = [standardise(v)[1] for v in V.T]
    return _residuals(standardise_columns(V), W, regressor, cross_fit, seed) * units


def _residuals(V: np.ndarray, W: np.ndarray, regressor: Any, cross_fit: int, seed: Any) -> np.ndarray:
    """Residuals of standardised columns."""
    if regressor is None:
        Q, _ = basis(W)
        return V - Q @ (Q.T @ V)
    from sklearn.model_selection import KFold, cross_val_predict

    require_whole("cross_fit", cross_fit, 2, len(V))
    folds = KFold(cross_fit, shuffle=True, random_state=int(as_generator("seed", seed).integers(2**31)))
    W = standardise_columns(W)
    return np.column_stack([v - cross_val_predict(regressor, W, v, cv=folds) for v in V.T])


def adjust(
    columns: Columns, W: Any, regressor: Any = None, *, cross_fit: Any = 5, seed: Any = None
) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, " k"]]:
    """Standardised residuals of named columns, and their standard deviations in the units of the columns.

    Parameters
    ----------
    columns : k pairs of a name and (n,) finite values.
    W : (n, d) finite covariates, or None.
    regressor, cross_fit, seed : as ``residualise``.

    Returns
    -------
    (n, k), (k,)

    Raises
    ------
    ValueError: the covariates determine a column, by name.
    """
    units = np.array([standardise(v)[1] for _, v in columns])
    V = standardise_columns(np.column_stack([v for _, v in columns]))
    if W is None:
        return V, units
    V = _residuals(V, W, regressor, cross_fit, seed)
    left = V.std(0)
    coarse = max(map(_rounding, np.reshape(W, (len(V), -1)).T), default=0.0)
    limits = [max(COLLINEAR, coarse, _rounding(v)) for _, v in columns]
    if gone := [name for (name, _), share, limit in zip(columns, left, limits, strict=True) if share <= limit]:
        raise ValueError(
            f"the covariates determine {', '.join(gone)}: no variance is left; expected covariates that leave"
            " variation in the treatment, the outcome and every candidate"
        )
    return standardise_columns(V), units * left


def _rounding(v: np.ndarray) -> float:
    """Rounding error of a column as a share of its standard deviation: large where a large offset is all that is left."""
    size = np.abs(v).max()
    spread = (v / size).std() if size > 0 else 0.0
    return 8 * np.finfo(float).eps / spread if spread > 0 else 0.0


def basis(V: Float[np.ndarray, "n k"]) -> tuple[Float[np.ndarray, "n r"], np.ndarray]:
    """Orthonormal basis of the span of the centred columns.

    Parameters
    ----------
    V : (n, k) finite columns, constant and linearly dependent ones included.

    Returns
    -------
    (n, r) basis with the rank r, and the indices of r independent columns, from which it is made in turn.
    """
    from scipy.linalg import qr

    factors: Any = qr(standardise_columns(V), mode="economic", pivoting=True)
    Q, R, pivots = factors
    size = np.abs(np.diag(R))
    rank = int((size > max(V.shape) * np.finfo(float).eps * size[0]).sum())
    return Q[:, :rank], pivots[:rank]


def auxiliary(Z: Any, x: Any, y: Any) -> tuple[Float[np.ndarray, "n p"], Float[np.ndarray, " p"]]:
    """Auxiliary variables and single-instrument effects (equations 1 and 2).

    beta_j = Cov(Y, Z_j) / Cov(X, Z_j) and A_j = Y - beta_j X.

    Parameters
    ----------
    Z : (n, p) candidate instruments: array or data frame of numbers or booleans.
    x, y : (n,) treatment and outcome.

    Returns
    -------
    A (n, p) auxiliary variables in the units of y, and the (p,) effects in units of y per unit of x.

    Raises
    ------
    TypeError, ValueError: columns that are not numbers, NaN, constant columns, lengths that differ.
    WeakInstrumentError: Cov(X, Z_j) = 0, naming j.
    """
    Z, x, y, names = _problem(Z, x, y)
    (x_, x_unit), (y_, y_unit) = standardise(x), standardise(y)
    slopes = single_instrument_slopes(standardise_columns(Z), x_, y_)
    require_first_stage(slopes, label_columns("Z", names, Z))
    betas = slopes * (y_unit / x_unit)
    return y[:, None] - np.outer(x, betas), betas


def single_instrument_slopes(
    Z: Float[np.ndarray, "n p"], x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " p"]:
    """Equation 1 on columns of unit scale: Cov(Y, Z_j) / Cov(X, Z_j).

    Parameters
    ----------
    Z, x, y : (n, p), (n,), (n,) standardised columns, or some of their rows.

    Returns
    -------
    (p,) slopes; NaN where Cov(X, Z_j) = 0.
    """
    first_stage = (x - x.mean()) @ Z / len(x)
    first_stage[np.abs(first_stage) <= len(x) * np.finfo(float).eps] = np.nan
    return ((y - y.mean()) @ Z / len(x)) / first_stage


def require_first_stage(slopes: Float[np.ndarray, " p"], candidates: Columns) -> None:
    """Raise WeakInstrumentError that names the candidates without a slope."""
    if weak := [label for (label, _), slope in zip(candidates, slopes, strict=True) if np.isnan(slope)]:
        raise WeakInstrumentError(
            f"no linear first stage: the covariance of the treatment with {', '.join(weak)} is zero; leave it out,"
            " screen by min_first_stage_f, or pass a transform such as Z**2 when the relation is even"
        )


def linear_auxiliary(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], slopes: Float[np.ndarray, " p"]
) -> Float[np.ndarray, "n p"]:
    """Equation 2 on standardised columns: A_j = Y - beta_j X; what is only rounding error becomes exactly 0.

    Parameters
    ----------
    x, y : (n,) standardised treatment and outcome.
    slopes : (p,) equation 1.

    Returns
    -------
    (n, p) auxiliary variables.
    """
    A = np.empty((len(slopes), len(x)))
    for row, slope in zip(A, slopes, strict=True):
        row[:] = y - slope * x
        if row.std() <= 1e-12 * (1 + abs(slope)):
            row[:] = 0.0
    return A.T


def control_function_auxiliary(
    Z: Float[np.ndarray, "n p"],
    x: Float[np.ndarray, " n"],
    y: Float[np.ndarray, " n"],
    fit_rows: Any = slice(None),
) -> Float[np.ndarray, "n p"]:
    """Auxiliary variables A_j = Y - h_j(X) for an effect that is not constant (follow-up of the paper).

    v is the residual of X on (1, Z_j, Z_j^2, Z_j^3); h_j(X) are the four X terms of the regression of Y on
    (1, X, X^2, X^3, X^4, v).

    Parameters
    ----------
    Z : (n, p) candidates.
    x, y : (n,) treatment and outcome.
    fit_rows : index of the rows that the two regressions use.

    Returns
    -------
    (n, p) auxiliary variables of all rows, in the units of y.
    """
    treatment = _powers(x, 4)
    x_, y_ = x[fit_rows], y[fit_rows]
    A = np.empty(Z.shape)
    for j, z in enumerate(Z.T):
        first = np.column_stack([np.ones(len(x_)), _powers(z, 3)[fit_rows]])
        v = x_ - first @ np.linalg.lstsq(first, x_, rcond=None)[0]
        second = np.column_stack([treatment[fit_rows], v, np.ones(len(x_))])
        A[:, j] = y - treatment @ np.linalg.lstsq(second, y_, rcond=None)[0][:4]
    return A


def _powers(v: np.ndarray, degree: int) -> np.ndarray:
    """Columns u, u^2, ..., each scaled to a largest value of 1, of the standardised u."""
    powers = standardise(v)[0][:, None] ** np.arange(1, degree + 1)
    return powers / np.abs(powers).max(0)


def first_stage_f(Z: Any, x: Any, n_covariates: Any = 0) -> Float[np.ndarray, " p"]:
    """F statistic of the regression of the treatment on each candidate alone.

    Parameters
    ----------
    Z : (n, p) candidates, after adjustment for the covariates.
    x : (n,) treatment, after adjustment.
    n_covariates : linearly independent columns of W that both were adjusted for.

    Returns
    -------
    (p,) F with 1 and n - 2 - n_covariates degrees of freedom; infinite for an exact fit.

    Raises
    ------
    TypeError, ValueError: columns that are not numbers, NaN, constant columns, lengths that differ, or no degree of
        freedom.
    """
    Z, names = as_matrix("Z", Z)
    x = as_vector("x", x)
    same_length(Z=Z, x=x)
    columns = [*label_columns("Z", names, Z), ("x", x)]
    refuse_nonfinite(columns)
    refuse_constant(columns)
    require_whole("n_covariates", n_covariates, 0, len(x) - 3)
    x_ = standardise(x)[0]
    r2 = (standardise_columns(Z).T @ x_ / len(x)) ** 2
    left = np.where(1 - r2 <= 8 * np.finfo(float).eps, 0.0, 1 - r2)
    with np.errstate(divide="ignore"):
        return (len(x) - 2 - n_covariates) * r2 / left


def pair_scores(Z: Any, x: Any, y: Any, *, n_jobs: int | None = 1) -> Float[np.ndarray, "p p"]:
    """Scores of all pairs: D_ij = dCor(A_i, Z_j) + dCor(A_j, Z_i) (step 4).

    Parameters
    ----------
    Z : (n, p) candidate instruments; adjust for covariates before (``residualise``).
    x, y : (n,) treatment and outcome.
    n_jobs : threads; -1 takes all cores.

    Returns
    -------
    (p, p) symmetric, zero diagonal; small for a pair of valid instruments.

    Raises
    ------
    TypeError, ValueError, WeakInstrumentError: as ``auxiliary``.
    """
    Z, x, y, names = _problem(Z, x, y)
    labelled = label_columns("Z", names, Z)
    Z, x, y = standardise_columns(Z), standardise(x)[0], standardise(y)[0]
    slopes = single_instrument_slopes(Z, x, y)
    require_first_stage(slopes, labelled)
    A = linear_auxiliary(x, y, slopes)
    directed = cross_correlations(A, Z, n_jobs)
    return directed + directed.T


def cat_score(Z: Any, x: Any, y: Any, subset: Any) -> float:
    """Score of one set: the sum of D_ij over its pairs (step 5).

    Parameters
    ----------
    Z : (n, p) candidate instruments.
    x, y : (n,) treatment and outcome.
    subset : at least two distinct columns: names of a frame, or indices.

    Returns
    -------
    float >= 0. Compare only sets of the same size: the score grows with the number of pairs.

    Raises
    ------
    ValueError: a subset with fewer than two, repeated or unknown columns; and as ``auxiliary``.
    """
    Z, x, y, names = _problem(Z, x, y)
    columns = list(positions(subset, names))
    return float(np.triu(pair_scores(Z[:, columns], x, y)).sum())
