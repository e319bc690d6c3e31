"""K_ab = E phi(v.x_a) phi(v.x_b) for v ~ N(0, Sigma), in closed form from the moments s = X Sigma X^T."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from icml25.feature_scales.model import as_floats, as_points

__all__ = ["kernel"]


def kernel(phi: str, X: ArrayLike, Sigma: ArrayLike | float, X2: ArrayLike | None = None) -> Float[np.ndarray, "P P2"]:
    """Covariance of the hidden layer's outputs under Gaussian weights v ~ N(0, Sigma).

    Parameters
    ----------
    phi : "linear", "erf" (arcsine kernel) or "relu" (arc-cosine kernel of order 1).
    X : (P, D) inputs.
    Sigma : (D, D) covariance of a neuron's input weights; a number stands for that multiple of the identity.
    X2 : (P2, D) second inputs; None takes X.

    Returns
    -------
    (P, P2) float64

    Raises
    ------
    ValueError: unknown phi, shapes that do not fit, NaN, Sigma not a covariance.
    """
    if phi not in ("linear", "erf", "relu"):
        raise ValueError(f"phi={phi!r}; expected 'linear', 'erf' or 'relu'")
    left = as_points("X", X)
    right = left if X2 is None else as_points("X2", X2, left.shape[1])
    covariance = as_floats("Sigma", Sigma)
    if covariance.ndim and covariance.shape != (left.shape[1],) * 2:
        raise ValueError(f"Sigma has shape {covariance.shape}; expected a number or {(left.shape[1],) * 2}")
    size = np.abs(covariance).max()
    if not np.allclose(covariance, covariance.T, rtol=0, atol=1e-6 * size):
        raise ValueError("Sigma is not symmetric; expected a covariance")
    weighted = left @ covariance if covariance.ndim else left * covariance
    weighted2 = right @ covariance if covariance.ndim else right * covariance
    moments = weighted @ right.T, (weighted * left).sum(1), (weighted2 * right).sum(1)
    for points, variances in ((left, moments[1]), (right, moments[2])):
        if (variances < -1e-9 * size * (points**2).sum(1)).any():
            raise ValueError("Sigma is not positive semi-definite; expected a covariance")
    with jax.enable_x64(True):
        return np.asarray(gaussian_moment(phi, *map(jnp.asarray, moments)))


def gaussian_moment(
    phi: str, s: Float[jax.Array, "P P2"], s_aa: Float[jax.Array, " P"], s_bb: Float[jax.Array, " P2"]
) -> Float[jax.Array, "P P2"]:
    """E phi(h_a) phi(h_b) from Cov(h_a, h_b) = s and the variances."""
    if phi == "linear":
        return s
    if phi == "erf":
        return 2 / jnp.pi * jnp.arcsin(2 * s / jnp.sqrt((1 + 2 * s_aa)[:, None] * (1 + 2 * s_bb)))
    product = s_aa[:, None] * s_bb
    norm = jnp.sqrt(jnp.where(product > 0, product, 1.0))
    return jnp.where(product > 0, norm * _arc_cosine(s / norm), 0.0) / (2 * jnp.pi)


def _arc_cosine(c: Float[jax.Array, "P P2"]) -> Float[jax.Array, "P P2"]:
    """sin t + (pi - t) cos t for t = arccos(c); its derivatives stay finite at c = 1 (diagonal, duplicates) and c = -1."""
    inside = 1 - c**2 > 1e-14
    c_inside = jnp.where(inside, c, 0.0)
    value = jnp.sqrt(1 - c_inside**2) + (jnp.pi - jnp.arccos(c_inside)) * c_inside
    return jnp.where(inside, value, jnp.where(c > 0, jnp.pi * c, 0.0))
