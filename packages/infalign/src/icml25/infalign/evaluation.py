"""Inference-time win rates from samples: exact over subsets, never by drawing subsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from icml25.infalign.checks import Real, positive, unit_interval
from icml25.infalign.procedures import BestOf, WorstOf

__all__ = ["WinRate", "inference_win_rate", "subset_weights", "tilt_weights"]


@dataclass(frozen=True)
class WinRate:
    """Mean over prompts, its bootstrap interval, and each prompt's win rate."""

    mean: float
    low: float
    high: float
    per_prompt: Float[np.ndarray, " P"]


def subset_weights(M: int, procedure: BestOf | WorstOf) -> Float[np.ndarray, " M"]:
    """P(what the procedure keeps of a random N-subset is the i-th smallest of M), C(i-1, N-1)/C(M, N) for best-of-N.

    Raises
    ------
    ValueError: M < N. TypeError: another procedure.
    """
    if not isinstance(procedure, (BestOf, WorstOf)):
        raise TypeError(f"procedure must be Standard(), BestOf(N) or WorstOf(N), got {procedure!r}")
    N = procedure.N
    if M < N:
        raise ValueError(f"{M} samples a prompt do not suffice for subsets of N = {N}")
    i = np.arange(M - 1, 0, -1)
    # w_M = N/M and w_i = w_{i+1} (i - N + 1)/i: no binomial, none overflows
    weights = np.concatenate([[N / M], N / M * np.cumprod(np.maximum(i - N + 1, 0) / i)])[::-1]
    return weights[::-1] if isinstance(procedure, WorstOf) else weights


def inference_win_rate(
    policy_rewards: Float[np.ndarray, "P M"],
    ref_rewards: Float[np.ndarray, "P M2"],
    procedure: BestOf | WorstOf,
    ci: Real = 0.95,
    *,
    resamples: int = 2000,
    seed: int | np.random.Generator | None = 0,
) -> WinRate:
    """W^T(pi > pi_ref) from samples of both: the mean over all pairs of N-subsets, ties 1/2 (a U-statistic, unbiased).

    Resampling N of M with replacement, as is often done, is biased.

    Parameters
    ----------
    policy_rewards, ref_rewards : (P, M) and (P, M2) rewards of samples of pi and of pi_ref; M, M2 >= N.
    procedure : ``Standard()``, ``BestOf(N)`` or ``WorstOf(N)``; it serves both.
    ci : level of the percentile bootstrap over prompts.
    resamples, seed : of the bootstrap.

    Raises
    ------
    ValueError: fewer samples than N, other shapes, NaN or inf. TypeError: another procedure.
    """
    policy, ref = (np.asarray(x, dtype=np.float64) for x in (policy_rewards, ref_rewards))
    if policy.ndim != 2 or ref.ndim != 2 or len(policy) != len(ref) or len(policy) == 0:
        raise ValueError(f"policy_rewards has shape {policy.shape}, ref_rewards {ref.shape}; expected (P, M), (P, M2)")
    for name, x in (("policy_rewards", policy), ("ref_rewards", ref)):
        if not np.isfinite(x).all():
            raise ValueError(f"{name} of prompt {int(np.argwhere(~np.isfinite(x))[0, 0])} are not finite")
    if not 0 < ci < 1:
        raise ValueError(f"ci must lie in (0, 1), got {ci!r}")
    w, v = (subset_weights(x.shape[1], procedure) for x in (policy, ref))
    cdf = np.concatenate([[0.0], np.cumsum(v)])
    per_prompt = np.empty(len(policy))
    for x, (mine, other) in enumerate(zip(np.sort(policy, 1), np.sort(ref, 1), strict=True)):
        left, right = (np.searchsorted(other, mine, side) for side in ("left", "right"))
        per_prompt[x] = w @ (cdf[left] + cdf[right]) / 2
    rng, P = np.random.default_rng(seed), len(policy)
    means = [per_prompt[rng.integers(P, size=P)].mean() for _ in range(resamples)]
    low, high = np.quantile(means, [(1 - ci) / 2, (1 + ci) / 2])
    return WinRate(float(per_prompt.mean()), float(low), float(high), per_prompt)


def tilt_weights(C: Float[np.ndarray, "... K"], transform: Callable[[np.ndarray], np.ndarray], beta: Real) -> Any:
    """Self-normalised weights e^{Phi(C)/beta} of pi_ref's samples: the KL-RL optimum on them, without training.

    Parameters
    ----------
    C : (..., K) calibrated rewards of K samples of pi_ref.
    transform : Phi.
    beta : in (0, inf].

    Returns
    -------
    (..., K) weights that sum to 1 along the last axis.

    Raises
    ------
    ValueError: beta <= 0, or C outside [0, 1].
    """
    phi = np.asarray(transform(unit_interval(C, "C")), dtype=np.float64)
    return softmax((phi - phi.max(-1, keepdims=True)) / positive(beta, "beta"), axis=-1)
