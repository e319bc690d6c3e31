"""The world: players, arms, rewards, collisions and the max-min regret."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from icml25.dfe.checks import (
    check_array,
    check_choice,
    check_horizon,
    check_integer,
    check_matrix,
    check_positive,
    check_rng,
)
from icml25.dfe.matching import bottleneck_matching


class Segment(NamedTuple):
    """Rounds whose actions do not depend on their rewards: row after row, each for ``rounds`` rounds.

    actions : (L, N) int, an arm for each player; rounds : rounds a row; communication : whether they carry messages.
    """

    actions: Int[np.ndarray, "L N"]
    rounds: int
    communication: bool = False


@dataclass
class Episode:
    """One run of a policy: what it may know beforehand, and what it notes for the report."""

    n_players: int
    n_arms: int
    horizon: int
    rng: np.random.Generator
    active: Bool[np.ndarray, "N K"] = field(init=False)
    matchings_per_epoch: list[int] = field(default_factory=list)
    message_bits: int = 0

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        self.active = np.ones((self.n_players, self.n_arms), dtype=bool)


class MaxMinBandit:
    """Players with different means share arms; a collision pays nothing; the worst-off player counts.

    Parameters
    ----------
    means : (N, K) real, K >= N; in [0, 1] for Bernoulli rewards, with a max-min value of at least 0 for gaussian ones.
    reward : "bernoulli" (default) or "gaussian".
    sigma : standard deviation of gaussian rewards, default 0.5; of no effect on Bernoulli rewards.

    Attributes
    ----------
    max_min_value : gamma*, the largest value that all players can have at once.
    max_min_matching : (N,) int, a matching that attains it.
    noise : the rewards are noise-subgaussian, sigma or, for Bernoulli rewards, 0.5.
    gap : Delta, the least gamma* - mean over the pairs below gamma*; inf without such pairs.

    Raises
    ------
    ValueError: K < N, NaN or infinite means, means outside [0, 1] (Bernoulli), naming (player, arm); sigma <= 0; a max-min
    value below 0, where all players would do better to collide. TypeError: means that are no numbers.

    Source: Section 2 (problem), regret of the means.
    """

    def __init__(self, means: ArrayLike, reward: str = "bernoulli", sigma: float | int = 0.5) -> None:
        self.means = check_matrix(means, "means")
        self.reward = check_choice(reward, "reward", ("bernoulli", "gaussian"))
        self.sigma = check_positive(sigma, "sigma")
        self.noise = self.sigma if reward == "gaussian" else 0.5
        outside = (self.means < 0) | (self.means > 1) if reward == "bernoulli" else np.zeros(self.means.shape, bool)
        wrong = np.argwhere(~np.isfinite(self.means) | outside)
        if len(wrong):
            player, arm = wrong[0].tolist()
            expected = "in [0, 1]" if reward == "bernoulli" else "finite"
            raise ValueError(f"means must be {expected}, got {self.means[player, arm]} at (player {player}, arm {arm})")
        self.means.flags.writeable = False
        self.n_players, self.n_arms = self.means.shape
        self.max_min_value, self.max_min_matching = bottleneck_matching(self.means)
        if self.max_min_value < 0:
            raise ValueError(
                f"means have the max-min value {self.max_min_value}; it must be at least 0, since a collision pays 0 and "
                "would be better than every matching (add a constant to the means)"
            )
        below = self.max_min_value - self.means[self.means < self.max_min_value]
        self.gap = float(below.min(initial=np.inf))

    def step(self, actions: ArrayLike, rng: Any) -> tuple[Float[np.ndarray, "R N"], Bool[np.ndarray, "R N"]]:
        """Play R rounds.

        Parameters
        ----------
        actions : (R, N) int, an arm for each player.
        rng : source of the rewards, a generator or an integer seed.

        Returns
        -------
        rewards, collisions : (R, N) float64, 0 where a player collided; (R, N) bool.

        Raises
        ------
        ValueError: an arm out of range, naming the player; a wrong shape. TypeError: actions that are no integers.
        """
        mean, collided = self.outcome(self._check_actions(actions))
        return self.draw(mean, collided, 1, check_rng(rng, "rng")), collided

    def round_regret(self, actions: ArrayLike) -> Float[np.ndarray, " R"]:
        """Regret of R rounds: max(0, gamma* - min_i mean_i), where a collided player has mean 0.

        Parameters
        ----------
        actions : (R, N) int, an arm for each player.

        Raises
        ------
        ValueError, TypeError: as `step`.
        """
        mean, _ = self.outcome(self._check_actions(actions))
        return self.shortfall(mean)

    def outcome(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and collisions, both (R, N), of rounds whose actions are known to be valid."""
        collided = collisions(actions, self.n_arms)
        return np.where(collided, 0.0, self.means[np.arange(self.n_players), actions]), collided

    def shortfall(self, mean: np.ndarray) -> np.ndarray:
        """Regret (R,) of rounds from the players' means (R, N)."""
        return np.maximum(self.max_min_value - mean.min(1), 0.0)

    def draw(
        self,
        mean: np.ndarray,
        collided: np.ndarray,
        rounds: int | np.ndarray,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Sums (R, N) of the rewards of ``rounds`` rounds, an integer or (R, 1), with the same actions."""
        if self.reward == "bernoulli":
            return rng.binomial(rounds, mean).astype(np.float64)
        noise = self.sigma * np.sqrt(rounds) * rng.standard_normal(mean.shape)
        return np.where(collided, 0.0, rounds * mean + noise)

    def _check_actions(self, actions: ArrayLike) -> np.ndarray:
        array = check_array(actions, "actions")
        if array.dtype.kind not in "iu":
            raise TypeError(f"actions must be integers, got dtype {array.dtype}")
        if array.ndim != 2 or array.shape[1] != self.n_players:
            raise ValueError(f"actions must be (rounds, {self.n_players} players), got shape {array.shape}")
        wrong = np.argwhere((array < 0) | (array >= self.n_arms))
        if len(wrong):
            row, player = wrong[0].tolist()
            raise ValueError(f"actions of player {player} must be in 0..{self.n_arms - 1}, got {array[row, player]}")
        return array.astype(np.int64)


def check_bandit(env: Any) -> None:
    """Refuse what is no bandit."""
    if not isinstance(env, MaxMinBandit):
        raise TypeError(f"env must be a MaxMinBandit, got {type(env).__name__}")


def collisions(actions: np.ndarray, n_arms: int) -> np.ndarray:
    """Which players share their arm with another, round by round; both (R, N)."""
    place = actions + n_arms * np.arange(len(actions))[:, None]
    return np.bincount(place.ravel(), minlength=n_arms * len(actions))[place] > 1


def gap_instance(n_players: int, n_arms: int, delta: float | int, value: float | int = 0.7) -> Float[np.ndarray, "N K"]:
    """Means with one good arm a player: ``value`` on the diagonal, ``value - delta`` elsewhere.

    Parameters
    ----------
    n_players, n_arms : N and K >= N.
    delta : gap of every other pair, in (0, value].
    value : max-min value, in (0, 1], default 0.7.

    Raises
    ------
    ValueError, TypeError: K < N, delta or value outside their ranges.
    """
    n = check_integer(n_players, "n_players", 1)
    k = check_integer(n_arms, "n_arms", n)
    top, gap = check_positive(value, "value"), check_positive(delta, "delta")
    if top > 1 or gap > top:
        raise ValueError(f"expected delta <= value <= 1, got delta {gap} and value {top}")
    return np.where(np.eye(n, k, dtype=bool), top, top - gap)


def random_instance(
    n_players: int,
    n_arms: int,
    gap: float | int | None = None,
    seed: Any = None,
) -> Float[np.ndarray, "N K"]:
    """Means drawn uniformly from (0.05, 0.95), those below the max-min value lowered to at least ``gap`` below it.

    Parameters
    ----------
    n_players, n_arms : N and K >= N.
    gap : the wanted Delta, below 0.9; the closest pair below is put exactly there. Default: as drawn.
    seed : integer or generator.

    Raises
    ------
    ValueError, TypeError: K < N, gap <= 0, or a gap that no draw of 1000 allows.
    """
    n = check_integer(n_players, "n_players", 1)
    k = check_integer(n_arms, "n_arms", n)
    rng = check_rng(seed, "seed")
    if gap is None:
        return rng.uniform(0.05, 0.95, (n, k))
    delta = check_positive(gap, "gap")
    for _ in range(1000):
        means = rng.uniform(0.05, 0.95, (n, k))
        value, _ = bottleneck_matching(means)
        below = means < value
        if value >= delta and below.any():
            closest = np.unravel_index(np.where(below, means, -1.0).argmax(), means.shape)
            means[below] = np.minimum(means[below], value - delta)
            means[closest] = value - delta
            return means
    raise ValueError(f"gap = {delta} is not possible for {n} players and {k} arms with means in (0.05, 0.95)")
