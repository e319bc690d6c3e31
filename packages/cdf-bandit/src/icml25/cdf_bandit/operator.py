"""The design operator U_D, its moment vector and its spectrum (section 2, Eq. 2, appendix F)."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from icml25.cdf_bandit.basis import basis_tensor, chunks
from icml25.cdf_bandit.checks import check_integer, check_numbers
from icml25.cdf_bandit.measure import Measure, interval

FLOOR = 1e-12  # eigenvalues below this part of the largest are noise
SAMPLE = 1024  # rows among which repetitions are looked for


def distinct(rows: Float[np.ndarray, "n d"]) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, " n"]]:
    """Indices of the different rows, and for every row which of them it equals.

    Rows without a repetition among a thousand of them are taken to have none, which saves the sorting.
    """
    n = len(rows)
    some = rows if n <= SAMPLE else rows[np.random.default_rng(0).choice(n, SAMPLE, replace=False)]
    if len(np.unique(some, axis=0)) == len(some):
        return np.arange(n), np.arange(n)
    _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, which.ravel()


def design_kernel(
    basis: Any,
    x: Float[np.ndarray, "n d"],
    a: Int[np.ndarray, " n"],
    w: Float[np.ndarray, "G *dw"],
    outcomes: Measure,
    chunk_bytes: int = 2**20,
) -> Float[np.ndarray, "G G"]:
    """Sum over the data of K_{x,a}(w, w') = integral phi(x,a,w,s) phi(x,a,w',s) dm(s), at pairs of nodes.

    Rows (x, a) that are equal are evaluated once, within blocks of chunk_bytes of rows.

    Parameters
    ----------
    basis, x, a, w : the basis, the data, and the nodes in Omega.
    outcomes : m, nodes and weights on S.
    chunk_bytes : size of the basis tensor that is held at a time.

    Returns
    -------
    (G, G), symmetric
    """
    kernel = np.zeros((len(w), len(w)))
    for block in chunks(len(x), 8 * (x.shape[1] + 1), chunk_bytes):
        first, which = distinct(np.column_stack([x[block], a[block]]))
        count = np.bincount(which)
        xs, actions = x[block][first], a[block][first]
        for chunk in chunks(len(first), 8 * len(w) * len(outcomes.points), chunk_bytes):
            phi = basis_tensor(basis, xs[chunk], actions[chunk], w, outcomes.points)
            flat = np.empty((len(w), len(phi), len(outcomes.points)))
            np.multiply(phi.transpose(1, 0, 2), np.sqrt(count[chunk, None] * outcomes.weights), out=flat)
            flat = flat.reshape(len(w), -1)
            kernel += flat @ flat.T
    if not np.isfinite(kernel).all():
        raise ValueError("the basis is not finite at some of the data: it must be a CDF there")
    return kernel


def moment_vector(
    basis: Any,
    x: Float[np.ndarray, "n d"],
    a: Int[np.ndarray, " n"],
    y: Float[np.ndarray, " n"],
    w: Float[np.ndarray, "G *dw"],
    outcomes: Measure,
    chunk_bytes: int = 2**20,
) -> Float[np.ndarray, " G"]:
    """b_D(w) = sum over the data of the integral of phi(x_j, a_j, w, s) 1(y_j <= s) dm(s).

    The indicator is no integrand for a fixed rule: the nodes are mapped to [y_j, hi], or the basis's own
    ``tail_integral`` is taken.

    Parameters
    ----------
    basis, x, a, y, w : the basis, the data, and the nodes in Omega.
    outcomes : m, nodes and weights on S.
    chunk_bytes : size of the basis tensor that is held at a time.

    Returns
    -------
    (G,)
    """
    lo, hi = basis.domain
    tail_integral = getattr(basis, "tail_integral", None)
    unit = (outcomes.points - lo) / (hi - lo)
    total = np.zeros(len(w))
    nodes = 1 if tail_integral else len(unit)
    for chunk in chunks(len(x), 8 * len(w) * nodes, chunk_bytes):
        part = x[chunk], a[chunk], w
        left = (hi - y[chunk]) / (hi - lo)
        if tail_integral:
            tail = np.asarray(tail_integral(*part, y[chunk]), dtype=np.float64)
            if tail.shape != (len(left), len(w)):
                raise ValueError(f"tail_integral returned shape {tail.shape}, expected (n, G) = {(len(left), len(w))}")
            share = tail / (hi - lo)
            wrong = ~((share >= -1e-9) & (share <= left[:, None] + 1e-9))
            if wrong.any():
                row, g = np.argwhere(wrong)[0]
                raise ValueError(
                    f"tail_integral must lie between 0 and hi - y, as phi between 0 and 1, got {tail[row, g]} for "
                    f"x={x[chunk][row]}, a={a[chunk][row]}, w={w[g]}, y={y[chunk][row]}"
                )
            total += share.sum(0) * outcomes.mass
        else:
            phi = basis_tensor(basis, *part, y[chunk, None] + (hi - y[chunk, None]) * unit)
            total += np.einsum("n,ngq,q->g", left, phi, outcomes.weights, optimize=True)
    if not np.isfinite(total).all():
        raise ValueError("the basis is not finite at some of the data: it must be a CDF there")
    return total


def legendre_functions(measure: Measure, degree: int) -> Float[np.ndarray, "G R"]:
    """The first R Legendre polynomials, orthonormal in L2(nu), at the nodes of an interval."""
    if measure.edges is None:
        raise ValueError("method='galerkin' needs a measure made by interval()")
    lo, hi = measure.edges[0], measure.edges[-1]
    if degree > len(measure.points):
        raise ValueError(f"n_w={degree} Legendre functions need at least as many nodes, got {len(measure.points)}")
    values = np.polynomial.legendre.legvander((2 * measure.points - lo - hi) / (hi - lo), degree - 1)
    return values * np.sqrt((2 * np.arange(degree) + 1) / measure.mass)


def symmetric_form(
    kernel: Float[np.ndarray, "G G"], measure: Measure, functions: Float[np.ndarray, "G R"] | None = None
) -> Float[np.ndarray, "G G"]:
    """H = D^{1/2} K D^{1/2}, D the weights of nu: its eigenvalues are those of the operator with kernel K.

    This is the composite Gauss-Legendre Nystrom method, which is Algorithm 3. With ``functions`` (orthonormal in
    L2(nu)) the operator is first compressed to their span: Galerkin's method.

    Parameters
    ----------
    kernel : K at pairs of nodes.
    measure : nu.
    functions : at the nodes, or None.

    Returns
    -------
    (G, G), symmetric
    """
    root = np.sqrt(measure.weights)
    H = root[:, None] * kernel * root
    if functions is not None:
        basis = root[:, None] * functions
        H = basis @ (basis.T @ H @ basis) @ basis.T
    return (H + H.T) / 2


def spectrum(
    H: Float[np.ndarray, "G G"],
) -> tuple[Float[np.ndarray, " G"], Float[np.ndarray, "G G"]]:
    """Eigenvalues, largest first and not negative, and eigenvectors as columns."""
    from scipy.linalg import eigh

    eigenvalues, vectors = eigh(H)
    return np.maximum(eigenvalues[::-1], 0.0), vectors[:, ::-1]


def estimate_decay(eigenvalues: ArrayLike, n_samples: int | None = None) -> float:
    """gamma from the decay of the eigenvalues of U_D/n: lambda_k of order k^(-1/gamma) (Assumption 2.10).

    Least squares of log lambda_k on log k, over the eigenvalues above max(1e-12 lambda_1, 1/n). It estimates the
    infimum of the valid gammas: at gamma itself the sum of tau_k^gamma may diverge.

    Parameters
    ----------
    eigenvalues : largest first, of U_D/n.
    n_samples : n; None uses all eigenvalues above 1e-12 lambda_1.

    Returns
    -------
    float in [0, 1]; 0 when log lambda_k is closer to linear in k (exponential decay), or with fewer than three
        eigenvalues to fit (finite rank).

    Raises
    ------
    ValueError: empty, negative or increasing eigenvalues.
    """
    values = check_numbers(eigenvalues, "eigenvalues", ndim=1)
    if values.size == 0 or values[0] <= 0 or (values < 0).any() or (np.diff(values) > 0).any():
        raise ValueError("eigenvalues must be positive to non-negative and largest first")
    least = (
        FLOOR * values[0] if n_samples is None else max(FLOOR * values[0], 1 / check_integer(n_samples, "n_samples", 1))
    )
    log = np.log(values[values > least])
    if len(log) < 3:
        return 0.0
    k = np.arange(1, len(log) + 1)

    def fit(z: Float[np.ndarray, " k"]) -> tuple[float, float]:
        slope, intercept = np.polyfit(z, log, 1)
        return float(slope), float(((log - intercept - slope * z) ** 2).sum())

    (slope, polynomial), (_, exponential) = fit(np.log(k)), fit(k.astype(float))
    if exponential < polynomial or slope >= 0:
        return 0.0 if exponential < polynomial else 1.0
    return float(np.clip(-1 / slope, 0.0, 1.0))


def outcome_measure(domain: tuple[float, float], n: int, normalize: bool) -> Measure:
    """m: Lebesgue measure on the domain by n Gauss-Legendre nodes, of mass 1 when normalised."""
    measure = interval(*domain, n)
    return measure.normalized() if normalize else measure
