"""Linear networks exactly: given Q = |w|^2 the output is Gaussian, so the posterior is one integral over Q."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import numpy as np
import scipy.special
import scipy.stats
from jaxtyping import Float
from numpy.typing import ArrayLike

from icml25.feature_scales.model import TwoLayer, as_points, as_targets, check_count, check_network
from icml25.feature_scales.spectrum import Spectrum

__all__ = ["ExactPosterior", "exact_posterior"]


@dataclass(frozen=True, eq=False)
class ExactPosterior:
    """Posterior of a linear network: a mixture over Q = |w|^2 of Gaussians f | Q (posterior of ridge regression at Q C).

    ``q_weights`` sum to one over ``q_grid``, which is even in ln Q; ``mean`` (P,) and ``cov`` (P, P) are of the
    outputs at the training inputs; ``log_evidence`` is ln p(y) + (P/2) ln 2 pi.
    """

    net: TwoLayer
    X: Float[np.ndarray, "P D"]
    y: Float[np.ndarray, " P"]
    q_grid: Float[np.ndarray, " G"]
    q_weights: Float[np.ndarray, " G"]
    log_evidence: float
    spectrum: Spectrum = field(repr=False)

    @property
    def prior_variance(self) -> float:
        """Prior variance g_v/D of a hidden weight."""
        return self.net.g_v / self.X.shape[1]

    @property
    def coefficients(self) -> Float[np.ndarray, "G r"]:
        """Q (noise + Q C)^{-1} y in the eigenbasis, for each Q: the mean output is C_* U times this."""
        _, noise = self.net.effective()
        s, Q = self.spectrum, self.q_grid[:, None]
        return Q * s.b / (noise + Q * s.lam)

    @property
    def mean(self) -> Float[np.ndarray, " P"]:
        """<f> = E_Q[Q C (Q C + noise)^{-1}] y."""
        return self.spectrum.U @ (self.spectrum.lam * (self.q_weights @ self.coefficients))

    @property
    def cov(self) -> Float[np.ndarray, "P P"]:
        """Cov(f) = E_Q[noise Q C (Q C + noise)^{-1}] + Cov_Q(mean)."""
        _, noise = self.net.effective()
        s, Q = self.spectrum, self.q_grid[:, None]
        within = self.q_weights @ (noise * Q * s.lam / (noise + Q * s.lam))
        return (s.U * within) @ s.U.T + s.U @ self._between(s.lam) @ s.U.T

    def _between(self, factor: Float[np.ndarray, " r"]) -> Float[np.ndarray, "r r"]:
        means = factor * self.coefficients
        centred = means - self.q_weights @ means
        return (centred.T * self.q_weights) @ centred

    def predict(self, X_test: ArrayLike) -> Float[np.ndarray, " T"]:
        """Mean output (T,) at X_test (T, D)."""
        return self._cross(X_test) @ (self.q_weights @ self.coefficients)

    def _cross(self, X_test: ArrayLike) -> Float[np.ndarray, "T r"]:
        return self.prior_variance * (as_points("X_test", X_test, self.X.shape[1]) @ (self.X.T @ self.spectrum.U))

    def output_covariance(self, X_test: ArrayLike) -> Float[np.ndarray, "T T"]:
        """Covariance (T, T) of the outputs at X_test (T, D)."""
        _, noise = self.net.effective()
        points, cross = as_points("X_test", X_test, self.X.shape[1]), self._cross(X_test)
        Q, lam = self.q_grid[:, None], self.spectrum.lam
        explained = np.diag(self.q_weights @ (Q**2 / (noise + Q * lam)))
        prior = self.q_weights @ self.q_grid * self.prior_variance * (points @ points.T)
        return prior + cross @ (self._between(np.ones_like(lam)) - explained) @ cross.T

    def weight_covariance(self) -> Float[np.ndarray, "D D"]:
        """Second moment (D, D) of a row of V: (1 - 1/N) g_v/D + E[u u^T/Q]/N with u = V^T w."""
        _, noise = self.net.effective()
        Q, lam, m = self.q_grid[:, None], self.spectrum.lam, self.coefficients
        learned = (m.T * (self.q_weights / self.q_grid)) @ m - np.diag(self.q_weights @ (Q / (noise + Q * lam)))
        Z = self.prior_variance * (self.X.T @ self.spectrum.U)
        return self.prior_variance * np.eye(self.X.shape[1]) + Z @ learned @ Z.T / self.net.width

    def _draw_q(self, key: jax.Array, n: int) -> Float[np.ndarray, " n"]:
        """Inverse of the cumulative distribution, linear in ln Q between grid points."""
        steps = np.concatenate([[0.0], np.cumsum((self.q_weights[1:] + self.q_weights[:-1]) / 2)])
        return np.exp(np.interp(np.asarray(jax.random.uniform(key, (n,))) * steps[-1], steps, np.log(self.q_grid)))

    def sample(self, key: jax.Array, n: int) -> Float[np.ndarray, "n P"]:
        """Draw n independent outputs (n, P) at the training inputs."""
        check_count("n", n)
        of_q, of_f = jax.random.split(key)
        _, noise = self.net.effective()
        s, Q = self.spectrum, self._draw_q(of_q, n)[:, None]
        normal = np.asarray(jax.random.normal(of_f, (n, len(s.lam))), dtype=np.float64)
        shrunk = Q * s.lam / (noise + Q * s.lam)
        return (shrunk * s.b + np.sqrt(noise * shrunk) * normal) @ s.U.T

    def sample_weights(self, key: jax.Array, n: int) -> tuple[Float[np.ndarray, "n N D"], Float[np.ndarray, "n N"]]:
        """Draw n independent networks: V (n, N, D) and w (n, N).

        Given Q, u = V^T w is Gaussian, the direction of w uniform, and V keeps its prior orthogonally to w.
        """
        check_count("n", n)
        (P, D), N = self.X.shape, self.net.width
        _, noise = self.net.effective()
        draw = lambda key, *shape: np.asarray(jax.random.normal(key, shape), dtype=np.float64)  # noqa: E731
        of_q, of_u, of_noise, of_w, of_v = jax.random.split(key, 5)
        Q, s = self._draw_q(of_q, n)[:, None], self.spectrum
        u = np.sqrt(Q * self.prior_variance) * draw(of_u, n, D)  # from the prior, then moved onto the data
        residual = (self.y - u @ self.X.T + np.sqrt(noise) * draw(of_noise, n, P)) @ s.U
        u = u + Q * self.prior_variance * (residual / (noise + Q * s.lam)) @ (s.U.T @ self.X)
        direction = draw(of_w, n, N)
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        V = np.sqrt(self.prior_variance) * draw(of_v, n, N, D)
        V += direction[:, :, None] * (u / np.sqrt(Q) - np.einsum("nk,nkd->nd", direction, V))[:, None, :]
        return V, np.sqrt(Q) * direction


def exact_posterior(net: TwoLayer, X: ArrayLike, y: ArrayLike) -> ExactPosterior:
    """Exact posterior of a linear network, by quadrature over ln Q after one eigendecomposition.

    p(Q | y) ~ Q^(N/2 - 1) exp(-Q chi N/(2 g_w)) N(y | 0, Q C + noise).

    Parameters
    ----------
    net : a network with phi = "linear".
    X : (P, D) training inputs.
    y : (P,) targets.

    Raises
    ------
    NotImplementedError: phi is not linear.
    ValueError: shapes that do not fit, NaN.
    """
    check_network(net)
    if net.phi != "linear":
        raise NotImplementedError(f"the exact posterior needs phi='linear', got phi={net.phi!r}; use langevin")
    points = as_points("X", X)
    targets = as_targets("y", y, len(points))
    return quadrature(net, points, targets, Spectrum.of_inputs(np.sqrt(net.g_v / points.shape[1]) * points, targets))


def log_density(net: TwoLayer, spectrum: Spectrum) -> Callable[[Float[np.ndarray, " G"]], Float[np.ndarray, " G"]]:
    """Log posterior density of Q (with respect to dQ), normalised but for the evidence and (2 pi)^(P/2)."""
    variance, noise = net.effective()
    shape, unit = net.width / 2, 2 * variance / net.width

    def of(Q: Float[np.ndarray, " G"]) -> Float[np.ndarray, " G"]:
        prior = scipy.stats.gamma.logpdf(Q, shape, scale=unit)
        return prior - (spectrum.log_det(Q, noise) + spectrum.fit(Q, noise)) / 2

    return of


def quadrature(
    net: TwoLayer, X: Float[np.ndarray, "P D"], y: Float[np.ndarray, " P"], spectrum: Spectrum
) -> ExactPosterior:
    """Trapezoidal rule on ln Q over the density's support, found on a coarse grid."""
    density, (variance, _) = log_density(net, spectrum), net.effective()

    def of_log_q(t: Float[np.ndarray, " G"]) -> Float[np.ndarray, " G"]:
        blocks = np.array_split(t, 1 + len(t) * len(spectrum.lam) // 2**18)
        return np.concatenate([density(np.exp(block)) + block for block in blocks])

    ends = np.log(scipy.stats.chi2.ppf([1e-14, 1 - 1e-14], net.width) * variance / net.width) + np.array([0.0, 12.0])
    for points in (513, 513, 513):  # twice onto the support, then the rule itself
        t = np.linspace(ends[0], ends[1], points)
        log_p = of_log_q(t)
        support = np.flatnonzero(log_p > log_p.max() - 45)
        ends = t[[max(support[0] - 1, 0), min(support[-1] + 1, points - 1)]]
    step = t[1] - t[0]
    total = scipy.special.logsumexp(log_p)
    return ExactPosterior(net, X, y, np.exp(t), np.exp(log_p - total), float(total + np.log(step)), spectrum)
