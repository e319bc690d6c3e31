"""Known bases of CDFs phi(x, a, w, s), one CDF on the domain for every parameter w (Eq. 1).

A basis is any object with ``domain`` = (lo, hi) and ``cdf(x (n, d), a (n,), w (G, ..), s (n, Q) or (Q,)) -> (n, G, Q)``;
optional are ``tail_integral(x, a, w, y (n,)) -> (n, G)``, the integral of phi ds from y to hi (needed when phi jumps), and
``sample(x, a, w (n, ..), rng) -> (n,)``, one outcome per row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float, Int
from scipy.special import erfcx, expit, ndtr

from icml25.cdf_bandit.checks import LARGEST, check_number


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
    """Two finite numbers lo < hi, apart by a length that computes."""
    try:
        lo, hi = (float(end) for end in domain)
    except (TypeError, ValueError):
        raise ValueError(f"domain must be a pair (lo, hi), got {domain!r}") from None
    if not (np.isfinite(lo) and np.isfinite(hi) and lo < hi):
        raise ValueError(f"domain must be finite with lo < hi, got {domain!r}")
    if not (1e-100 <= hi - lo <= 1e100 and hi - lo >= 1e-9 * max(abs(lo), abs(hi))):
        raise ValueError(
            f"domain must have a length in [1e-100, 1e100], and at least 1e-9 of its ends, got {domain!r}: "
            "shift and scale the outcomes"
        )
    return lo, hi


class _TruncatedLocationScale(ABC):
    """CDF of a symmetric location-scale family, truncated to the domain.

    phi = (F(z_s) - F(z_lo)) / (F(z_hi) - F(z_lo)), z = (s - mu)/h. Where mu lies in the lower half all z change sign,
    which leaves phi as it is (F(-z) = 1 - F(z)) and avoids the differences of numbers close to one. The end of the domain
    where z is largest is the ``top``; other points are given by their distance from it.
    """

    def __init__(
        self, location: Callable[..., Any], scale: Callable[..., Any] | float | int, domain: Any = (0.0, 1.0)
    ) -> None:
        if not callable(location):
            raise TypeError(f"location must be a function of (x, a, w), got {location!r}")
        if not callable(scale):
            check_number(scale, "scale", 0, LARGEST)
        self.location, self.scale, self.domain = location, scale, check_domain(domain)

    @staticmethod
    @abstractmethod
    def _cdf(top: Float[np.ndarray, "n G 1"], below: Float[np.ndarray, "n G #Q"]) -> Float[np.ndarray, "n G Q"]:
        """F(top - below), up to a factor that depends on top alone."""

    @staticmethod
    @abstractmethod
    def _integral(top: Float[np.ndarray, "n G 1"], below: Float[np.ndarray, "n G #Q"]) -> Float[np.ndarray, "n G Q"]:
        """The integral of F from -infinity to top - below, up to the same factor."""

    def _parameters(self, x: Any, a: Any, w: Any) -> tuple[Float[np.ndarray, "n G"], Float[np.ndarray, "n #G"]]:
        """Location and scale; the scale has one column when it does not depend on w."""
        shape = (len(x), len(w))

        def evaluate(value: Any, name: str) -> Float[np.ndarray, "n #G"]:
            try:
                array = np.asarray(value(x, a, w) if callable(value) else value, float)
                full = np.broadcast_to(array, shape)
            except ValueError as error:
                raise ValueError(
                    f"{name}(x (n, d), a (n,), w (G,)) must return shape (n, G) = {shape}: {error}"
                ) from error
            if not np.isfinite(array).all():
                raise ValueError(f"{name} must be finite everywhere")
            return full[:, :1] if array.shape[-1:] in ((), (1,)) else full

        mu, h = np.broadcast_to(evaluate(self.location, "location"), shape), evaluate(self.scale, "scale")
        if not (h > 0).all():
            raise ValueError("scale must be positive everywhere")
        return mu, h

    def _ends(
        self, mu: Float[np.ndarray, "n G"], h: Float[np.ndarray, "n #G"]
    ) -> tuple[Float[np.ndarray, "n G 1"], Float[np.ndarray, "n G 1"], Float[np.ndarray, "n #G 1"]]:
        """z at the top, the top itself, and the scale with the sign of that side."""
        lo, hi = self.domain
        upper = (mu >= (lo + hi) / 2)[..., None]
        end, h = np.where(upper, hi, lo), np.where(upper, h[..., None], -h[..., None])
        return (end - mu[..., None]) / h, end, h

    def cdf(
        self,
        x: Float[np.ndarray, "n d"],
        a: Int[np.ndarray, " n"],
        w: Float[np.ndarray, "G *dw"],
        s: Float[np.ndarray, "*n Q"],
    ) -> Float[np.ndarray, "n G Q"]:
        """phi(x_j, a_j, w_g, s_q) for s (Q,) or (n, Q)."""
        lo, hi = self.domain
        top, end, h = self._ends(*self._parameters(x, a, w))
        low, high = self._cdf(top, (end - lo) / h), self._cdf(top, (end - hi) / h)
        value = self._cdf(top, (end - (s[:, None, :] if s.ndim == 2 else s)) / h)
        value -= low
        value /= high - low
        return value

    def tail_integral(
        self,
        x: Float[np.ndarray, "n d"],
        a: Int[np.ndarray, " n"],
        w: Float[np.ndarray, "G *dw"],
        y: Float[np.ndarray, " n"],
    ) -> Float[np.ndarray, "n G"]:
        """The integral of phi ds from y_j to hi, in closed form.

        Where the scale is a hundred times the domain the closed form cancels, and phi is so smooth that 8 Gauss-Legendre
        nodes are exact.
        """
        lo, hi = self.domain
        top, end, h = self._ends(*self._parameters(x, a, w))
        y = y[:, None, None]
        low, high = self._cdf(top, (end - lo) / h), self._cdf(top, (end - hi) / h)
        area = (self._integral(top, (end - hi) / h) - self._integral(top, (end - y) / h)) * h
        tail = ((area - low * (hi - y)) / (high - low))[..., 0]
        if (wide := abs(h[..., 0]) > 100 * (hi - lo)).any():
            nodes, weights = np.polynomial.legendre.leggauss(8)
            half = (hi - y[..., 0]) / 2
            tail = np.where(wide, self.cdf(x, a, w, hi - half * (1 - nodes)) @ weights * half, tail)
        return tail


class LogisticBasis(_TruncatedLocationScale):
    """Truncated logistic CDFs.

    Parameters
    ----------
    location : mu(x (n, d), a (n,), w (G,)) -> (n, G), in the unit of the outcome.
    scale : h > 0, a number or a function like location; fastest when it does not depend on w.
    domain : (lo, hi) of the outcome, default (0, 1).

    Raises
    ------
    TypeError, ValueError: a location that is no function, a scale or a domain that is not positive.
    """

    def _parameters(self, x: Any, a: Any, w: Any) -> tuple[Float[np.ndarray, "n G"], Float[np.ndarray, "n #G"]]:
        mu, h = super()._parameters(x, a, w)
        lo, hi = self.domain
        return np.clip(mu, lo - 40 * h, hi + 40 * h), h  # beyond, phi changes by less than exp(-40)

    def cdf(
        self,
        x: Float[np.ndarray, "n d"],
        a: Int[np.ndarray, " n"],
        w: Float[np.ndarray, "G *dw"],
        s: Float[np.ndarray, "*n Q"],
    ) -> Float[np.ndarray, "n G Q"]:
        """phi(x_j, a_j, w_g, s_q) for s (Q,) or (n, Q).

        phi = (1 - e^((lo-s)/h)) / (1 - e^((lo-hi)/h)) * c / (1 + e^((mu-s)/h)) with c = 1 + e^((mu-hi)/h): nothing
        cancels, and where h does not depend on w the exponential is a product of one in (n, G) and one in (n, Q).
        """
        lo, hi = self.domain
        mu, h = self._parameters(x, a, w)
        mu, h = mu.T[..., None], h.T[..., None]  # laid out as (G, n, Q), as the design operator takes it
        s = s if s.ndim == 2 else s[None]
        c = 1 + np.exp((mu - hi) / h)
        near, far = (mu - (lo + hi) / 2) / h - np.log(c), ((lo + hi) / 2 - s) / h
        if len(h) == 1 and (hi - lo) / h.min() < 600:
            value = np.exp(near) * np.exp(far)
        else:
            value = near + far
            with np.errstate(over="ignore"):  # 1 / (c + inf) = 0
                np.exp(value, out=value)
        value += 1 / c
        np.divide(np.expm1((lo - s) / h) / np.expm1((lo - hi) / h), value, out=value)
        return value.transpose(1, 0, 2)

    @staticmethod
    def _cdf(top: Float[np.ndarray, "n G 1"], below: Float[np.ndarray, "n G #Q"]) -> Float[np.ndarray, "n G Q"]:
        return expit(top - below)

    @staticmethod
    def _integral(top: Float[np.ndarray, "n G 1"], below: Float[np.ndarray, "n G #Q"]) -> Float[np.ndarray, "n G Q"]:
        return np.logaddexp(0, top - below)


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
    def _cdf(top: Float[np.ndarray, "n G 1"], below: Float[np.ndarray, "n G #Q"]) -> Float[np.ndarray, "n G Q"]:
        value = ndtr(top - below)
        if (far := top[..., 0] < -30).any():  # over exp(-top^2/2)
            top, below = top[far], below[far]
            value[far] = erfcx((below - top) / np.sqrt(2)) / 2 * _falls(top, below)
        return value

    @staticmethod
    def _integral(top: Float[np.ndarray, "n G 1"], below: Float[np.ndarray, "n G #Q"]) -> Float[np.ndarray, "n G Q"]:
        z = top - below
        value = z * ndtr(z) + np.exp(-(np.minimum(abs(z), 1e3) ** 2) / 2) / np.sqrt(2 * np.pi)
        if (far := top[..., 0] < -30).any():
            square = (1 / z[far]) ** 2
            series = square * (1 - 3 * square * (1 - 5 * square * (1 - 7 * square)))
            value[far] = series / np.sqrt(2 * np.pi) * _falls(top[far], below[far])
        return value


def _falls(top: Float[np.ndarray, "k 1"], below: Float[np.ndarray, "k Q"]) -> Float[np.ndarray, "k Q"]:
    """The standard Gaussian density at top - below over that at top."""
    with np.errstate(over="ignore"):
        return np.exp(below * (top - below / 2))


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
    rows: int = 64,
    tolerance: float = 1e-8,
) -> None:
    """Refuse a basis that is not a CDF on its domain at randomly chosen rows and those with the extreme contexts.

    Raises
    ------
    ValueError: naming x, a and w where phi is not finite, not monotone, negative, or not 1 at hi.
    """
    for name in ("domain", "cdf"):
        if not hasattr(basis, name):
            raise TypeError(f"basis has no {name}; expected an object like LogisticBasis, got {basis!r}")
    lo, hi = check_domain(basis.domain)
    j = np.random.default_rng(0).permutation(len(x))[:rows]
    j = np.concatenate([x.argmin(0)[:rows], x.argmax(0)[:rows], j])[:rows]
    if len(j) == len(w):  # rows and nodes mixed up by the user's function cannot go unnoticed
        j = np.append(j, j[0])
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


def chunks(n: int, row_bytes: int, chunk_bytes: int) -> Iterator[slice]:
    """Slices of 0..n-1 whose rows take no more than chunk_bytes, or have one row."""
    step = max(1, chunk_bytes // row_bytes)
    return (slice(start, start + step) for start in range(0, n, step))


def mixture_cdf(
    basis: Any,
    x: Float[np.ndarray, "n d"],
    a: Int[np.ndarray, " n"],
    w: Float[np.ndarray, "G *dw"],
    mass: Float[np.ndarray, " G"],
    s: Float[np.ndarray, "*n Q"],
    chunk_bytes: int = 2**20,
) -> Float[np.ndarray, "n Q"]:
    """sum_g mass_g phi(x_j, a_j, w_g, s_q) for s (Q,) or (n, Q), with no more than chunk_bytes of phi at a time."""
    out = np.empty((len(x), s.shape[-1]))
    for columns in chunks(s.shape[-1], 8 * len(w), chunk_bytes):
        points = s[..., columns]
        for rows in chunks(len(x), 8 * len(w) * points.shape[-1], chunk_bytes):
            phi = basis_tensor(basis, x[rows], a[rows], w, points[rows] if s.ndim == 2 else points)
            out[rows, columns] = np.matmul(mass, phi)
    if not np.isfinite(out).all():
        row = np.argwhere(~np.isfinite(out))[0, 0]
        raise ValueError(f"the basis is not finite for x={x[row]}, a={a[row]} and some w: it must be a CDF there")
    return out


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
        above = mixture_cdf(basis, x, a, w, mass, middle) >= levels
        high = np.where(above, middle, high)
        low = np.where(above, low, middle)
    return high
