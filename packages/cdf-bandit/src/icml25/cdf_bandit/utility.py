"""Utilities of a distribution, read off its CDF (Assumption 2.3 and section 2.2).

A utility is called as ``u(F, s, m)`` with CDF values F (..., Q) at nodes s (Q,) and weights m (Q,) of ds, and returns (...).
Any such function may be passed; the classes here carry their Lipschitz constant as well. The weights integrate linear
functions exactly, so the domain is known from them: sum m = hi - lo and sum m s = (hi^2 - lo^2)/2.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from icml25.cdf_bandit.checks import LARGEST, check_integer, check_number

Values = Float[np.ndarray, "*batch"] | np.floating  # one CDF gives a number


class Utility(ABC):
    """A functional of a CDF that is Lipschitz in L2 of the outcome's domain."""

    @abstractmethod
    def __call__(
        self, F: Float[np.ndarray, "*batch Q"], s: Float[np.ndarray, " Q"], m: Float[np.ndarray, " Q"]
    ) -> Values:
        """Utility of the CDF values F at nodes s with weights m of ds."""

    @abstractmethod
    def lipschitz_on(self, lo: float | int, hi: float | int) -> float:
        """Lipschitz constant on the domain [lo, hi], in L2 of the uniform law on it."""

    @property
    def lipschitz(self) -> float:
        """Lipschitz constant on [0, 1]."""
        return self.lipschitz_on(0.0, 1.0)


def _ends(s: Float[np.ndarray, " Q"], m: Float[np.ndarray, " Q"]) -> tuple[float, float]:
    length = m.sum()
    middle = m @ s / length
    return float(middle - length / 2), float(middle + length / 2)


class _PiecewiseLinear:
    """The CDF through the nodes and the ends of the domain, linear in between."""

    def __init__(
        self, F: Float[np.ndarray, "*batch Q"], s: Float[np.ndarray, " Q"], m: Float[np.ndarray, " Q"]
    ) -> None:
        lo, hi = _ends(s, m)
        self.s = np.concatenate([[lo], s, [hi]])
        one = np.ones((*F.shape[:-1], 1))
        self.F = np.concatenate([0 * one, F, one], axis=-1)
        cells = np.diff(self.s) * (self.F[..., :-1] + self.F[..., 1:]) / 2
        self.integral = np.concatenate([0 * one, np.cumsum(cells, axis=-1)], axis=-1)

    def _at(self, values: Float[np.ndarray, "*batch P"], j: Any) -> Values:
        return np.take_along_axis(values, j[..., None], -1)[..., 0]

    def integral_to(self, b: float) -> Values:
        """The integral of F from lo to b; F is 0 below lo and 1 above hi."""
        if b <= self.s[0]:
            return 0 * self.F[..., 0]
        if b >= self.s[-1]:
            return self.integral[..., -1] + (b - self.s[-1])
        j = int(np.searchsorted(self.s, b, side="right")) - 1
        step = b - self.s[j]
        slope = (self.F[..., j + 1] - self.F[..., j]) / (self.s[j + 1] - self.s[j])
        return self.integral[..., j] + step * (self.F[..., j] + slope * step / 2)

    def lower_tail(self, level: float) -> Values:
        """max_b level b - integral of F from lo to b = the integral of the quantile function from 0 to level."""
        if level == 0:
            return 0 * self.F[..., 0]
        j = np.maximum((level <= self.F).argmax(-1) - 1, 0)
        left, right = self._at(self.F, j), self._at(self.F, j + 1)
        step = (self.s[j + 1] - self.s[j]) * (level - left) / (right - left)
        return level * (self.s[j] + step) - self._at(self.integral, j) - step * (left + level) / 2


@dataclass(frozen=True)
class Expectation(Utility):
    """The mean, hi - integral of F."""

    def __call__(
        self, F: Float[np.ndarray, "*batch Q"], s: Float[np.ndarray, " Q"], m: Float[np.ndarray, " Q"]
    ) -> Values:
        return _ends(s, m)[1] - F @ m

    def lipschitz_on(self, lo: float | int, hi: float | int) -> float:
        return float(hi - lo)


@dataclass(frozen=True)
class Moment(Utility):
    """E Y^k = hi^k - integral of k s^(k-1) F.

    Parameters
    ----------
    order : k >= 1, default 2.
    """

    order: int = 2

    def __post_init__(self) -> None:
        check_integer(self.order, "order", 1)

    def __call__(
        self, F: Float[np.ndarray, "*batch Q"], s: Float[np.ndarray, " Q"], m: Float[np.ndarray, " Q"]
    ) -> Values:
        return _ends(s, m)[1] ** self.order - F @ (m * self.order * s ** (self.order - 1))

    def lipschitz_on(self, lo: float | int, hi: float | int) -> float:
        power = 2 * self.order - 1
        square = (float(hi) ** power - float(lo) ** power) / power  # the integral of s^(2k-2)
        return self.order * float(np.sqrt((hi - lo) * square))


@dataclass(frozen=True)
class Variance(Utility):
    """The variance; a larger one is better, so it is mostly used inside MeanVariance."""

    def __call__(
        self, F: Float[np.ndarray, "*batch Q"], s: Float[np.ndarray, " Q"], m: Float[np.ndarray, " Q"]
    ) -> Values:
        lo, hi = _ends(s, m)
        first = hi - lo - F @ m
        return (hi - lo) ** 2 - F @ (m * 2 * (s - lo)) - first**2

    def lipschitz_on(self, lo: float | int, hi: float | int) -> float:
        return 2 / np.sqrt(3) * float(hi - lo) ** 2


@dataclass(frozen=True)
class MeanVariance(Utility):
    """mean_weight * mean - rho * variance; Example 2.6 is MeanVariance(1 - rho, mean_weight=rho).

    Parameters
    ----------
    rho : weight of the variance, >= 0.
    mean_weight : weight of the mean, >= 0, default 1.
    """

    rho: float | int
    mean_weight: float | int = 1.0

    def __post_init__(self) -> None:
        check_number(self.rho, "rho", 0, LARGEST, open_low=False)
        check_number(self.mean_weight, "mean_weight", 0, LARGEST, open_low=False)

    def __call__(
        self, F: Float[np.ndarray, "*batch Q"], s: Float[np.ndarray, " Q"], m: Float[np.ndarray, " Q"]
    ) -> Values:
        return self.mean_weight * Expectation()(F, s, m) - self.rho * Variance()(F, s, m)

    def lipschitz_on(self, lo: float | int, hi: float | int) -> float:
        return self.mean_weight * Expectation().lipschitz_on(lo, hi) + self.rho * Variance().lipschitz_on(lo, hi)


@dataclass(frozen=True)
class CVaR(Utility):
    """Mean of the worst part alpha of the outcomes: max_b b - (1/alpha) integral of F from lo to b.

    Parameters
    ----------
    alpha : in (0, 1]; 1 is the mean.

    F is taken as linear between the nodes: with Q of them the relative error can reach 2.5 / (alpha Q) where alpha is so
    small that the worst part lies in the first cells (F = s^2, Q = 64: 9 % at alpha = 1e-5). Raise n_s for such levels.
    """

    alpha: float | int

    def __post_init__(self) -> None:
        check_number(self.alpha, "alpha", 0, 1)

    def __call__(
        self, F: Float[np.ndarray, "*batch Q"], s: Float[np.ndarray, " Q"], m: Float[np.ndarray, " Q"]
    ) -> Values:
        return _PiecewiseLinear(F, s, m).lower_tail(self.alpha) / self.alpha

    def lipschitz_on(self, lo: float | int, hi: float | int) -> float:
        return float(hi - lo) / self.alpha


@dataclass(frozen=True)
class Entropic(Utility):
    """Entropic certainty equivalent -(1/beta) log E exp(-beta Y).

    Parameters
    ----------
    beta : aversion to risk, > 0, in one over the unit of the outcome.
    """

    beta: float | int

    def __post_init__(self) -> None:
        check_number(self.beta, "beta", 0, 1e100)

    def __call__(
        self, F: Float[np.ndarray, "*batch Q"], s: Float[np.ndarray, " Q"], m: Float[np.ndarray, " Q"]
    ) -> Values:
        line = _PiecewiseLinear(F, s, m)
        lo, hi = line.s[0], line.s[-1]
        x = self.beta * np.diff(line.s)
        # the logarithm of the mean of exp(-beta (y - lo)) over each cell, where the law is uniform
        wide = np.maximum(x, 1e-4)
        cell = np.where(x < wide, x**2 / 24 - x / 2, np.log(-np.expm1(-wide) / wide))
        exponent, mass = cell - self.beta * (line.s[:-1] - lo), np.diff(line.F, axis=-1)
        if self.beta * (hi - lo) < 1:  # the expectation is near one
            return lo - np.log1p(mass @ np.expm1(exponent)) / self.beta
        top = np.where(mass != 0, exponent, -np.inf).max(-1, keepdims=True)
        scaled = (mass * np.exp(np.minimum(exponent - top, 0))).sum(-1)
        return lo - (top[..., 0] + np.log(scaled)) / self.beta

    def lipschitz_on(self, lo: float | int, hi: float | int) -> float:
        rate = 2 * self.beta * float(hi - lo)
        with np.errstate(over="ignore"):
            return float(hi - lo) * float(np.sqrt(-np.expm1(-rate) / rate) * np.exp(rate / 2))


@dataclass(frozen=True)
class SmoothedQuantile(Utility):
    """Average of the quantiles at the levels tau - h to tau + h; the plain quantile is not Lipschitz.

    Parameters
    ----------
    tau : level in (0, 1).
    h : half width > 0, with [tau - h, tau + h] inside [0, 1].
    """

    tau: float | int
    h: float | int

    def __post_init__(self) -> None:
        check_number(self.tau, "tau", 0, 1)
        check_number(self.h, "h", 0, 1)
        if self.tau - self.h < 0 or self.tau + self.h > 1:
            raise ValueError(f"[tau - h, tau + h] must lie in [0, 1], got tau={self.tau} and h={self.h}")

    def __call__(
        self, F: Float[np.ndarray, "*batch Q"], s: Float[np.ndarray, " Q"], m: Float[np.ndarray, " Q"]
    ) -> Values:
        line = _PiecewiseLinear(F, s, m)
        return (line.lower_tail(self.tau + self.h) - line.lower_tail(self.tau - self.h)) / (2 * self.h)

    def lipschitz_on(self, lo: float | int, hi: float | int) -> float:
        return float(hi - lo) / (2 * self.h)


@dataclass(frozen=True)
class Probability(Utility):
    """Probability of an outcome above c, averaged over thresholds c - h to c + h.

    Parameters
    ----------
    c : threshold, in the unit of the outcome.
    h : half width > 0, same unit.
    """

    c: float | int
    h: float | int

    def __post_init__(self) -> None:
        check_number(self.c, "c", -LARGEST, LARGEST)
        check_number(self.h, "h", 0, LARGEST)

    def __call__(
        self, F: Float[np.ndarray, "*batch Q"], s: Float[np.ndarray, " Q"], m: Float[np.ndarray, " Q"]
    ) -> Values:
        line = _PiecewiseLinear(F, s, m)
        return 1 - (line.integral_to(self.c + self.h) - line.integral_to(self.c - self.h)) / (2 * self.h)

    def lipschitz_on(self, lo: float | int, hi: float | int) -> float:
        return float(np.sqrt((hi - lo) / (2 * self.h)))


def evaluate_utility(
    utility: Callable[..., Any],
    F: Float[np.ndarray, "*batch Q"],
    s: Float[np.ndarray, " Q"],
    m: Float[np.ndarray, " Q"],
) -> Float[np.ndarray, "*batch"]:
    """utility(F, s, m), its shape and values checked.

    Raises
    ------
    TypeError: utility cannot be called.
    ValueError: naming the utility, when it returns another shape or values that are not finite.
    """
    if not callable(utility):
        raise TypeError(f"utility must be a function u(F, s, m) or an object like CVaR(0.1), got {utility!r}")
    value = np.asarray(utility(F, s, m), dtype=np.float64)
    name = getattr(utility, "__name__", repr(utility))
    if value.shape != F.shape[:-1]:
        raise ValueError(f"utility {name} returned shape {value.shape} for F {F.shape}, expected {F.shape[:-1]}")
    if not np.isfinite(value).all():
        raise ValueError(f"utility {name} returned {int((~np.isfinite(value)).sum())} value(s) that are not finite")
    return value
