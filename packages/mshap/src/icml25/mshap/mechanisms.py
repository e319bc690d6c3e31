"""Payments p_i(s): none, cost-based (Murhekar et al. 2023), and Shapley shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from icml25.mshap.game import FLGame
from icml25.mshap.inputs import as_array, as_vector, is_number
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

    def deviation_utilities(self, game: FLGame, s: ArrayLike, T: ArrayLike) -> Float[np.ndarray, "K n"]:
        """u_i(T_ki, s_-i) for each row k of T (K, n) and agent i: one agent at a time deviates from s."""
        s, T = game.contributions(s), _deviations(game, T)
        own = np.eye(game.n, dtype=bool)
        return np.array([[self.utilities(game, np.where(own[i], t, s))[i] for i in range(game.n)] for t in T])


class NoPayment(Mechanism):
    """M^0: p = 0, agents free-ride as they like."""

    name = "none"

    def payments(self, game: FLGame, s: ArrayLike) -> Float[np.ndarray, " n"]:
        """0."""
        return np.zeros(len(game.contributions(s)))

    def own_gradient(self, game: FLGame, s: ArrayLike) -> Float[np.ndarray, " n"]:
        """∂a_i/∂s_i - c_i'."""
        s = game.contributions(s)
        return game.accuracy.own_gradient(s[None])[0] - game.costs.grad(s)


class WelfareBG(Mechanism):
    """M^BG: p_i = B (c_i(s_i) - (1/(n-1)) Σ_{j≠i} c_j(s_j)), a refund of costs, paid by the others.

    Parameters
    ----------
    B : share of the cost that is refunded, in [0, 1]; 0.8 by default.

    Raises
    ------
    ValueError: B is outside [0, 1]. TypeError: not a number.
    """

    name = "welfare-bg"

    def __init__(self, B: Any = 0.8) -> None:
        if not is_number(B):
            raise TypeError(f"B is {B!r}; expected a number in [0, 1]")
        if not (np.isfinite(B) and 0 <= B <= 1):
            raise ValueError(f"B is {B}; expected a number in [0, 1]")
        self.B = float(B)

    def payments(self, game: FLGame, s: ArrayLike) -> Float[np.ndarray, " n"]:
        """p_i(s)."""
        costs = game.costs.value(game.contributions(s))
        if game.n == 1:
            return np.zeros(1)
        return self.B * (costs - (costs.sum() - costs) / (game.n - 1))

    def own_gradient(self, game: FLGame, s: ArrayLike) -> Float[np.ndarray, " n"]:
        """∂a_i/∂s_i - (1 - B) c_i'."""
        s = game.contributions(s)
        refund = self.B if game.n > 1 else 0.0
        return game.accuracy.own_gradient(s[None])[0] - (1 - refund) * game.costs.grad(s)


class MShap(Mechanism):
    """M^Shap: p_i = φ_i - ã_i, so that every agent ends with its Shapley share of everyone's accuracy.

    Parameters
    ----------
    shapley : ``ShapleyEstimator``, how shares are computed; None takes ``ShapleyEstimator()``.
    """

    name = "mshap"

    def __init__(self, shapley: Any = None) -> None:
        if not (shapley is None or isinstance(shapley, ShapleyEstimator)):
            raise TypeError(f"shapley is {shapley!r}; expected a ShapleyEstimator, such as ShapleyEstimator('exact')")
        self.shapley = ShapleyEstimator() if shapley is None else shapley

    def payments(self, game: FLGame, s: ArrayLike) -> Float[np.ndarray, " n"]:
        """φ_i - ã_i."""
        s = game.contributions(s)
        return self.shapley.shares(game.accuracy, s) - game.gains(s)

    def own_gradient(self, game: FLGame, s: ArrayLike) -> Float[np.ndarray, " n"]:
        """∂φ_i/∂s_i - c_i'."""
        s = game.contributions(s)
        return self.shapley.own_gradient(game.accuracy, s) - game.costs.grad(s)

    def deviation_utilities(self, game: FLGame, s: ArrayLike, T: ArrayLike) -> Float[np.ndarray, "K n"]:
        """φ_i(T_ki, s_-i) - c_i(T_ki)."""
        s, T = game.contributions(s), _deviations(game, T)
        return self.shapley.deviation_shares(game.accuracy, s, T) - np.array([game.costs.value(t) for t in T])


def reciprocity(gain: ArrayLike, payments: ArrayLike, shares: ArrayLike) -> float:
    """Worst ratio of what an agent gets to what it gives: min_i (ã_i + p_i)/φ_i.

    An agent that gives nothing (φ_i = 0) counts as 1 when it gets nothing, as -inf when something is taken from it
    (ã_i + p_i < 0), and is left out when it gets something (``free_riders`` names it). One that harms (φ_i < 0) counts as 1
    when it pays for no more than the harm, else as -inf.

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
    rest = ~gives & ~gets
    taken = payoff[rest] < np.minimum(shares[rest], 0) - _nothing(shares, payoff)
    idle = np.where(taken, -np.inf, 1.0)
    ratios = np.concatenate([payoff[gives] / shares[gives], idle])
    return float(ratios.min()) if len(ratios) else float("nan")


def free_riders(gain: ArrayLike, payments: ArrayLike, shares: ArrayLike) -> list[int]:
    """Agents that give nothing (φ_i = 0) and get something (ã_i + p_i > 0)."""
    _, _, gives, gets = _give_and_get(gain, payments, shares)
    return np.flatnonzero(~gives & gets).tolist()


def _give_and_get(gain: ArrayLike, payments: ArrayLike, shares: ArrayLike) -> tuple[np.ndarray, ...]:
    gain = as_vector("gain", gain)
    payoff = gain + as_vector("payments", payments, len(gain))
    shares = as_vector("shares", shares, len(gain))
    nothing = _nothing(shares, payoff)
    return payoff, shares, shares > nothing, payoff > nothing


def _nothing(shares: np.ndarray, payoff: np.ndarray) -> float:
    """Below this in absolute value, a share or a payoff is rounding."""
    return 1e-12 * float(max(np.abs(shares).max(), np.abs(payoff).max()))


def _deviations(game: FLGame, T: ArrayLike) -> Float[np.ndarray, "K n"]:
    return np.array([game.contributions(t, "T") for t in as_array("T", T, 2)])
