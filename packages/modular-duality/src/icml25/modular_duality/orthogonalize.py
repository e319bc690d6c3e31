"""U V^T of a matrix by odd polynomial iterations of Newton-Schulz type (Section 5.3, Eqs. 15 and 16), or by an SVD."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from icml25.modular_duality.checks import check_integer, check_number

__all__ = ["SCHEDULES", "Coefficients", "Schedule", "check_schedule", "orthogonalize"]

Coefficients = tuple[tuple[float, ...], ...]
Schedule = str | Sequence[Sequence[float | int]]

_SIX_STEP = (
    (3955, -8306, 5008),
    (3735, -6681, 3463),
    (3799, -6499, 3211),
    (4019, -6385, 2906),
    (2677, -3029, 1162),
    (2172, -1833, 682),
)
SCHEDULES: dict[str, Coefficients] = {
    "cubic": ((3 / 2, -1 / 2, 0.0),) * 15,
    "quintic_taylor": ((15 / 8, -10 / 8, 3 / 8),) * 10,
    "quintic": ((3.0, -16 / 5, 6 / 5),) * 10,
    "muon": ((3.4445, -4.7750, 2.0315),) * 5,
    "six_step": tuple(tuple(k / 1024 for k in step) for step in _SIX_STEP),
}
"""Coefficients (a, b, c) of each step, sigma -> a sigma + b sigma^3 + c sigma^5."""


def check_schedule(schedule: Schedule, steps: int | None = None) -> Coefficients | None:
    """Coefficients of each step; None for "svd".

    Parameters
    ----------
    schedule : "svd", a name in ``SCHEDULES``, or a sequence of tuples (a, b, c), (a, b, c, d, e), ... of odd length.
    steps : number of steps; None takes as many as the schedule has, more repeat its last one.

    Raises
    ------
    ValueError: unknown name; no tuple, or one of even length or not finite; steps < 1.
    TypeError: neither a name nor tuples of numbers; steps is no integer.
    """
    if steps is not None:
        check_integer("steps", steps)
    if isinstance(schedule, str):
        if schedule == "svd":
            return None
        if schedule not in SCHEDULES:
            raise ValueError(
                f"schedule must be 'svd', one of {', '.join(SCHEDULES)}, or coefficients; got {schedule!r}"
            )
        coefficients = SCHEDULES[schedule]
    else:
        try:
            coefficients = tuple(tuple(float(k) for k in step) for step in schedule)
        except (TypeError, ValueError):
            raise TypeError(
                f"schedule must be a name or tuples of numbers (a, b, c[, d, e ...]), got {schedule!r}"
            ) from None
        if not coefficients or not all(len(step) % 2 for step in coefficients):
            raise ValueError(f"schedule must hold tuples (a, b, c[, d, e ...]) of odd length, got {schedule!r}")
        if not all(abs(k) < float("inf") for step in coefficients for k in step):
            raise ValueError(f"schedule must hold finite coefficients, got {schedule!r}")
        if abs(sum(coefficients[-1]) - 1) > 0.01:
            warnings.warn(
                f"the last coefficients sum to {sum(coefficients[-1]):.4g}, not 1: singular values do not converge to 1",
                stacklevel=3,
            )
    if steps is not None:
        coefficients = (coefficients + coefficients[-1:] * steps)[:steps]
    return coefficients


def orthogonalize(
    M: Num[Array, "*batch m n"],
    schedule: Schedule = "six_step",
    *,
    steps: int | None = None,
    dtype: DTypeLike | None = None,
    eps: float = 0.0,
) -> Float[Array, "*batch m n"]:
    """The nearest semi-orthogonal matrix U V^T of M = U S V^T, each matrix of a batch on its own.

    Parameters
    ----------
    M : real matrices (..., m, n); singular values that are zero stay zero, so that an all-zero matrix gives zeros.
    schedule : "six_step" (singular values from 0.003 to 1 of the largest norm end in [0.9956, 0.9993]), "cubic",
        "quintic_taylor", "quintic", "muon" (fewer products, ends in [0.68, 1.20]), "svd" (exact), or a sequence of
        coefficients (a, b, c[, d, e ...]) per step for a sigma + b sigma^3 + c sigma^5 + ...
    steps : how many; None takes as many as the schedule has, more repeat its last one. No matter for "svd".
    dtype : that the products are computed in; None takes M's, but float32 for what is shorter. Products in
        bfloat16 are summed in float32.
    eps : added to the Frobenius norm, as optax and Muon do; zero needs none of it here.

    Returns
    -------
    array (..., m, n) of M's dtype. Not finite where M is not.

    Raises
    ------
    ValueError: M has fewer than two axes or matrices without entries; the schedule, steps or eps are wrong.
    TypeError: M is no array, M or dtype is not of a real floating type; the schedule, steps or eps are wrong.

    Notes
    -----
    Per step 4 m n r + 2 r^3 flop, r = min(m, n): the Gram matrix on the smaller side, its square, one product.
    """
    coefficients = check_schedule(schedule, steps)
    check_number("eps", eps)
    if not isinstance(M, (jax.Array, np.ndarray)) or not jnp.issubdtype(M.dtype, jnp.floating):
        raise TypeError(f"M must be an array of a real floating dtype, got {getattr(M, 'dtype', type(M).__name__)}")
    if M.ndim < 2 or 0 in M.shape[-2:]:
        raise ValueError(f"M must have at least two axes, the last two not empty, got shape {M.shape}")
    dtype = jnp.dtype(jnp.promote_types(M.dtype, jnp.float32) if dtype is None else dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"dtype must be a real floating type, got {dtype}")
    if coefficients is None:
        return _polar(M, dtype)
    return _iterate(M, coefficients, dtype, float(eps))


def positive(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Put 1 in place of 0, to divide by."""
    return jnp.where(x == 0, 1, x)


@partial(jax.jit, static_argnames="dtype")
def _polar(M: Float[Array, "*batch m n"], dtype: DTypeLike) -> Float[Array, "*batch m n"]:
    U, S, Vt = jnp.linalg.svd(M.astype(jnp.promote_types(dtype, jnp.float32)), full_matrices=False)
    zero = S[..., :1] * max(M.shape[-2:]) * jnp.finfo(S.dtype).eps >= S  # false for nan, which spreads
    return ((U * jnp.where(zero, 0, 1)[..., None, :]) @ Vt).astype(M.dtype)


@partial(jax.jit, static_argnames=("coefficients", "dtype", "eps"))
def _iterate(
    M: Float[Array, "*batch m n"], coefficients: Coefficients, dtype: DTypeLike, eps: float
) -> Float[Array, "*batch m n"]:
    wide = jnp.promote_types(dtype, jnp.float32)

    def product(A: Array, B: Array) -> Array:
        return jnp.matmul(A.astype(dtype), B.astype(dtype), preferred_element_type=wide)

    X = M.astype(wide)
    peak = positive(jnp.max(jnp.abs(X), (-2, -1), keepdims=True))  # squares of small numbers underflow
    X = X / peak
    X = X / positive(jnp.linalg.norm(X, axis=(-2, -1), keepdims=True) + eps / peak)
    tall = M.shape[-2] > M.shape[-1]
    if tall:
        X = X.mT
    for a, *rest in coefficients:
        while rest and rest[-1] == 0:
            rest.pop()
        if not rest:
            X = a * X
            continue
        A = product(X, X.mT)
        P = rest.pop() * A
        for k in reversed(rest):  # Horner: b A + c A^2 = (b + c A) A
            P = k * A + product(P, A)
        X = a * X + product(P, X)
    return (X.mT if tall else X).astype(M.dtype)
