"""What every function asks of its arguments; traced values, which are not known yet, pass."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

Real = float | int
Scalar = float | int | np.floating | Array  # may be traced
ArrayLike = jax.typing.ArrayLike | Sequence[Any]  # numbers and nested lists of them


def known(*values: Any) -> bool:
    """Whether no value is traced by a transformation."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def floats(value: Any, name: str) -> Float[Array, "..."]:
    """Floating point numbers as they are, integers and booleans in the default type."""
    try:
        if known(value) and not isinstance(value, (jax.Array, float)):
            dtype = np.asarray(value).dtype
            if dtype.kind in "iub":  # jax wraps large ones
                value = float(value) if isinstance(value, int) else np.asarray(value, float)
            elif dtype.kind in "USO":
                raise TypeError(f"no numbers in {dtype}")
        with np.errstate(over="ignore"):
            array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must hold real numbers, got {type(value).__name__}: {error}") from None
    if jnp.iscomplexobj(array):
        raise TypeError(f"{name} must be real, got {array.dtype}")
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.result_type(float))


def finite(value: Any, name: str) -> Float[Array, "..."]:
    """As `floats`, without NaN and infinity."""
    array = floats(value, name)
    if known(array) and not np.isfinite(np.asarray(array)).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity (in {array.dtype})")
    return array


def number(value: Any, name: str, low: Real, high: Real = float("inf"), *, open_low: bool = False) -> None:
    """A finite number in [low, high], or in (low, high]."""
    if known(value):
        found = np.asarray(value)
        if not (jnp.issubdtype(found.dtype, jnp.floating) or jnp.issubdtype(found.dtype, jnp.integer)):
            raise TypeError(f"{name} must be a real number, got {value!r}")
        if found.shape or not (np.isfinite(found) and low <= found <= high and not (open_low and found == low)):
            bounds = f" {'>' if open_low else '>='} {low:g}" if np.isfinite(low) else ""
            bounds += f" and <= {high:g}" if np.isfinite(high) else ""
            raise ValueError(f"{name} must be a finite number{bounds}, got {value}")


def count(value: int, name: str, low: int = 1, high: int | None = None) -> None:
    """An integer of at least ``low``, and at most ``high``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < low or (high is not None and value > high):
        raise ValueError(f"{name} must be >= {low}{'' if high is None else f' and <= {high}'}, got {value}")
