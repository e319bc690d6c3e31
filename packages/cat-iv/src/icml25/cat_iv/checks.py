"""Turn what users pass into float64 arrays, or say which argument is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

__all__ = [
    "as_matrix",
    "as_vector",
    "refuse_constant",
    "refuse_nonfinite",
    "same_length",
    "standardise",
    "standardise_columns",
]

Names = list[Any]


def _numeric(name: str, value: Any) -> np.ndarray:
    """One array-like of numbers or booleans as float64; an array that is float64 already is not copied."""
    if isinstance(value, np.ma.MaskedArray):
        value = np.ma.filled(value.astype(np.float64), np.nan)
    dtype = getattr(value, "dtype", None)
    if not isinstance(value, np.ndarray) and getattr(dtype, "kind", "O") in "biuf" and hasattr(value, "to_numpy"):
        return value.to_numpy(dtype=np.float64, na_value=np.nan)  # a pandas column, nullable ones included
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is ragged; expected a rectangular array of numbers") from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} has dtype {array.dtype}; expected numbers or booleans")
    return array.astype(np.float64, copy=False)


def as_matrix(name: str, value: Any) -> tuple[Float[np.ndarray, "n p"], Names]:
    """Columns of numbers and their names.

    Parameters
    ----------
    name : the argument's name, for messages.
    value : (n, p) array, (n,) array (one column), or a data frame.

    Returns
    -------
    (n, p) float64, and p column names of a frame or indices 0..p-1.

    Raises
    ------
    TypeError: columns that are not numbers or booleans, by name.
    ValueError: more than two dimensions, no rows, no columns, or a column name used twice.
    """
    if hasattr(value, "columns") and hasattr(value, "iloc"):
        names = list(value.columns)
        if doubled := sorted({str(c) for c in names if names.count(c) > 1}):
            raise ValueError(f"{name} has columns of the same name: {', '.join(doubled)}; expected distinct names")
        columns = [value.iloc[:, j] for j in range(len(names))]
        bad = [f"{c} ({v.dtype})" for c, v in zip(names, columns, strict=True) if v.dtype.kind not in "biuf"]
        if bad:
            raise TypeError(f"{name} has columns that are not numbers or booleans: {', '.join(bad)}")
        array = np.column_stack([_numeric(name, c) for c in columns]) if columns else np.empty((len(value), 0))
    else:
        array = _numeric(name, value)
        array = array[:, None] if array.ndim == 1 else array
        names = list(range(array.shape[1])) if array.ndim == 2 else []
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} has shape {array.shape}; expected (n, p) with at least one row and one column")
    return array, names


def as_vector(name: str, value: Any) -> Float[np.ndarray, " n"]:
    """One column of numbers.

    Parameters
    ----------
    name : the argument's name, for messages.
    value : (n,) or (n, 1) array, a series, or a frame of one column.

    Returns
    -------
    (n,) float64.

    Raises
    ------
    TypeError: not numbers or booleans.
    ValueError: several columns.
    """
    if value is None or np.isscalar(value):
        raise TypeError(f"{name} is {value!r}; expected a column of numbers")
    array, _ = as_matrix(name, value)
    if array.shape[1] != 1:
        raise ValueError(f"{name} has shape {array.shape}; expected one column, (n,) or (n, 1)")
    return array[:, 0]


def same_length(**arrays: np.ndarray) -> None:
    """Raise ValueError with all shapes unless the arrays have the same number of rows."""
    if len({len(a) for a in arrays.values()}) > 1:
        shapes = ", ".join(f"{name} {a.shape}" for name, a in arrays.items())
        raise ValueError(f"lengths differ: {shapes}; expected the same number of rows")


def refuse_nonfinite(columns: dict[str, np.ndarray]) -> None:
    """Raise ValueError that names every column with NaN or infinite entries and counts them."""
    counts = {name: int((~np.isfinite(v)).sum()) for name, v in columns.items()}
    if bad := [f"{name} ({count})" for name, count in counts.items() if count]:
        raise ValueError(
            f"NaN or infinite values in: {', '.join(bad)}; expected finite numbers (or nan_policy='omit' in CATSelector)"
        )


def refuse_constant(columns: dict[str, np.ndarray]) -> None:
    """Raise ValueError that names every column without variation."""
    if bad := [name for name, v in columns.items() if np.ptp(v / _peak(v)) <= 8 * np.finfo(float).eps]:
        raise ValueError(f"constant: {', '.join(bad)}; expected columns that vary")


def _peak(v: np.ndarray) -> float:
    return float(np.abs(v).max()) or 1.0


def standardise_columns(V: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
    """Each column with mean 0 and standard deviation 1; columns lie contiguous in memory."""
    out = np.empty(V.shape[::-1])
    for row, v in zip(out, V.T, strict=True):
        row[:] = standardise(v)[0]
    return out.T


def standardise(v: Float[np.ndarray, " n"]) -> tuple[Float[np.ndarray, " n"], float]:
    """Centre and scale to unit variance, safe for values near the largest and smallest floats.

    Parameters
    ----------
    v : (n,) finite values.

    Returns
    -------
    (n,) centred values with standard deviation 1 (0 if v is constant), and the standard deviation in the units of v.
    """
    peak = _peak(v)
    u = v / peak
    u -= u.mean()
    deviation = float(u.std())
    return (u / deviation, deviation * peak) if deviation > 0 else (u, 0.0)
