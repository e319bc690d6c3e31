"""Two-stage least squares on a set of instruments."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from icml25.cat_iv.auxiliary import adjust, basis, require_first_stage
from icml25.cat_iv.checks import (
    as_matrix,
    as_vector,
    label_columns,
    refuse_constant,
    refuse_nonfinite,
    same_length,
)

__all__ = ["projected_ratio", "two_stage_least_squares"]


def two_stage_least_squares(Z: Any, x: Any, y: Any, W: Any = None) -> float:
    """Effect of x on y by two-stage least squares, in closed form: <P_Z x, y> / <P_Z x, x>.

    Parameters
    ----------
    Z : (n, k) instruments.
    x, y : (n,) treatment and outcome.
    W : (n, d) covariates, which may be linearly dependent, or None; an intercept is always included.

    Returns
    -------
    float, units of y per unit of x.

    Raises
    ------
    TypeError, ValueError: columns that are not numbers, NaN, lengths that differ, a constant column, a column that W
        determines, by name, or too few rows.
    WeakInstrumentError: the instruments do not covary with x.
    """
    Z, names = as_matrix("Z", Z)
    x, y = as_vector("x", x), as_vector("y", y)
    columns = [*label_columns("Z", names, Z), ("x", x), ("y", y)]
    k, d = Z.shape[1], 0
    same_length(Z=Z, x=x, y=y)
    refuse_nonfinite(columns)
    refuse_constant(columns)
    if W is not None:
        W, w_names = as_matrix("W", W)
        same_length(Z=Z, W=W)
        refuse_nonfinite(label_columns("W", w_names, W))
        d = W.shape[1]
    if len(x) < k + d + 2:
        raise ValueError(f"{len(x)} rows; expected at least {k + d + 2} for {k} instruments and {d} covariates")
    V, units = adjust(columns, W)
    effect = projected_ratio(V[:, :-2], V[:, -2], V[:, -1])
    if np.isnan(effect):
        require_first_stage(np.full(k, np.nan), columns[:k])
    return effect * float(units[-1] / units[-2])


def projected_ratio(Z: Float[np.ndarray, "n k"], x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float:
    """<P_Z x, y> / <P_Z x, x> of standardised columns; NaN when P_Z x = 0.

    Parameters
    ----------
    Z, x, y : (n, k), (n,), (n,)

    Returns
    -------
    float
    """
    Q, _ = basis(Z)
    first_stage = Q.T @ x / np.sqrt(len(x))
    if np.abs(first_stage).max() <= len(x) * np.finfo(float).eps:
        return float("nan")
    return float(first_stage @ (Q.T @ y) / (first_stage @ (Q.T @ x)))
