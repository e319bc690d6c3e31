"""Decentralized fair elimination: the policy as a central simulation, and its players one by one."""

import warnings
from collections.abc import Generator, Sequence
from math import isfinite, log, sqrt
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from icml25.dfe.checks import (
    Settings,
    check_choice,
    check_collision,
    check_graph,
    check_horizon,
    check_integer,
    check_matrix,
    check_positive,
    check_rng,
    warn_of_noise,
)
from icml25.dfe.communication import (
    GRID_STEPS,
    MeanCodec,
    Rounds,
    decode_decision,
    encode_decision,
    index_bits,
    musical_chairs,
    musical_chairs_rounds,
)
from icml25.dfe.env import Episode, MaxMinBandit, Segment, check_bandit, collisions
from icml25.dfe.matching import bottleneck_matching, covering_matchings, saturating_support

LEADER = 0
FLOAT_BITS = 64
FINEST_GRID = 2.0**-50  # means in [0, 1] have 53 bits


class HorizonTooShortWarning(UserWarning):
    """The horizon ends before every pair has been tried once."""


class MusicalChairsError(RuntimeError):
    """A player found no arm of its own, or noticed that another did not, which has a probability of at most N / T^2."""


def eliminate(
    active: ArrayLike, mean: ArrayLike, width: ArrayLike
) -> tuple[Bool[np.ndarray, "N K"], Int[np.ndarray, " N"]]:
    """Drop the pairs that can be in no max-min matching.

    Parameters
    ----------
    active : (N, K) bool.
    mean, width : (N, K) real, sample means and half-widths >= 0 of their confidence intervals; inf allowed for width.

    Returns
    -------
    active, base : the remaining pairs, and the matching that attains gamma_L = max_m min_i LCB.

    Raises
    ------
    ValueError: shapes that differ, a negative or NaN width, an infinite or NaN mean, no matching inside active.
    TypeError: active that is not boolean, mean or width that are no numbers.

    Source: step 3: (a) UCB < gamma_L; (b) in no matching of all players of the remaining graph.
    """
    graph, centre, half = check_graph(active, "active"), check_matrix(mean, "mean"), check_matrix(width, "width")
    if not graph.shape == centre.shape == half.shape:
        raise ValueError(f"active, mean and width must have one shape, got {graph.shape}, {centre.shape}, {half.shape}")
    if not (np.isfinite(centre[graph]).all() and (half[graph] >= 0).all()):
        raise ValueError("mean must be finite and width at least 0 on the active pairs")
    value, base = bottleneck_matching(np.where(graph, centre - half, -np.inf), graph)
    return saturating_support(graph & (centre + half >= value)), base


class DFE(Settings):
    """Decentralized fair elimination, known horizon.

    Parameters
    ----------
    C : factor of the confidence widths, default 1.
    sigma : the rewards are sigma-subgaussian, default 0.5 (rewards in [0, 1]).
    n0 : rounds a matching in the first epoch, doubled in each epoch, default 1.
    communication : "free" (messages take no time) or "collision" (a bit a round, means in [0, 1]).
    init : "known" (players know rank and N) or "musical_chairs" (they find both from collisions).
    eliminate : drop pairs, default True; False is for ablation.

    Raises
    ------
    ValueError, TypeError: C or sigma not positive, n0 < 1, unknown communication or init.

    Source: the paper's three phases; regret O((N^2 + K) log T / Delta).
    """

    def __init__(
        self,
        C: float | int = 1.0,
        sigma: float | int = 0.5,
        n0: Any = 1,
        communication: str = "free",
        init: str = "known",
        eliminate: Any = True,
    ) -> None:
        self.C = check_positive(C, "C")
        self.sigma = check_positive(sigma, "sigma")
        check_positive(self.C * self.sigma, "C * sigma")
        self.n0 = check_integer(n0, "n0", 1)
        self.communication = check_choice(communication, "communication", ("free", "collision"))
        self.init = check_choice(init, "init", ("known", "musical_chairs"))
        if not isinstance(eliminate, (bool, np.bool_)):
            raise TypeError(f"eliminate must be True or False, got {eliminate!r}")
        self.eliminate = bool(eliminate)

    def confidence_horizon(self, time: int, horizon: int) -> int:
        """Horizon in the logarithm of the widths after ``time`` rounds of exploration."""
        return horizon

    def check(self, env: MaxMinBandit, horizon: int) -> None:
        """Refuse an environment that the messages cannot describe; warn of noise above sigma and of a horizon that ends in the first cover."""
        if self.communication == "collision" and not ((env.means >= 0) & (env.means <= 1)).all():
            raise ValueError("communication='collision' sends means in [0, 1]; rescale the means of the bandit")
        warn_of_noise(self.sigma, env.noise)
        first = self.n0 * env.n_arms
        if self.init == "musical_chairs":
            first += sum(musical_chairs_rounds(env.n_arms, horizon))
        if horizon < first:
            warnings.warn(
                f"horizon = {horizon} ends before every pair was tried once, which takes {first} rounds",
                HorizonTooShortWarning,
                stacklevel=3,
            )

    def segments(self, episode: Episode) -> Generator[Segment, Float[np.ndarray, "L N"], None]:
        """Play one run as segments of fixed actions; each is answered by the sums of the rewards of its rows."""
        player_of = np.arange(episode.n_players)  # rank -> player
        if self.init == "musical_chairs":
            player_of = yield from self._seat(episode)
        rank_of = np.argsort(player_of)
        plan = Plan(self, episode.n_players, episode.n_arms, episode.horizon)
        sums = np.zeros(plan.active.shape)
        codecs = [MeanCodec(plan.n_arms) for _ in range(plan.n_players)]
        ranks = np.arange(plan.n_players)
        while True:
            episode.matchings_per_epoch.append(len(plan.cover))
            rows = np.array(plan.cover)
            gained = (yield Segment(rows[:, rank_of], plan.rounds))[:, player_of]
            np.add.at(sums, (ranks, rows), gained)
            plan.count()
            means = sums / plan.counts
            if self.communication == "collision":
                step = plan.grid_step
                bits = [codecs[i].encode(means[i], np.flatnonzero(plan.active[i]), step) for i in ranks]
                yield Segment(self._uploads(plan.base, bits)[:, rank_of], 1, communication=True)
                episode.message_bits += sum(len(sent) for sent in bits[1:])
                means = np.array([codec.values for codec in codecs])
            else:
                episode.message_bits += FLOAT_BITS * int(plan.active[1:].sum())
            active, base = plan.decide(means)
            if self.communication == "collision":
                decision = encode_decision(plan.active, active, plan.base, base)
                yield Segment(self._downloads(plan.base, decision)[:, rank_of], 1, communication=True)
                episode.message_bits += len(decision) * (plan.n_players - 1)
            else:
                episode.message_bits += plan.decision_bits * (plan.n_players - 1)
            plan.advance(active, base)
            episode.active = plan.active[rank_of]

    def players(self, n_players: Any, n_arms: Any, horizon: Any, rng: Any) -> "list[DFEPlayer]":
        """N independent player objects; generators are spawned from ``rng``."""
        return [
            DFEPlayer(rank, n_players, n_arms, horizon, policy=self, seed=seed)
            for rank, seed in enumerate(check_rng(rng, "rng").spawn(check_integer(n_players, "n_players", 1)))
        ]

    def _seat(self, episode: Episode) -> Generator[Segment, Float[np.ndarray, "L N"], np.ndarray]:
        """Musical chairs of all players; where one finds no arm, all collide for the rest of the run."""
        n, k = episode.n_players, episode.n_arms
        seats = [musical_chairs(k, episode.horizon, rng) for rng in episode.rng.spawn(n)]
        rounds = sum(musical_chairs_rounds(k, episode.horizon))
        actions = np.empty((rounds, n), dtype=np.int64)
        actions[0] = [next(seat) for seat in seats]
        found: list[tuple[int, int] | None] = [None] * n
        for t in range(rounds):
            collided = collisions(actions[t : t + 1], k)[0].tolist()
            for i, seat in enumerate(seats):
                try:
                    actions[t + 1, i] = seat.send((0.0, collided[i]))
                except StopIteration as stop:
                    found[i] = stop.value
        yield Segment(actions, 1)
        ranks = [seat[0] for seat in found if seat is not None]
        if sorted(ranks) != list(range(n)):
            while True:
                yield Segment(np.zeros((1, n), dtype=np.int64), episode.horizon)
        return np.argsort(ranks)

    @staticmethod
    def _uploads(base: np.ndarray, bits: list[list[int]]) -> np.ndarray:
        """Rounds in which the followers, one after the other, step on the leader's arm for each bit 1."""
        ranks = np.repeat(np.arange(1, len(base)), [len(sent) for sent in bits[1:]])
        ones = np.array([bit for sent in bits[1:] for bit in sent], dtype=bool)
        rows = np.tile(base, (len(ones), 1))
        rows[np.flatnonzero(ones), ranks[ones]] = base[LEADER]
        return rows

    @staticmethod
    def _downloads(base: np.ndarray, bits: list[int]) -> np.ndarray:
        """Rounds in which the leader gives each bit to each follower in turn, a collision for a 1."""
        followers = base[1:]
        rows = np.tile(base, (len(bits) * len(followers), 1))
        rows[:, LEADER] = np.where(np.array(bits, dtype=bool)[:, None], followers, base[LEADER]).ravel()
        return rows


class AnytimeDFE(DFE):
    """Decentralized fair elimination for an unknown horizon.

    The widths take T_k = 2^(2^k), k = 2, 3, .., the first that is no less than the rounds explored so far; active pairs,
    counts and sums are kept, so pairs dropped stay dropped.

    Parameters
    ----------
    C, sigma, n0, communication : as `DFE`; players know rank and N.
    """

    def __init__(
        self, C: float | int = 1.0, sigma: float | int = 0.5, n0: Any = 1, communication: str = "free"
    ) -> None:
        super().__init__(C, sigma, n0, communication)

    def confidence_horizon(self, time: int, horizon: int) -> int:
        k = 2
        while 2 ** (2**k) < time:
            k += 1
        return 2 ** (2**k)


class Plan:
    """What every player knows: the epoch, the active pairs, the base matching and how often each pair was played."""

    def __init__(self, policy: DFE, n_players: int, n_arms: int, horizon: int) -> None:
        self.policy, self.n_players, self.n_arms, self.horizon = policy, n_players, n_arms, horizon
        self.active = np.ones((n_players, n_arms), dtype=bool)
        self.base = np.arange(n_players)
        self.counts = np.zeros((n_players, n_arms), dtype=np.int64)
        self.epoch = self.time = 0
        self.cover = covering_matchings(self.active, self.base)
        finest = self.log_term / sqrt(horizon) / GRID_STEPS
        if policy.communication == "collision" and finest < FINEST_GRID:
            raise ValueError(
                f"C = {policy.C} and sigma = {policy.sigma} need means on a grid of steps {finest:.3g}, finer than the "
                f"{FINEST_GRID:.3g} that communication='collision' can send; raise C or sigma"
            )

    @property
    def rounds(self) -> int:
        """Rounds a matching: n0 2^e."""
        return self.policy.n0 * 2**self.epoch

    def count(self) -> None:
        """Note the exploration of this epoch as done."""
        np.add.at(self.counts, (np.arange(self.n_players), np.array(self.cover)), self.rounds)
        self.time += len(self.cover) * self.rounds

    @property
    def log_term(self) -> float:
        """C sigma sqrt(2 log(2 N K T)), the half-width after one sample."""
        horizon = self.policy.confidence_horizon(self.time, self.horizon)
        return self.policy.C * self.policy.sigma * sqrt(2 * log(2 * self.active.size * horizon))

    @property
    def grid_step(self) -> float:
        """Step q_e of the means that are sent: an eighth of the half-width at the guaranteed count n0 (2^(e+1) - 1)."""
        return self.log_term / sqrt(self.policy.n0 * (2 ** (self.epoch + 1) - 1)) / GRID_STEPS

    @property
    def decision_bits(self) -> int:
        """Bits of a free message with the active pairs and the base matching."""
        return self.active.size + self.n_players * index_bits(self.n_arms)

    def decide(self, means: Float[np.ndarray, "N K"]) -> tuple[np.ndarray, np.ndarray]:
        """The leader's step: new active pairs and base; quantised means have intervals wider by the grid step."""
        if not self.policy.eliminate:
            return self.active, self.base
        width = self.log_term / np.sqrt(self.counts)
        if self.policy.communication == "collision":
            width += self.grid_step
        return eliminate(self.active, means, width)

    def advance(self, active: np.ndarray, base: np.ndarray) -> None:
        """Enter the next epoch; every player lists the same matchings."""
        if (active != self.active).any() or (base != self.base).any():
            self.active, self.base = active, base
            self.cover = covering_matchings(active, base)
        self.epoch += 1


class DFEPlayer:
    """One player: it sees its own rewards and collisions, and the messages sent to it.

    Parameters
    ----------
    rank : 0..N-1, the leader is 0; not used with init="musical_chairs".
    n_players, n_arms, horizon : N, K and T; N is not used with init="musical_chairs".
    policy : the settings that all players share; default ``DFE(**settings)``.
    seed : randomness of musical chairs.
    settings : arguments of `DFE`.

    Attributes
    ----------
    rank, n_players : None until known. inbox, outbox : lists of (sender, message) and (receiver, message), free mode.
    active : (N, K) bool, pairs that the player knows to be active, rows by rank.
    rounds_, message_bits_, comm_rounds_ : rounds, bits sent, and rounds of communication so far.

    Raises
    ------
    ValueError, TypeError: bad arguments. RuntimeError: ``choose`` and ``observe`` out of order.
    """

    def __init__(
        self,
        rank: Any,
        n_players: Any,
        n_arms: Any,
        horizon: Any,
        *,
        policy: Any = None,
        seed: Any = None,
        **settings: Any,
    ) -> None:
        if policy is not None and settings:
            raise TypeError(f"give policy or its settings, not both; got {', '.join(settings)}")
        if policy is not None and not isinstance(policy, DFE):
            raise TypeError(f"policy must be a DFE, got {policy!r}")
        self.policy = DFE(**settings) if policy is None else policy
        self.horizon = check_horizon(horizon)
        self.n_arms = check_integer(n_arms, "n_arms", 1)
        self.rank: int | None = None
        self.n_players: int | None = None
        if self.policy.init == "known":
            self.n_players = check_integer(n_players, "n_players", 1)
            self.rank = check_integer(rank, "rank", 0)
            if self.rank >= self.n_players or self.n_arms < self.n_players:
                raise ValueError(f"expected rank < n_players <= n_arms, got {rank}, {n_players} and {n_arms}")
        self.inbox: list[tuple[int, Any]] = []
        self.outbox: list[tuple[int, Any]] = []
        self.matchings_per_epoch: list[int] = []
        self.rounds_ = self.message_bits_ = self.comm_rounds_ = 0
        self._plan: Plan | None = None
        self._script = self._play(check_rng(seed, "seed"))
        self._arm = next(self._script)
        self._chosen = False

    @property
    def active(self) -> Bool[np.ndarray, "N K"] | None:
        """Active pairs, or None before the number of players is known."""
        return None if self._plan is None else self._plan.active

    def choose(self) -> int:
        """The arm of this round.

        Raises
        ------
        RuntimeError: a message that the player waits for has not arrived.
        """
        if self._arm is None:
            raise RuntimeError(f"player {self.rank} waits for a message: deliver every outbox by receive() first")
        self._chosen = True
        return self._arm

    def observe(self, reward: Any, collision: Any) -> None:
        """Take in the reward of this round and whether another player was on the arm.

        Raises
        ------
        RuntimeError: before ``choose``. ValueError: reward NaN or infinite. TypeError: reward no number, collision neither
        a boolean nor 0 or 1. MusicalChairsError: the chairs failed.
        """
        if not self._chosen:
            raise RuntimeError("observe() before choose(): choose an arm first")
        try:
            finite = isfinite(reward)
        except TypeError:
            raise TypeError(f"reward must be a number, got {reward!r}") from None
        if not finite:
            raise ValueError(f"reward must be finite, got {reward}")
        collided = check_collision(collision)
        self._chosen = False
        self.rounds_ += 1
        self._arm = self._script.send((reward, collided))

    def receive(self, sender: int, message: Any) -> None:
        """Put a message of another player into the inbox, and go on if it was waited for (free mode)."""
        self.inbox.append((sender, message))
        if self._arm is None:
            self._arm = next(self._script)

    def _play(self, rng: np.random.Generator) -> Rounds:
        if self.policy.init == "musical_chairs":
            found = yield from musical_chairs(self.n_arms, self.horizon, rng)
            if found is None or found[1] > self.n_arms:  # a player without an own arm disturbs the others' count
                raise MusicalChairsError("musical chairs failed (probability at most N / T^2): no own arm was found")
            self.rank, self.n_players = found
        assert self.rank is not None and self.n_players is not None
        rank = self.rank
        plan = self._plan = Plan(self.policy, self.n_players, self.n_arms, self.horizon)
        talk = self._collide if self.policy.communication == "collision" else self._message
        sums = np.zeros(self.n_arms)
        codecs = [MeanCodec(self.n_arms) for _ in range(self.n_players)] if rank == LEADER else [MeanCodec(self.n_arms)]
        while True:
            self.matchings_per_epoch.append(len(plan.cover))
            for matching in plan.cover:
                arm, total = int(matching[rank]), 0.0
                for _ in range(plan.rounds):
                    reward, _ = yield arm
                    total += reward
                sums[arm] += total
            plan.count()
            plan.advance(*(yield from talk(plan, rank, sums / plan.counts[rank], codecs)))

    def _message(self, plan: Plan, rank: int, means: np.ndarray, _: list[MeanCodec]) -> Rounds:
        """Send means to the leader, or gather them and send the decision, in no time."""
        if rank != LEADER:
            self.outbox.append((LEADER, means))
            self.message_bits_ += FLOAT_BITS * int(plan.active[rank].sum())
            yield from self._wait_for(1)
            return self.inbox.pop()[1]
        yield from self._wait_for(plan.n_players - 1)
        table = np.array([means] + [message for _, message in sorted(self.inbox, key=lambda item: item[0])])
        self.inbox.clear()
        decision = plan.decide(table)
        followers = range(1, plan.n_players)
        self.outbox += [(follower, decision) for follower in followers]
        self.message_bits_ += len(followers) * plan.decision_bits
        return decision

    def _wait_for(self, messages: int) -> Rounds:
        while len(self.inbox) < messages:
            yield None

    def _collide(self, plan: Plan, rank: int, means: np.ndarray, codecs: list[MeanCodec]) -> Rounds:
        """The same by collisions: uploads one follower after the other, then each bit of the decision to each in turn."""
        n, step, table = plan.n_players, plan.grid_step, []
        width = codecs[0].width(step)
        own = int(plan.base[rank])
        for sender in range(n):
            arms = np.flatnonzero(plan.active[sender])
            codec = codecs[sender if rank == LEADER else 0]
            if sender == rank:
                bits = codec.encode(means, arms, step)
                if rank != LEADER:
                    yield from self._send(bits, own, int(plan.base[LEADER]))
            elif rank == LEADER:
                codec.decode((yield from self._stay(own, len(arms) * width)), arms, step)
            elif sender != LEADER:
                yield from self._stay(own, len(arms) * width)
            table.append(codec.values)
        if rank != LEADER:

            def listen(n_bits: int) -> Rounds:  # each bit of the leader is given to every follower in turn
                bits = yield from self._stay(own, n_bits * (n - 1))
                return bits[rank - 1 :: n - 1]

            return (yield from decode_decision(listen, plan.active, plan.base))
        decision = plan.decide(np.array(table))
        for bit in encode_decision(plan.active, decision[0], plan.base, decision[1]):
            for follower in range(1, n):
                yield from self._send([bit], own, int(plan.base[follower]))
        return decision

    def _send(self, bits: Sequence[int], own: int, other: int) -> Rounds:
        """Step on the other's arm for a bit 1, stay on the own for a bit 0."""
        for bit in bits:
            yield other if bit else own
            self.message_bits_ += 1
            self.comm_rounds_ += 1

    def _stay(self, own: int, rounds: int) -> Rounds:
        """Sit on the own arm and note the collisions."""
        bits = []
        for _ in range(rounds):
            _, collided = yield own
            self.comm_rounds_ += 1
            bits.append(int(collided))
        return bits


def players(env: Any, horizon: Any, seed: Any = None, **settings: Any) -> list[DFEPlayer]:
    """Build the N players of an environment.

    Parameters
    ----------
    env : tells N and K only.
    horizon : T.
    seed : randomness of musical chairs.
    settings : arguments of `DFE`.

    Raises
    ------
    ValueError, TypeError: as `DFE` and `DFEPlayer`.
    """
    check_bandit(env)
    policy = DFE(**settings)
    policy.check(env, check_horizon(horizon))
    return policy.players(env.n_players, env.n_arms, horizon, check_rng(seed, "seed"))
