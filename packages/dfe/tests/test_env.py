"""Regret, collisions and rewards of the bandit against closed forms."""

import numpy as np
import pytest

from icml25.dfe import MaxMinBandit, gap_instance, random_instance

SHI2021 = np.array(
    [
        [0.45, 0.49, 0.59, 0.17, 0.37, 0.86, 0.94, 0.98],
        [0.39, 0.25, 0.4, 0.6, 0.24, 0.54, 0.43, 0.67],
        [0.39, 0.33, 0.8, 0.01, 0.12, 0.2, 0.61, 0.77],
        [0.95, 0.22, 0.24, 0.88, 0.2, 0.12, 0.29, 0.3],
        [0.69, 0.89, 0.25, 0.59, 0.43, 0.18, 0.01, 0.84],
        [0.97, 0.15, 0.89, 0.16, 0.09, 0.57, 0.61, 0.19],
    ]
)


def test_named_instance() -> None:
    env = MaxMinBandit(SHI2021)
    assert env.max_min_value == 0.67
    assert env.max_min_matching.tolist() == [5, 7, 2, 3, 1, 0]
    assert env.gap == pytest.approx(0.06)


def test_gap_ignores_pairs_above_the_value() -> None:
    env = MaxMinBandit([[0.9, 0.8], [0.1, 0.5]])
    assert env.max_min_value == 0.5 and env.gap == pytest.approx(0.4)
    assert MaxMinBandit(np.full((2, 3), 0.4)).gap == np.inf


def test_case_regret_of_the_means() -> None:
    env = MaxMinBandit([[0.9, 0.5, 0.1], [0.8, 0.7, 0.2], [0.3, 0.6, 0.4]], "gaussian", sigma=3)
    assert env.max_min_value == 0.4
    np.testing.assert_allclose(env.round_regret([[0, 1, 2], [2, 0, 1], [0, 0, 2]]), [0, 0.3, 0.4], atol=1e-15)


def test_regret_is_never_negative() -> None:
    env = MaxMinBandit([[0.0, -2.0], [-1.0, 0.0]], "gaussian")
    assert env.max_min_value == 0
    assert env.round_regret([[0, 0], [0, 1], [1, 0]]).tolist() == [0, 0, 2]  # a collision pays 0


def test_collisions_are_never_better_than_the_best_matching() -> None:
    for means in ([[-1.0, -2.0], [-1.0, -3.0]], [[-0.1]], [[5.0, 4.0], [-1.0, -1.0]]):
        with pytest.raises(ValueError, match=r"max-min value -.* a collision pays 0"):
            MaxMinBandit(means, "gaussian")
    assert MaxMinBandit([[5.0, -2.0], [1.0, 0.0]], "gaussian").max_min_value == 0


def test_seeds_are_accepted_where_generators_are() -> None:
    env = MaxMinBandit(SHI2021)
    actions = np.tile(np.arange(6), (20, 1))
    assert (env.step(actions, 3)[0] == env.step(actions, np.random.default_rng(3))[0]).all()


def test_collisions_pay_nothing_and_are_seen_by_all_involved() -> None:
    env = MaxMinBandit(np.ones((3, 4)), "gaussian", sigma=0.1)
    rewards, collisions = env.step([[0, 0, 1], [2, 2, 2], [0, 3, 1]], np.random.default_rng(0))
    assert collisions.tolist() == [[True, True, False], [True] * 3, [False] * 3]
    assert (rewards[collisions] == 0).all() and (np.abs(rewards[~collisions] - 1) < 0.6).all()


@pytest.mark.parametrize("reward", ["bernoulli", "gaussian"])
def test_law_of_the_rewards(reward: str) -> None:
    means = np.array([[0.2, 0.9], [0.6, 0.4]])
    env = MaxMinBandit(means, reward, sigma=0.3)
    rewards, _ = env.step(np.tile([1, 0], (40_000, 1)), np.random.default_rng(1))
    spread = np.sqrt([0.09, 0.24]) if reward == "bernoulli" else np.array([0.3, 0.3])
    assert (np.abs(rewards.mean(0) - [0.9, 0.6]) < 4 * spread / 200).all()
    np.testing.assert_allclose(rewards.std(0), spread, rtol=0.03)


def test_sums_have_the_law_of_added_rewards() -> None:
    rng = np.random.default_rng(2)
    for reward in ("bernoulli", "gaussian"):
        env = MaxMinBandit([[0.3]], reward, sigma=0.4)
        mean, collided = env.outcome(np.zeros((20_000, 1), dtype=np.int64))
        sums = env.draw(mean, collided, np.full((20_000, 1), 25), rng)
        variance = 25 * (0.21 if reward == "bernoulli" else 0.16)
        assert abs(sums.mean() - 7.5) < 4 * np.sqrt(variance / 20_000)
        assert abs(sums.var() / variance - 1) < 0.05


def test_inputs_are_copied() -> None:
    means = np.array([[0.5, 0.2]], order="F")
    env = MaxMinBandit(means)
    means[0, 0] = 0.9
    assert env.max_min_value == 0.5
    means.flags.writeable = False
    assert MaxMinBandit(means).max_min_value == 0.9
    assert MaxMinBandit([[0, 1]]).max_min_value == 1


def test_instances() -> None:
    means = gap_instance(3, 5, 0.2)
    env = MaxMinBandit(means)
    assert env.max_min_value == 0.7 and env.gap == pytest.approx(0.2)
    assert env.max_min_matching.tolist() == [0, 1, 2]
    for seed in range(10):
        env = MaxMinBandit(random_instance(4, 6, gap=0.15, seed=seed))
        assert env.gap == pytest.approx(0.15)
    assert (random_instance(3, 4, seed=5) == random_instance(3, 4, seed=np.random.default_rng(5))).all()
    with pytest.raises(ValueError, match=r"gap = 0\.95 is not"):
        random_instance(2, 2, gap=0.95, seed=0)
    with pytest.raises(ValueError, match="delta <= value"):
        gap_instance(2, 2, 0.8)
    with pytest.raises(ValueError, match="n_arms must be at least 3"):
        gap_instance(3, 2, 0.1)
