"""Refusals of settings, with the name, what came and what was expected."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

__all__ = ["check_axes", "check_integer", "check_number"]


def check_number(name: str, value: Any, *, least: float = 0.0, above: bool = False) -> None:
    """A finite number of at least ``least``, or above it."""
    wanted = f"{name} must be {'above' if above else 'at least'} {least:g} and finite, got {value!r}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(wanted)
    number = float(value)
    if not least <= number < math.inf or (above and number == least):
        raise ValueError(wanted)


def check_integer(name: str, value: Any, *, least: int = 1) -> None:
    """An integer of at least ``least``."""
    wanted = f"{name} must be at least {least} and an integer, got {value!r}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(wanted)
    if value < least:
        raise ValueError(wanted)


def check_axes(name: str, value: Any) -> None:
    """A tuple of integers."""
    if not isinstance(value, tuple) or not all(isinstance(axis, int) for axis in value):
        raise TypeError(f"{name} must be a tuple of integers, got {value!r}")
