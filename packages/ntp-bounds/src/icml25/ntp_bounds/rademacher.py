"""Rademacher complexity: Dudley's integral from above, exact or by Monte Carlo where the class is simple."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from icml25.ntp_bounds.checks import check_integer, check_matrix, check_number, check_positive
from icml25.ntp_bounds.covering import LogCover

ENUMERABLE = 20
GRID = np.geomspace(1e-10, 1.0, 600)  # radii of Dudley's integral, relative to the largest


class Estimate(NamedTuple):
    """A value and its standard error, 0 where it is exact."""

    value: float
    se: float


class LinearEstimate(NamedTuple):
    """A value, its standard error (0 where it is exact) and the closed-form bound."""

    value: float
    se: float
    bound: float


class Dudley(NamedTuple):
    """The bound and the radius alpha where the integral starts."""

    value: Any
    alpha: Any


def dudley(log_cover: LogCover, radius: float | int, n: Any) -> Dudley:
    """``inf_alpha 4 alpha + 12 / sqrt(n) integral_alpha^radius sqrt(log N(eps)) d eps``, and never more than the radius.

    Trapezoids over 600 radii in geometric progression (from above for a convex integrand, as those of this package are);
    the infimum is taken over the same radii.

    Parameters
    ----------
    log_cover : array of radii -> logarithms of covering numbers, not increasing.
    radius : half the range of the functions, in the metric of the cover.
    n : sample size, or an array of them.

    Returns
    -------
    value, alpha : of n's shape.

    Raises
    ------
    ValueError: log_cover gives anything but numbers >= 0 of its argument's shape.
    """
    radius, sizes = check_number(radius, "radius", 0), check_positive(n, "n")
    eps = radius * GRID
    entropy = np.asarray(log_cover(eps), dtype=float)
    if entropy.shape != eps.shape or not (entropy >= 0).all():
        raise ValueError(f"log_cover must give numbers >= 0 of shape {eps.shape}, got shape {entropy.shape}: {entropy}")
    value, alpha = chain(entropy, eps, sizes)
    return Dudley(value, alpha) if sizes.ndim else Dudley(float(value), float(alpha))


def chain(entropy: Float[np.ndarray, " e"], eps: Float[np.ndarray, " e"], n: Float[np.ndarray, "..."]) -> Dudley:
    """Dudley's bound from log-covering numbers at growing radii, the last of which is the largest."""
    root = np.sqrt(entropy)
    panels = np.diff(eps) * (root[1:] + root[:-1]) / 2
    integral = np.append(np.cumsum(panels[::-1])[::-1], 0.0)
    values = 4 * eps + 12 / np.sqrt(n[..., None]) * integral
    best = values.argmin(-1)
    value = np.take_along_axis(values, best[..., None], -1)[..., 0]
    return Dudley(np.minimum(value, eps[-1]), np.where(value < eps[-1], eps[best], eps[-1]))


def massart(F: Any) -> float:
    """Massart's bound max_f |f| sqrt(2 log |F|) / n on the Rademacher complexity of finitely many predictors.

    Parameters
    ----------
    F : values (predictors, n), such as each checkpoint's loss on each sequence. Subtracting what is common to all
        (a column's mean, say) leaves the complexity as it is and makes the bound smaller.
    """
    F = check_matrix(F, "F")
    return float(np.linalg.norm(F, axis=1).max() * math.sqrt(2 * math.log(len(F))) / F.shape[1])


def rademacher_finite(F: Any, n_signs: int | None = 10_000, seed: int = 0) -> Estimate:
    """(1/n) E max_f sum_i sigma_i f(i) over finitely many predictors.

    Parameters
    ----------
    F : values (predictors, n).
    n_signs : sign vectors of the Monte Carlo estimate, half of them the negatives of the others; None enumerates all (n <= 20).
    seed : of the signs.
    """
    F = check_matrix(F, "F")
    F, size = _scaled(F - F[0])  # what is common to all plays no part, and would drown the rest in single precision
    scores = [_both(signs @ F.T.astype(signs.dtype), axis=1) for signs in _signs(F.shape[1], n_signs, seed)]
    return _estimate(scores, size / F.shape[1], exact=n_signs is None)


def rademacher_linear(
    Z: Any, B: float | int, outputs: int | None = None, n_signs: int | None = 10_000, seed: int = 0
) -> LinearEstimate:
    """Of the linear predictors z -> w . z, |w| <= B, on a frozen representation: (B/n) E |Z^T sigma|.

    Parameters
    ----------
    Z : representation (n, d).
    B : largest norm of w.
    outputs : None, or the number v of outputs of W with |W|_F <= B behind a 1-Lipschitz loss. Then by Maurer's contraction one
        sign per output and a factor sqrt(2): the result bounds the complexity of the losses.
    n_signs : of the Monte Carlo estimate; None enumerates all (n times outputs <= 20).
    seed : of the signs.

    Returns
    -------
    value, se, bound : bound is (B/n) sqrt(sum |z_i|^2), times sqrt(2 v) with outputs.
    """
    Z, B = check_matrix(Z, "Z"), check_number(B, "B", 0, closed=True)
    n, v = len(Z), 1 if outputs is None else check_integer(outputs, "outputs")
    Z, size = _scaled(Z)
    factor = size / n * (B if outputs is None else math.sqrt(2) * B)
    norms = [
        np.linalg.norm(signs.reshape(-1, v, n) @ Z.astype(signs.dtype), axis=(1, 2))
        for signs in _signs(n * v, n_signs, seed)
    ]
    value, se = _estimate(norms, factor, exact=n_signs is None)
    return LinearEstimate(value, se, float(factor * math.sqrt(v) * np.linalg.norm(Z)))


def _scaled(values: np.ndarray) -> tuple[np.ndarray, float]:
    """The values over their largest size, and that size."""
    size = float(np.abs(values).max()) or 1.0
    return values / size, size


def _both(scores: Float[np.ndarray, "s f"], axis: int) -> Float[np.ndarray, " s"]:
    """Mean of the largest score under sigma and under -sigma, in which what is common to all scores cancels."""
    return (scores.max(axis) - scores.min(axis)) / 2


def _signs(n: int, n_signs: int | None, seed: int) -> Iterator[np.ndarray]:
    """Sign vectors in chunks of (k, n): all with a first +1, or at random; their negatives are implied."""
    if n_signs is None:
        if n > ENUMERABLE:
            raise ValueError(
                f"enumeration of 2^{n} signs: n must be at most {ENUMERABLE}; pass n_signs for Monte Carlo"
            )
        bits = np.arange(2 ** (n - 1))[:, None] >> np.arange(n) & 1
        yield 1.0 - 2 * bits
        return
    pairs = -(-check_integer(n_signs, "n_signs", 2) // 2)
    rng = np.random.default_rng(check_integer(seed, "seed", 0))
    chunk = max(1, 2**25 // n)
    for start in range(0, pairs, chunk):
        rows = min(chunk, pairs - start)
        bits = np.unpackbits(np.frombuffer(rng.bytes(-(-rows * n // 8)), dtype=np.uint8), count=rows * n)
        signs = bits.reshape(rows, n).astype(np.float32)
        signs *= 2
        signs -= 1
        yield signs


def _estimate(chunks: list[np.ndarray], factor: float, exact: bool) -> Estimate:
    values = np.concatenate(chunks).astype(float)
    se = 0.0 if exact or len(values) < 2 else float(values.std(ddof=1) / math.sqrt(len(values)))
    return Estimate(factor * float(values.mean()), factor * se)
