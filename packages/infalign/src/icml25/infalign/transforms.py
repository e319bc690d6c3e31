"""Transformations Phi of the calibrated reward, R_Phi = Phi(C) (Section 4).

Adding a constant to Phi changes no policy and a factor only rescales beta. By default each is therefore shifted to mean 0
and scaled to range 1 on [0, 1], so that one beta means about the same for all (e^{10u} alone has range 22,000).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from icml25.infalign.checks import Real, unit_interval, whole

__all__ = [
    "Transform",
    "best_of_n",
    "exponential",
    "from_grid",
    "gumbel",
    "identity",
    "logarithm",
    "power",
    "worst_of_n",
    "worst_power",
]


@dataclass(frozen=True)
class Transform:
    """A function of calibrated rewards in [0, 1].

    Parameters
    ----------
    name : shown in tables and logs.
    function : maps float64 arrays in [0, 1] to arrays of that shape.
    scale : the range of the formula behind a normalised function: KL-RL with the formula at beta is KL-RL with
        the function at beta / scale.
    """

    name: str
    function: Callable[[np.ndarray], np.ndarray] = field(repr=False)
    scale: float = 1.0

    def __call__(self, u: Any) -> Float[np.ndarray, ...]:
        """Phi(u), float64 of the shape of u; ValueError where u leaves [0, 1] or is NaN."""
        return np.asarray(self.function(unit_interval(u)), dtype=np.float64)


def identity() -> Transform:
    """Phi(u) = u: the optimum of the standard win rate, and the population optimum of IPO."""
    return Transform("u", lambda u: u - 0.5)


def exponential(t: Real, *, normalize: bool = True) -> Transform:
    """Phi(u) = sign(t) e^{tu}: t > 0 for best-of-N, t < 0 for worst-of-N.

    Parameters
    ----------
    t : 0 < |t| <= 700. The limit t -> 0 is the identity.
    normalize : mean 0 and range 1 on [0, 1]; else the formula as it stands.

    Raises
    ------
    ValueError: t is 0, not finite, or larger.
    """
    if not 0 < abs(t) <= 700:
        raise ValueError(f"t must satisfy 0 < |t| <= 700 (e^t overflows beyond), got {t!r}")
    name, range_ = f"{'-' if t < 0 else ''}exp({t:g}u)", abs(math.expm1(t))
    if not normalize:
        return Transform(name, lambda u: math.copysign(1, t) * np.exp(t * u))
    # mean of expm1(tu)/expm1(t) over [0, 1]; the series where the difference would cancel
    mean = 1 / t - 1 / math.expm1(t) if abs(t) > 0.01 else 1 / 2 - t / 12 + t**3 / 720
    return Transform(name, lambda u: np.expm1(t * u) / math.expm1(t) - mean, range_)


def logarithm(K: Real = 100) -> Transform:
    """Phi(u) = log max(u, 1/(2K)): the optimum of best-of-N distillation.

    Parameters
    ----------
    K : rollouts per prompt behind the calibration, which cannot tell smaller u apart. ``math.inf`` leaves the logarithm as
        it is: -inf at 0, so its range is not 1; only its mean is 0.

    Raises
    ------
    ValueError: K is less than 1.
    """
    floor = _floor(K)
    scale = -math.log(floor) if floor else 1.0
    mean = floor - 1

    def log(u: np.ndarray) -> Any:
        with np.errstate(divide="ignore"):
            return (np.log(np.maximum(u, floor)) - mean) / scale

    return Transform("log(u)", log, scale)


def gumbel(K: Real = 100) -> Transform:
    """Phi(u) = -log(-log u), u clamped to [1/(2K), 1 - 1/(2K)]: calibrated rewards as standard Gumbel ones.

    Parameters
    ----------
    K : rollouts per prompt behind the calibration, finite and at least 1.
    """
    floor = _floor(K)
    if not floor:
        raise ValueError("K must be finite: -log(-log u) has no finite range")

    def formula(u: np.ndarray) -> Any:
        return -np.log(-np.log(np.clip(u, floor, 1 - floor)))

    return _normalized("-log(-log(u))", formula)


def power(k: Real) -> Transform:
    """Phi(u) = u^k, k > 0. With k = 2N - 1 the optimum of best-of-N for large beta."""
    k = _exponent(k)
    return Transform(f"u^{k:g}", lambda u: u**k - 1 / (k + 1))


def worst_power(k: Real) -> Transform:
    """Phi(u) = -(1-u)^k, k > 0. With k = 2N - 1 the optimum of worst-of-N for large beta."""
    k = _exponent(k)
    return Transform(f"-(1-u)^{k:g}", lambda u: 1 / (k + 1) - (1 - u) ** k)


def from_grid(u: Any, phi: Any, *, name: str = "grid", normalize: bool = True) -> Transform:
    """Linear interpolation of values on a grid; constant beyond its ends.

    Parameters
    ----------
    u : (n,) increasing points of [0, 1], n >= 2.
    phi : (n,) finite values.
    normalize : mean 0 and range 1 on [0, 1]; a constant phi is only shifted.

    Raises
    ------
    ValueError: the grid does not increase, or shapes or values are wrong.
    """
    u, phi = unit_interval(u), np.asarray(phi, dtype=np.float64)
    if u.ndim != 1 or len(u) < 2 or phi.shape != u.shape or not np.isfinite(phi).all():
        raise ValueError(f"u has shape {u.shape}, phi {phi.shape}; expected one shape (n,), n >= 2, and finite phi")
    if not (np.diff(u) > 0).all():
        raise ValueError("u must increase strictly")

    def interpolate(x: np.ndarray) -> Any:
        return np.interp(x, u, phi)

    return _normalized(name, interpolate) if normalize else Transform(name, interpolate)


def best_of_n(N: int) -> Transform:
    """The recommended exponential for best-of-N: e^{10u} from N = 4 on, e^{5u} for 2 and 3, the identity for 1."""
    return _recommended(whole(N, "N"), 1)


def worst_of_n(N: int) -> Transform:
    """The recommended exponential for worst-of-N: -e^{-10u} from N = 4 on, -e^{-5u} for 2 and 3, the identity for 1."""
    return _recommended(whole(N, "N"), -1)


def _recommended(N: int, sign: int) -> Transform:
    return identity() if N == 1 else exponential(sign * (10 if N >= 4 else 5))


def _normalized(name: str, formula: Callable[[np.ndarray], np.ndarray]) -> Transform:
    values = formula((np.arange(4096) + 0.5) / 4096)
    ends = formula(np.array([0.0, 1.0]))
    mean, scale = float(values.mean()), float(max(values.max(), ends.max()) - min(values.min(), ends.min()))
    scale = scale or 1.0
    return Transform(name, lambda u: (formula(u) - mean) / scale, scale)


def _floor(K: Real) -> float:
    if not K >= 1:
        raise ValueError(f"K must be at least 1, got {K!r}")
    return 1 / (2 * K)


def _exponent(k: Real) -> float:
    if not (k > 0 and math.isfinite(k)):
        raise ValueError(f"k must be positive and finite, got {k!r}")
    return float(k)
