"""InfAlign on finite response sets, exactly: KL-RL, win rates, the optimal policy, and Algorithm 1 (InfAlign-CTRL).

Arrays have shape (..., A): leading axes are prompts, the last is the responses to one prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import root_scalar
from scipy.special import softmax, xlogy

from icml25.infalign.checks import Real, positive, probabilities, rewards, whole
from icml25.infalign.procedures import BestOf, Procedure, WorstOf, calibrated_reward

__all__ = [
    "ConvergenceError",
    "ctrl",
    "inference_distribution",
    "kl_divergence",
    "kl_rl",
    "optimal_policy",
    "policy_at_kl",
    "win_rate",
]


class ConvergenceError(RuntimeError):
    """The fixed point was not reached; the message says how far it was."""


def kl_divergence(p: Float[np.ndarray, "... A"], q: Float[np.ndarray, "... A"]) -> Any:
    """KL(p || q) along the last axis, in nats; inf where p leaves the support of q."""
    p, q = probabilities(p, "p"), probabilities(q, "q")
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, xlogy(p, p / q), 0.0).sum(-1)


def kl_rl(pi_ref: Float[np.ndarray, "... A"], R: Float[np.ndarray, "... A"], beta: Real) -> np.ndarray:
    """argmax_pi E_pi[R] - beta KL(pi || pi_ref) = pi_ref e^{R/beta} / Z.

    Parameters
    ----------
    pi_ref : (..., A) distributions.
    R : (..., A) finite rewards.
    beta : in (0, inf]; inf returns pi_ref.

    Raises
    ------
    ValueError: beta <= 0, pi_ref is no distribution, R is not finite, or the shapes differ.
    """
    pi_ref = probabilities(pi_ref, "pi_ref")
    return _tilt(pi_ref, rewards(R, pi_ref, "R"), positive(beta, "beta"))


def _tilt(pi_ref: np.ndarray, R: np.ndarray, beta: Real) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return softmax(np.log(pi_ref) + (R - R.max(-1, keepdims=True)) / beta, axis=-1)


def inference_distribution(
    pi: Float[np.ndarray, "... A"], reward: Float[np.ndarray, "... A"], procedure: Procedure
) -> np.ndarray:
    """T(pi), the distribution of what is served: (..., A).

    Raises
    ------
    ValueError: pi is no distribution, a reward is not finite, or the shapes differ.
    """
    pi = probabilities(pi, "pi")
    return procedure.apply(pi, rewards(reward, pi))


def win_rate(p: Float[np.ndarray, "... A"], q: Float[np.ndarray, "... A"], reward: Float[np.ndarray, "... A"]) -> Any:
    """E_{y ~ p, z ~ q} [1[r(y) > r(z)] + 1/2 1[r(y) = r(z)]] along the last axis.

    With p = T(pi) and q = T(pi_ref) this is the inference-time win rate W^T(pi > pi_ref).
    """
    return (probabilities(p, "p") * calibrated_reward(q, reward)).sum(-1)


def optimal_policy(
    pi_ref: Float[np.ndarray, "... A"],
    reward: Float[np.ndarray, "... A"],
    procedure: Procedure,
    beta: Real,
    *,
    tol: Real = 1e-10,
    max_iterations: int = 4000,
) -> np.ndarray:
    """argmax_pi W^T(pi > pi_ref) - beta KL(pi || pi_ref), by the coupled equations R = dW^T/dpi at pi_R (Theorem 1).

    Best-of-N and worst-of-N are solved by shooting: in the order of rewards, R of a response depends only on the mass before
    it, so that one unknown, the tilt of the first response, determines the policy, and its total mass must be 1.
    Worst-of-N may have several solutions (its win rate is convex in pi); all are found, and the best is returned.
    Other procedures are solved by damped iteration from pi_ref.

    Parameters
    ----------
    pi_ref, reward : (..., A).
    procedure : ``Standard()``, ``BestOf(N)``, ``WorstOf(N)`` or one of your own.
    beta : in (0, inf].
    tol : how far R may be from dW^T/dpi, up to a constant.
    max_iterations : of the damped iteration.

    Returns
    -------
    (..., A) policies.

    Raises
    ------
    ConvergenceError: tol was not reached. ValueError: bad input, as in ``kl_rl``.
    """
    pi_ref = probabilities(pi_ref, "pi_ref")
    pi_ref, reward = np.broadcast_arrays(pi_ref, rewards(reward, pi_ref))
    beta = positive(beta, "beta")

    def derivative(pi: np.ndarray) -> np.ndarray:
        return procedure.gradient(pi, pi_ref, reward)

    if beta == np.inf:
        return pi_ref.copy()
    if not isinstance(procedure, (BestOf, WorstOf)):
        s = _fixed_point(pi_ref, derivative, beta, np.zeros(pi_ref.shape), tol, max_iterations)
        return _tilt(pi_ref, s, 1.0)
    rows = zip(pi_ref.reshape(-1, pi_ref.shape[-1]), reward.reshape(-1, pi_ref.shape[-1]), strict=True)
    pi = np.stack([_shoot(row, r, procedure, beta) for row, r in rows]).reshape(pi_ref.shape)
    held = pi > np.finfo(np.float64).tiny  # below, pi has no digits left
    tilt = np.log(np.divide(pi, pi_ref, out=np.ones_like(pi), where=held))
    gap = np.where(held, derivative(pi) - beta * tilt, 0)
    gap = np.where(held, gap - (pi * gap).sum(-1, keepdims=True), 0)
    if (off := float(np.abs(gap).max())) > tol:
        raise ConvergenceError(f"R is off from dW/dpi by {off:.2g} at beta = {beta:g}, tol is {tol:g}")
    return pi


def _shoot(pi_ref: np.ndarray, reward: np.ndarray, procedure: BestOf | WorstOf, beta: Real) -> np.ndarray:
    """The best of the policies pi_ref e^s with s_{k+1} = s_k +- N/beta G_k^(N-1) |C_{k+1} - C_k| and total mass 1.

    Best-of-N goes up the rewards (+, G is the cdf), worst-of-N down (-, G is the mass above).
    """
    N, up = procedure.N, isinstance(procedure, BestOf)
    order = np.argsort(reward if up else -reward, kind="stable")
    ref = pi_ref[order]
    served = procedure.apply(pi_ref, reward)
    C = calibrated_reward(served, reward)
    steps = N / beta * np.append(np.diff(C[order]), 0.0)  # of one sign, zero inside a tie class

    def tilts(first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        s, G, all_s = first, np.zeros_like(first), np.empty((len(ref), len(first)))
        for k in range(len(ref)):
            all_s[k] = s
            G = np.minimum(G + ref[k] * np.exp(s), 2.0)  # beyond 1 it only matters that it is beyond
            s = np.minimum(s + steps[k] * G ** (N - 1), 700.0)
        return all_s, G - 1

    # the lowest response is tilted down, at most by N/beta; the highest up, at most until it is alone
    alone = -np.log(ref[reward[order] == reward[order][np.argmax(ref > 0)]].sum())
    low, high = (-abs(steps.sum()), 0.0) if up else (0.0, float(alone))
    grid = np.linspace(low - 1e-3, high + 1e-3, 513)
    _, excess = tilts(grid)
    best, value = pi_ref, -np.inf
    for i in np.flatnonzero((excess[:-1] < 0) & (excess[1:] >= 0) | (excess[:-1] >= 0) & (excess[1:] < 0)):
        x, rising = grid[i : i + 2], excess[i] < 0
        for _ in range(10):
            x = np.linspace(x[0], x[-1], 33)
            j = int(np.argmax((tilts(x)[1] >= 0) == rising))
            x = x[max(j - 1, 0) : max(j - 1, 0) + 2]
        pi = np.empty_like(pi_ref)
        pi[order] = _tilt(ref, tilts(x[-1:])[0][:, 0], 1.0)
        objective = procedure.apply(pi, reward) @ C - beta * kl_divergence(pi, pi_ref)
        if objective > value:
            best, value = pi, objective
    return best


def _fixed_point(
    pi_ref: np.ndarray,
    derivative: Callable[[np.ndarray], np.ndarray],
    beta: Real,
    start: np.ndarray,
    tol: Real,
    max_iterations: int,
) -> np.ndarray:
    """The tilt s = R(pi_s)/beta of pi_s = pi_ref e^s / Z, by s <- s + eta (R/beta - s).

    eta is the Barzilai-Borwein step in the inner product of pi: R/beta - s is the gradient of (W - beta KL)/beta.
    """
    s, eta, step, last = start, 0.1, None, None
    residual = np.inf
    for _ in range(max_iterations):
        pi = _tilt(pi_ref, s, 1.0)
        gap = derivative(pi) / beta - s
        gap = gap - (pi * gap).sum(-1, keepdims=True)
        residual = beta * np.abs(gap).max()
        if residual <= tol:
            return s
        if step is not None and last is not None:
            change = gap - last
            curvature = (pi * change * change).sum(-1, keepdims=True)
            along = -(pi * step * change).sum(-1, keepdims=True)
            eta = np.clip(np.divide(along, curvature, out=np.ones_like(along), where=curvature > 0), 1e-3, 1.0)
        step, last = eta * gap, gap
        s = s + step
    raise ConvergenceError(
        f"the fixed point at beta = {beta:g} still moves by {residual:.2g} after {max_iterations} iterations, tol is {tol:g}"
    )


def policy_at_kl(
    pi_ref: Float[np.ndarray, "... A"], R: Float[np.ndarray, "... A"], kl: Real
) -> tuple[np.ndarray, float]:
    """KL-RL with the one beta at which the mean over prompts of KL(pi || pi_ref) is kl.

    Returns
    -------
    policies (..., A), beta.

    Raises
    ------
    ValueError: kl is negative, or beyond what R can reach (the mass of its best responses).
    """
    pi_ref = probabilities(pi_ref, "pi_ref")
    pi_ref, R = np.broadcast_arrays(pi_ref, rewards(R, pi_ref, "R"))
    spread = float(np.ptp(np.where(pi_ref > 0, R, R.mean())))

    def policy(log_beta: float) -> np.ndarray:
        return _tilt(pi_ref, R, np.exp(log_beta) * (spread or 1.0))

    beta = np.exp(beta_search(lambda log_beta: float(kl_divergence(policy(log_beta), pi_ref).mean()), kl))
    return _tilt(pi_ref, R, beta * (spread or 1.0)), float(beta * (spread or 1.0))


def beta_search(
    kl_of: Callable[[float], float], kl: Real, low: float = -14.0, high: float = 8.0, lowest: float = -40.0
) -> float:
    """log beta in [low, high], or beyond, at which a decreasing kl_of(log beta) is kl; inf for kl = 0."""
    if not kl >= 0:
        raise ValueError(f"kl must be >= 0, got {kl!r}")
    if kl == 0:
        return np.inf
    while kl_of(low) < kl:
        if low <= lowest:
            raise ValueError(f"kl = {kl:g} cannot be reached; expected a number in [0, {kl_of(low):.6g}]")
        low = max(low - 1, lowest)
    while kl_of(high) > kl:
        high += 1
    return root_scalar(lambda x: kl_of(x) - kl, bracket=(low, high), xtol=1e-12).root


def ctrl(
    pi_ref: Float[np.ndarray, "... A"],
    reward: Float[np.ndarray, "... A"],
    transform: Callable[[np.ndarray], np.ndarray],
    beta: Real,
    *,
    K: int | None = None,
    seed: int | np.random.Generator | None = None,
) -> np.ndarray:
    """InfAlign-CTRL (Algorithm 1) on finite response sets: calibrate, transform, solve KL-RL exactly.

    Parameters
    ----------
    pi_ref, reward : (..., A).
    transform : Phi, a function of arrays in [0, 1].
    beta : in (0, inf].
    K : rollouts of pi_ref per prompt for the empirical calibrated reward (Eq. 12); None takes the exact one.
    seed : of the rollouts.

    Returns
    -------
    (..., A) policies.
    """
    pi_ref = probabilities(pi_ref, "pi_ref")
    pi_ref, reward = np.broadcast_arrays(pi_ref, rewards(reward, pi_ref))
    if K is None:
        C = calibrated_reward(pi_ref, reward)
    else:
        counts = np.random.default_rng(seed).multinomial(whole(K, "K"), pi_ref / pi_ref.sum(-1, keepdims=True))
        C = np.clip(calibrated_reward(counts / K, reward), 0, 1)
    return kl_rl(pi_ref, transform(C), beta)
