"""Assignment tables: which arm each time point of each day gets."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Int8

__all__ = ["Design", "alternating_day", "alternating_time", "bojinov", "regular_blocks", "uniform_random"]

Number = int | float | np.number
Seed = int | np.random.Generator | None

_SPANNED = {"AD": False, "AT": True, "UR": False, "blocks": True, "bojinov": True}
_MAX_COINS = 16


def as_integer(value: object, name: str, low: int) -> int:
    """``value`` as an int, or a ValueError that names it."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < low:
        raise ValueError(f"{name} must be an integer >= {low}, got {value!r}")
    return int(value)


def as_real(value: object, name: str) -> float:
    """``value`` as a finite float, or an error that names it."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not np.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return float(value)


def as_design(value: object, name: str) -> Design:
    """``value`` if it is a Design, or a TypeError that says how to make one."""
    if not isinstance(value, Design):
        raise TypeError(f"{name} must be a Design such as Design('AT', 6), got {value!r}")
    return value


@dataclass(frozen=True)
class Design:
    """A switchback design: how coins become rows of arms.

    Every design here is a row of coins, some of them turned over, used on odd days and complemented on even days.

    Parameters
    ----------
    kind : "AD" alternating days, "AT" alternating time, "UR" a coin for each time point, "blocks" a coin for each block, or
        "bojinov" the minimax design of Bojinov, Simchi-Levi and Zhao (each day is complemented by a coin of its own).
    span : points between two switches ("AT", "blocks") or the order of the carryover ("bojinov"); None for the others.
    fresh : with "UR" only: new coins every day instead of one row and its complement. Default False, as in the paper.

    Raises
    ------
    ValueError: kind is unknown, or span is missing, not an integer, below 1 or not wanted.
    """

    kind: str
    span: Number | None = None
    fresh: bool = False

    def __post_init__(self) -> None:
        if self.kind not in _SPANNED:
            raise ValueError(f"kind must be one of {', '.join(_SPANNED)}, got {self.kind!r}")
        if _SPANNED[self.kind]:
            object.__setattr__(self, "span", as_integer(self.span, "span", 1))
        elif self.span is not None:
            raise ValueError(f"span must be None for the design {self.kind}, got {self.span!r}")
        if self.fresh and self.kind != "UR":
            raise ValueError(f"fresh=True is for the design UR only, got kind {self.kind!r}")

    def __str__(self) -> str:
        return self.kind + (f"({self.span})" if self.span is not None else "") + (" fresh" if self.fresh else "")

    def coins(self, n_times: Number) -> tuple[Int[np.ndarray, " T"], Int[np.ndarray, " T"]]:
        """Which coin decides each time point, and whether that coin is turned over there.

        Parameters
        ----------
        n_times : T, time points a day, at least 1.

        Returns
        -------
        coin, flip : (T,) each; the arm on an odd day is ``toss[coin] ^ flip``.
        """
        T = as_integer(n_times, "n_times", 1)
        t, one = np.arange(T), np.zeros(T, dtype=np.int64)
        if self.kind == "AD":
            return one, one
        if self.kind == "UR":
            return t, one
        span = as_integer(self.span, "span", 1)
        if self.kind == "AT":
            return one, t // span % 2
        if self.kind == "blocks":
            return t // span, one
        if T / span < 4:
            return one, one
        points = np.array([0, *(i * span for i in range(2, T // span - 1))])
        return np.searchsorted(points, t, side="right") - 1, one

    def draw(self, n_days: Number, n_times: Number, seed: Seed = None) -> Int8[np.ndarray, "n T"]:
        """Draw the table of an experiment.

        Parameters
        ----------
        n_days : n, at least 2; an even number balances the arms, an odd one warns.
        n_times : T, time points a day, at least 1.
        seed : of the coins.

        Returns
        -------
        (n, T) int8, 1 where the treatment is on.
        """
        n = as_integer(n_days, "n_days", 2)
        coin, flip = self.coins(n_times)
        rng = np.random.default_rng(seed)
        n_coins = int(coin[-1]) + 1
        if self.fresh:
            return rng.integers(2, size=(n, n_coins), dtype=np.int8)[:, coin]
        row = rng.integers(2, size=n_coins)[coin] ^ flip
        if self.kind == "bojinov":
            other = rng.integers(2, size=n)
        else:
            other = np.arange(n) % 2
            if n % 2:
                warnings.warn(f"n_days = {n} is odd: one arm has a day more at each time point", stacklevel=2)
        return (row ^ other[:, None]).astype(np.int8)

    def rows_and_probs(self, n_times: Number) -> tuple[Int8[np.ndarray, "rows T"], Float[np.ndarray, " rows"]]:
        """All rows that a single day can get, and their probabilities.

        Parameters
        ----------
        n_times : T, time points a day.

        Returns
        -------
        rows, probs : (2^coins, T) int8 and (2^coins,).

        Raises
        ------
        ValueError: there are more than 2^16 rows.
        """
        coin, flip = self.coins(n_times)
        n_coins = int(coin[-1]) + 1
        if n_coins > _MAX_COINS:
            raise ValueError(f"{self} has 2^{n_coins} rows at n_times = {n_times}; at most 2^{_MAX_COINS} are listed")
        tosses = np.arange(2**n_coins)[:, None] >> np.arange(n_coins) & 1
        return (tosses[:, coin] ^ flip).astype(np.int8), np.full(2**n_coins, 0.5**n_coins)

    def allows(self, actions: Int8[np.ndarray, "*days T"]) -> Bool[np.ndarray, "*days"]:
        """Which days have a row of arms that this design can draw.

        Parameters
        ----------
        actions : (..., T) of 0 and 1.
        """
        coin, flip = self.coins(actions.shape[-1])
        toss = actions ^ flip.astype(np.int8)
        return ((np.diff(toss, axis=-1) == 0) | (np.diff(coin) > 0)).all(-1)

    def correlation(self, n_times: Number) -> Float[np.ndarray, "T T"]:
        """c_ts = E[(2 A_t - 1)(2 A_s - 1)] within a day: what the errors' covariance is weighted by in Eqs. (2)-(3)."""
        coin, flip = self.coins(n_times)
        sign = 1.0 - 2.0 * flip
        return np.equal.outer(coin, coin) * np.multiply.outer(sign, sign)

    def switches(self, n_times: Number) -> float:
        """Expected number of switches inside a day."""
        coin, flip = self.coins(n_times)
        same = np.diff(coin) == 0
        return float(np.where(same, np.abs(np.diff(flip)), 0.5).sum())


def alternating_day(n_days: Number, n_times: Number, *, seed: Seed = None) -> Int8[np.ndarray, "n T"]:
    """Alternating days (AD): whole days of one arm, in turn.

    Parameters
    ----------
    n_days, n_times : size of the table.
    seed : of the coin that decides the first day.

    Returns
    -------
    (n, T) int8.
    """
    return Design("AD").draw(n_days, n_times, seed)


def alternating_time(n_days: Number, n_times: Number, span: Number, *, seed: Seed = None) -> Int8[np.ndarray, "n T"]:
    """Alternating time (AT): the arm changes every ``span`` points; even days are the complement of odd days.

    Parameters
    ----------
    n_days, n_times : size of the table.
    span : points between two switches, at least 1; from n_times on this is AD.
    seed : of the coin that decides the first block of the first day.

    Returns
    -------
    (n, T) int8.
    """
    return Design("AT", span).draw(n_days, n_times, seed)


def uniform_random(
    n_days: Number, n_times: Number, *, fresh: bool = False, seed: Seed = None
) -> Int8[np.ndarray, "n T"]:
    """Uniform random (UR): a fair coin for each time point.

    Parameters
    ----------
    n_days, n_times : size of the table.
    fresh : new coins every day; by default one row is drawn for odd days, and even days get its complement.
    seed : of the coins.

    Returns
    -------
    (n, T) int8.
    """
    return Design("UR", fresh=fresh).draw(n_days, n_times, seed)


def regular_blocks(n_days: Number, n_times: Number, span: Number, *, seed: Seed = None) -> Int8[np.ndarray, "n T"]:
    """Regular randomised blocks (Hu and Wager; Xiong et al.): a coin for each block, complements on even days.

    Parameters
    ----------
    n_days, n_times : size of the table.
    span : length of a block; the last one of a day is shorter where it does not divide n_times.
    seed : of the coins.

    Returns
    -------
    (n, T) int8.
    """
    return Design("blocks", span).draw(n_days, n_times, seed)


def bojinov(n_days: Number, n_times: Number, order: Number, *, seed: Seed = None) -> Int8[np.ndarray, "n T"]:
    """The minimax design of Bojinov, Simchi-Levi and Zhao (2023) for carryover of a known order.

    Parameters
    ----------
    n_days, n_times : size of the table.
    order : m, how many points a treatment lasts: coins at 1 and at i m + 1 for i = 2 .. T/m - 2, one coin when T/m < 4.
    seed : of the coins.

    Returns
    -------
    (n, T) int8; each day is the path or its complement by a coin of its own.
    """
    return Design("bojinov", order).draw(n_days, n_times, seed)
