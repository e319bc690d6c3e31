"""What people use today: differences in means with a burn-in, inverse probabilities, and Horvitz-Thompson windows."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int8

from icml25.switchback.designs import Design, Number, as_design, as_integer
from icml25.switchback.panel import NotIdentifiedError, Panel

__all__ = ["difference_in_means", "horvitz_thompson", "ipw_switchback"]


def difference_in_means(panel: Panel, burn_in: Number = 0) -> float:
    """Mean reward of treated points minus that of the others (Hu and Wager's estimator with burn_in > 0).

    Parameters
    ----------
    panel : the experiment.
    burn_in : points dropped at the start of every block (a run of one arm inside a day). Default 0.

    Returns
    -------
    float, per time point.

    Raises
    ------
    NotIdentifiedError: nothing of an arm is left.
    """
    kept = ~_young(panel.actions, as_integer(burn_in, "burn_in", 0))
    means = []
    for arm in (0, 1):
        mine = kept & (panel.actions == arm)
        if not mine.any():
            raise NotIdentifiedError(f"actions: arm {arm} has no points after burn_in = {burn_in}")
        means.append(panel.rewards[mine].mean())
    return float(means[1] - means[0])


def _young(actions: Int8[np.ndarray, "n T"], burn_in: int) -> Bool[np.ndarray, "n T"]:
    """Points that are among the first ``burn_in`` of their block."""
    T = actions.shape[1]
    starts = np.diff(actions, axis=1, prepend=1 - actions[:, :1]) != 0
    last_start = np.maximum.accumulate(np.where(starts, np.arange(T), 0), axis=1)
    return np.arange(T) - last_start < burn_in


def ipw_switchback(panel: Panel) -> float:
    """Mean over all points of 4 (A - 1/2) Y, for arms of probability one half (Xiong et al.).

    Parameters
    ----------
    panel : the experiment.

    Returns
    -------
    float, per time point; the difference in means where the arms are exactly balanced.
    """
    return float((4 * (panel.actions - 0.5) * panel.rewards).mean())


def horvitz_thompson(panel: Panel, order: Number, design: Design) -> float:
    """Rewards after m + 1 points of one arm, over the probability of such a window (Bojinov et al.).

    (1 / (n (T - m))) sum_i sum_{t > m} Y_it {1(A_{t-m..t} = 1) / P(... = 1) - 1(A_{t-m..t} = 0) / P(... = 0)}.

    Parameters
    ----------
    panel : the experiment.
    order : m, points that a treatment lasts; 0 is no carryover.
    design : how the arms were drawn; it gives the exact probabilities of the windows.

    Returns
    -------
    float, per time point.

    Raises
    ------
    NotIdentifiedError: the design never has a window of one arm at some t.
    """
    m, T = as_integer(order, "order", 0), panel.n_times
    if m >= T:
        raise ValueError(f"order must be below T = {T}, got {m}")
    coin, flip = as_design(design, "design").coins(T)
    A, total = panel.actions, 0.0
    for t in range(m, T):
        window = slice(t - m, t + 1)
        coins = np.unique(coin[window])
        if any(np.ptp(flip[window][coin[window] == c]) for c in coins):
            raise NotIdentifiedError(
                f"design {design} always switches between t = {t - m} and {t}: it has no window of {m + 1} points of one arm "
                "there; use a smaller order or a randomised design"
            )
        probability = 0.5 ** len(coins)
        sign = A[:, window].all(1).astype(np.float64) - (1 - A[:, window]).all(1)
        total += float((panel.rewards[:, t] * sign).sum()) / probability
    return total / (panel.n_days * (T - m))
