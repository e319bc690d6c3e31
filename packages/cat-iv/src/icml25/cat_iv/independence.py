"""Distance correlation in O(n log n) time and O(n) memory, and tests of independence from it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from icml25.cat_iv.checks import (
    as_generator,
    as_vector,
    refuse_nonfinite,
    require_whole,
    same_length,
    standardise,
)

__all__ = ["chi2_p_value", "cross_correlations", "distance_correlation", "holm", "permutation_p_value"]

LEAF = 32


class _Distances(NamedTuple):
    """What pairwise distances |v_k - v_l| of one variable leave behind."""

    values: np.ndarray  # (n,) standardised
    order: np.ndarray  # (n,) sorts the values
    row_sums: np.ndarray  # (n,) a_k. = sum_l |v_k - v_l|
    squares: float  # sum_kl |v_k - v_l|^2


def _distances(v: np.ndarray) -> _Distances:
    values, _ = standardise(v)
    n = len(values)
    order = np.argsort(values).astype(np.int32)
    ranked = values[order]
    before = np.cumsum(ranked) - ranked
    row_sums = np.empty(n)
    row_sums[order] = (2 * np.arange(n) - n) * ranked + ranked.sum() - 2 * before
    return _Distances(values, order, row_sums, float(2 * n * (values @ values)))


def _sum_of_products(x: _Distances, y: _Distances) -> float:
    """sum_kl |x_k - x_l| |y_k - y_l|, by halving the range of x while the order of y is kept.

    Over pairs of points that ascend in both variables call P = sum (x_l - x_k)(y_l - y_k). As |d| = 2 max(d, 0) - d, the
    sum is 4 P - 2 (n x'y - sum x sum y). Each level adds to P the pairs whose first point lies in the lower half of a
    group and whose second lies in the upper half; groups of at most LEAF points are compared point by point.
    """
    n = len(x.values)
    levels = max(0, int(np.ceil(np.log2(n / LEAF))))
    size = -(-n // 2**levels) * 2**levels
    pad = size - n
    # Padding comes last in x and first in y: it ascends to nothing, and nothing ascends to it.
    rank = np.empty(n, dtype=np.int32)
    rank[x.order] = np.arange(n, dtype=np.int32)
    rank = np.concatenate([np.arange(n, size, dtype=np.int32), rank[y.order]])[None]
    xs = np.pad(x.values[y.order], (pad, 0), constant_values=x.values[x.order[-1]])[None]
    ys = np.pad(y.values[y.order], (pad, 0), mode="edge")[None]
    ascending = 0.0
    for _ in range(levels):
        half = rank.shape[1] // 2
        upper = rank >= half  # ranks count from 0 in each group
        lower = ~upper
        u, v = xs[upper], ys[upper]
        ascending += (
            (u * v) @ np.cumsum(lower, axis=1)[upper]
            - u @ np.cumsum(ys * lower, axis=1)[upper]
            - v @ np.cumsum(xs * lower, axis=1)[upper]
            + np.cumsum(xs * ys * lower, axis=1)[upper].sum()
        )
        shape = (len(rank), 1, half)
        rank, xs, ys = (
            np.concatenate([a[lower].reshape(shape), a[upper].reshape(shape)], axis=1).reshape(-1, half)
            for a in (rank - half * upper, xs, ys)
        )
    for lag in range(1, xs.shape[1]):
        ascending += np.vdot(np.maximum(xs[:, lag:] - xs[:, :-lag], 0), ys[:, lag:] - ys[:, :-lag])
    return float(4 * ascending - 2 * (n * (x.values @ y.values) - x.values.sum() * y.values.sum()))


def _covariance(x: _Distances, y: _Distances, products: float, *, unbiased: bool = False) -> float:
    """Squared distance covariance from sum_kl a_kl b_kl: the mean of the double-centred products, or its U-statistic."""
    n = len(x.values)
    rows, total = x.row_sums @ y.row_sums, x.row_sums.sum() * y.row_sums.sum()
    if unbiased:
        return float((products - 2 * rows / (n - 2) + total / ((n - 1) * (n - 2))) / (n * (n - 3)))
    return float((products - 2 * rows / n + total / n**2) / n**2)


def _correlation(x: _Distances, y: _Distances, *, unbiased: bool = False) -> float:
    """Distance correlation (root of the V-statistic), or the bias-corrected squared one; 0 if a variable is constant."""
    if not (x.squares and y.squares):
        return 0.0
    spread = _covariance(x, x, x.squares, unbiased=unbiased) * _covariance(y, y, y.squares, unbiased=unbiased)
    if spread <= 0:
        return 0.0
    squared = _covariance(x, y, _sum_of_products(x, y), unbiased=unbiased) / np.sqrt(spread)
    return float(squared) if unbiased else float(np.sqrt(np.clip(squared, 0, 1)))


def _pair(x: Any, y: Any, at_least: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = as_vector("x", x), as_vector("y", y)
    same_length(x=x, y=y)
    refuse_nonfinite([("x", x), ("y", y)])
    if len(x) < at_least:
        raise ValueError(f"x and y have {len(x)} rows; expected at least {at_least}")
    return x, y


def distance_correlation(x: Any, y: Any) -> float:
    """Distance correlation with exponent 1 (biased V-statistic): 0 in the limit iff x and y are independent.

    Parameters
    ----------
    x, y : (n,) finite numbers, any units.

    Returns
    -------
    float in [0, 1]; 0 when one of them is constant. About 1.7 / sqrt(n) for independent samples.

    Raises
    ------
    TypeError, ValueError: not numbers, lengths that differ, NaN, or fewer than 2 rows.

    Source: Székely, Rizzo and Bakirov (2007), definition 4; step 4 of the algorithm.
    """
    x, y = _pair(x, y, 2)
    return _correlation(_distances(x), _distances(y))


def cross_correlations(
    A: Float[np.ndarray, "n p"], Z: Float[np.ndarray, "n p"], n_jobs: int | None = 1
) -> Float[np.ndarray, "p p"]:
    """Distance correlation of each auxiliary variable with each other candidate (step 4, condition 3).

    Parameters
    ----------
    A, Z : (n, p) auxiliary variables and candidates.
    n_jobs : threads over candidates; -1 takes all cores. The answer is the same.

    Returns
    -------
    (p, p) entry (i, j) is dCor(A_i, Z_j); the diagonal, which the cross test leaves out, is 0.
    """
    p = Z.shape[1]

    def column(j: int) -> list[float]:
        z = _distances(Z[:, j])
        return [0.0 if i == j else _correlation(_distances(A[:, i]), z) for i in range(p)]

    if n_jobs in (None, 1):
        columns = [column(j) for j in range(p)]
    else:
        from joblib import Parallel, delayed

        columns = Parallel(n_jobs=n_jobs, prefer="threads")(delayed(column)(j) for j in range(p))
    return np.array(columns).T


def chi2_p_value(x: Any, y: Any) -> float:
    """Chi-square test of independence by the bias-corrected distance correlation: P(chi2_1 > n dCor_bc + 1).

    Parameters
    ----------
    x, y : (n,) finite numbers, n >= 4.

    Returns
    -------
    p-value, conservative.

    Raises
    ------
    TypeError, ValueError: as ``distance_correlation``.

    Source: Shen, Panda and Vogelstein (2022).
    """
    from scipy.special import chdtrc

    x, y = _pair(x, y, 4)
    statistic = len(x) * _correlation(_distances(x), _distances(y), unbiased=True) + 1
    return float(chdtrc(1, max(statistic, 0.0)))


def permutation_p_value(x: Any, y: Any, n_permutations: Any = 999, seed: Any = None) -> float:
    """Permutation test of independence by the distance covariance: (1 + #{permuted >= observed}) / (1 + B).

    Parameters
    ----------
    x, y : (n,) finite numbers.
    n_permutations : B.
    seed : seed or generator of the permutations.

    Returns
    -------
    p-value; valid in finite samples when the rows are exchangeable under the hypothesis, as for independent draws of
    two variables, but not when x is a residual with an estimated coefficient (see ``CATSelector``).

    Raises
    ------
    TypeError, ValueError: as ``distance_correlation``; n_permutations below 1, or a seed that is none.
    """
    x, y = _pair(x, y, 2)
    require_whole("n_permutations", n_permutations, 1)
    rng = as_generator("seed", seed)
    a, b = _distances(x), _distances(y)

    def covariance(b: _Distances) -> float:
        return _covariance(a, b, _sum_of_products(a, b))

    observed = covariance(b)
    threshold = observed - 1e-10 * np.sqrt(_covariance(a, a, a.squares) * _covariance(b, b, b.squares))
    exceed = 0
    for _ in range(n_permutations):
        shuffle = rng.permutation(len(y))  # entry k of the shuffled variable is entry shuffle[k] of y
        inverse = np.argsort(shuffle)
        shuffled = _Distances(b.values[shuffle], inverse[b.order], b.row_sums[shuffle], b.squares)
        exceed += bool(covariance(shuffled) >= threshold)
    return (1 + exceed) / (1 + n_permutations)


def holm(p_values: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """Holm's adjusted p-values, in the order given.

    Parameters
    ----------
    p_values : (m,) in [0, 1].

    Returns
    -------
    (m,) adjusted p-values: the smallest family-wise level at which each test rejects.
    """
    m = len(p_values)
    order = np.argsort(p_values)
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(1, np.maximum.accumulate((m - np.arange(m)) * p_values[order]))
    return adjusted
