"""Full-batch Langevin training of an ensemble of networks; its stationary distribution is the Bayesian posterior."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from icml25.feature_scales.exact import exact_posterior
from icml25.feature_scales.model import TwoLayer, as_points, as_targets, check_count, check_network

__all__ = ["Samples", "langevin"]

ACTIVATIONS = {"linear": lambda h: h, "erf": jax.scipy.special.erf, "relu": jax.nn.relu}


@dataclass(frozen=True, eq=False)
class Samples:
    """Averages over an ensemble of chains, and how far to trust them.

    Attributes
    ----------
    f_train_mean (P,), f_train_cov (P, P) : mean and covariance of the outputs at the training inputs.
    f_test_mean (T,), f_test_cov (T, T) : the same at X_test, None without.
    f_train_chains (ensembles, P) : means of the chains; their spread over sqrt(ensembles) is the standard error.
    f_test_chains (ensembles, T) : the same at X_test, None without.
    hidden_kernel (P, P) : mean of (1/N) sum_i h_i h_i^T.
    weight_covariance (D, D) : second moment of a row of V.
    rhat (P,) : split R-hat of the training outputs; 1 when the chains agree.
    ess (P,) : effective number of independent draws of the training outputs, over all chains.
    acceptance : share of accepted proposals, 1 for method "euler".
    """

    f_train_mean: Float[np.ndarray, " P"]
    f_train_cov: Float[np.ndarray, "P P"]
    f_test_mean: Float[np.ndarray, " T"] | None
    f_test_cov: Float[np.ndarray, "T T"] | None
    f_train_chains: Float[np.ndarray, "E P"]
    f_test_chains: Float[np.ndarray, "E T"] | None
    hidden_kernel: Float[np.ndarray, "P P"]
    weight_covariance: Float[np.ndarray, "D D"]
    rhat: Float[np.ndarray, " P"]
    ess: Float[np.ndarray, " P"]
    acceptance: float


def langevin(
    net: TwoLayer,
    X: ArrayLike,
    y: ArrayLike,
    key: jax.Array,
    *,
    ensembles: int = 50,
    steps: int = 6000,
    burn_in: int = 1000,
    thin: int = 10,
    eps: float = 0.02,
    X_test: ArrayLike | None = None,
    method: str = "euler",
    start: str = "prior",
) -> Samples:
    """Sample trained networks by d theta = -grad U dt + sqrt(2) dB.

    U = |y - f|^2/(2 kappa) + D ||V||^2/(2 g_v) + chi N ||w||^2/(2 g_w). The chain runs in units of the prior, so that one
    step moves V by eps g_v/D and w by eps g_w/(chi N) times the gradient. In float32.

    Parameters
    ----------
    net : the network.
    X : (P, D) training inputs.
    y : (P,) targets.
    key : key of jax.random.
    ensembles : number of independent chains.
    steps : steps after the burn-in.
    burn_in : steps that are thrown away.
    thin : one draw is kept of so many steps.
    eps : step size. "euler" is biased by O(eps/noise): compare with eps/2, or with "mala".
    X_test : (T, D) inputs at which the outputs are kept as well.
    method : "euler" (Euler-Maruyama) or "mala" (with Metropolis correction, unbiased).
    start : "prior", or "exact" draws of the posterior (linear networks only).

    Returns
    -------
    Samples

    Raises
    ------
    ValueError: counts below 1, fewer than four draws, eps <= 0, an unknown method or start, shapes that do not fit, NaN.
    NotImplementedError: start "exact" with a nonlinear network.
    FloatingPointError: the chain diverged; eps is too large.

    Warns
    -----
    UserWarning: the largest R-hat is above 1.1.
    """
    check_network(net)
    points = as_points("X", X)
    targets = as_targets("y", y, len(points))
    (P, D), N = points.shape, net.width
    tests = np.zeros((0, D)) if X_test is None else as_points("X_test", X_test, D)
    for name, value, least in (
        ("ensembles", ensembles, 1),
        ("steps", steps, 1),
        ("burn_in", burn_in, 0),
        ("thin", thin, 1),
    ):
        check_count(name, value, least)
    if steps // thin < 4:
        raise ValueError(f"steps={steps!r} and thin={thin!r} leave {steps // thin} draws; expected at least 4")
    if not isinstance(eps, Real) or not 0 < eps < float("inf"):
        raise ValueError(f"eps={eps!r}; expected a number above 0")
    if method not in ("euler", "mala"):
        raise ValueError(f"method={method!r}; expected 'euler' or 'mala'")
    if start not in ("prior", "exact"):
        raise ValueError(f"start={start!r}; expected 'prior' or 'exact'")

    variance, noise = net.effective()
    units = np.sqrt(net.g_v / D), np.sqrt(variance / N)
    of_start, of_chain = jax.random.split(key)
    if start == "exact":
        V, w = exact_posterior(net, points, targets).sample_weights(of_start, ensembles)
        state = jnp.asarray(V / units[0], jnp.float32), jnp.asarray(w / units[1], jnp.float32)
    else:
        of_v, of_w = jax.random.split(of_start)
        state = (
            jax.random.normal(of_v, (ensembles, N, D), jnp.float32),
            jax.random.normal(of_w, (ensembles, N), jnp.float32),
        )
    H = jnp.asarray(units[0] * np.concatenate([points, tests]), jnp.float32)
    outputs, moment, acceptance = _chain(
        net.phi, method, state, of_chain, H, jnp.asarray(targets, jnp.float32),
        jnp.float32(units[1]), jnp.float32(noise), jnp.float32(eps), burn_in, steps // thin, thin,
    )  # fmt: skip
    draws = np.asarray(outputs, dtype=np.float64)
    if not np.isfinite(draws).all():
        raise FloatingPointError(f"the chain diverged with eps={eps!r}; halve eps")
    train, test = draws[..., :P], draws[..., P:]
    rhat, ess = _split_rhat(train), _effective_size(train)
    if rhat.max() > 1.1:
        warnings.warn(f"R-hat is {rhat.max():.3f} (above 1.1): take more steps", UserWarning, stacklevel=2)
    second = net.g_v / D * np.asarray(moment, dtype=np.float64)
    covariance = lambda f: np.cov(f.reshape(-1, f.shape[-1]).T).reshape(f.shape[-1], -1)  # noqa: E731
    return Samples(
        f_train_mean=train.mean((0, 1)),
        f_train_cov=covariance(train),
        f_test_mean=None if X_test is None else test.mean((0, 1)),
        f_test_cov=None if X_test is None else covariance(test),
        f_train_chains=train.mean(0),
        f_test_chains=None if X_test is None else test.mean(0),
        hidden_kernel=points @ second @ points.T,
        weight_covariance=second,
        rhat=rhat,
        ess=ess,
        acceptance=float(acceptance),
    )


@partial(jax.jit, static_argnames=("phi", "method", "draws", "thin"))
def _chain(
    phi: str, method: str, state: Any, key: Any, H: Any, y: Any,
    readout: Any, noise: Any, eps: Any, burn_in: Any, draws: int, thin: int,
) -> tuple[Float[jax.Array, "draws E points"], Float[jax.Array, "D D"], Float[jax.Array, ""]]:  # fmt: skip
    """Outputs of the kept draws, second moment of V in units of its prior, acceptance."""
    ensembles = len(state[0])

    def output(A: Any, b: Any, H: Any) -> Any:
        return readout * jnp.einsum("en,enp->ep", b, ACTIVATIONS[phi](A @ H.T))

    def potential(state: Any) -> Any:
        A, b = state
        loss = ((y - output(A, b, H[: len(y)])) ** 2).sum(1) / (2 * noise)
        return loss + (A**2).sum((1, 2)) / 2 + (b**2).sum(1) / 2

    def drift(state: Any) -> tuple[Any, Any]:
        values, pull = jax.vjp(potential, state)
        return values, jax.tree.map(lambda g: -eps * g, pull(jnp.ones_like(values))[0])

    def proposal_loss(state: Any, moved: Any, start: Any) -> Any:
        """-ln q(state | start) for the Gaussian step from start."""
        gaps = jax.tree.map(lambda s, x, d: (s - x - d).reshape(ensembles, -1), state, start, moved)
        return sum((gap**2).sum(1) for gap in gaps) / (4 * eps)

    def step(carry: Any, key: Any) -> tuple[Any, Any]:
        state, value, move = carry
        of_v, of_w, of_accept = jax.random.split(key, 3)
        kicks = jax.random.normal(of_v, state[0].shape), jax.random.normal(of_w, state[1].shape)
        proposal = jax.tree.map(lambda s, d, k: s + d + jnp.sqrt(2 * eps) * k, state, move, kicks)
        new_value, new_move = drift(proposal)
        if method == "euler":
            return (proposal, new_value, new_move), jnp.float32(1)
        forward = sum((k**2).reshape(ensembles, -1).sum(1) for k in kicks) / 2
        log_ratio = value - new_value + forward - proposal_loss(state, new_move, proposal)
        accept = jnp.log(jax.random.uniform(of_accept, value.shape)) < log_ratio
        pick = lambda new, old: jnp.where(accept.reshape(-1, *[1] * (new.ndim - 1)), new, old)  # noqa: E731
        kept = jax.tree.map(pick, (proposal, new_value, new_move), carry)
        return kept, accept.mean(dtype=jnp.float32)

    def draw(carry: Any, key: Any) -> tuple[Any, Any]:
        chain, moment = carry
        chain, accepted = jax.lax.scan(step, chain, jax.random.split(key, thin))
        A, b = chain[0]
        rows = A.reshape(-1, A.shape[-1])
        return (chain, moment + rows.T @ rows / len(rows)), (output(A, b, H), accepted.mean())

    of_burn_in, of_draws = jax.random.split(key)
    chain = jax.lax.fori_loop(
        0, burn_in, lambda i, chain: step(chain, jax.random.fold_in(of_burn_in, i))[0], (state, *drift(state))
    )
    moment = jnp.zeros((H.shape[1], H.shape[1]), jnp.float32)
    (_, moment), (outputs, accepted) = jax.lax.scan(draw, (chain, moment), jax.random.split(of_draws, draws))
    return outputs, moment / draws, accepted.mean()


def _split_rhat(draws: Float[np.ndarray, "S E P"]) -> Float[np.ndarray, " P"]:
    """Potential scale reduction of half chains (Gelman et al., Bayesian Data Analysis, 3rd ed., Eq. 11.4)."""
    half = len(draws) // 2
    chains = np.concatenate([draws[:half], draws[-half:]], axis=1)
    within, between = chains.var(0, ddof=1).mean(0), chains.mean(0).var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(between > 0, between / within, 0.0)  # an output that never varies agrees with itself
    return np.sqrt((half - 1) / half + ratio)


def _effective_size(draws: Float[np.ndarray, "S E P"]) -> Float[np.ndarray, " P"]:
    """Draws over the autocorrelation time, summed as long as pairs of lags stay positive (ibid., Eq. 11.8)."""
    S, E, _ = draws.shape
    spectrum = np.abs(np.fft.rfft(draws - draws.mean(0), 2 * S, axis=0)) ** 2
    covariance = np.fft.irfft(spectrum, axis=0)[:S].mean(1) / S
    between = draws.mean(0).var(0, ddof=1) if E > 1 else 0.0
    total = covariance[0] + between
    correlation = (covariance + between) / np.where(total > 0, total, 1.0)
    correlation[0] = 1.0
    pairs = correlation[0 : S - S % 2 : 2] + correlation[1:S:2]
    positive = np.cumprod(pairs > 0, axis=0)
    return S * E / np.maximum(2 * (pairs * positive).sum(0) - 1, 1 / np.log10(S * E))
