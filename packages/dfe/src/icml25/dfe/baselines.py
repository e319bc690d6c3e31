"""Other policies on the same bandit, with the same regret."""

from collections.abc import Generator
from itertools import count
from math import log, sqrt
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from icml25.dfe.checks import Settings, check_integer, check_positive, warn_of_noise
from icml25.dfe.env import Episode, MaxMinBandit, Segment, collisions
from icml25.dfe.matching import bottleneck_matching

Script = Generator[Segment, Float[np.ndarray, "L N"], None]
SHIFTS_AT_A_TIME = 1000


def cyclic_shifts(n_players: int, n_arms: int) -> Int[np.ndarray, "K N"]:
    """Matchings (i + j) mod K, j = 0..K-1, which use every pair once."""
    return (np.arange(n_players) + np.arange(n_arms)[:, None]) % n_arms


class UniformMatching(Settings):
    """Cyclic shifts for ever: player i on arm (i + t) mod K. No communication, no learning."""

    def segments(self, episode: Episode) -> Script:
        """Play one run."""
        shifts = np.tile(cyclic_shifts(episode.n_players, episode.n_arms), (SHIFTS_AT_A_TIME, 1))
        while True:
            yield Segment(shifts, 1)


class ExploreThenCommit(Settings):
    """Explore by cyclic shifts, then stay on the bottleneck matching of the sample means (sent free of charge).

    Parameters
    ----------
    n_explore : rounds a pair, >= 1.
    """

    def __init__(self, n_explore: Any) -> None:
        self.n_explore = check_integer(n_explore, "n_explore", 1)

    def segments(self, episode: Episode) -> Script:
        """Play one run."""
        shifts = cyclic_shifts(episode.n_players, episode.n_arms)
        means = _by_pair((yield Segment(shifts, self.n_explore)), shifts, episode.n_arms) / self.n_explore
        _, matching = bottleneck_matching(means)
        yield Segment(matching[None], episode.horizon)


class PhasedCUCB(Settings):
    """Centralised: the bottleneck matching of the UCBs, computed anew when the count of a played pair has doubled.

    Parameters
    ----------
    sigma : the rewards are sigma-subgaussian, default 0.5.
    """

    def __init__(self, sigma: float | int = 0.5) -> None:
        self.sigma = check_positive(sigma, "sigma")

    def check(self, env: MaxMinBandit, horizon: int) -> None:
        """Warn of noise above sigma."""
        warn_of_noise(self.sigma, env.noise)

    def segments(self, episode: Episode) -> Script:
        """Play one run."""
        n, k = episode.n_players, episode.n_arms
        players, shifts = np.arange(n), cyclic_shifts(n, k)
        sums, counts = _by_pair((yield Segment(shifts, 1)), shifts, k), np.ones((n, k))
        log_term = self.sigma * sqrt(2 * log(2 * n * k * episode.horizon))
        while True:
            _, matching = bottleneck_matching(sums / counts + log_term / np.sqrt(counts))
            rounds = int(counts[players, matching].min())
            sums[players, matching] += (yield Segment(matching[None], rounds))[0]
            counts[players, matching] += rounds


class PacketRandomMatching(Settings):
    """Decentralised packets of exploration, random matching and exploitation, in the spirit of Bistritz et al. (2020).

    Packet k = 1, 2, ..: (1) uniformly random arms, of which samples without collision count; (2) players draw among the
    arms with sample mean >= g_k until they hold one without collision; (3) a check whether all hold one, then
    g_{k+1} = g_k + eps_k or g_k - eps_k, eps_k = 1 / (2 sqrt(k)); (4) 2^k rounds on the successful matching whose
    worst player has the largest sample mean by now.

    Parameters
    ----------
    c1 : rounds of exploration an arm, default 25 (25 K rounds).
    c2 : rounds of matching a player and arm, default 20 (20 N K rounds).
    """

    def __init__(self, c1: Any = 25, c2: Any = 20) -> None:
        self.c1, self.c2 = check_integer(c1, "c1", 1), check_integer(c2, "c2", 1)

    def segments(self, episode: Episode) -> Script:
        """Play one run."""
        n, k, rng = episode.n_players, episode.n_arms, episode.rng
        players = np.arange(n)
        sums, counts = np.zeros((n, k)), np.zeros((n, k))
        threshold, found = 0.5, set()
        for packet in count(1):
            actions = rng.integers(k, size=(self.c1 * k, n))
            gained = yield Segment(actions, 1)
            np.add.at(sums, (players, actions), gained)
            np.add.at(counts, (players, actions), ~collisions(actions, k))
            wanted = sums >= threshold * np.maximum(counts, 1)
            rows, frozen = self._match(wanted, rng)
            yield Segment(rows, 1)
            arms = rows[-1]
            yield Segment(arms[None], n)  # the check; its outcome is taken as known to all
            if frozen:
                found.add(tuple(arms.tolist()))
            threshold += (1 if frozen else -1) / (2 * sqrt(packet))
            means = sums / np.maximum(counts, 1)
            best = max(sorted(found), key=lambda arms: means[players, arms].min(), default=tuple(range(n)))
            yield Segment(np.array([best]), 2**packet)

    def _match(self, wanted: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, bool]:
        """Rounds of random matching, and whether all players hold an arm at their end."""
        n, k = wanted.shape
        rounds = self.c2 * n * k
        held = np.full(n, -1)
        choices = [np.flatnonzero(row) if row.any() else np.arange(k) for row in wanted]
        hopeful = wanted.any(1)  # a player without a wanted arm draws among all and never holds one
        rows = np.empty((rounds, n), dtype=np.int64)
        for t in range(rounds):
            rows[t] = [choices[i][rng.integers(len(choices[i]))] if held[i] < 0 else held[i] for i in range(n)]
            alone = ~collisions(rows[t : t + 1], k)[0]
            held = np.where(alone & hopeful & (held < 0), rows[t], held)
            if (held >= 0).all():
                rows[t + 1 :] = held
                return rows, True
        return rows, False


def _by_pair(sums: np.ndarray, shifts: np.ndarray, n_arms: int) -> Float[np.ndarray, "N K"]:
    """Sums of the cyclic shifts as a table of pairs."""
    table = np.zeros((shifts.shape[1], n_arms))
    table[np.arange(shifts.shape[1]), shifts] = sums
    return table
