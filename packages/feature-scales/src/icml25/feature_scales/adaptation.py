"""Kernel adaptation: the Gaussian weights of one neuron, v ~ N(0, Sigma), and how they respond to the dual vector j.

W(j) = N max_Sigma { (a/2) j^T K(Sigma) j - KL(N(0, Sigma) || N(0, g_v/D)) } with a N = g_w/chi, in whitened inputs
H (H H^T = C) and a Cholesky factor L of Sigma, whose log diagonal keeps it regular.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.scipy.linalg import cho_factor, cho_solve
from jax.scipy.sparse.linalg import cg
from jaxtyping import Float

from icml25.feature_scales.kernels import gaussian_moment
from icml25.feature_scales.model import ConvergenceError, TwoLayer

__all__ = ["Neuron", "Solution"]

Theta: TypeAlias = Float[jax.Array, "r r"]


def _factor(theta: Float[jax.Array, "r r"]) -> Float[jax.Array, "r r"]:
    """L (r, r): the lower triangle of theta, with exp on the diagonal."""
    return jnp.tril(theta, -1) + jnp.diag(jnp.exp(jnp.diagonal(theta)))


def _kernel(phi: str, theta: Theta, H: Float[jax.Array, "P r"]) -> Float[jax.Array, "P P"]:
    preactivations = H @ _factor(theta)
    variance = (preactivations**2).sum(1)
    return gaussian_moment(phi, preactivations @ preactivations.T, variance, variance)


def _divergence(theta: Theta) -> Float[jax.Array, ""]:
    """KL(N(0, L L^T) || N(0, 1)) = 1/2 [tr(L L^T) - ln det(L L^T) - r]."""
    L = _factor(theta)
    return (jnp.sum(L**2) - len(L)) / 2 - jnp.log(jnp.diagonal(L)).sum()


@partial(jax.jit, static_argnames="phi")
@partial(jax.value_and_grad, argnums=1)
def _free_energy(phi: str, theta: Theta, H: Any, y: Any, variance: Any, noise: Any, width: Any) -> Float[jax.Array, ""]:
    """F(Sigma)/N."""
    j = cho_solve(cho_factor(noise * jnp.eye(len(y)) + variance * _kernel(phi, theta, H)), y)
    return y @ j / (2 * width) + _divergence(theta)


def _inner(phi: str, theta: Theta, H: Any, j: Any, variance: Any, width: Any) -> Float[jax.Array, ""]:
    """-W(j)/N before its maximum is taken."""
    return _divergence(theta) - variance / (2 * width) * j @ _kernel(phi, theta, H) @ j


_inner_value_and_grad = partial(jax.jit, static_argnames="phi")(jax.value_and_grad(_inner, argnums=1))


class _Response(NamedTuple):
    """Derivatives at (theta, j), theta being the maximum for j, along j + t m: theta follows by implicit differentiation."""

    phi: str
    theta: Any
    H: Any
    j: Any
    variance: Any
    width: Any

    def gradient(self, theta: Theta, j: Float[jax.Array, " P"]) -> Theta:
        return jax.grad(_inner, argnums=1)(self.phi, theta, self.H, j, self.variance, self.width)

    def output(self, theta: Theta, j: Float[jax.Array, " P"]) -> Float[jax.Array, " P"]:
        """W'(j) = (g_w/chi) K(Sigma(j)) j."""
        return self.variance * _kernel(self.phi, theta, self.H) @ j

    def follow(self, right: Theta) -> Theta:
        """-(Hessian of the inner problem)^{-1} right."""
        hessian = lambda v: jax.jvp(lambda t: self.gradient(t, self.j), (self.theta,), (v,))[1]  # noqa: E731
        return -cg(hessian, right, tol=1e-11)[0]

    def first(self, m: Float[jax.Array, " P"]) -> tuple[Theta, Float[jax.Array, " P"]]:
        """d theta/dt, and W'' m."""
        slope = self.follow(jax.jvp(lambda j: self.gradient(self.theta, j), (self.j,), (m,))[1])
        return slope, jax.jvp(self.output, (self.theta, self.j), (slope, m))[1]

    def second(self, m: Float[jax.Array, " P"]) -> Float[jax.Array, " P"]:
        """d^2/dt^2 W'(j + t m)."""
        slope, _ = self.first(m)
        bend = self.follow(_second_derivative(lambda t: self.gradient(self.theta + t * slope, self.j + t * m)))
        return _second_derivative(
            lambda t: self.output(self.theta + t * slope + t**2 / 2 * bend, self.j + t * m),
        )


def _second_derivative(of: Callable[[Any], Any]) -> Any:
    first = lambda t: jax.jvp(of, (t,), (1.0,))[1]  # noqa: E731
    return jax.jvp(first, (0.0,), (1.0,))[1]


@partial(jax.jit, static_argnames="phi")
def _response(
    phi: str, theta: Theta, H: Any, j: Any, variance: Any, width: Any
) -> tuple[Float[jax.Array, " P"], Float[jax.Array, "P P"]]:
    """W'(j) and W''(j)."""
    response = _Response(phi, theta, H, j, variance, width)
    return response.output(theta, j), jax.lax.map(lambda m: response.first(m)[1], jnp.eye(len(j)))


@partial(jax.jit, static_argnames="phi")
def _fluctuation(
    phi: str, theta: Theta, H: Any, j: Any, directions: Any, variance: Any, width: Any
) -> Float[jax.Array, " P"]:
    """1/2 sum_k d^2/dt^2 W'(j + t m_k) = 1/2 grad ln det(noise + W'') for sum_k m_k m_k^T = (noise + W'')^{-1}."""
    return jax.lax.map(_Response(phi, theta, H, j, variance, width).second, directions).sum(0) / 2


class Solution(NamedTuple):
    """Covariance factor, dual vector, free energy and how well the stationarity holds."""

    theta: Float[np.ndarray, "r r"]
    dual: Float[np.ndarray, " P"]
    free_energy: float
    residual: float
    iterations: int

    @property
    def covariance(self) -> Float[np.ndarray, "r r"]:
        """L L^T: Sigma in units of the prior."""
        L = np.tril(self.theta, -1) + np.diag(np.exp(np.diag(self.theta)))
        return L @ L.T


@dataclass(frozen=True)
class Neuron:
    """One neuron's weights in the whitened basis H (P, r) of the inputs of a network."""

    net: TwoLayer
    H: Float[np.ndarray, "P r"]

    def prior(self) -> Float[np.ndarray, "r r"]:
        """The factor of Sigma = g_v/D."""
        return np.zeros((self.H.shape[1],) * 2)

    def saddle_point(self, y: Float[np.ndarray, " P"], theta: Float[np.ndarray, "r r"], tol: float) -> Solution:
        """Minimise F(Sigma) = 1/2 y^T (noise + (g_w/chi) K)^{-1} y + N KL from theta on (tree level)."""
        variance, noise = self.net.effective()
        with jax.enable_x64(True):
            H, targets, N = jnp.asarray(self.H), jnp.asarray(y), float(self.net.width)
            energy = partial(_free_energy, self.net.phi)
            theta, value, residual, count = _minimise(
                lambda t: energy(jnp.asarray(t), H, targets, variance, noise, N), theta, tol
            )
            K = np.asarray(_kernel(self.net.phi, jnp.asarray(theta), H))
        dual = np.linalg.solve(noise * np.eye(len(y)) + variance * K, y)
        return Solution(theta, dual, N * value, residual, count)

    def adapt(
        self, j: Float[np.ndarray, " P"], theta: Float[np.ndarray, "r r"], tol: float
    ) -> tuple[np.ndarray, float]:
        """The maximum Sigma(j) and W(j)."""
        variance, _ = self.net.effective()
        with jax.enable_x64(True):
            H, dual, N = jnp.asarray(self.H), jnp.asarray(j), float(self.net.width)
            theta, value, _, _ = _minimise(
                lambda t: _inner_value_and_grad(self.net.phi, jnp.asarray(t), H, dual, variance, N), theta, tol
            )
        return theta, -N * value

    def response(
        self, j: Float[np.ndarray, " P"], theta: Float[np.ndarray, "r r"]
    ) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, "P P"]]:
        """W'(j) and W''(j), theta being the maximum for j."""
        variance, _ = self.net.effective()
        with jax.enable_x64(True):
            arrays = jnp.asarray(theta), jnp.asarray(self.H), jnp.asarray(j)
            first, second = map(np.asarray, _response(self.net.phi, *arrays, variance, float(self.net.width)))
        return first, (second + second.T) / 2

    def fluctuation(
        self, j: Float[np.ndarray, " P"], theta: Float[np.ndarray, "r r"], second: Float[np.ndarray, "T T"]
    ) -> Float[np.ndarray, " P"]:
        """1/2 grad ln det(noise + W'') at j; ``second`` is W'' of the first T points, the training inputs."""
        variance, noise = self.net.effective()
        train = len(second)
        directions = np.zeros((train, len(j)))
        directions[:, :train] = np.linalg.inv(np.linalg.cholesky(noise * np.eye(train) + second))
        with jax.enable_x64(True):
            arrays = jnp.asarray(theta), jnp.asarray(self.H), jnp.asarray(j), jnp.asarray(directions)
            return np.asarray(_fluctuation(self.net.phi, *arrays, variance, float(self.net.width)))

    def one_loop(self, y: Float[np.ndarray, " P"], tree: Solution, tol: float) -> Solution:
        """Solve y = noise j + W'(j) - 1/2 grad ln det(noise + W''(j)), starting at tree level."""
        _, noise = self.net.effective()
        theta, action, second = tree.theta, 0.0, self.response(tree.dual, tree.theta)[1]
        curvature = noise * np.eye(len(y)) + second  # of the tree level: it makes the Jacobian nearly -1

        def step(j: Float[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
            nonlocal theta, action, second
            theta, action = self.adapt(j, theta, tol)
            first, second = self.response(j, theta)
            return np.linalg.solve(curvature, y - noise * j - first + self.fluctuation(j, theta, second))

        scale = np.abs(tree.dual).max() or 1.0
        options = {"fatol": 1e-8 * scale, "maxiter": 60, "jac_options": {"alpha": 1.0}}
        found = scipy.optimize.root(step, tree.dual, method="broyden1", options=options)
        residual = float(np.abs(step(found.x)).max() / scale)
        if not residual <= 1e-7:
            raise ConvergenceError(f"one loop: relative residual {residual:.2g} of j after {found.nit} iterations")
        j = found.x
        log_det = np.linalg.slogdet(noise * np.eye(len(y)) + second)[1]
        free_energy = y @ j - noise * j @ j / 2 - action + log_det / 2
        return Solution(theta, j, float(free_energy), residual, int(found.nit))


def _minimise(
    fun: Callable[[Float[np.ndarray, "r r"]], Any], start: Float[np.ndarray, "r r"], tol: float
) -> tuple[Float[np.ndarray, "r r"], float, float, int]:
    """L-BFGS-B to the gradient tolerance, or to where rounding stops its line search."""

    def flat(t: Float[np.ndarray, " n"]) -> tuple[float, Float[np.ndarray, " n"]]:
        value, gradient = fun(t.reshape(start.shape))
        return float(value), np.asarray(gradient, dtype=np.float64).ravel()

    found = scipy.optimize.minimize(
        flat,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 5000, "maxfun": 20000, "maxcor": 30, "ftol": 0.0, "gtol": tol},
    )
    residual = float(np.abs(found.jac).max(initial=0.0))
    if not residual <= max(1e-6, tol):
        raise ConvergenceError(f"adaptation: gradient {residual:.2g} after {found.nit} iterations: {found.message}")
    return found.x.reshape(start.shape), float(found.fun), residual, int(found.nit)
