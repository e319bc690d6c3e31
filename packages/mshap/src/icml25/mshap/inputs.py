"""Checks of what users pass in: an array of finite floats, or an error that names the argument."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike


def as_array(name: str, value: ArrayLike, ndim: int, minimum: float | int = -np.inf) -> np.ndarray:
    """Fresh float64 array with ``ndim`` axes, all finite and at least ``minimum``.

    Parameters
    ----------
    name : the argument's name, for the message.
    value : array-like of numbers.
    ndim : number of axes.
    minimum : smallest entry allowed.

    Returns
    -------
    ndarray of float64, never the caller's memory.

    Raises
    ------
    TypeError: not real numbers. ValueError: wrong number of axes, empty, NaN, infinite or too small entries.
    """
    try:
        given = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is ragged; expected an array with {ndim} axes") from error
    if given.dtype.kind not in "iuf":
        raise TypeError(f"{name} has dtype {given.dtype}; expected real numbers")
    if given.ndim != ndim:
        raise ValueError(f"{name} has shape {given.shape}; expected {ndim} axes")
    if given.size == 0:
        raise ValueError(f"{name} is empty, shape {given.shape}; expected at least one number")
    array = np.array(given, dtype=np.float64, order="C")
    wrong = ~np.isfinite(array) | (array < minimum)
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        where = f"{name}[{', '.join(map(str, place))}]"
        least = "" if minimum == -np.inf else f" and at least {minimum:g}"
        raise ValueError(f"{where} is {array[place]}; expected a finite number{least}")
    return array


def as_vector(
    name: str, value: ArrayLike, n: int | None = None, minimum: float | int = -np.inf
) -> Float[np.ndarray, " n"]:
    """``as_array`` of one axis, with ``n`` entries where n is given."""
    vector = as_array(name, value, 1, minimum)
    if n is not None and len(vector) != n:
        raise ValueError(f"{name} has {len(vector)} entries; expected {n}, one per agent")
    return vector


def is_number(value: Any) -> bool:
    """Whether it is a real number, and no truth value, text or array."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def as_positive(name: str, value: Any) -> float:
    """A finite number above 0."""
    if not is_number(value):
        raise TypeError(f"{name} is {value!r}; expected a number above 0")
    if not (np.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}; expected a finite number above 0")
    return float(value)


def as_count(name: str, value: int | np.integer, minimum: int = 1) -> int:
    """A whole number of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} is {value!r}; expected a whole number")
    if value < minimum:
        raise ValueError(f"{name} is {value}; expected at least {minimum}")
    return int(value)
