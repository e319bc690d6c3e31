"""Gaussian linear regression in context: exact posteriors and risks, and what softmax attention does on Gaussian contexts.

y = <w, x> + e with e ~ N(0, noise_var) and prior w ~ N(wbar, P). With P = L L^T everything is done for x L, q L and a
standard normal prior.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular
from jaxtyping import Array, Float

from icml25.icl_hopfield import checks
from icml25.icl_hopfield.checks import ArrayLike, Scalar


def _covariance(value: ArrayLike, name: str, dim: int) -> Float[Array, "..."]:
    """A positive number, or a symmetric positive definite (d, d) matrix."""
    value = checks.finite(value, name)
    if value.shape not in ((), (dim, dim)):
        raise ValueError(f"{name} must be a number or of shape {(dim, dim)}, got {value.shape}")
    if checks.known(value):
        matrix = np.atleast_2d(np.asarray(value, dtype=np.float64))
        symmetric = np.allclose(matrix, matrix.T, rtol=1e-5, atol=1e-6 * abs(matrix).max())
        if not (symmetric and np.linalg.eigvalsh(matrix).min() > 0):
            raise ValueError(f"{name} must be symmetric and positive definite, got {value}")
    return value


def _times(x: Float[Array, "*b d"], matrix: Float[Array, "..."]) -> Float[Array, "*b d"]:
    return x @ matrix if matrix.ndim else x * matrix


def _prior(mean: ArrayLike, cov: ArrayLike, dim: int) -> tuple[Float[Array, " d"], Float[Array, "..."]]:
    """Mean (d,) and the factor L of the covariance, a number for a multiple of the identity."""
    mean, cov = checks.finite(mean, "prior_mean"), _covariance(cov, "prior_cov", dim)
    if mean.shape not in ((), (dim,)):
        raise ValueError(f"prior_mean must be a number or of shape {(dim,)}, got {mean.shape}")
    return jnp.broadcast_to(mean, (dim,)), jnp.linalg.cholesky(cov) if cov.ndim else jnp.sqrt(cov)


def _design(
    x: ArrayLike, q: ArrayLike, feature_map: Callable[[Array], Array] | None = None
) -> tuple[Float[Array, "*b n d"], Float[Array, "*b m d"], bool]:
    """Inputs, queries with an axis for their number, and whether that axis was added."""
    x, q = checks.finite(x, "x"), checks.finite(q, "q")
    if feature_map is not None:
        x, q = checks.finite(feature_map(x), "feature_map(x)"), checks.finite(feature_map(q), "feature_map(q)")
    single = q.ndim == x.ndim - 1
    if x.ndim < 2 or q.ndim not in (x.ndim - 1, x.ndim) or q.shape[-1] != x.shape[-1]:
        raise ValueError(f"x must have shape (..., n, d) and q (..., d) or (..., m, d), got {x.shape} and {q.shape}")
    if q.shape[: x.ndim - 2] != x.shape[:-2]:
        raise ValueError(f"x and q must agree in the leading axes, got shapes {x.shape} and {q.shape}")
    return x, q[..., None, :] if single else q, single


def _targets(x: Float[Array, "*b n d"], y: ArrayLike) -> Float[Array, "*b n"]:
    y = checks.finite(y, "y")
    if y.shape != x.shape[:-1]:
        raise ValueError(f"y must have shape {x.shape[:-1]}, as x has {x.shape}, got {y.shape}")
    return y


def _check_noise(noise_var: Scalar, x: Float[Array, "*b n d"], rcond: float | None = None) -> None:
    """At least 0, and with 0 the equations must have a solution."""
    checks.number(noise_var, "noise_var", 0)
    if rcond is not None:
        checks.number(rcond, "rcond", 0)
    if rcond is None and x.size and checks.known(x, noise_var) and noise_var == 0:
        rank, full = np.linalg.matrix_rank(np.asarray(x)).min(), min(x.shape[-2:])
        if rank < full:
            raise ValueError(f"noise_var = 0 and x of rank {rank} < {full}: singular, give noise or rcond")


def _smoother(
    x: Float[Array, "*b n d"], q: Float[Array, "*b m d"], noise_var: Scalar, rcond: float | None = None
) -> tuple[Float[Array, "*b m n"], Float[Array, "*b m d"]]:
    """For a standard normal prior: the weights a of the posterior mean <a, y> at q, and S q, S the posterior covariance.

    Solves n x n or d x d equations, whichever are fewer.
    """
    n, d = x.shape[-2:]
    if n == 0:
        return jnp.zeros((*q.shape[:-1], 0), q.dtype), q
    dual = n <= d or rcond is not None
    gram = x @ x.mT if dual else x.mT @ x
    gram = gram + noise_var * jnp.eye(gram.shape[-1], dtype=gram.dtype)
    if rcond is not None:
        a = q @ x.mT @ jnp.linalg.pinv(gram, rtol=rcond, hermitian=True)
    else:
        solved = cho_solve(cho_factor(gram), (q @ x.mT if dual else q).mT).mT
        if not dual:
            return solved @ x.mT, noise_var * solved
        a = solved
    return a, q - a @ x


def posterior_predict(
    x: ArrayLike,
    y: ArrayLike,
    q: ArrayLike,
    *,
    noise_var: Scalar,
    prior_mean: ArrayLike = 0.0,
    prior_cov: ArrayLike = 1.0,
    feature_map: Callable[[Array], Array] | None = None,
    rcond: float | None = None,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Bayesian model average of the tasks that explain the context: <what, q> and noise_var + q^T S q.

    S = (X^T X / noise_var + P^-1)^-1 and what = S (X^T y / noise_var + P^-1 wbar). With wbar = 0 this is inverse-Gram attention.

    Parameters
    ----------
    x : (..., n, d) inputs of the context, n = 0 included; leading axes are separate contexts.
    y : (..., n) labels.
    q : (..., d) one query each, or (..., m, d).
    noise_var : >= 0.
    prior_mean : number or (d,).
    prior_cov : positive number (times the identity) or symmetric positive definite (d, d).
    feature_map : phi of x and q, from (..., d) to (..., p); the prior is then that of p weights.
    rcond : for noise_var = 0 and x without full rank: eigenvalues of the Gram matrix below rcond of the largest are zero.

    Returns
    -------
    mean, variance of the label: (...,) or (..., m)

    Raises
    ------
    ValueError: shapes, NaN, noise_var < 0, a prior that is no covariance, noise_var = 0 and x without full rank.
    """
    x, q, single = _design(x, q, feature_map)
    y = _targets(x, y)
    _check_noise(noise_var, x, rcond)
    mean, variance = _predict(x, y, q, noise_var, *_prior(prior_mean, prior_cov, x.shape[-1]), rcond)
    return (mean[..., 0], variance[..., 0]) if single else (mean, variance)


@partial(jax.jit, static_argnames="rcond")
def _predict(
    x: Float[Array, "*b n d"],
    y: Float[Array, "*b n"],
    q: Float[Array, "*b m d"],
    noise_var: Scalar,
    wbar: Float[Array, " d"],
    root: Float[Array, "..."],
    rcond: float | None,
) -> tuple[Float[Array, "*b m"], Float[Array, "*b m"]]:
    white = _times(q, root)
    a, rest = _smoother(_times(x, root), white, noise_var, rcond)
    mean = q @ wbar + (a @ (y - x @ wbar)[..., None])[..., 0]
    return mean, noise_var + jnp.maximum((white * rest).sum(-1), 0)


def posterior_prefix(
    x: ArrayLike,
    y: ArrayLike,
    *,
    noise_var: Scalar,
    prior_mean: ArrayLike = 0.0,
    prior_cov: ArrayLike = 1.0,
) -> tuple[Float[Array, "*b n"], Float[Array, "*b n"]]:
    """Predict every label from those before it, by rank-one updates of the posterior: O(n d^2).

    Parameters
    ----------
    x : (..., n, d) inputs.
    y : (..., n) labels.
    noise_var : > 0.
    prior_mean : number or (d,).
    prior_cov : positive number or symmetric positive definite (d, d).

    Returns
    -------
    mean, variance : (..., n); the first ones are the prior's.

    Raises
    ------
    ValueError: shapes, NaN, noise_var <= 0, a prior that is no covariance.
    """
    x = checks.finite(x, "x")
    if x.ndim < 2:
        raise ValueError(f"x must have shape (..., n, d), got {x.shape}")
    y = _targets(x, y)
    checks.number(noise_var, "noise_var", 0, open_low=True)
    d = x.shape[-1]
    wbar, _ = _prior(prior_mean, prior_cov, d)
    cov = jnp.asarray(prior_cov, x.dtype)
    return _prefix(x, y, wbar.astype(x.dtype), cov if cov.ndim else cov * jnp.eye(d, dtype=x.dtype), noise_var)


@jax.jit
def _prefix(
    x: Float[Array, "*b n d"],
    y: Float[Array, "*b n"],
    w: Float[Array, " d"],
    S: Float[Array, "d d"],
    noise_var: Scalar,
) -> tuple[Float[Array, "*b n"], Float[Array, "*b n"]]:
    def update(state: tuple[Array, Array], example: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple]:
        (w, S), (x, y) = state, example
        Sx = S @ x
        mean, variance = w @ x, noise_var + x @ Sx
        return (w + Sx * ((y - mean) / variance), S - jnp.outer(Sx, Sx) / variance), (mean, variance)

    run = jnp.vectorize(lambda x, y: jax.lax.scan(update, (w, S), (x, y))[1], signature="(n,d),(n)->(n),(n)")
    return run(x, y)


def posterior_risk(
    x: ArrayLike,
    q: ArrayLike,
    w: ArrayLike,
    *,
    noise_var: Scalar,
    prior_mean: ArrayLike = 0.0,
    prior_cov: ArrayLike = 1.0,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Squared bias and variance of the posterior mean over the noise, for a true w that need not follow the prior.

    bias = q^T S P^-1 (wbar - w), variance = q^T S X^T X S q / noise_var; their sum is E(<what, q> - <w, q>)^2.

    Parameters
    ----------
    x : (..., n, d) inputs of the context.
    q : (..., d) one query each, or (..., m, d).
    w : (d,) or (..., d) true weights.
    noise_var : >= 0.
    prior_mean : number or (d,).
    prior_cov : positive number or symmetric positive definite (d, d).

    Returns
    -------
    bias squared, variance : (...,) or (..., m)

    Raises
    ------
    ValueError: as posterior_predict.
    """
    x, q, single = _design(x, q)
    w = checks.finite(w, "w")
    if w.shape not in ((x.shape[-1],), (*x.shape[:-2], x.shape[-1])):
        raise ValueError(f"w must have shape ({x.shape[-1]},) or {(*x.shape[:-2], x.shape[-1])}, got {w.shape}")
    _check_noise(noise_var, x)
    bias, variance = _risk(x, q, w, noise_var, *_prior(prior_mean, prior_cov, x.shape[-1]))
    return (bias[..., 0] ** 2, variance[..., 0]) if single else (bias**2, variance)


@jax.jit
def _risk(
    x: Float[Array, "*b n d"],
    q: Float[Array, "*b m d"],
    w: Float[Array, "*c d"],
    noise_var: Scalar,
    wbar: Float[Array, " d"],
    root: Float[Array, "..."],
) -> tuple[Float[Array, "*b m"], Float[Array, "*b m"]]:
    """Bias and variance."""
    a, rest = _smoother(_times(x, root), _times(q, root), noise_var)
    off = wbar - w
    white = solve_triangular(root, off[..., None], lower=True)[..., 0] if root.ndim else off / root
    return (rest * white[..., None, :]).sum(-1), noise_var * (a * a).sum(-1)


def prior_as_ghosts(
    mean: ArrayLike, cov: ArrayLike, noise_var: Scalar
) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
    """The prior as d examples: x_j = sqrt(noise_var) rows of P^-1/2, y_j = <x_j, wbar>.

    Least squares on them alone gives wbar, and on them with a context the posterior mean.

    Parameters
    ----------
    mean : (d,)
    cov : positive number or symmetric positive definite (d, d).
    noise_var : > 0.

    Returns
    -------
    x (d, d), y (d,)

    Raises
    ------
    ValueError: mean is no vector, cov no covariance, or noise_var <= 0.
    """
    mean = checks.finite(mean, "mean")
    if mean.ndim != 1:
        raise ValueError(f"mean must have shape (d,), got {mean.shape}")
    checks.number(noise_var, "noise_var", 0, open_low=True)
    cov = _covariance(cov, "cov", len(mean))
    spread, axes = jnp.linalg.eigh(cov if cov.ndim else cov * jnp.eye(len(mean)))
    x = jnp.sqrt(noise_var) * (axes / jnp.sqrt(spread)) @ axes.T
    return x, x @ mean


def _gaussian_context(
    q: ArrayLike, w: ArrayLike, mu: ArrayLike, sigma: ArrayLike, beta: Scalar
) -> tuple[Array, Array, Array, Array]:
    """q, w, mu and sigma as arrays that fit."""
    q, w, mu = checks.finite(q, "q"), checks.finite(w, "w"), checks.finite(mu, "mu")
    if w.ndim != 1 or q.ndim == 0 or q.shape[-1] != len(w):
        raise ValueError(f"q must have shape (..., d) and w (d,), got {q.shape} and {w.shape}")
    if mu.shape not in ((), w.shape):
        raise ValueError(f"mu must be a number or of shape {w.shape}, got {mu.shape}")
    checks.number(beta, "beta", 0, open_low=True)
    return q, w, jnp.broadcast_to(mu, w.shape), _covariance(sigma, "sigma", len(w))


def softmax_limit(q: ArrayLike, w: ArrayLike, mu: ArrayLike, sigma: ArrayLike, beta: Scalar) -> Float[Array, "*b"]:
    """What softmax attention returns on infinitely many examples k ~ N(mu, Sigma), v = <w, k>: <w, mu + beta Sigma q>.

    With mu = 0 and (beta Sigma)^-1 q in place of q this is <w, q>: retrieval solves the regression.

    Parameters
    ----------
    q : (..., d) queries.
    w : (d,) the task.
    mu : number or (d,).
    sigma : positive number or symmetric positive definite (d, d).
    beta : > 0.

    Returns
    -------
    (...,)

    Raises
    ------
    ValueError: shapes, NaN, sigma no covariance, beta <= 0.
    """
    q, w, mu, sigma = _gaussian_context(q, w, mu, sigma, beta)
    return (mu + beta * _times(q, sigma)) @ w


def softmax_finite(
    q: ArrayLike,
    w: ArrayLike,
    mu: ArrayLike,
    sigma: ArrayLike,
    beta: Scalar,
    noise_var: Scalar,
    n: Scalar,
) -> tuple[Float[Array, "*b"], Float[Array, "*b"]]:
    """First order in 1/n: squared error around `softmax_limit`, and effective number of examples 1 / sum p_i^2.

    mse = exp(beta^2 q^T Sigma q) (noise_var + w^T Sigma w + (beta w^T Sigma q)^2) / n and n exp(-beta^2 q^T Sigma q): large
    queries starve. The formula is per query; averaged over Gaussian queries it diverges.

    Parameters
    ----------
    q : (..., d) queries.
    w : (d,) the task.
    mu : number or (d,).
    sigma : positive number or symmetric positive definite (d, d).
    beta : > 0.
    noise_var : >= 0, of the labels.
    n : >= 1, examples.

    Returns
    -------
    mse, effective sample size : (...,)

    Raises
    ------
    ValueError: shapes, NaN, sigma no covariance, beta <= 0, noise_var < 0, n < 1.
    """
    q, w, mu, sigma = _gaussian_context(q, w, mu, sigma, beta)
    checks.number(noise_var, "noise_var", 0)
    checks.number(n, "n", 1)
    starvation = jnp.exp(beta**2 * (q * _times(q, sigma)).sum(-1))
    tilt = beta * _times(q, sigma) @ w
    return starvation * (noise_var + _times(w, sigma) @ w + tilt**2) / n, n / starvation
