"""Win rates from samples: brute force over subsets, unbiasedness, cases that others met."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icml25.infalign import (
    BestOf,
    Standard,
    WorstOf,
    exponential,
    inference_distribution,
    inference_win_rate,
    kl_rl,
    logarithm,
    subset_weights,
    tilt_weights,
    win_rate,
)


def brute_force(policy, ref, N, keep):
    values = []
    for mine in itertools.combinations(policy, N):
        for other in itertools.combinations(ref, N):
            a, b = keep(mine), keep(other)
            values.append((a > b) + 0.5 * (a == b))
    return np.mean(values)


@given(st.integers(0, 10**6), st.booleans())
def test_all_pairs_of_subsets(seed, ties):
    rng = np.random.default_rng(seed)
    M, M2 = rng.integers(2, 8, 2)
    N = int(rng.integers(1, min(M, M2, 4) + 1))
    policy, ref = (rng.integers(0, 3, (2, m)).astype(float) if ties else rng.normal(size=(2, m)) for m in (M, M2))
    for procedure, keep in ((BestOf(N), max), (WorstOf(N), min)):
        found = inference_win_rate(policy, ref, procedure)
        expected = [brute_force(p, q, N, keep) for p, q in zip(policy, ref, strict=True)]
        np.testing.assert_allclose(found.per_prompt, expected, atol=1e-12)
        assert found.mean == pytest.approx(np.mean(expected), abs=1e-12)


def test_one_good_answer_of_four():
    """Drawn with replacement, best of 4 would find it in 68% of the draws."""
    policy, ref = np.tile([1.0, 0, 0, 0], (5, 1)), np.full((5, 4), 0.5)
    for procedure, expected in ((Standard(), 0.25), (BestOf(2), 0.5), (BestOf(4), 1.0), (WorstOf(2), 0.0)):
        result = inference_win_rate(policy, ref, procedure)
        assert result.mean == pytest.approx(expected, abs=1e-12)
        assert result.low == pytest.approx(expected, abs=1e-12) == result.high  # all prompts agree
    with pytest.raises(ValueError, match=r"4 samples a prompt do not suffice for subsets of N = 5"):
        inference_win_rate(policy, ref, BestOf(5))
    with pytest.raises(ValueError, match="4 samples"):
        inference_win_rate(policy, np.full((5, 9), 0.5), BestOf(5))
    with pytest.raises(ValueError, match="4 samples"):
        inference_win_rate(np.full((5, 9), 0.5), ref, WorstOf(5))


def test_one_good_answer_of_two_thousand():
    """C(2000, 1000) is about 1e600."""
    policy = np.zeros((1, 2000))
    policy[0, 77] = 1
    ref = np.full((1, 2000), 0.5)
    assert inference_win_rate(policy, ref, BestOf(1000)).mean == pytest.approx(0.5, abs=1e-9)
    assert inference_win_rate(-policy, -ref, WorstOf(1000)).mean == pytest.approx(0.5, abs=1e-9)
    for N in (1, 17, 1000, 2000):
        assert subset_weights(2000, BestOf(N)).sum() == pytest.approx(1, abs=1e-12)


def test_unbiased():
    rng = np.random.default_rng(0)
    pi, ref, reward = np.array([0.2, 0.3, 0.5]), np.array([0.6, 0.3, 0.1]), np.array([0.0, 1.0, 2.0])
    policy, other = (reward[rng.choice(3, (10_000, 6), p=p)] for p in (pi, ref))
    for procedure in (Standard(), BestOf(3), WorstOf(3)):
        exact = win_rate(*(inference_distribution(p, reward, procedure) for p in (pi, ref)), reward)
        result = inference_win_rate(policy, other, procedure)
        assert result.mean == pytest.approx(exact, abs=4 * result.per_prompt.std() / 100)
        assert result.low < exact < result.high


def test_bootstrap():
    rng = np.random.default_rng(1)
    policy, ref = rng.normal(1, 1, (60, 8)), rng.normal(size=(60, 8))
    first, again, other, narrow = (
        inference_win_rate(policy, ref, BestOf(2), ci, seed=s) for ci, s in ((0.95, 3), (0.95, 3), (0.95, 4), (0.5, 3))
    )
    assert (first.low, first.high) == (again.low, again.high) != (other.low, other.high)
    assert first.low < narrow.low < first.mean < narrow.high < first.high
    spread = first.per_prompt.std(ddof=1) / np.sqrt(60)
    assert (first.high - first.low) == pytest.approx(2 * 1.96 * spread, rel=0.1)


@given(st.integers(0, 10**6))
def test_weights_are_kl_rl_on_the_samples(seed):
    rng = np.random.default_rng(seed)
    C, beta = rng.random((3, 8)), float(rng.uniform(0.01, 2))
    weights = tilt_weights(C, exponential(10), beta)
    np.testing.assert_allclose(weights, kl_rl(np.full((3, 8), 1 / 8), exponential(10)(C), beta), atol=1e-14)


def test_weights_of_extreme_values():
    np.testing.assert_allclose(tilt_weights(np.array([0.0, 0.5, 1.0]), exponential(-700), 1e-3), [0, 0.5, 0.5])
    weights = tilt_weights(np.array([0.0, 0.5, 1.0]), logarithm(np.inf), 1.0)
    np.testing.assert_allclose(weights, [0, 1 / 3, 2 / 3])


@pytest.mark.parametrize(
    ("policy", "ref", "ci", "message"),
    [
        (np.zeros((2, 3)), np.zeros((3, 3)), 0.95, "shape"),
        (np.zeros((0, 3)), np.zeros((0, 3)), 0.95, "shape"),
        (np.array([[0, np.nan, 0]]), np.zeros((1, 3)), 0.95, "policy_rewards of prompt 0"),
        (np.zeros((1, 3)), np.array([[0, np.inf, 0]]), 0.95, "ref_rewards of prompt 0"),
        (np.zeros((1, 3)), np.zeros((1, 3)), 1.0, "ci must lie in"),
    ],
)
def test_bad_input(policy, ref, ci, message):
    with pytest.raises((ValueError, TypeError), match=f"{message}|Type-check"):
        inference_win_rate(policy, ref, BestOf(2), ci)


def test_bad_weights():
    with pytest.raises(ValueError, match=r"C must lie in \[0, 1\]"):
        tilt_weights(np.array([0.0, 1.1]), exponential(1), 1.0)
    with pytest.raises(ValueError, match="beta"):
        tilt_weights(np.array([0.0, 1.0]), exponential(1), 0.0)
    with pytest.raises(TypeError):
        subset_weights(4, object())
