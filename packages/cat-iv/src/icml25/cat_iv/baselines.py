"""What people use instead: two-stage least squares on all candidates, and selectors for linear models.

Short versions from the published algorithms; the R packages (sisVIVE, RobustIV) are not on PyPI. Each takes candidates,
treatment and outcome after the adjustment for covariates, and returns the selected set and the effect.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import chdtrc

from icml25.cat_iv.auxiliary import linear_auxiliary, single_instrument_slopes
from icml25.cat_iv.checks import standardise_columns
from icml25.cat_iv.effects import two_stage_least_squares
from icml25.cat_iv.independence import permutation_p_value

__all__ = ["Selection", "ait_each", "oracle", "sargan_min", "sisvive", "tsht", "tsls_all"]

Matrix = Float[np.ndarray, "n p"]
Vector = Float[np.ndarray, " n"]


class Selection(NamedTuple):
    """Selected candidates, and the effect (NaN when none is selected).

    Attributes
    ----------
    support : (p,) bool.
    effect : units of y per unit of x.
    """

    support: Bool[np.ndarray, " p"]
    effect: float


def _project(Z: np.ndarray, v: np.ndarray) -> np.ndarray:
    return Z @ np.linalg.lstsq(Z, v, rcond=None)[0]


def _selection(Z: np.ndarray, x: np.ndarray, y: np.ndarray, support: np.ndarray, controls: bool = False) -> Selection:
    """Two-stage least squares on a set; the rejected candidates may serve as controls."""
    if not support.any():
        return Selection(support, float("nan"))
    W = Z[:, ~support] if controls and not support.all() else None
    return Selection(support, two_stage_least_squares(Z[:, support], x, y, W))


def tsls_all(Z: Matrix, x: Vector, y: Vector) -> Selection:
    """Two-stage least squares with every candidate.

    Parameters
    ----------
    Z, x, y : candidates, treatment, outcome.

    Returns
    -------
    Selection
    """
    return _selection(Z, x, y, np.ones(Z.shape[1], dtype=bool))


def oracle(Z: Matrix, x: Vector, y: Vector, valid: Bool[np.ndarray, " p"]) -> Selection:
    """Two-stage least squares with the set that is truly valid.

    Parameters
    ----------
    Z, x, y : candidates, treatment, outcome.
    valid : (p,) the truth.

    Returns
    -------
    Selection
    """
    return _selection(Z, x, y, valid)


def sargan(Z: Matrix, x: Vector, y: Vector, controls: Float[np.ndarray, "n c"] | None = None) -> tuple[float, int]:
    """Sargan's J = n R^2 of the two-stage residuals on all instruments, and its degrees of freedom.

    Parameters
    ----------
    Z, x, y : instruments, treatment, outcome.
    controls : columns with a direct effect, partialled out, or None.

    Returns
    -------
    J, and the number of instruments minus one.
    """
    columns = standardise_columns(np.column_stack([x, y, Z]))
    if controls is not None and controls.shape[1]:
        columns = columns - _project(standardise_columns(controls), columns)
    x, y, Z = columns[:, 0], columns[:, 1], columns[:, 2:]
    fitted = _project(Z, x)
    e = y - (fitted @ y) / (fitted @ x) * x
    return float(len(x) * (e @ _project(Z, e)) / (e @ e)), Z.shape[1] - 1


def sargan_min(Z: Matrix, x: Vector, y: Vector, n_valid: int) -> Selection:
    """Of all sets of ``n_valid`` candidates, the one with the smallest Sargan statistic.

    Parameters
    ----------
    Z, x, y : candidates, treatment, outcome.
    n_valid : size of the set.

    Returns
    -------
    Selection
    """
    sets = [list(s) for s in combinations(range(Z.shape[1]), n_valid)]
    best = min(sets, key=lambda s: sargan(Z[:, s], x, y)[0])
    return _selection(Z, x, y, np.isin(np.arange(Z.shape[1]), best))


def sisvive(Z: Matrix, x: Vector, y: Vector) -> Selection:
    """sisVIVE: a lasso on direct effects, with the largest penalty whose instruments pass Sargan's test.

    The candidates with a direct effect are controls of the final two-stage least squares. Valid if fewer than half of
    the candidates are not.

    Parameters
    ----------
    Z, x, y : candidates, treatment, outcome.

    Returns
    -------
    Selection; empty when fewer than two candidates remain.

    Source: Kang, Zhang, Cai and Small (2016); penalty by the test at level 0.1 / log n (Windmeijer et al., 2019).
    """
    from sklearn.linear_model import lars_path

    Z, x, y = standardise_columns(Z), x - x.mean(), y - y.mean()
    p = Z.shape[1]
    fitted = _project(Z, x)
    hat = fitted / (fitted @ fitted)
    y_t = _project(Z, y) - fitted * (hat @ y)
    Z_t = Z - np.outer(fitted, hat @ Z)
    _, _, path = lars_path(Z_t, y_t, method="lasso")
    for coefficients in path.T:
        invalid = coefficients != 0
        if p - invalid.sum() < 2:
            break
        J, freedom = sargan(Z[:, ~invalid], x, y, Z[:, invalid])
        if chdtrc(freedom, J) >= 0.1 / np.log(len(x)):
            return _selection(Z, x, y, ~invalid, controls=True)
    return Selection(np.zeros(p, dtype=bool), float("nan"))


def direct_effects(
    Z: Matrix, x: Vector, y: Vector
) -> tuple[Bool[np.ndarray, " p"], Float[np.ndarray, "p p"], Float[np.ndarray, "p p"]]:
    """Direct effect of each candidate if another one is valid: Gamma_k - beta_j gamma_k, beta_j = Gamma_j / gamma_j.

    Parameters
    ----------
    Z, x, y : candidates, treatment, outcome; centred.

    Returns
    -------
    (p,) whether the first stage gamma_j is relevant; (p, p) direct effect of k (column) according to j (row), and its
    standard error, that of the coefficient of k in two-stage least squares by j with the others as controls.
    """
    n, p = Z.shape
    inverse = np.linalg.pinv(Z.T @ Z)
    first, reduced = inverse @ Z.T @ x, inverse @ Z.T @ y
    e_x, e_y = x - Z @ first, y - Z @ reduced
    s_xx, s_yy, s_xy = (u @ v / (n - p - 1) for u, v in ((e_x, e_x), (e_y, e_y), (e_x, e_y)))
    relevant = np.abs(first) >= np.sqrt(np.log(n) * s_xx * np.diag(inverse))
    beta, ratio = reduced / first, first / first[:, None]
    noise = s_yy - 2 * beta * s_xy + beta**2 * s_xx  # of y - beta_j x
    spread = np.diag(inverse) - 2 * ratio * inverse + ratio**2 * np.diag(inverse)[:, None]
    return relevant, reduced - np.outer(beta, first), np.sqrt(np.maximum(noise[:, None] * spread, 0))


def tsht(Z: Matrix, x: Vector, y: Vector) -> Selection:
    """Two-stage hard thresholding: relevant candidates vote on each other's direct effects; the largest clique wins.

    Parameters
    ----------
    Z, x, y : candidates, treatment, outcome.

    Returns
    -------
    Selection; empty when no candidate is relevant.

    Source: Guo, Kang, Cai and Small (2018), with the maximum clique of the mutual votes.
    """
    Z, x, y = standardise_columns(Z), x - x.mean(), y - y.mean()
    n, p = Z.shape
    relevant, direct, standard_error = direct_effects(Z, x, y)
    votes = np.abs(direct) <= np.sqrt(2.01 * np.log(n)) * standard_error
    np.fill_diagonal(votes, True)
    relevant = np.flatnonzero(relevant)
    votes &= np.isin(np.arange(p), relevant)[:, None]
    mutual = votes & votes.T
    for size in range(len(relevant), 0, -1):
        cliques = [list(s) for s in combinations(relevant, size) if mutual[np.ix_(s, s)].all()]
        if cliques:
            most = max(cliques, key=lambda s: votes[:, s].sum())
            return _selection(Z, x, y, np.isin(np.arange(p), most), controls=True)
    return Selection(np.zeros(p, dtype=bool), float("nan"))


def ait_each(
    Z: Matrix,
    x: Vector,
    y: Vector,
    *,
    alpha: float = 0.05,
    split: float = 0.7,
    n_permutations: int = 99,
    seed: int | np.random.Generator | None = None,
) -> Selection:
    """Single-instrument test: keep j when A_j is independent of Z_j on rows that did not estimate beta_j.

    Parameters
    ----------
    Z, x, y : candidates, treatment, outcome.
    alpha : level.
    split : share of rows that estimates beta_j.
    n_permutations : permutations of the test.
    seed : seed or generator.

    Returns
    -------
    Selection

    Source: the predecessor of the method, the auxiliary-based independence test (AIT).
    """
    rng = np.random.default_rng(seed)
    Z, x, y = standardise_columns(Z), x - x.mean(), y - y.mean()
    fit_rows, test_rows = np.split(rng.permutation(len(x)), [round(split * len(x))])
    A = linear_auxiliary(x, y, single_instrument_slopes(Z[fit_rows], x[fit_rows], y[fit_rows]))[test_rows]
    p_values = [permutation_p_value(a, z, n_permutations, rng) for a, z in zip(A.T, Z[test_rows].T, strict=True)]
    return _selection(Z, x, y, np.array(p_values) >= alpha)
