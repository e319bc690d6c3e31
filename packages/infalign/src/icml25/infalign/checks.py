"""What arguments must be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float

__all__ = ["Real", "positive", "probabilities", "rewards", "unit_interval", "whole"]


Real = float | int


def whole(value: Any, name: str, least: int = 1) -> int:
    """An integer of at least ``least``; a boolean is none."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
    return int(value)


def positive(value: Any, name: str) -> float:
    """A number in (0, inf]."""
    if not value > 0:
        raise ValueError(f"{name} must lie in (0, inf], got {value!r}")
    return float(value)


def unit_interval(u: Any, name: str = "u") -> Float[np.ndarray, ...]:
    """Numbers in [0, 1], as float64."""
    u = np.asarray(u, dtype=np.float64)
    if not ((u >= 0) & (u <= 1)).all():
        wrong = u[~((u >= 0) & (u <= 1))]
        raise ValueError(f"{name} must lie in [0, 1]; {wrong.size} values do not, the first is {wrong.flat[0]}")
    return u


def probabilities(p: Any, name: str) -> Float[np.ndarray, "... A"]:
    """Distributions along the last axis, as float64."""
    p = np.asarray(p, dtype=np.float64)
    if p.ndim == 0 or p.shape[-1] == 0:
        raise ValueError(f"{name} has shape {p.shape}; expected (..., A) with A >= 1")
    if not (p >= 0).all():
        raise ValueError(f"{name} has negative or NaN entries; expected probabilities")
    if (off := np.abs(p.sum(-1) - 1)).size and off.max() > 1e-6:
        raise ValueError(f"{name} must sum to 1 along the last axis; sums reach {p.sum(-1).flat[off.argmax()]!r}")
    return p


def rewards(r: Any, p: np.ndarray, name: str = "reward") -> Float[np.ndarray, "... A"]:
    """Finite numbers whose shape broadcasts to that of the probabilities, as float64."""
    r = np.asarray(r, dtype=np.float64)
    if r.ndim == 0 or r.shape[-1] != p.shape[-1]:
        raise ValueError(f"{name} has shape {r.shape}, the probabilities {p.shape}; the last axes must agree")
    if not np.isfinite(r).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(r))[0])
        raise ValueError(f"{name} must be finite; {name}[{', '.join(map(str, where))}] is {r[where]}")
    if math.prod(r.shape[:-1]) > 1 and math.prod(p.shape[:-1]) > 1 and r.shape[:-1] != p.shape[:-1]:
        raise ValueError(f"{name} has shape {r.shape}, the probabilities {p.shape}; the leading axes must agree")
    return r
