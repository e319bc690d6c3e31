"""The convergence recursion of the normalised step, with its constants, and the gossip rounds that a tolerance takes.

With gradient domination J* - J <= ||grad J|| / c + eps and an L-smooth J, x_t = J* - J_t - eps obeys
x_{t+1} <= (1 - a alpha_t) x_t + (8/3) alpha_t e + (L/2) alpha_t^2, a = c / 3, with e the error of the direction. The
paper takes alpha_t = 7 / (6 a t); here alpha_t = 2 / (a (t + 2)), for which the bound has a closed form.

Joint policies that are products span only advantages that are additive over agents, so eps need not be small: where they
are not, gradient play may stop at a Nash point.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from icml25.neural_marl.consensus import mixing_rate

__all__ = ["ball_radius", "gossip_rounds", "plain_rate_bound", "rate_bound", "recursion", "step_size"]


def step_size(a: float, t: int) -> float:
    """alpha_t = 2 / (a (t + 2))."""
    return 2 / (a * (t + 2))


def rate_bound(L: float, a: float, T: int, e: float = 0.0) -> float:
    """x_T <= 2 L / (a^2 (T + 1)) + (8/3) e / a for T >= 1, whatever x_0.

    Parameters
    ----------
    L : smoothness of J. a : c / 3 with c of the gradient domination. e : norm of the direction's error.
    """
    _check(L, a, T, e)
    return 2 * L / (a**2 * (T + 1)) + (8 / 3) * e / a


def recursion(x0: float, L: float, a: float, T: int, e: float = 0.0) -> Float[np.ndarray, " {T}+1"]:
    """x_0..x_T of the recursion taken with equality, alpha_t = 2 / (a (t + 2))."""
    _check(L, a, T, e)
    x = np.empty(T + 1)
    x[0] = x0
    for t in range(T):
        alpha = step_size(a, t)
        x[t + 1] = (1 - a * alpha) * x[t] + (8 / 3) * alpha * e + (L / 2) * alpha**2
    return x


def plain_rate_bound(kappa: float, T: int, x0: float) -> float:
    """x_T <= 1 / (kappa T + 1 / x_0) for a plain step with x_{t+1} <= x_t - kappa x_t^2."""
    if kappa <= 0 or x0 <= 0 or T < 0:
        raise ValueError(f"kappa, x0 and T are {kappa}, {x0} and {T}; expected positive numbers, T at least 0")
    return 1 / (kappa * T + 1 / x0)


def gossip_rounds(A: np.ndarray, tol: float) -> int:
    """Rounds after which the disagreement is at most ``tol`` times what it was: ceil(log tol / log sigma_2), at least 1.

    Raises
    ------
    ValueError: tol outside (0, 1), or sigma_2 >= 1.
    """
    if not 0 < tol < 1:
        raise ValueError(f"tol is {tol}; expected a number in (0, 1)")
    sigma = mixing_rate(A)
    if sigma >= 1 - 1e-12:
        raise ValueError(f"A has sigma_2 = {sigma:.6g}; expected less than 1 (gossip would never agree)")
    if sigma < 1e-15:  # exact averaging, up to rounding
        return 1
    return math.ceil(math.log(tol) / math.log(sigma))


def ball_radius(width: int, depth: int) -> float:
    """B = m^(1/32) D^(-6), the order of the projection's radius in the theorem (its constant is not given)."""
    if width < 1 or depth < 1:
        raise ValueError(f"width and depth are {width} and {depth}; expected at least 1")
    return width ** (1 / 32) * depth**-6


def _check(L: float, a: float, T: int, e: float) -> None:
    for name, value, ok in (("L", L, L >= 0), ("a", a, a > 0), ("T", T, T >= 0), ("e", e, e >= 0)):
        if not ok:
            raise ValueError(f"{name} is {value}; expected {'more than' if name == 'a' else 'at least'} 0")
