"""How much text a test needs: the statistic's expectation when a spoofer colours what it has seen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import ndtri

__all__ = ["expected_statistic", "required_tokens"]


def real(name: str, value: Any) -> Any:
    """The value of an argument that must be one real number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} is {value!r}; expected a real number")
    return value


def expected_statistic(a: Any, b: Any, q: Any) -> float:
    """Expected correlation S of colour with presence, E[S] = (a - b) sqrt(q (1 - q)) / sqrt(g (1 - g)), g = q a + (1 - q) b.

    Parameters
    ----------
    a : green rate where the n-gram was seen, in [0, 1].
    b : green rate where it was not, in [0, 1].
    q : share of positions with a seen n-gram, in (0, 1).

    Returns
    -------
    S in [-1, 1]; the test's Z is about S sqrt(n - 1).

    Raises
    ------
    ValueError: a value outside its range, or a = b in {0, 1} (the colour is constant).
    """
    for name, value in (("a", a), ("b", b), ("q", q)):
        if not 0 <= real(name, value) <= 1 or (name == "q" and value in (0, 1)):
            raise ValueError(f"{name} is {value}; expected a share in {'(0, 1)' if name == 'q' else '[0, 1]'}")
    green = q * a + (1 - q) * b
    if green in (0, 1):
        raise ValueError(f"a = b = {green:g}: the colour is constant, so no correlation is defined")
    return (a - b) * math.sqrt(q * (1 - q)) / math.sqrt(green * (1 - green))


def required_tokens(a: Any, b: Any, q: Any, alpha: Any = 0.01, power: Any = 0.9) -> int:
    """Distinct n-grams that reject with the wanted probability: n = 1 + ((z_{1-alpha} + z_{power}) / S)^2, rounded up.

    Parameters
    ----------
    a, b, q : of :func:`expected_statistic`.
    alpha : false alarm rate, in (0, 1); default 0.01.
    power : probability of rejection, in (0, 1); default 0.9.

    Returns
    -------
    n, at least 2.

    Raises
    ------
    ValueError: a value outside its range, or a <= b (no positive dependence: no amount of text suffices).
    """
    for name, value in (("alpha", alpha), ("power", power)):
        if not 0 < real(name, value) < 1:
            raise ValueError(f"{name} is {value}; expected a probability in (0, 1)")
    if not real("a", a) > real("b", b):
        raise ValueError(f"a is {a} and b {b}; expected a > b, else no amount of text suffices")
    wanted = float(ndtri(power) - ndtri(alpha))
    root = max(wanted, 0.0) / expected_statistic(a, b, q)
    if root > 1e150:
        raise ValueError(
            f"a is {a} and b {b}; expected a larger difference: no amount of text that can be counted suffices"
        )
    return 1 + max(1, math.ceil(root**2))
