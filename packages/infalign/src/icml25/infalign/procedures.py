"""Inference procedures T: what is served when a policy is sampled N times (Section 3).

A procedure acts on a policy in two ways. On finite response sets, ``apply`` is T itself, exactly, ties included, and
``gradient`` is dW^T/dpi. On the unit interval of calibrated rewards u, where every continuous reward and every prompt look the
same, a policy is its cdf F on the midpoints of a uniform grid; ``win_rate`` is W^T and ``derivative`` is dW^T/df.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from icml25.infalign.checks import probabilities, rewards, whole

__all__ = ["BestOf", "Procedure", "Standard", "WorstOf", "calibrated_reward", "midpoints"]


@runtime_checkable
class Procedure(Protocol):
    """What the optimisation needs of T; a procedure of your own has these four methods."""

    def apply(self, pi: np.ndarray, reward: np.ndarray) -> np.ndarray:
        """T(pi), shapes (..., A)."""
        ...

    def gradient(self, pi: np.ndarray, pi_ref: np.ndarray, reward: np.ndarray) -> np.ndarray:
        """dW^T(pi > pi_ref)/dpi, shapes (..., A)."""
        ...

    def win_rate(self, F: np.ndarray) -> float:
        """W^T of a cdf on the midpoints of [0, 1]."""
        ...

    def derivative(self, F: np.ndarray) -> np.ndarray:
        """dW^T/df at a cdf on the midpoints of [0, 1]."""
        ...


def midpoints(n: int) -> Float[np.ndarray, " n"]:
    """Midpoints of n equal cells of [0, 1]."""
    return (np.arange(n) + 0.5) / n


def _classes(p: np.ndarray, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mass strictly below, and mass up to and with the tie class, of every response."""
    p, reward = np.broadcast_arrays(p, reward)
    order = np.argsort(reward, axis=-1, kind="stable")
    r, index = np.take_along_axis(reward, order, -1), np.arange(p.shape[-1])
    cdf = np.cumsum(np.take_along_axis(p, order, -1), axis=-1)
    jump = r[..., 1:] != r[..., :-1]
    edge = np.ones((*r.shape[:-1], 1), dtype=bool)
    first = np.maximum.accumulate(np.where(np.concatenate([edge, jump], -1), index, 0), -1)
    last = np.where(np.concatenate([jump, edge], -1), index, index[-1])
    last = np.minimum.accumulate(last[..., ::-1], -1)[..., ::-1]
    below = np.where(first > 0, np.take_along_axis(cdf, np.maximum(first - 1, 0), -1), 0.0)
    upto = np.take_along_axis(cdf, last, -1)
    back = np.argsort(order, axis=-1, kind="stable")
    return np.take_along_axis(below, back, -1), np.take_along_axis(upto, back, -1)


def calibrated_reward(pi_ref: Float[np.ndarray, "... A"], reward: Float[np.ndarray, "... A"]) -> np.ndarray:
    """C(y) = E_{z ~ pi_ref} [1[r(y) > r(z)] + 1/2 1[r(y) = r(z)]]: the share of pi_ref that y beats, ties half.

    Parameters
    ----------
    pi_ref, reward : (..., A) distributions and rewards of the A responses to each prompt.

    Returns
    -------
    (..., A) float64 in [0, 1]; its mean under pi_ref is exactly 1/2.

    Raises
    ------
    ValueError: pi_ref is no distribution, a reward is not finite, or the shapes differ.
    """
    pi_ref = probabilities(pi_ref, "pi_ref")
    below, upto = _classes(pi_ref, rewards(reward, pi_ref))
    return (below + upto) / 2


@dataclass(frozen=True)
class BestOf:
    """Best-of-N: draw N responses, keep one of highest reward.

    On the unit interval W = 1 - N int F(u)^N u^(N-1) du and dW/df(v) = -N^2 int_v^1 F(u)^(N-1) u^(N-1) du (+ a constant,
    which changes no policy).

    Parameters
    ----------
    N : number of draws, at least 1.
    """

    N: int

    def __post_init__(self) -> None:
        whole(self.N, "N")

    def apply(self, pi: Float[np.ndarray, "... A"], reward: Float[np.ndarray, "... A"]) -> np.ndarray:
        """T(pi): a tie class of cdf G takes mass G^N - G_below^N, in proportion to pi inside the class."""
        pi = probabilities(pi, "pi")
        below, upto = _classes(pi, rewards(reward, pi))
        share = np.divide(upto - below, upto, out=np.zeros_like(upto), where=upto > 0)
        with np.errstate(divide="ignore"):  # the lowest class: share 1
            grown = -np.expm1(self.N * np.log1p(-share))
        # (a^N - b^N)/(a - b) with b = a (1 - share): never a difference of nearly equal powers
        return pi * upto ** (self.N - 1) * np.divide(grown, share, out=np.full_like(share, self.N), where=share > 0)

    def gradient(
        self,
        pi: Float[np.ndarray, "... A"],
        pi_ref: Float[np.ndarray, "... A"],
        reward: Float[np.ndarray, "... A"],
    ) -> np.ndarray:
        """dW^T/dpi(y) = N C_max - N sum over classes g >= class of y of G_g^(N-1) (C_{g+1} - C_g), C calibrated by T(pi_ref)."""
        pi = probabilities(pi, "pi")
        pi_ref = probabilities(pi_ref, "pi_ref")
        pi, pi_ref, reward = np.broadcast_arrays(pi, pi_ref, rewards(reward, pi))
        C = calibrated_reward(self.apply(pi_ref, reward), reward)
        _, upto = _classes(pi, reward)
        order = np.argsort(reward, axis=-1, kind="stable")
        C, G = (np.take_along_axis(x, order, -1) for x in (C, upto))
        steps = G[..., :-1] ** (self.N - 1) * np.diff(C, axis=-1)  # zero inside a class
        out = np.full(C.shape, self.N * C[..., -1:])
        out[..., :-1] -= self.N * np.cumsum(steps[..., ::-1], axis=-1)[..., ::-1]
        return np.take_along_axis(out, np.argsort(order, axis=-1, kind="stable"), -1)

    def win_rate(self, F: Float[np.ndarray, " M"]) -> float:
        """W = 1 - N int F(u)^N u^(N-1) du."""
        return float(1 - self.N * np.mean(F**self.N * midpoints(len(F)) ** (self.N - 1)))

    def derivative(self, F: Float[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
        """Phi(v) = -N^2 int_v^1 F(u)^(N-1) u^(N-1) du."""
        integrand = (F * midpoints(len(F))) ** (self.N - 1) / len(F)
        return -(self.N**2) * (np.cumsum(integrand[::-1])[::-1] - integrand / 2)


@dataclass(frozen=True)
class WorstOf:
    """Worst-of-N, the best-of-N jailbreak of an attacker: draw N responses, keep one of lowest reward.

    On the unit interval W = N int (1-u)^(N-1) (1-F(u))^N du and
    dW/df(v) = -N^2 int_v^1 (1-F(u))^(N-1) (1-u)^(N-1) du (+ a constant). It is best-of-N upside down: of the reward -r.

    Parameters
    ----------
    N : number of draws, at least 1.
    """

    N: int

    def __post_init__(self) -> None:
        whole(self.N, "N")

    def apply(self, pi: Float[np.ndarray, "... A"], reward: Float[np.ndarray, "... A"]) -> np.ndarray:
        """T(pi): that of best-of-N for the reward -r."""
        return BestOf(self.N).apply(pi, -np.asarray(reward, dtype=np.float64))

    def gradient(
        self,
        pi: Float[np.ndarray, "... A"],
        pi_ref: Float[np.ndarray, "... A"],
        reward: Float[np.ndarray, "... A"],
    ) -> np.ndarray:
        """dW^T/dpi: W is 1 less the win rate of best-of-N for the reward -r, and every response is worth N of sum(pi)^N = 1."""
        return self.N - BestOf(self.N).gradient(pi, pi_ref, -np.asarray(reward, dtype=np.float64))

    def win_rate(self, F: Float[np.ndarray, " M"]) -> float:
        """W = N int (1-u)^(N-1) (1-F(u))^N du."""
        return float(self.N * np.mean((1 - midpoints(len(F))) ** (self.N - 1) * (1 - F) ** self.N))

    def derivative(self, F: Float[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
        """Phi(v) = -N^2 int_v^1 (1-F(u))^(N-1) (1-u)^(N-1) du."""
        integrand = ((1 - F) * (1 - midpoints(len(F)))) ** (self.N - 1) / len(F)
        return -(self.N**2) * (np.cumsum(integrand[::-1])[::-1] - integrand / 2)


@dataclass(frozen=True)
class Standard(BestOf):
    """T = identity: one draw is served. Then dW/dpi is the calibrated reward."""

    N: int = 1

    def __post_init__(self) -> None:
        if self.N != 1:
            raise ValueError(f"Standard draws once, got N = {self.N}; BestOf(N) and WorstOf(N) draw N times")
