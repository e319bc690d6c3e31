"""Measures nu on the set Omega of mixture parameters, as quadrature nodes and weights."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from icml25.cdf_bandit.checks import LARGEST, check_integer, check_number, check_numbers


@dataclass(frozen=True, eq=False)
class Measure:
    """A measure with finitely many nodes: the integral of f is ``weights @ f(points)``.

    Parameters
    ----------
    points : (G,) for one dimension, (G, d) else.
    weights : (G,), positive.
    edges : (P + 1,) ends of the pieces of a composite Gauss-Legendre rule on an interval, else None; values at the
        nodes can then be interpolated.
    """

    points: Float[np.ndarray, "G *d"]
    weights: Float[np.ndarray, " G"]
    edges: Float[np.ndarray, " P1"] | None = None

    @property
    def mass(self) -> float:
        """nu(Omega)."""
        return float(self.weights.sum())

    def normalized(self) -> "Measure":
        """The same measure scaled to mass 1."""
        return Measure(self.points, self.weights / self.mass, self.edges)

    def interpolate(self, values: Float[np.ndarray, "G *k"], w: ArrayLike) -> Float[np.ndarray, "..."]:
        """Piecewise Lagrange interpolation between the nodes (appendix F).

        Parameters
        ----------
        values : at the nodes, (G,) or (G, k).
        w : (n,) points of the interval.

        Returns
        -------
        (n,) or (n, k)

        Raises
        ------
        ValueError: the measure is not an ``interval``, or w lies outside.
        """
        if self.edges is None:
            raise ValueError("only a measure made by interval() can be interpolated; read the values at its points")
        w = check_numbers(w, "w", ndim=1)
        if w.size and (w.min() < self.edges[0] or w.max() > self.edges[-1]):
            raise ValueError(f"w has values outside [{self.edges[0]:g}, {self.edges[-1]:g}]")
        from scipy.interpolate import BarycentricInterpolator

        pieces = len(self.edges) - 1
        per_piece = len(self.points) // pieces
        piece = np.clip(np.searchsorted(self.edges, w, side="right") - 1, 0, pieces - 1)
        out = np.empty((len(w), *values.shape[1:]))
        for p in np.unique(piece):
            nodes = slice(p * per_piece, (p + 1) * per_piece)
            out[piece == p] = BarycentricInterpolator(self.points[nodes], values[nodes])(w[piece == p])
        return out


def interval(lo: Any, hi: Any, n: int, pieces: int = 1) -> Measure:
    """Lebesgue measure on [lo, hi] by a composite Gauss-Legendre rule.

    Parameters
    ----------
    lo, hi : ends, lo < hi.
    n : number of nodes, divisible by pieces.
    pieces : equal pieces, each with n / pieces Gauss points (appendix F: P pieces of r points).

    Returns
    -------
    Measure

    Raises
    ------
    ValueError: lo >= hi, not finite, or n is not a positive multiple of pieces.
    """
    check_integer(n, "n", 1)
    check_integer(pieces, "pieces", 1)
    lo, hi = (check_number(end, name, -LARGEST, LARGEST, open_low=False) for end, name in ((lo, "lo"), (hi, "hi")))
    if not lo < hi:
        raise ValueError(f"lo and hi must be finite with lo < hi, got {lo} and {hi}")
    if n % pieces:
        raise ValueError(f"n must be divisible by pieces, got n={n} and pieces={pieces}")
    x, weight = np.polynomial.legendre.leggauss(n // pieces)
    edges = np.linspace(lo, hi, pieces + 1)
    half = np.diff(edges)[:, None] / 2
    points = edges[:-1, None] + half * (1 + x)
    return Measure(points.ravel(), (half * weight).ravel(), edges)


def box(
    lo: ArrayLike, hi: ArrayLike, n: int, rule: str = "auto", seed: int | np.random.Generator | None = 0
) -> Measure:
    """Lebesgue measure on a box.

    Parameters
    ----------
    lo, hi : (d,) corners, lo < hi.
    n : nodes per axis of the tensor rule, nodes in all of the Sobol rule (a power of two is best).
    rule : "gauss" (tensor, d <= 2), "sobol" (scrambled) or "auto" (gauss for d <= 2).
    seed : of the scrambling.

    Returns
    -------
    Measure with points (G, d).

    Raises
    ------
    ValueError: bad corners, n or rule, or a tensor rule in three or more dimensions.
    """
    lo, hi = check_numbers(lo, "lo", ndim=1), check_numbers(hi, "hi", ndim=1)
    check_integer(n, "n", 1)
    if lo.shape != hi.shape or lo.size == 0 or not (lo < hi).all():
        raise ValueError(f"lo and hi must be corners of one box with lo < hi, got {lo} and {hi}")
    if rule not in ("auto", "gauss", "sobol"):
        raise ValueError(f"rule must be 'auto', 'gauss' or 'sobol', got {rule!r}")
    d = len(lo)
    if rule == "gauss" and d >= 3:
        raise ValueError(f"a tensor grid in {d} dimensions has n**{d} nodes; use rule='sobol'")
    if rule == "sobol" or d >= 3:
        from scipy.stats import qmc

        unit = qmc.Sobol(d, rng=np.random.default_rng(seed)).random(n)
        return Measure(lo + (hi - lo) * unit, np.full(n, np.prod(hi - lo) / n))
    axes = [interval(a, b, n) for a, b in zip(lo.tolist(), hi.tolist(), strict=True)]
    points = np.stack(np.meshgrid(*(axis.points for axis in axes), indexing="ij"), -1).reshape(-1, d)
    weights = np.meshgrid(*(axis.weights for axis in axes), indexing="ij")
    return Measure(points, np.prod(weights, axis=0).ravel())


def atoms(points: ArrayLike, weights: ArrayLike) -> Measure:
    """A discrete measure.

    Parameters
    ----------
    points : (G,) or (G, d).
    weights : (G,), positive.

    Returns
    -------
    Measure

    Raises
    ------
    ValueError: not finite, of different lengths, or a weight that is not positive.
    """
    points, weights = check_numbers(points, "points"), check_numbers(weights, "weights", ndim=1)
    if points.ndim not in (1, 2) or len(points) != len(weights) or len(weights) == 0:
        raise ValueError(f"points {points.shape} and weights {weights.shape} must be (G,) or (G, d), and (G,), G >= 1")
    if (weights <= 0).any():
        raise ValueError("weights must be positive; leave out the atoms without weight")
    return Measure(points, weights)
