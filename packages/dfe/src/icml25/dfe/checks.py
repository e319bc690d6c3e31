"""Refusal of bad input, in words."""

import warnings
from inspect import signature
from typing import Any

import numpy as np
from jaxtyping import Float, Int

MAX_HORIZON = 10**12


class SigmaTooSmallWarning(UserWarning):
    """The rewards are noisier than the policy believes, so that its confidence intervals are too narrow."""


def warn_of_noise(sigma: float, noise: float) -> None:
    """Warn the caller of `simulate` or `players` if the noise of a bandit is above the policy's sigma."""
    if noise > sigma:
        warnings.warn(
            f"the rewards have sigma = {noise}, the policy has sigma = {sigma}: its confidence intervals are too narrow",
            SigmaTooSmallWarning,
            stacklevel=4,
        )


class Settings:
    """Shows the arguments of the constructor, which the object keeps under their names."""

    def __repr__(self) -> str:
        named = ", ".join(f"{name}={getattr(self, name)!r}" for name in signature(type(self)).parameters)
        return f"{type(self).__name__}({named})"


def check_integer(value: Any, name: str, least: int) -> int:
    """An integer that is at least ``least``, or an error that names it."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        raise ValueError(f"{name} must be an integer, got the float {value!r}; write {name}=int({value!r})")
    if isinstance(value, (float, np.floating)):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def check_horizon(value: Any) -> int:
    """A number of rounds whose sums and products fit 64 bits, or an error."""
    horizon = check_integer(value, "horizon", 1)
    if horizon > MAX_HORIZON:
        raise ValueError(f"horizon must be at most {MAX_HORIZON} (10^12), got {value}")
    return horizon


def check_rng(value: Any, name: str) -> np.random.Generator:
    """The generator itself, or one from an integer seed or None."""
    if isinstance(value, np.random.Generator):
        return value
    if value is None:
        return np.random.default_rng()
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer seed, a numpy Generator or None, got {value!r}")
    return np.random.default_rng(check_integer(value, name, 0))


def check_collision(value: Any) -> bool:
    """A boolean, or 0 or 1."""
    if not isinstance(value, (bool, np.bool_, int, np.integer)) or value not in (0, 1):
        raise TypeError(f"collision must be True or False (or 1 or 0), got {value!r}")
    return bool(value)


def check_array(values: Any, name: str) -> np.ndarray:
    """An array without a mask."""
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{name} must not be a masked array: masked entries would be used; fill them first")
    return np.asarray(values)


def check_positive(value: Any, name: str) -> float:
    """A finite number above 0, or an error that names it."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0 < value < np.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return float(value)


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> str:
    """One of the choices, or an error that lists them."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")
    return value


def check_matrix(values: Any, name: str) -> Float[np.ndarray, "N K"]:
    """A fresh float64 matrix of real numbers, players in rows, at least as many columns as rows."""
    array = check_array(values, name)
    if array.dtype == object:
        if any(isinstance(x, (str, bytes, bool)) for x in array.ravel()):
            raise TypeError(f"{name} must hold real numbers, got dtype object with text or booleans")
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} must hold real numbers, got dtype object: {error}") from error
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    check_shape(array.shape, name)
    return array.astype(np.float64)


def check_graph(values: Any, name: str) -> np.ndarray:
    """A fresh boolean matrix of player-arm pairs."""
    array = check_array(values, name)
    if array.dtype != bool and not (array.dtype.kind in "iu" and np.isin(array, (0, 1)).all()):
        raise TypeError(f"{name} must hold booleans (or 0 and 1), got dtype {array.dtype}")
    check_shape(array.shape, name)
    return array.astype(bool)


def check_shape(shape: tuple[int, ...], name: str) -> None:
    """Players in rows, at least as many arms in columns."""
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"{name} must be (N players, K arms) with N, K >= 1, got shape {shape}")
    if shape[1] < shape[0]:
        raise ValueError(
            f"{name} has {shape[0]} players and {shape[1]} arms; with fewer arms than players every matching collides"
        )


def check_matching(values: Any, name: str, active: np.ndarray) -> Int[np.ndarray, " N"]:
    """Distinct active arms, one a player."""
    n, k = active.shape
    array = check_array(values, name)
    if array.dtype.kind not in "iu" or array.shape != (n,):
        raise ValueError(f"{name} must be {n} integers, got shape {array.shape} of dtype {array.dtype}")
    inside = ((array >= 0) & (array < k)).all()
    if not inside or len(set(array.tolist())) < n or not active[np.arange(n), array].all():
        raise ValueError(f"{name} must give each player an active arm of its own, got {array.tolist()}")
    return array.astype(np.int64)
