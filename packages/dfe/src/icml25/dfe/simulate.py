"""Regret curves of many runs: whole segments at a time ("epoch"), or round by round ("round")."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from icml25.dfe.checks import check_array, check_choice, check_horizon, check_integer, check_rng
from icml25.dfe.dfe import MusicalChairsError
from icml25.dfe.env import Episode, MaxMinBandit, Segment, check_bandit

CHUNK = 2**16  # rounds drawn at a time in round mode
N_CHECKPOINTS = 50


@dataclass(frozen=True)
class SimulationResult:
    """Runs of a policy.

    regret : (n_runs, C) cumulative regret after each checkpoint, exact. checkpoints : (C,) rounds.
    final_active : (n_runs, N, K), pairs not dropped. epochs : (n_runs,) epochs begun.
    matchings_per_epoch : their numbers of matchings, a tuple a run. comm_rounds : (n_runs,) rounds spent on messages.
    message_bits : (n_runs,) bits sent in finished blocks. pulls : (n_runs, N, K), rounds alone on the arm.
    """

    regret: Float[np.ndarray, "R C"]
    checkpoints: Int[np.ndarray, " C"]
    final_active: Bool[np.ndarray, "R N K"]
    epochs: Int[np.ndarray, " R"]
    matchings_per_epoch: tuple[tuple[int, ...], ...]
    comm_rounds: Int[np.ndarray, " R"]
    message_bits: Int[np.ndarray, " R"]
    pulls: Int[np.ndarray, "R N K"]

    @staticmethod
    def join(results: "Sequence[SimulationResult]") -> "SimulationResult":
        """All runs of results with the same checkpoints."""

        def rows(name: str) -> np.ndarray:
            return np.concatenate([getattr(result, name) for result in results])

        names = ("regret", "final_active", "epochs", "comm_rounds", "message_bits", "pulls")
        matchings = tuple(run for result in results for run in result.matchings_per_epoch)
        parts = {name: rows(name) for name in names}
        return SimulationResult(checkpoints=results[0].checkpoints, matchings_per_epoch=matchings, **parts)


class _Record:
    """Cumulative regret at the checkpoints and pulls of one run, from rows of actions that are repeated."""

    def __init__(self, env: MaxMinBandit, horizon: int, checkpoints: np.ndarray) -> None:
        self.env, self.horizon, self.checkpoints = env, horizon, checkpoints
        self.regret = np.zeros(len(checkpoints))
        self.pulls = np.zeros(env.means.shape, dtype=np.int64)
        self.time, self.total = 0, 0.0

    def add(self, actions: np.ndarray, mean: np.ndarray, collided: np.ndarray, rounds: np.ndarray) -> None:
        """Row r is played rounds[r] times."""
        times = np.r_[self.time, self.time + np.cumsum(rounds)]
        totals = np.r_[self.total, self.total + np.cumsum(rounds * self.env.shortfall(mean))]
        inside = slice(*np.searchsorted(self.checkpoints, times[[0, -1]], side="right"))
        self.regret[inside] = np.interp(self.checkpoints[inside], times, totals)
        np.add.at(self.pulls, (np.arange(actions.shape[1]), actions), rounds[:, None] * ~collided)
        self.time, self.total = int(times[-1]), float(totals[-1])

    def result(self, **notes: Any) -> SimulationResult:
        """This run alone."""
        one = {name: np.asarray(notes[name])[None] for name in ("final_active", "comm_rounds", "message_bits")}
        matchings = tuple(notes["matchings_per_epoch"])
        return SimulationResult(
            regret=self.regret[None],
            checkpoints=self.checkpoints,
            epochs=np.array([len(matchings)]),
            matchings_per_epoch=(matchings,),
            pulls=self.pulls[None],
            **one,
        )


def simulate(
    policy: Any,
    env: Any,
    horizon: Any,
    n_runs: Any = 1,
    seed: Any = None,
    checkpoints: ArrayLike | None = None,
    mode: str = "epoch",
    n_jobs: Any = 1,
) -> SimulationResult:
    """Simulate independent runs.

    Parameters
    ----------
    policy : has ``segments(episode)`` (see `DFE.segments`), or, in round mode, ``players(N, K, T, rng)``.
    env : the bandit.
    horizon : T rounds, at most 10^12. n_runs : default 1.
    seed : integer or generator; each run has a stream of its own, so n_jobs changes nothing.
    checkpoints : increasing rounds in 1..T at which the regret is reported; default 50, log spaced.
    mode : "epoch" draws the sums of whole segments (time grows with log T for DFE); "round" draws each reward, with
        player objects where the policy has them. Both have the same law.
    n_jobs : processes, by joblib (extra ``parallel``); default 1.

    Raises
    ------
    ValueError: horizon or n_runs below 1 or no integer, horizon above 10^12, bad checkpoints or mode.
    TypeError: mode "epoch" and a policy without ``segments``.
    """
    check_bandit(env)
    end, runs = check_horizon(horizon), check_integer(n_runs, "n_runs", 1)
    jobs = check_integer(n_jobs, "n_jobs", 1)
    check_choice(mode, "mode", ("epoch", "round"))
    points = _check_checkpoints(checkpoints, end)
    whole = mode == "epoch"
    if isinstance(policy, type):
        raise TypeError(f"policy must be an object such as {policy.__name__}(), got the class")
    if not hasattr(policy, "segments") and (whole or not hasattr(policy, "players")):
        needed = "segments(episode)" if whole else "segments(episode) or players(N, K, T, rng)"
        raise TypeError(f"mode={mode!r} needs a policy with {needed}, got {type(policy).__name__}")
    if hasattr(policy, "check"):
        policy.check(env, end)
    one = _play_players if not whole and hasattr(policy, "players") else _play_segments
    calls = [(policy, env, end, rng, points, whole) for rng in check_rng(seed, "seed").spawn(runs)]
    if jobs == 1:
        return SimulationResult.join([one(*call) for call in calls])
    try:
        from joblib import Parallel, delayed
    except ImportError as error:
        raise ImportError("n_jobs > 1 needs joblib: pip install icml25-dfe[parallel]") from error
    results: Any = Parallel(n_jobs=jobs)(delayed(one)(*call) for call in calls)
    return SimulationResult.join(results)


def play(
    players: Sequence[Any],
    env: Any,
    horizon: Any,
    rng: Any = None,
    checkpoints: ArrayLike | None = None,
) -> SimulationResult:
    """Let player objects play round by round; messages are delivered at the end of a round.

    Where musical chairs fail, all players collide on the first arm for the rest of the run.

    Parameters
    ----------
    players : N objects with ``choose() -> arm`` and ``observe(reward, collision)``; those with an ``outbox`` of (receiver
        rank, message), a ``rank`` and ``receive(sender, message)`` may send messages.
    env, horizon, checkpoints : as `simulate`. rng : source of the rewards.

    Raises
    ------
    ValueError: as many players as the environment has are needed, of different ranks; an arm out of range, naming the
    player. RuntimeError: players that have played before.
    """
    check_bandit(env)
    end = check_horizon(horizon)
    if len(players) != env.n_players:
        raise ValueError(f"players must be {env.n_players} objects, got {len(players)}")
    ranks = [rank for player in players if (rank := getattr(player, "rank", None)) is not None]
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"players must have different ranks, got {ranks}")
    if any(getattr(player, "rounds_", 0) for player in players):
        raise RuntimeError("players have played before and would go on from there; build new ones by players()")
    generator = check_rng(rng, "rng")
    record = _Record(env, end, _check_checkpoints(checkpoints, end))
    talkers = [player for player in players if hasattr(player, "outbox")]
    known: dict[tuple[int, ...], tuple[np.ndarray, list[bool]]] = {}
    repeated: list[tuple[tuple[int, ...], int]] = []  # actions, and the rounds that they were held
    failed = False
    for t in range(end):
        actions = tuple([player.choose() for player in players])
        if actions not in known:
            if len(known) == CHUNK:
                known.clear()
            env.round_regret([actions])  # refuses arms out of range
            mean, collided = env.outcome(np.array([actions]))
            known[actions] = mean, collided[0].tolist()
        mean, collisions = known[actions]
        rewards = env.draw(mean, np.array([collisions]), 1, generator)[0].tolist()
        for player, reward, collision in zip(players, rewards, collisions, strict=True):
            try:
                player.observe(reward, collision)
            except MusicalChairsError:
                failed = True
        if not failed and any(player.outbox for player in talkers):
            _deliver(talkers)
        if repeated and repeated[-1][0] == actions:
            repeated[-1] = actions, repeated[-1][1] + 1
        else:
            if len(repeated) == CHUNK:
                _flush(record, repeated)
            repeated.append((actions, 1))
        if failed:
            if t + 1 < end:
                repeated.append(((0,) * len(players), end - t - 1))
            break
    _flush(record, repeated)
    seats = [(getattr(player, "active", None), getattr(player, "rank", None)) for player in players]
    full = np.ones(env.n_arms, dtype=bool)
    return record.result(
        final_active=[full if active is None else active[rank] for active, rank in seats],
        matchings_per_epoch=() if failed else getattr(players[0], "matchings_per_epoch", ()),
        comm_rounds=getattr(players[0], "comm_rounds_", 0),
        message_bits=sum(getattr(player, "message_bits_", 0) for player in players),
    )


def _deliver(players: list[Any]) -> None:
    """Empty all outboxes until nobody has anything to say."""
    by_rank = {player.rank: player for player in players}
    while any(player.outbox for player in players):
        for player in players:
            messages = list(player.outbox)
            player.outbox.clear()
            for receiver, message in messages:
                by_rank[receiver].receive(player.rank, message)


def _flush(record: _Record, repeated: list[tuple[tuple[int, ...], int]]) -> None:
    actions = np.array([actions for actions, _ in repeated])
    record.add(actions, *record.env.outcome(actions), np.array([rounds for _, rounds in repeated]))
    repeated.clear()


def _play_players(
    policy: Any, env: MaxMinBandit, horizon: int, rng: np.random.Generator, points: np.ndarray, _: bool
) -> SimulationResult:
    return play(policy.players(env.n_players, env.n_arms, horizon, rng), env, horizon, rng, points)


def _play_segments(
    policy: Any, env: MaxMinBandit, horizon: int, rng: np.random.Generator, points: np.ndarray, whole: bool
) -> SimulationResult:
    record = _Record(env, horizon, points)
    episode = Episode(env.n_players, env.n_arms, horizon, rng)
    script, sums, comm_rounds = policy.segments(episode), None, 0
    while record.time < horizon:
        segment = script.send(sums)
        start, sums = record.time, np.zeros(segment.actions.shape)
        for rows, rounds in _pieces(segment, horizon - start, whole):
            actions = segment.actions[rows]
            mean, collided = env.outcome(actions)
            np.add.at(sums, rows, env.draw(mean, collided, rounds[:, None], rng))
            record.add(actions, mean, collided, rounds)
        if segment.communication:
            comm_rounds += record.time - start
    script.close()
    return record.result(
        final_active=episode.active,
        matchings_per_epoch=episode.matchings_per_epoch,
        comm_rounds=comm_rounds,
        message_bits=episode.message_bits,
    )


def _pieces(segment: Segment, left: int, whole: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of a segment and how often each is played before the horizon: at once, or one by one in chunks."""
    n_rows, each = len(segment.actions), min(segment.rounds, left)
    if whole:
        rounds = np.clip(left - each * np.arange(n_rows), 0, each)
        rows = np.flatnonzero(rounds)
        yield rows, rounds[rows]
        return
    total = min(n_rows * each, left)
    for start in range(0, total, CHUNK):
        rows = np.arange(start, min(start + CHUNK, total)) // each
        yield rows, np.ones(len(rows), dtype=np.int64)


def _check_checkpoints(checkpoints: ArrayLike | None, horizon: int) -> Int[np.ndarray, " C"]:
    if checkpoints is None:
        return np.unique(np.r_[np.geomspace(1, horizon, N_CHECKPOINTS).astype(np.int64), horizon])
    points = check_array(checkpoints, "checkpoints")
    if points.dtype.kind not in "iu" or points.ndim != 1 or len(points) == 0:
        raise ValueError(f"checkpoints must be a list of integers, got shape {points.shape} of dtype {points.dtype}")
    if points[0] < 1 or points[-1] > horizon or (np.diff(points.astype(np.int64)) <= 0).any():
        raise ValueError(f"checkpoints must increase within 1..{horizon}, got {points[0]} to {points[-1]}")
    return points.astype(np.int64)
