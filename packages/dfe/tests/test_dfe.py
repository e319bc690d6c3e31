"""The policy: invariants, the law of its regret, and players that act as the central simulation does."""

import numpy as np
import pytest
from test_env import SHI2021

from icml25.dfe import (
    DFE,
    AnytimeDFE,
    DFEPlayer,
    Episode,
    HorizonTooShortWarning,
    MaxMinBandit,
    bottleneck_matching,
    eliminate,
    gap_instance,
    play,
    players,
    random_instance,
    simulate,
)
from icml25.dfe.dfe import Plan


class Recorder:
    """Stands between a player and the game; it notes what the player does and sees."""

    def __init__(self, player: DFEPlayer) -> None:
        self.player, self.arms, self.rewards, self.collisions = player, [], [], []

    def __getattr__(self, name: str):
        return getattr(self.player, name)

    def choose(self) -> int:
        self.arms.append(self.player.choose())
        return self.arms[-1]

    def observe(self, reward: float, collision: bool) -> None:
        self.rewards.append(reward)
        self.collisions.append(collision)
        self.player.observe(reward, collision)


def central_actions(policy: DFE, rewards: np.ndarray, n_arms: int, rng: np.random.Generator) -> tuple:
    """Actions of the central simulation when it is given these rewards (T, N)."""
    horizon, n = rewards.shape
    episode = Episode(n, n_arms, horizon, rng)
    script, sums, t, rows = policy.segments(episode), None, 0, []
    while t < horizon:
        segment = script.send(sums)
        sums = np.zeros(segment.actions.shape)
        for r, row in enumerate(segment.actions):
            length = min(segment.rounds, horizon - t)
            rows += [row] * length
            sums[r] = rewards[t : t + length].sum(0)
            t += length
    return np.array(rows), episode


@pytest.mark.parametrize("communication", ["free", "collision"])
@pytest.mark.parametrize("init", ["known", "musical_chairs"])
@pytest.mark.parametrize("shape", [(3, 4), (1, 2), (4, 4)], ids=["3x4", "1x2", "4x4"])
def test_players_act_as_the_central_simulation(communication: str, init: str, shape: tuple[int, int]) -> None:
    env = MaxMinBandit(random_instance(*shape, gap=0.3, seed=3))
    policy = DFE(C=0.35, communication=communication, init=init)
    horizon, seed = 4_000, 4
    team = [Recorder(p) for p in policy.players(*shape, horizon, np.random.default_rng(seed))]
    result = play(team, env, horizon, rng=5)
    rewards = np.array([p.rewards for p in team]).T
    actions, episode = central_actions(policy, rewards, shape[1], np.random.default_rng(seed))
    assert (actions == np.array([p.arms for p in team]).T).all()
    assert result.matchings_per_epoch[0] == tuple(episode.matchings_per_epoch)
    assert not episode.active.all()
    assert (result.final_active[0] == episode.active).all()
    if communication == "free":
        assert result.message_bits[0] == episode.message_bits
    else:
        assert episode.message_bits <= result.message_bits[0] + 200 and result.comm_rounds[0] == result.message_bits[0]


def test_all_players_decode_the_same_in_collision_mode() -> None:
    env = MaxMinBandit(random_instance(3, 5, gap=0.3, seed=1))
    team = players(env, 5_000, C=0.4, communication="collision")
    play(team, env, 5_000, rng=0)
    for player in team[1:]:
        assert (player.active == team[0].active).all()
        assert (player._plan.base == team[0]._plan.base).all() and player._plan.epoch == team[0]._plan.epoch
    assert not team[0].active.all()
    assert not any(player.inbox or player.outbox for player in team)


def test_players_see_only_their_own() -> None:
    player = DFEPlayer(1, 3, 4, 1000, communication="collision")
    arms = []
    for _ in range(4):
        arms.append(player.choose())
        player.observe(1.0, False)
    assert arms == [1, 2, 3, 0]
    assert set(vars(player)) == {
        "policy", "horizon", "n_arms", "n_players", "rank", "inbox", "outbox", "matchings_per_epoch",
        "rounds_", "message_bits_", "comm_rounds_", "_plan", "_script", "_arm", "_chosen",
    }  # fmt: skip


def test_a_player_waits_for_the_leader() -> None:
    player = DFEPlayer(1, 2, 2, 100)
    for _ in range(2):
        player.choose()
        player.observe(1.0, False)
    assert player.outbox[0][0] == 0 and player.outbox[0][1].tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="waits for a message"):
        player.choose()
    player.receive(0, (np.array([[True, False], [False, True]]), np.array([0, 1])))
    assert player.choose() == 1


@pytest.mark.parametrize("communication", ["free", "collision"])
def test_noiseless_rewards_never_lose_a_fair_pair(communication: str) -> None:
    for seed in range(4):
        means = random_instance(4, 6, gap=0.1, seed=seed)
        env = MaxMinBandit(means, "gaussian", sigma=1e-9)
        result = simulate(DFE(sigma=0.1, communication=communication), env, 10**6, 1, seed=0)
        fair = np.zeros(means.shape, dtype=bool)
        for i, k in np.ndindex(means.shape):  # pairs of some max-min matching: force the pair and compare
            forced = np.ones(means.shape, dtype=bool)
            forced[i] = False
            forced[i, k] = True
            fair[i, k] = bottleneck_matching(means, forced)[0] >= env.max_min_value
        assert (result.final_active[0] >= fair).all()
        assert (means[result.final_active[0]] >= env.max_min_value).all()


def test_elimination_compares_with_the_matching_value() -> None:
    everything = np.ones((2, 2), dtype=bool)
    # Player 0's best arm is far above its other, yet that other stays: only it leaves arm 0 to player 1.
    active, base = eliminate(everything, np.array([[0.9, 0.5], [0.8, 0.1]]), np.full((2, 2), 0.01))
    assert base.tolist() == [1, 0]
    assert active.tolist() == [[False, True], [True, False]]  # (0, 0) goes by step (b), (1, 1) by step (a)


def test_elimination_keeps_what_is_within_the_widths() -> None:
    everything = np.ones((2, 3), dtype=bool)
    mean = np.array([[0.5, 0.5, 0.29], [0.5, 0.5, 0.31]])
    active, _ = eliminate(everything, mean, np.full((2, 3), 0.1))  # gamma_L = 0.4; UCB 0.39 goes, 0.41 stays
    assert active.tolist() == [[True, True, False], [True, True, True]]


def test_every_active_pair_is_explored_evenly() -> None:
    policy = DFE(C=0.3, n0=3)
    episode = Episode(4, 6, 10**6, np.random.default_rng(0))
    env = MaxMinBandit(random_instance(4, 6, seed=2))
    counts, sums, epoch, t = np.zeros((4, 6)), None, 0, 0
    script = policy.segments(episode)
    while t < 10**6:
        segment = script.send(sums)
        assert segment.rounds == 3 * 2**epoch
        mean, collided = env.outcome(segment.actions)
        assert not collided.any()
        sums = env.draw(mean, collided, segment.rounds, episode.rng)
        np.add.at(counts, (np.arange(4), segment.actions), segment.rounds)
        t += segment.actions.shape[0] * segment.rounds
        assert counts[episode.active].min() >= 3 * (2 ** (epoch + 1) - 1)
        epoch += 1
    assert not episode.active.all()


def test_widths_follow_the_formula() -> None:
    plan = Plan(DFE(C=2, sigma=0.25), 2, 3, 1000)
    plan.count()
    assert plan.log_term == pytest.approx(2 * 0.25 * np.sqrt(2 * np.log(2 * 2 * 3 * 1000)))
    assert plan.grid_step == pytest.approx(plan.log_term / 8)
    assert (plan.counts == 1).all() and plan.time == 3
    means = np.full((2, 3), 0.5)
    means[0, 0] = 0.5 - 2 * plan.log_term - 1e-9
    assert not plan.decide(means)[0][0, 0]
    means[0, 0] = 0.5 - 2 * plan.log_term + 1e-9
    assert plan.decide(means)[0].all()


def test_quantised_intervals_are_wider_by_the_step() -> None:
    plan = Plan(DFE(C=0.1, communication="collision"), 2, 3, 1000)
    plan.count()
    means = np.full((2, 3), 0.5)
    means[0, 0] = 0.5 - 2 * plan.log_term - 1.9 * plan.grid_step
    assert plan.decide(means)[0].all()
    means[0, 0] -= 0.2 * plan.grid_step
    assert not plan.decide(means)[0][0, 0]


def test_the_leader_decides_by_quantised_means_its_own_included(monkeypatch: pytest.MonkeyPatch) -> None:
    decide, seen = Plan.decide, []

    def spy(plan: Plan, means: np.ndarray) -> tuple:
        on_grid = means / plan.grid_step
        seen.append(np.abs(on_grid - np.rint(on_grid))[plan.active].max())
        return decide(plan, means)

    monkeypatch.setattr(Plan, "decide", spy)
    env, policy = MaxMinBandit(random_instance(3, 5, gap=0.3, seed=1)), DFE(C=0.4, communication="collision")
    for mode in ("epoch", "round"):
        simulate(policy, env, 3_000, 1, seed=0, mode=mode)
        assert len(seen) >= 5 and max(seen) < 1e-6
        seen.clear()


def test_anytime_horizons() -> None:
    policy = AnytimeDFE()
    assert [policy.confidence_horizon(t, 7) for t in (1, 16, 17, 256, 257, 65536, 65537)] == [
        16, 16, 256, 256, 65536, 65536, 2**32,
    ]  # fmt: skip
    env = MaxMinBandit(gap_instance(3, 4, 0.3))
    short, long = (simulate(policy, env, T, 5, seed=0).regret[:, -1] for T in (20_000, 200_000))
    assert (short > 0).all() and (long <= 2 * short).all()
    early = simulate(policy, env, 5_000, 5, seed=0, checkpoints=[5_000]).regret
    assert (early == simulate(policy, env, 20_000, 5, seed=0, checkpoints=[5_000]).regret).all()


@pytest.mark.parametrize("communication", ["free", "collision"])
def test_learns_the_named_instance(communication: str) -> None:
    env = MaxMinBandit(SHI2021)
    result = simulate(DFE(communication=communication), env, 10**6, 5, seed=0, checkpoints=[900_000, 10**6])
    assert not (result.final_active & (env.max_min_value - 0.03 > SHI2021)).any()
    assert (result.regret[:, 1] - result.regret[:, 0] < 100).all()
    assert 2000 < result.regret[:, 1].mean() < 2.5 * 4700
    assert (result.comm_rounds > 0).all() == (communication == "collision")


def test_without_elimination_regret_is_linear() -> None:
    env = MaxMinBandit(SHI2021)
    result = simulate(DFE(eliminate=False), env, 10**5, 1, seed=0)
    shifts = np.arange(6) + np.arange(8)[:, None]
    assert result.regret[0, -1] == pytest.approx(10**5 * env.round_regret(shifts % 8).mean(), rel=0.3)
    assert result.final_active.all()


def test_trivial_and_equal_instances() -> None:
    for communication in ("free", "collision"):
        for means in ([[0.3]], np.full((3, 3), 0.6), np.full((2, 5), 0.6)):
            result = simulate(DFE(communication=communication), MaxMinBandit(means), 5_000, 2, seed=0)
            talk = 0.6 * result.comm_rounds[:, None]
            assert (result.regret <= talk).all() and (communication == "collision" or not result.regret.any())
            assert result.final_active.all()


def test_musical_chairs_costs_and_then_learns() -> None:
    env = MaxMinBandit(gap_instance(4, 5, 0.3))
    known, chairs = (
        simulate(DFE(init=i), env, 10**5, 10, seed=1).regret[:, -1].mean() for i in ("known", "musical_chairs")
    )
    assert known < chairs < known + 0.7 * (2 * 5 * np.log(10**5) + 11) + 500
    tiny = simulate(DFE(init="musical_chairs"), MaxMinBandit([[0.9, 0.8], [0.7, 0.9]]), 100, 50, seed=0)
    assert (tiny.regret <= 90 + 1e-9).all()


def test_short_horizons_warn_and_run() -> None:
    env = MaxMinBandit(SHI2021)
    with pytest.warns(HorizonTooShortWarning, match="horizon = 5"):
        result = simulate(DFE(), env, 5, 2, seed=0)
    np.testing.assert_allclose(result.regret[:, -1], env.round_regret([(np.arange(6) + j) % 8 for j in range(5)]).sum())
    with pytest.warns(HorizonTooShortWarning):
        players(env, 7)
    with pytest.warns(HorizonTooShortWarning, match="takes 32 rounds"):
        simulate(DFE(n0=4), env, 31, 1, seed=0)
    simulate(DFE(n0=4), env, 32, 1, seed=0)  # no warning
    with pytest.warns(HorizonTooShortWarning, match="takes 96 rounds"):
        simulate(DFE(init="musical_chairs"), env, 90, 1, seed=0)
    with pytest.warns(HorizonTooShortWarning):
        assert simulate(DFE(n0=4, communication="collision"), env, 1, 1, seed=0).regret.shape == (1, 1)
