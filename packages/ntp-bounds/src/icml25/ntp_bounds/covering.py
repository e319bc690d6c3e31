"""Covering numbers: of norm balls, of finite sets, of classes built from others, and of masked decoders."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from icml25.ntp_bounds.checks import check_choice, check_integer, check_matrix, check_number, check_positive
from icml25.ntp_bounds.lipschitz import LipschitzReport, lipschitz
from icml25.ntp_bounds.spec import DecoderSpec

PARTS = ("all", "representation", "predictor")
LogCover = Callable[[Any], Any]


def cover_terms(spec: DecoderSpec, report: LipschitzReport) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """p_k and log(2 B^F_k rho_k Theta / p_k) of each matrix, in the order of ``spec.shapes``."""
    p = np.array([rows * columns for rows, columns in spec.shapes.values()], dtype=float)
    fro = np.array([spec.norms[name].fro for name in spec.shapes])
    with np.errstate(divide="ignore"):
        reach = np.log(2 * fro) + np.array(list(report.log_rho.values()))
    return p, reach + np.log(p.sum() / p)


def matrix_entropies(
    p: Float[np.ndarray, " k"], reach: Float[np.ndarray, " k"], eps: Float[np.ndarray, " e"]
) -> Float[np.ndarray, "k e"]:
    """p_k log(1 + exp(reach_k) / eps), row by matrix."""
    return p[:, None] * np.logaddexp(0.0, reach[:, None] - np.log(eps))


def log_cover(
    spec: DecoderSpec, eps: Any, part: str = "all", softmax: str = "best", metric: str = "frobenius"
) -> Float[np.ndarray, "..."] | float:
    """Logarithm of a covering number of the logits, uniformly over inputs.

    ``log N(eps) <= sum_k p_k log(1 + 2 B^F_k rho_k Theta / (p_k eps))``: each matrix's Frobenius ball is covered within
    eps_k / rho_k, with eps_k = eps p_k / Theta, the split that is best as eps -> 0.

    Parameters
    ----------
    spec : the class of decoders.
    eps : radius in the metric of the logits; a number or an array.
    part : "predictor" for the term of W_out, "representation" for all others, "all" for their sum.
    softmax, metric : as for ``lipschitz``.

    Returns
    -------
    A number, or an array of eps's shape.

    Raises
    ------
    ValueError: eps isn't positive, or an unknown choice.
    """
    check_choice(part, "part", PARTS)
    radii = check_positive(eps, "eps")
    entropies = matrix_entropies(*cover_terms(spec, lipschitz(spec, softmax, metric)), radii.ravel())
    rows = {"all": slice(None), "representation": slice(-1), "predictor": slice(-1, None)}[part]
    total = entropies[rows].sum(0).reshape(radii.shape)
    return total if radii.ndim else float(total)


def entropy_frobenius(p: Any, B: Any, eps: Any) -> Float[np.ndarray, "..."] | float:
    """Volumetric bound p log(1 + 2 B / eps) on the log-covering number of a ball of radius B in R^p, in its own norm.

    It holds for any part of the ball with centres in that part, and for all eps, where p log(3 B / eps) is false for eps > B.
    """
    radii = check_positive(eps, "eps")
    value = check_integer(p, "p") * np.log1p(2 * check_number(B, "B", 0, closed=True) / radii)
    return value if radii.ndim else float(value)


def entropy_spectral(rows: Any, columns: Any, B: Any, eps: Any) -> Float[np.ndarray, "..."] | float:
    """The same for matrices of spectral norm at most B, within eps in the Frobenius norm (at most sqrt(rank) B)."""
    rows, columns = check_integer(rows, "rows"), check_integer(columns, "columns")
    B = check_number(B, "B", 0, closed=True)
    return entropy_frobenius(rows * columns, math.sqrt(min(rows, columns)) * B, eps)


def entropy_maurey(rows: Any, columns: Any, b: Any, x_fro: Any, eps: Any) -> Float[np.ndarray, "..."] | float:
    """Maurey's sparsification: X W within eps in the Frobenius norm, for |W|_{2,1} <= b (sum over columns of their norms).

    ``ceil(|X|_F^2 b^2 / eps^2) log(2 rows columns)``, free of the dimension but for the logarithm.
    """
    radii = check_positive(eps, "eps")
    size = check_number(x_fro, "x_fro", 0, closed=True) * check_number(b, "b", 0, closed=True)
    sides = 2 * check_integer(rows, "rows") * check_integer(columns, "columns")
    value = np.ceil((size / radii) ** 2) * math.log(sides)
    return value if radii.ndim else float(value)


def lipschitz_image(cover: LogCover, constant: float | int) -> LogCover:
    """Of g(F), g Lipschitz with this constant."""
    constant = check_number(constant, "constant", 0)
    return lambda eps: cover(eps / constant)


def product_cover(*covers: LogCover) -> LogCover:
    """Of a product of sets, distances added: eps is split evenly."""
    if not covers:
        raise ValueError("covers is empty; expected at least one")
    return lambda eps: sum(cover(eps / len(covers)) for cover in covers)


def composition_cover(outer: LogCover, inner: LogCover, constant: float | int) -> LogCover:
    """Of {g o h}: ``outer`` covers g uniformly, ``inner`` covers h, each g is Lipschitz with this constant."""
    return product_cover(outer, lipschitz_image(inner, constant))


def greedy_packing(points: Any, eps: float | int) -> Int[np.ndarray, " k"]:
    """Indices of points more than eps apart, the farthest first, until all others are within eps of one.

    Parameters
    ----------
    points : (n, d).
    eps : Euclidean distance.
    """
    points, eps = check_matrix(points, "points"), check_number(eps, "eps", 0)
    chosen, away = [0], np.linalg.norm(points - points[0], axis=1)
    while away.max() > eps:
        chosen.append(int(away.argmax()))
        away = np.minimum(away, np.linalg.norm(points - points[chosen[-1]], axis=1))
    return np.array(chosen)


def greedy_cover(points: Any, eps: float | int) -> Int[np.ndarray, " k"]:
    """Indices of centres that have every point within eps: those with most points still uncovered, or a packing if smaller.

    With the sets' smallest covers, pack(2 eps) <= cover(eps) <= pack(eps). Memory: n^2 booleans.

    Parameters
    ----------
    points : (n, d).
    eps : Euclidean distance.
    """
    packing = greedy_packing(points, eps)
    points = check_matrix(points, "points")
    near = np.stack([np.linalg.norm(points - point, axis=1) <= eps for point in points])
    chosen, uncovered = [], np.ones(len(points), dtype=bool)
    while uncovered.any():
        chosen.append(int((near & uncovered).sum(1).argmax()))
        uncovered &= ~near[chosen[-1]]
    return np.array(chosen) if len(chosen) < len(packing) else packing
