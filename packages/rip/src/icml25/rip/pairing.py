"""Which two responses of a prompt make its preference pair."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from icml25.rip.checks import Rewards, read_rewards

__all__ = ["best_worst", "gaps", "pair", "pair_rows"]

STRATEGIES = ("best_worst", "best_random", "best_bottom_quantile")


def _first(hits: Bool[np.ndarray, " R"], starts: Int[np.ndarray, " P"]) -> Int[np.ndarray, " P"]:
    """Position of the first hit of each row, given that each row has one."""
    at = np.flatnonzero(hits)
    return at[np.searchsorted(at, starts)]


def best_worst(rewards: Rewards) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " P"], Bool[np.ndarray, " P"]]:
    """Flat positions of y_w = argmax r and y_l = argmin r, first on ties, and which rows have such a pair.

    A row has none with fewer than two responses, equal rewards, or a reward that is not finite; its positions are -1.
    """
    P = len(rewards.sizes)
    chosen, rejected = np.full(P, -1), np.full(P, -1)
    paired = np.zeros(P, dtype=bool)
    full = rewards.sizes > 0
    if not full.any():
        return chosen, rejected, paired
    starts, sizes, flat = rewards.offsets[:-1][full], rewards.sizes[full], rewards.flat
    if (sizes == sizes[0]).all():
        table = flat.reshape(-1, sizes[0])
        best, worst = starts + table.argmax(1), starts + table.argmin(1)
    else:
        high, low = np.maximum.reduceat(flat, starts), np.minimum.reduceat(flat, starts)
        with np.errstate(invalid="ignore"):
            finite = np.isfinite(high) & np.isfinite(low)
        best = _first((flat == np.repeat(high, sizes)) | ~np.repeat(finite, sizes), starts)
        worst = _first((flat == np.repeat(low, sizes)) | ~np.repeat(finite, sizes), starts)
    # argmax and argmin find NaN first, and the extremes are infinite where any reward is
    good = np.isfinite(flat[best]) & np.isfinite(flat[worst]) & (flat[best] > flat[worst])
    rows = np.flatnonzero(full)[good]
    chosen[rows], rejected[rows], paired[rows] = best[good], worst[good], True
    return chosen, rejected, paired


def pair_rows(
    rewards: Rewards, strategy: str = "best_worst", q: float | int = 0.25, seed: int = 0
) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " P"]]:
    """Flat positions of the chosen and the rejected response; see `pair`."""
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {STRATEGIES}, got {strategy!r}")
    if not 0 <= q < 1:
        raise ValueError(f"q must be in [0, 1), got {q}")
    chosen, rejected, paired = best_worst(rewards)
    if strategy == "best_worst":
        return chosen, rejected
    rng = np.random.default_rng(seed)
    for i in np.flatnonzero(paired):
        start, stop = rewards.offsets[i], rewards.offsets[i + 1]
        row = rewards.flat[start:stop]
        if strategy == "best_random":
            other = rng.choice(np.flatnonzero(row < rewards.flat[chosen[i]]))
        else:
            other = np.argsort(row, kind="stable")[int(q * (len(row) - 1))]
        if row[other] == rewards.flat[chosen[i]]:
            chosen[i] = rejected[i] = -1
        else:
            rejected[i] = start + other
    return chosen, rejected


def pair(
    rewards: Any, strategy: str = "best_worst", q: float | int = 0.25, seed: int = 0
) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " P"]]:
    """Choose a preference pair from the scored responses of each prompt.

    Parameters
    ----------
    rewards : (P, N), or P lists of numbers of any lengths.
    strategy : the rejected response is the worst, a random one below the best, or the one at the q-quantile of the row's
        rewards from below. The chosen one is always the best.
    q : quantile in [0, 1); 0 is the worst response.
    seed : of the random choice.

    Returns
    -------
    chosen, rejected : indices (P,) within each row, first on ties; -1 where a row has no pair of different rewards.
    """
    rows = read_rewards([{"rewards": row} for row in rewards], "rewards")
    chosen, rejected = pair_rows(rows, strategy, q, seed)
    starts = rows.offsets[:-1]
    return np.where(chosen < 0, -1, chosen - starts), np.where(rejected < 0, -1, rejected - starts)


def gaps(rewards: Rewards, chosen: Int[np.ndarray, " n"], rejected: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """r(y_w) - r(y_l) of pairs given by flat positions."""
    return rewards.flat[chosen] - rewards.flat[rejected]
