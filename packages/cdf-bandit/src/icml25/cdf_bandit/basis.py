"""Known bases of CDFs phi(x, a, w, s), one CDF on the domain for every parameter w (Eq. 1).

A basis is any object with ``domain`` = (lo, hi) and ``cdf(x (n, d), a (n,), w (G, ..), s (n, Q) or (Q,)) -> (n, G, Q)``;
optional are ``tail_integral(x, a, w, y (n,)) -> (n, G)``, the integral of phi ds from y to hi (needed when phi jumps), and
``sample(x, a, w (n, ..), rng) -> (n,)``, one outcome per row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtr

from icml25.cdf_bandit.checks import check_number


class Basis(Protocol):
    """What the package asks of a basis."""

    @property
    def domain(self) -> tuple[float, float]:
        """Ends of the set S of outcomes."""
        ...

    def cdf(self, x: Any, a: Any, w: Any, s: Any) -> Float[np.ndarray, "n G Q"]:
        """phi(x_j, a_j, w_g, s_q)."""
        ...


def check_domain(domain: Any) -> tuple[float, float]:
    """Two finite numbers lo < hi."""
    try:
        lo, hi = (float(end) for end in domain)
    except (TypeError, ValueError):
        raise ValueError(f"domain must be a pair (lo, hi), got {domain!r}") from None
    if not (np.isfinite(lo) and np.isfinite(hi) and lo < hi):
        raise ValueError(f"domain must be finite with lo < hi, got {domain!r}")
    return lo, hi


class _TruncatedLocationScale(ABC):
    """CDF of a symmetric location-scale family, truncated to the domain.

    phi = (F(z_s) - F(z_lo)) / (F(z_hi) - F(z_lo)), z = (s - mu)/h. Where mu lies in the lower half all z change sign,
    which leaves phi as it is (F(-z) = 1 - F(z)) and avoids the differences of numbers close to one.
    """

    def __init__(
        self, location: Callable[..., Any], scale: Callable[..., Any] | float | int, domain: Any = (0.0, 1.0)
    ) -> None:
        if not callable(location):
            raise TypeError(f"location must be a function of (x, a, w), got {location!r}")
        if not callable(scale):
            check_number(scale, "scale", 0, np.finfo(float).max)
        self.location, self.scale, self.domain = location, scale, check_domain(domain)

    @staticmethod
    @abstractmethod
    def _cdf(z: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """F."""

    @staticmethod
    @abstractmethod
    def _integral(z: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """The integral of F from -infinity to z."""

    def _parameters(self, x: Any, a: Any, w: Any) -> tuple[Float[np.ndarray, "n G"], Float[np.ndarray, "n G"]]:
        """Location, and inverse scale with the sign of the side of the domain's middle."""
        shape = (len(x), len(w))

        def evaluate(value: Any, name: str) -> Float[np.ndarray, "n G"]:
            try:
                return np.broadcast_to(np.asarray(value(x, a, w) if callable(value) else value, float), shape)
            except ValueError as error:
                raise ValueError(
                    f"{name}(x (n, d), a (n,), w (G,)) must return shape (n, G) = {shape}: {error}"
                ) from error

        mu, h = evaluate(self.location, "location"), evaluate(self.scale, "scale")
        if not (h > 0).all():
            raise ValueError("scale must be positive everywhere")
        return mu, np.where(mu < sum(self.domain) / 2, -1, 1) / h

    def cdf(
        self,
        x: Float[np.ndarray, "n d"],
        a: Int[np.ndarray, " n"],
        w: Float[np.ndarray, "G *dw"],
        s: Float[np.ndarray, "*n Q"],
    ) -> Float[np.ndarray, "n G Q"]:
        """phi(x_j, a_j, w_g, s_q) for s (Q,) or (n, Q)."""
        mu, rate = self._parameters(x, a, w)
        lo, hi = self.domain
        low = self._cdf(rate * (lo - mu))[..., None]
        high = self._cdf(rate * (hi - mu))[..., None]
        s = s[:, None, :] if s.ndim == 2 else s
        z = s - mu[..., None]
        z *= rate[..., None]
        value = self._cdf(z)
        value -= low
        value *= 1 / (high - low)
        return value

    def tail_integral(
        self,
        x: Float[np.ndarray, "n d"],
        a: Int[np.ndarray, " n"],
        w: Float[np.ndarray, "G *dw"],
        y: Float[np.ndarray, " n"],
    ) -> Float[np.ndarray, "n G"]:
        """The integral of phi ds from y_j to hi, in closed form."""
        mu, rate = self._parameters(x, a, w)
        lo, hi = self.domain
        low, high = self._cdf(rate * (lo - mu)), self._cdf(rate * (hi - mu))
        y = y[:, None]
        area = (self._integral(rate * (hi - mu)) - self._integral(rate * (y - mu))) / rate
        return (area - low * (hi - y)) / (high - low)


class LogisticBasis(_TruncatedLocationScale):
    """Truncated logistic CDFs.

    Parameters
    ----------
    location : mu(x (n, d), a (n,), w (G,)) -> (n, G), in the unit of the outcome.
    scale : h > 0, a number or a function like location.
    domain : (lo, hi) of the outcome, default (0, 1).

    Raises
    ------
    TypeError, ValueError: a location that is no function, a scale or a domain that is not positive.
    """

    @staticmethod
    def _cdf(z: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        with np.errstate(over="ignore"):  # 1 / (1 + inf) = 0; several times faster than scipy.special.expit
            value = np.exp(-z)
        value += 1
        return np.reciprocal(value, out=value)

    @staticmethod
    def _integral(z: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        return np.logaddexp(0, z)


class GaussianBasis(_TruncatedLocationScale):
    """Truncated Gaussian CDFs: with theta, the truncated Gaussian mixtures of the paper.

    Parameters
    ----------
    location : mu(x (n, d), a (n,), w (G,)) -> (n, G), in the unit of the outcome.
    scale : standard deviation h > 0 before truncation, a number or a function like location.
    domain : (lo, hi) of the outcome, default (0, 1).

    Raises
    ------
    TypeError, ValueError: a location that is no function, a scale or a domain that is not positive.
    """

    @staticmethod
    def _cdf(z: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        return ndtr(z)

    @staticmethod
    def _integral(z: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        return z * ndtr(z) + np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)


class KumaraswamyBasis:
    """Kumaraswamy CDFs 1 - (1 - s^alpha)^beta, s the outcome's place in the domain (0 at lo, 1 at hi).

    Parameters
    ----------
    a, b : alpha and beta > 0, functions of (x (n, d), a (n,), w (G,)) -> (n, G).
    domain : (lo, hi) of the outcome, default (0, 1).

    Raises
    ------
    TypeError, ValueError: a or b is no function or not positive, or a bad domain.
    """

    def __init__(self, a: Callable[..., Any], b: Callable[..., Any], domain: Any = (0.0, 1.0)) -> None:
        if not (callable(a) and callable(b)):
            raise TypeError(f"a and b must be functions of (x, a, w), got {a!r} and {b!r}")
        self.a, self.b, self.domain = a, b, check_domain(domain)

    def cdf(
        self,
        x: Float[np.ndarray, "n d"],
        a: Int[np.ndarray, " n"],
        w: Float[np.ndarray, "G *dw"],
        s: Float[np.ndarray, "*n Q"],
    ) -> Float[np.ndarray, "n G Q"]:
        """phi(x_j, a_j, w_g, s_q) for s (Q,) or (n, Q)."""
        lo, hi = self.domain
        shape = (len(x), len(w))
        alpha, beta = (np.broadcast_to(np.asarray(f(x, a, w), float), shape)[..., None] for f in (self.a, self.b))
        if not ((alpha > 0).all() and (beta > 0).all()):
            raise ValueError("a and b must be positive everywhere")
        u = (s - lo) / (hi - lo)
        return 1 - (1 - (u[:, None, :] if s.ndim == 2 else u) ** alpha) ** beta


class CallableBasis:
    """A basis from a function of your own.

    Parameters
    ----------
    fn : (x (n, d), a (n,), w (G, ..), s (n, Q) or (Q,)) -> (n, G, Q), the CDFs.
    domain : (lo, hi) of the outcome, default (0, 1).
    tail_integral : (x, a, w, y (n,)) -> (n, G), the integral of phi ds from y to hi; needed when phi jumps, else
        Gauss-Legendre nodes between y and hi are used.

    Raises
    ------
    TypeError, ValueError: fn or tail_integral is no function, or a bad domain.
    """

    def __init__(
        self, fn: Callable[..., Any], domain: Any = (0.0, 1.0), tail_integral: Callable[..., Any] | None = None
    ) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be a function of (x, a, w, s), got {fn!r}")
        if tail_integral is not None and not callable(tail_integral):
            raise TypeError(f"tail_integral must be a function of (x, a, w, y) or None, got {tail_integral!r}")
        self.cdf, self.domain, self.tail_integral = fn, check_domain(domain), tail_integral


def basis_tensor(
    basis: Any,
    x: Float[np.ndarray, "n d"],
    a: Int[np.ndarray, " n"],
    w: Float[np.ndarray, "G *dw"],
    s: Float[np.ndarray, "*n Q"],
) -> Float[np.ndarray, "n G Q"]:
    """phi(x_j, a_j, w_g, s_q), its shape checked."""
    value = np.asarray(basis.cdf(x, a, w, s), dtype=np.float64)
    expected = (len(x), len(w), s.shape[-1])
    if value.shape != expected:
        raise ValueError(f"the basis returned shape {value.shape}, expected (n, G, Q) = {expected}")
    return value


def check_basis(
    basis: Any,
    x: Float[np.ndarray, "n d"],
    a: Int[np.ndarray, " n"],
    w: Float[np.ndarray, "G *dw"],
    rows: int = 8,
    tolerance: float = 1e-8,
) -> None:
    """Refuse a basis that is not a CDF on its domain at some randomly chosen rows.

    Raises
    ------
    ValueError: naming x, a and w where phi is not finite, not monotone, negative, or not 1 at hi.
    """
    for name in ("domain", "cdf"):
        if not hasattr(basis, name):
            raise TypeError(f"basis has no {name}; expected an object like LogisticBasis, got {basis!r}")
    lo, hi = check_domain(basis.domain)
    rows += rows == len(w)  # rows and nodes mixed up by the user's function cannot go unnoticed
    j = np.random.default_rng(0).integers(len(x), size=rows)
    s = np.linspace(lo, hi, 33)
    value = basis_tensor(basis, x[j], a[j], w, s)
    faults = {
        "is not finite": ~np.isfinite(value).all(2),
        "is not nondecreasing in s": (np.diff(value, axis=2) < -tolerance).any(2),
        "is negative": value[..., 0] < -tolerance,
        f"is not 1 at s = {hi:g}": abs(value[..., -1] - 1) > tolerance,
    }
    for fault, where in faults.items():
        if where.any():
            row, g = np.argwhere(where)[0]
            raise ValueError(f"the basis {fault} for x={x[j[row]]}, a={a[j[row]]}, w={w[g]}: it must be a CDF there")


def invert_mixture(
    basis: Any,
    x: Float[np.ndarray, "n d"],
    a: Int[np.ndarray, " n"],
    w: Float[np.ndarray, "G *dw"],
    mass: Float[np.ndarray, " G"],
    levels: Float[np.ndarray, "n k"],
) -> Float[np.ndarray, "n k"]:
    """Quantiles of sum_g mass_g phi(x, a, w_g, .) at the levels, by bisection of the domain."""
    lo, hi = basis.domain
    low, high = np.full(levels.shape, float(lo)), np.full(levels.shape, float(hi))
    for _ in range(52):
        middle = (low + high) / 2
        above = np.einsum("ngk,g->nk", basis_tensor(basis, x, a, w, middle), mass) >= levels
        high = np.where(above, middle, high)
        low = np.where(above, low, middle)
    return high
