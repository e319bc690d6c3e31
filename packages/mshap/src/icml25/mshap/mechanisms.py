"""Payments p_i(s): none, cost-based (Murhekar et al. 2023), and Shapley shares."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from icml25.mshap.game import FLGame
from icml25.mshap.inputs import as_vector
from icml25.mshap.shapley import ShapleyEstimator


class Mechanism(ABC):
    """Payments, positive for a subsidy and negative for a tax, and the incentive that they leave."""

    name: str

    @abstractmethod
    def payments(self, game: FLGame, s: ArrayLike) -> Float[np.ndarray, " n"]:
        """p_i(s)."""

    @abstractmethod
    def own_gradient(self, game: FLGame, s: ArrayLike) -> Float[np.ndarray, " n"]:
        """∂u_i/∂s_i of the whole utility u_i = ã_i + p_i - c_i."""

    def utilities(self, game: FLGame, s: ArrayLike) -> Float[np.ndarray, " n"]:
        """u_i(s)."""
        s = game.contributions(s)
        return game.gains(s) + self.payments(game, s) - game.costs.value(s)

    def deviation_utilities(self, game: FLGame, s: ArrayLike, t: ArrayLike) -> Float[np.ndarray, " n"]:
        """u_i(t_i, s_-i) for each agent i: one agent at a time deviates from s."""
        s, t = game.contributions(s), game.contributions(t, "t")
        rows = np.where(np.eye(game.n, dtype=bool), t, s)
        return np.array([self.utilities(game, row)[i] for i, row in enumerate(rows)])


class NoPayment(Mechanism):
    """M^0: p = 0, agents free-ride as they like."""

    name = "none"

    def payments(self, game: FLGame, s: ArrayLike) -> Float[np.ndarray, " n"]:
        return np.zeros(len(game.contributions(s)))

    def own_gradient(self, game: FLGame, s: ArrayLike) -> Float[np.ndarray, " n"]:
        s = game.contributions(s)
        return game.accuracy.own_gradient(s[None])[0] - game.costs.grad(s)


class WelfareBG(Mechanism):
    """M^BG: p_i = B (c_i(s_i) - (1/(n-1)) Σ_{j≠i} c_j(s_j)), a refund of costs, paid by the others.

    Parameters
    ----------
    B : share of the cost that is refunded, in [0, 1]; 0.8 by default.

    Raises
    ------
    ValueError: B is outside [0, 1].
    """

    name = "welfare-bg"

    def __init__(self, B: float | int = 0.8) -> None:
        if not (np.isfinite(B) and 0 <= B <= 1):
            raise ValueError(f"B is {B}; expected a number in [0, 1]")
        self.B = float(B)

    def payments(self, game: FLGame, s: ArrayLike) -> Float[np.ndarray, " n"]:
        costs = game.costs.value(game.contributions(s))
        if game.n == 1:
            return np.zeros(1)
        return self.B * (costs - (costs.sum() - costs) / (game.n - 1))

    def own_gradient(self, game: FLGame, s: ArrayLike) -> Float[np.ndarray, " n"]:
        s = game.contributions(s)
        refund = self.B if game.n > 1 else 0.0
        return game.accuracy.own_gradient(s[None])[0] - (1 - refund) * game.costs.grad(s)


class MShap(Mechanism):
    """M^Shap: p_i = φ_i - ã_i, so that every agent ends with its Shapley share of everyone's accuracy.

    Parameters
    ----------
    shapley : how shares are computed; None takes ``ShapleyEstimator()``.
    """

    name = "mshap"

    def __init__(self, shapley: ShapleyEstimator | None = None) -> None:
        self.shapley = ShapleyEstimator() if shapley is None else shapley

    def payments(self, game: FLGame, s: ArrayLike) -> Float[np.ndarray, " n"]:
        s = game.contributions(s)
        return self.shapley.shares(game.accuracy, s) - game.gains(s)

    def own_gradient(self, game: FLGame, s: ArrayLike) -> Float[np.ndarray, " n"]:
        s = game.contributions(s)
        return self.shapley.own_gradient(game.accuracy, s) - game.costs.grad(s)

    def deviation_utilities(self, game: FLGame, s: ArrayLike, t: ArrayLike) -> Float[np.ndarray, " n"]:
        s, t = game.contributions(s), game.contributions(t, "t")
        return self.shapley.deviation_shares(game.accuracy, s, t) - game.costs.value(t)


def reciprocity(gain: ArrayLike, payments: ArrayLike, shares: ArrayLike) -> float:
    """Worst ratio of what an agent gets to what it gives: min_i (ã_i + p_i)/φ_i.

    An agent that gives nothing (φ_i = 0) counts as 1 when it gets nothing, and is left out when it gets something
    (``free_riders`` names it).

    Parameters
    ----------
    gain, payments, shares : (n,) ã_i, p_i and φ_i.

    Returns
    -------
    float; NaN when every agent is left out.

    Raises
    ------
    ValueError: lengths differ or NaN.
    """
    payoff, shares, gives, gets = _give_and_get(gain, payments, shares)
    ratios = np.concatenate([payoff[gives] / shares[gives], np.ones((~gives & ~gets).sum())])
    return float(ratios.min()) if len(ratios) else float("nan")


def free_riders(gain: ArrayLike, payments: ArrayLike, shares: ArrayLike) -> list[int]:
    """Agents that give nothing (φ_i = 0) and get something (ã_i + p_i > 0)."""
    _, _, gives, gets = _give_and_get(gain, payments, shares)
    return np.flatnonzero(~gives & gets).tolist()


def _give_and_get(gain: ArrayLike, payments: ArrayLike, shares: ArrayLike) -> tuple[np.ndarray, ...]:
    gain = as_vector("gain", gain)
    payoff = gain + as_vector("payments", payments, len(gain))
    shares = as_vector("shares", shares, len(gain))
    nothing = 1e-12 * max(np.abs(shares).max(), np.abs(payoff).max())
    return payoff, shares, shares > nothing, payoff > nothing
