"""Curves are exact, both modes have the same law, results do not depend on how they are computed."""

import numpy as np
import pytest
from test_env import SHI2021

from icml25.dfe import (
    DFE,
    Episode,
    ExploreThenCommit,
    MaxMinBandit,
    PacketRandomMatching,
    PhasedCUCB,
    Segment,
    UniformMatching,
    bottleneck_matching,
    gap_instance,
    play,
    simulate,
)

POLICIES = {
    "free": DFE(C=0.4),
    "collision": DFE(C=0.4, communication="collision"),
    "chairs": DFE(C=0.4, init="musical_chairs"),
    "uniform": UniformMatching(),
    "etc": ExploreThenCommit(20),
    "cucb": PhasedCUCB(),
    "packets": PacketRandomMatching(c1=2, c2=2),
}
WIDE = {
    name: DFE(sigma=3, communication=policy.communication, init=policy.init)
    if isinstance(policy, DFE)
    else PhasedCUCB(sigma=3)
    if name == "cucb"
    else policy
    for name, policy in POLICIES.items()
}
MEANS = np.array([[0.9, 0.5, 0.1], [0.8, 0.7, 0.2], [0.3, 0.6, 0.4]])


class Scripted:
    """Plays given segments, to look at the bookkeeping."""

    def __init__(self, *segments: Segment) -> None:
        self.list, self.heard = segments, []

    def segments(self, episode):
        for segment in self.list:
            sums = yield segment
            self.heard.append(sums)


def test_curve_is_exact_at_every_round() -> None:
    env = MaxMinBandit(MEANS)
    actions = np.array([[0, 1, 2], [2, 0, 1], [0, 0, 2]])
    policy = Scripted(Segment(actions, 3), Segment(actions[::-1], 4))
    result = simulate(policy, env, 17, 1, seed=0, checkpoints=np.arange(1, 18))
    each = np.r_[np.repeat([0, 0.3, 0.4], 3), np.repeat([0.4, 0.3], 4)]
    np.testing.assert_allclose(result.regret[0], np.cumsum(each))
    assert result.pulls[0].tolist() == [[3, 0, 7], [7, 3, 0], [0, 7, 10]]


@pytest.mark.parametrize("mode", ["epoch", "round"])
def test_sums_are_cut_at_the_horizon(mode: str) -> None:
    env = MaxMinBandit(np.ones((2, 3)))
    policy = Scripted(
        Segment(np.array([[0, 1], [1, 1], [1, 2]]), 4), Segment(np.array([[0, 1]]), 100, communication=True)
    )
    result = simulate(policy, env, 30, 1, seed=0, mode=mode)
    assert policy.heard[0].tolist() == [[4, 4], [0, 0], [4, 4]]
    assert result.comm_rounds.tolist() == [18] and result.regret[0, -1] == 4
    cut = simulate(Scripted(policy.list[0]), env, 9, 1, seed=0, mode=mode)
    assert cut.pulls[0].sum() == 10


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("mode", ["epoch", "round"])
def test_case_regret_never_falls(name: str, mode: str) -> None:
    env = MaxMinBandit(MEANS, "gaussian", sigma=3)
    result = simulate(WIDE[name], env, 2_000, 4 if mode == "epoch" else 2, seed=0, mode=mode)
    assert result.regret.shape[1] == len(result.checkpoints) and result.checkpoints[-1] == 2_000
    assert (result.regret >= 0).all() and (np.diff(result.regret, axis=1) >= -1e-9).all()
    assert (result.regret <= 800 + 1e-9).all()
    assert (result.pulls.sum(2) <= 2_000).all()


@pytest.mark.parametrize("name", POLICIES)
def test_both_modes_have_the_same_law(name: str) -> None:
    env = MaxMinBandit(gap_instance(3, 3, 0.5))
    runs = 20 if hasattr(POLICIES[name], "players") or name == "cucb" else 60
    ends = [simulate(POLICIES[name], env, 400, runs, seed=s, mode=m) for s, m in ((1, "epoch"), (2, "round"))]
    for of in (lambda r: r.regret[:, -1], lambda r: r.regret[:, 25], lambda r: r.pulls[:, 0, 0]):
        one, two = (of(r) for r in ends)
        error = np.sqrt((one.var() + two.var()) / runs)
        assert abs(one.mean() - two.mean()) <= 4 * error + 1e-9
    if name in ("free", "collision", "chairs"):
        epochs = [np.mean([sum(m) for m in r.matchings_per_epoch]) for r in ends]
        assert epochs[0] == pytest.approx(epochs[1], rel=0.15)


def test_failed_musical_chairs_cost_the_same_in_both_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("communication", "dfe"):
        monkeypatch.setattr(f"icml25.dfe.{module}.musical_chairs_rounds", lambda k, horizon: (2, 2 * k))
    env = MaxMinBandit(gap_instance(3, 4, 0.2))
    policy = DFE(init="musical_chairs")
    ends = [simulate(policy, env, 300, 40, seed=0, mode=mode, checkpoints=[10, 11, 300]) for mode in ("epoch", "round")]
    lost = np.array([len(run) == 0 for run in ends[0].matchings_per_epoch])
    assert 5 <= lost.sum() <= 35
    assert (lost == [len(run) == 0 for run in ends[1].matchings_per_epoch]).all()
    for result in ends:  # the chairs take ten rounds
        np.testing.assert_allclose(result.regret[lost, 1:] - result.regret[lost, :1], [[0.7, 0.7 * 290]] * lost.sum())
        assert (result.regret[~lost, 2] < 0.7 * 290).all() and (result.epochs[lost] == 0).all()
    np.testing.assert_allclose(ends[0].regret[lost], ends[1].regret[lost])
    assert (ends[0].pulls[lost] == ends[1].pulls[lost]).all() and ends[1].final_active[lost].all()


def test_one_seed_one_result() -> None:
    env = MaxMinBandit(SHI2021)
    for policy in (DFE(), DFE(communication="collision", init="musical_chairs")):
        one, two = (simulate(policy, env, 5_000, 2, seed=7) for _ in range(2))
        assert (one.regret == two.regret).all() and (one.pulls == two.pulls).all()
        assert not (one.regret == simulate(policy, env, 5_000, 2, seed=8).regret).all()
        more = simulate(policy, env, 5_000, 3, seed=7)
        assert (more.regret[:2] == one.regret).all()


def test_jobs_change_nothing() -> None:
    env = MaxMinBandit(SHI2021)
    one, two = (simulate(DFE(), env, 20_000, 3, seed=7, n_jobs=jobs) for jobs in (1, 2))
    assert (one.regret == two.regret).all() and one.matchings_per_epoch == two.matchings_per_epoch


def test_the_oracle_has_no_regret() -> None:
    env = MaxMinBandit(SHI2021)
    result = simulate(Scripted(Segment(env.max_min_matching[None], 10**9)), env, 10**9, 2, seed=0)
    assert not result.regret.any()


def test_uniform_and_etc_closed_forms() -> None:
    env = MaxMinBandit(SHI2021)
    shifts = (np.arange(6) + np.arange(8)[:, None]) % 8
    each = env.round_regret(shifts)
    uniform = simulate(UniformMatching(), env, 20_001, 1, seed=0, checkpoints=[8, 800, 20_001])
    np.testing.assert_allclose(uniform.regret[0], [each.sum(), 100 * each.sum(), 2500 * each.sum() + each[0]])
    assert each.mean() == pytest.approx(0.511, abs=1e-3)
    quiet = MaxMinBandit(SHI2021, "gaussian", sigma=1e-6)
    etc = simulate(ExploreThenCommit(5), quiet, 10_000, 1, seed=0)
    assert etc.regret[0, -1] == pytest.approx(5 * each.sum())


def test_cucb_recomputes_when_a_count_doubles() -> None:
    policy, seen = PhasedCUCB(), []
    env = MaxMinBandit(SHI2021)
    script = policy.segments(Episode(6, 8, 10**5, np.random.default_rng(0)))
    counts, sums = np.zeros((6, 8)), None
    total = np.zeros((6, 8))
    while counts.sum() < 6 * 10**5:
        segment = script.send(sums)
        rows = segment.actions
        if len(rows) == 1:
            ucb = total / counts + 0.5 * np.sqrt(2 * np.log(2 * 48 * 10**5) / counts)
            value, _ = bottleneck_matching(ucb)
            assert ucb[np.arange(6), rows[0]].min() == pytest.approx(value, abs=1e-12)
            assert segment.rounds == counts[np.arange(6), rows[0]].min()
        np.add.at(counts, (np.arange(6), rows), segment.rounds)
        seen.append(rows[-1])
        sums = env.draw(*env.outcome(rows), segment.rounds, np.random.default_rng(len(seen)))
        np.add.at(total, (np.arange(6), rows), sums)
    late = simulate(policy, env, 10**6, 3, seed=0, checkpoints=[900_000, 10**6]).regret
    assert (late[:, 1] - late[:, 0] < 300).all() and (late[:, 1] < 3_000).all()


def test_packets_find_the_matching_without_noise() -> None:
    env = MaxMinBandit(gap_instance(3, 4, 0.3, value=0.9), "gaussian", sigma=1e-6)  # the first threshold 0.5 is too low
    result = simulate(PacketRandomMatching(), env, 10**6, 3, seed=0, checkpoints=[990_000, 10**6])
    assert (result.regret[:, 1] - result.regret[:, 0] < 1).all()
    assert (result.regret[:, 1] > 0).all()


class SpiedPackets(PacketRandomMatching):
    """Notes which random matchings succeed."""

    def _match(self, wanted, rng):
        rows, frozen = super()._match(wanted, rng)
        self.success = tuple(rows[-1].tolist()) if frozen else None
        return rows, frozen


def packets(means: np.ndarray, n_packets: int, seed: int, sigma: float = 0.5) -> list[tuple]:
    """For each packet: sample means of the uncollided rounds, the matching that succeeded or None, the one exploited."""
    env, rng = MaxMinBandit(means, "gaussian", sigma=sigma), np.random.default_rng(seed)
    n, k = means.shape
    policy = SpiedPackets(c1=10, c2=5)
    script = policy.segments(Episode(n, k, 10**6, np.random.default_rng(seed + 1)))
    table, counts, sums, seen = np.zeros((n, k)), np.zeros((n, k)), None, []
    for _ in range(n_packets):
        for step in range(4):
            segment = script.send(sums)
            mean, collided = env.outcome(segment.actions)
            sums = env.draw(mean, collided, segment.rounds, rng)
            if step == 0:
                np.add.at(table, (np.arange(n), segment.actions), sums)
                np.add.at(counts, (np.arange(n), segment.actions), ~collided)
        seen.append((table / np.maximum(counts, 1), policy.success, tuple(segment.actions[0].tolist())))
    return seen


def test_packets_exploit_the_success_that_now_looks_best() -> None:
    displaced = 0
    for seed in range(10):
        found, last = set(), None
        for means, success, exploited in packets(SHI2021, 12, seed):
            found |= {success} - {None}
            assert exploited in (found or {tuple(range(6))})
            worst = {arms: means[np.arange(6), list(arms)].min() for arms in found | {exploited}}
            assert worst[exploited] == max(worst.values())
            displaced += last in found and exploited not in (last, success)
            last = exploited
    assert displaced >= 1  # new samples alone can bring an older success back


def test_only_uncollided_rounds_of_packets_count() -> None:
    # In random rounds each of three players on three arms collides in 5 of 9: if these counted, 0.9 would look like 0.4,
    # and no player would want an arm at the first threshold 0.5.
    _, success, exploited = packets(np.full((3, 3), 0.9), 1, seed=0, sigma=1e-9)[0]
    assert success is not None and exploited == success


def test_random_matching_of_packets() -> None:
    def match(wanted: list) -> tuple:
        return PacketRandomMatching(c2=5)._match(np.array(wanted, dtype=bool), np.random.default_rng(0))

    rows, frozen = match([[1, 1, 0], [0, 1, 1], [1, 0, 1]])
    assert frozen and rows.shape == (45, 3) and sorted(rows[-1].tolist()) == [0, 1, 2]
    assert not (rows == [2, 0, 1]).any()
    assert not match([[1, 0, 0], [1, 0, 0]])[1]
    assert not match([[1, 0, 0], [0, 0, 0]])[1]


def test_plain_players_can_play() -> None:
    class Fixed:
        def __init__(self, arm: int) -> None:
            self.arm, self.total = arm, 0.0

        def choose(self) -> int:
            return self.arm

        def observe(self, reward: float, collision: bool) -> None:
            self.total += reward

    class Team:
        def players(self, n, k, horizon, rng):
            return [Fixed(i) for i in range(n)]

    env = MaxMinBandit(np.eye(2, 3))
    team = [Fixed(0), Fixed(1)]
    result = play(team, env, 100, 0)
    assert result.regret[0, -1] == 0 and [p.total for p in team] == [100, 100]
    assert play([Fixed(0), Fixed(0)], env, 100, 0).regret[0, -1] == 100
    assert simulate(Team(), env, 50, 2, mode="round").regret.shape[0] == 2
    with pytest.raises(TypeError, match="needs a policy with segments"):
        simulate(Team(), env, 50)
    with pytest.raises(ValueError, match="actions of player 1"):
        play([Fixed(0), Fixed(3)], env, 10, 0)
    with pytest.raises(ValueError, match="players must be 2 objects"):
        play([Fixed(0)], env, 10, 0)
