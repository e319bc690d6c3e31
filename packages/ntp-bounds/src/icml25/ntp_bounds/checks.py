"""Refusal of bad input, in words."""

import math
from typing import Any

import numpy as np

MOST = 10**150  # products of two are still floating point numbers


def check_integer(value: Any, name: str, least: int = 1) -> int:
    """A whole number of at least ``least`` (1e9 counts as one), or an error that names it."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if isinstance(value, int) and abs(value) > MOST:
        raise ValueError(f"{name} must be an integer of at most 1e150, got one of {value.bit_length()} bits")
    if not math.isfinite(value) or value != int(value) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return int(value)


def check_number(
    value: Any, name: str, low: float | int, high: float | int = math.inf, *, closed: bool = False
) -> float:
    """A number in (low, high), or [low, high) where ``closed``, or an error that names it."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not ((low <= value if closed else low < value) and value < high):
        raise ValueError(f"{name} must be in {'[' if closed else '('}{low:g}, {high:g}), got {value!r}")
    return float(value)


def check_positive(values: Any, name: str) -> np.ndarray:
    """Positive numbers as float64, in any shape; infinity is one."""
    array = np.asarray(values)
    if array.dtype.kind not in "iufO":  # O: integers beyond 2^63
        raise TypeError(f"{name} must hold numbers, got dtype {array.dtype}")
    array = array.astype(float)
    if array.size == 0 or not (array > 0).all():
        raise ValueError(f"{name} must be positive, got {values!r}")
    return array


def check_matrix(values: Any, name: str) -> np.ndarray:
    """A finite float64 matrix with at least one entry."""
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must hold numbers, got dtype {array.dtype}")
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"{name} must be a matrix with at least one row and one column, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has {int((~np.isfinite(array)).sum())} value(s) that are NaN or infinite")
    return array.astype(float)


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> str:
    """One of the choices, or an error that lists them."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def check_flag(value: Any, name: str) -> bool:
    """True or False, or an error that names it."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)
