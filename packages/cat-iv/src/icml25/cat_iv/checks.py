"""Turn what users pass into float64 arrays, or say which argument is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Float

__all__ = [
    "as_generator",
    "as_matrix",
    "as_vector",
    "is_whole",
    "label_columns",
    "positions",
    "refuse_constant",
    "refuse_nonfinite",
    "require_whole",
    "same_length",
    "standardise",
    "standardise_columns",
]

Names = list[Any]
Columns = list[tuple[str, np.ndarray]]


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


def label_columns(name: str, names: Names, array: np.ndarray) -> Columns:
    """The columns of a matrix with what messages call them."""
    return [(f"{name}[{column!r}]", v) for column, v in zip(names, array.T, strict=True)]


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


def is_whole(value: Any, least: int, most: int | None = None) -> bool:
    """Whether a value is an integer, not a boolean, from ``least`` to ``most``."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return whole and bool(least <= value) and (most is None or bool(value <= most))


def require_whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise ValueError unless a value is an integer from ``least`` to ``most``."""
    if not is_whole(value, least, most):
        limit = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} is {value!r}; expected a whole number {limit}")


def as_generator(name: str, seed: Any) -> np.random.Generator:
    """The generator of a seed, or ValueError that names the argument."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        expected = "None, a whole number of at least 0, or a numpy Generator"
        raise ValueError(f"{name} is {seed!r}; expected {expected}") from error


def positions(subset: Any, names: Names, allowed: Names | None = None) -> tuple[int, ...]:
    """Increasing positions of at least two distinct names, or ValueError.

    Parameters
    ----------
    subset : names of columns: labels of a frame, or indices.
    names : all names, in order.
    allowed : those that a subset may hold; None allows all.

    Returns
    -------
    Positions in ``names``.
    """
    allowed = names if allowed is None else allowed

    def kind(value: Any) -> list[bool]:  # True == 1 == 1.0, but they are not the same name
        return [isinstance(value, (bool, np.bool_)), isinstance(value, (float, np.floating))]

    wanted = list(subset) if isinstance(subset, Iterable) and not isinstance(subset, str) else [subset]
    found = {
        k for w in wanted for k, name in enumerate(names) if np.isscalar(w) and kind(w) == kind(name) and w == name
    }
    if len(wanted) < 2 or len(found) < len(wanted) or any(names[k] not in allowed for k in found):
        raise ValueError(f"subset is {subset!r}; expected at least two distinct candidates of {allowed}")
    return tuple(sorted(found))


def same_length(**arrays: np.ndarray) -> None:
    """Raise ValueError with all shapes unless the arrays have the same number of rows."""
    if len({len(a) for a in arrays.values()}) > 1:
        shapes = ", ".join(f"{name} {a.shape}" for name, a in arrays.items())
        raise ValueError(f"lengths differ: {shapes}; expected the same number of rows")


def refuse_nonfinite(columns: Columns) -> None:
    """Raise ValueError that names every column with NaN or infinite entries and counts them."""
    counts = [(name, int((~np.isfinite(v)).sum())) for name, v in columns]
    if bad := [f"{name} ({count})" for name, count in counts if count]:
        raise ValueError(
            f"NaN or infinite values in: {', '.join(bad)}; expected finite numbers (or nan_policy='omit' in CATSelector)"
        )


def refuse_constant(columns: Columns) -> None:
    """Raise ValueError that names every column without variation."""
    if bad := [name for name, v in columns if np.ptp(v / (np.abs(v).max() or 1.0)) <= 8 * np.finfo(float).eps]:
        raise ValueError(f"constant: {', '.join(bad)}; expected columns that vary")


def standardise_columns(V: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
    """Each column with mean 0 and standard deviation 1; columns lie contiguous in memory."""
    out = np.empty(V.shape[::-1])
    for row, v in zip(out, V.T, strict=True):
        row[:] = standardise(v)[0]
    return out.T


def standardise(v: Float[np.ndarray, " n"]) -> tuple[Float[np.ndarray, " n"], float]:
    """Centre and scale to unit variance, safe for values near the largest and smallest floats and for large offsets.

    A power of two, which rounds nothing, brings the values in range; the median, near which differences are exact,
    goes before the mean.

    Parameters
    ----------
    v : (n,) finite values.

    Returns
    -------
    (n,) centred values with standard deviation 1 (0 if v is constant), and the standard deviation in the units of v.
    """
    exponent = int(np.frexp(np.abs(v).max())[1])
    u = np.ldexp(v, -exponent)
    u -= np.median(u)
    u -= u.mean()
    deviation = float(u.std())
    return (u / deviation, float(np.ldexp(deviation, exponent))) if deviation > 0 else (u, 0.0)
