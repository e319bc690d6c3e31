"""Two-stage least squares on a set of instruments."""

from __future__ import annotations

from typing import Any

import numpy as np

from icml25.cat_iv.auxiliary import residualise
from icml25.cat_iv.checks import as_matrix, as_vector, refuse_constant, refuse_nonfinite, same_length, standardise

__all__ = ["two_stage_least_squares"]


def two_stage_least_squares(Z: Any, x: Any, y: Any, W: Any = None) -> float:
    """Effect of x on y by two-stage least squares, in closed form: <P_Z x, y> / <P_Z x, x>.

    Parameters
    ----------
    Z : (n, k) instruments.
    x, y : (n,) treatment and outcome.
    W : (n, d) covariates, or None; an intercept is always included.

    Returns
    -------
    float, units of y per unit of x.

    Raises
    ------
    TypeError, ValueError: columns that are not numbers, NaN, lengths that differ, a constant column.
    """
    Z, names = as_matrix("Z", Z)
    x, y = as_vector("x", x), as_vector("y", y)
    arrays = {"Z": Z, "x": x, "y": y} | ({} if W is None else {"W": as_matrix("W", W)[0]})
    same_length(**arrays)
    refuse_nonfinite({name: a.ravel() for name, a in arrays.items()})
    refuse_constant({f"Z[{name!r}]": z for name, z in zip(names, Z.T, strict=True)} | {"x": x})
    columns = np.column_stack([standardise(v)[0] for v in (x, y, *Z.T)])
    if W is not None:
        columns = residualise(columns, arrays["W"])
    x_, y_, Z_ = columns[:, 0], columns[:, 1], columns[:, 2:]
    fitted = Z_ @ np.linalg.lstsq(Z_, x_, rcond=None)[0]
    return float((fitted @ y_) / (fitted @ x_) * (standardise(y)[1] / standardise(x)[1]))
