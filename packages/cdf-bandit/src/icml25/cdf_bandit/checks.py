"""Refusal of bad input, in words."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int


def check_integer(value: Any, name: str, least: int) -> int:
    """An integer that is at least ``least``, or an error that names it."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


LARGEST = float(np.finfo(float).max)


def check_number(
    value: Any, name: str, low: float | int, high: float | int, *, open_low: bool = True, open_high: bool = False
) -> float:
    """A number between low and high, or an error that names it."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not ((low < value if open_low else low <= value) and (value < high if open_high else value <= high)):
        left, right = "(" if open_low else "[", ")" if open_high else "]"
        raise ValueError(f"{name} must be in {left}{low:g}, {high:g}{right}, got {value}")
    return float(value)


def check_unmasked(values: Any, name: str) -> None:
    """Refuse a masked array: what lies under the mask would be taken for data."""
    if np.ma.isMaskedArray(values):
        raise TypeError(f"{name} is a masked array; drop the masked entries first, expected a plain array")


def check_numbers(values: Any, name: str, ndim: int | None = None) -> Float[np.ndarray, "..."]:
    """A finite float64 array, or an error that names it; never a view that is written to."""
    if hasattr(values, "toarray"):
        raise TypeError(f"{name} is a sparse matrix; expected a dense array")
    check_unmasked(values, name)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} is no array of numbers: {error}") from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    if ndim is not None and array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension(s), got shape {array.shape}")
    array = array.astype(np.float64)
    if bad := int((~np.isfinite(array)).sum()):
        raise ValueError(f"{name} has {bad} value(s) that are NaN or infinite")
    return array


def check_contexts(X: Any, n_features: int | None = None) -> Float[np.ndarray, "n d"]:
    """Contexts (n, d) of at least one row."""
    array = check_numbers(X, "X")
    if array.ndim != 2:
        raise ValueError(f"X must be (n, d), one row per context; got shape {array.shape}")
    if array.shape[0] == 0 or array.shape[1] == 0:
        raise ValueError(f"X is empty: shape {array.shape}")
    if n_features is not None and array.shape[1] != n_features:
        raise ValueError(f"X has {array.shape[1]} column(s), expected {n_features} as in the data seen before")
    return array


def check_actions(actions: Any, n: int, n_actions: int) -> Int[np.ndarray, " n"]:
    """Actions (n,) in 0..n_actions-1."""
    check_unmasked(actions, "actions")
    array = np.asarray(actions)
    if array.dtype.kind not in "iu":
        raise TypeError(f"actions must be integers, got dtype {array.dtype}")
    if array.shape != (n,):
        raise ValueError(f"actions must have shape ({n},) like the rows of X, got {array.shape}")
    array = array.astype(np.int64)
    outside = (array < 0) | (array >= n_actions)
    if outside.any():
        raise ValueError(
            f"actions must be in 0..{n_actions - 1}, got {outside.sum()} outside, such as {array[outside][0]}"
        )
    return array


def check_outcomes(y: Any, n: int, domain: tuple[float, float], clip: bool) -> Float[np.ndarray, " n"]:
    """Outcomes (n,) inside the domain, moved to its ends only when asked to."""
    array = check_numbers(y, "y", ndim=1)
    if array.shape != (n,):
        raise ValueError(f"y must have shape ({n},) like the rows of X, got {array.shape}")
    lo, hi = domain
    outside = (array < lo) | (array > hi)
    if outside.any() and not clip:
        raise ValueError(
            f"y has {outside.sum()} of {n} value(s) outside the basis's domain [{lo:g}, {hi:g}]: they range from "
            f"{array.min():g} to {array.max():g}; rescale y, choose a wider domain, or pass clip=True"
        )
    return np.clip(array, lo, hi)
