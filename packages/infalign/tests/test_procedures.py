"""Procedures: exact distributions by enumeration, derivatives by differences, best and worst upside down."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icml25.infalign import BestOf, Procedure, Standard, WorstOf, calibrated_reward, inference_distribution, win_rate

REF, TIED = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.0, 1.0, 1.0, 2.0])


def enumerate_best(pi, reward, N, sign=1):
    """All A^N draws; a tie is broken by chance among the draws."""
    out = np.zeros(len(pi))
    for draw in itertools.product(range(len(pi)), repeat=N):
        r = sign * reward[list(draw)]
        for i in np.array(draw)[r == r.max()]:
            out[i] += np.prod(pi[list(draw)]) / (r == r.max()).sum()
    return out


def problem(seed, ties):
    rng = np.random.default_rng(seed)
    A = int(rng.integers(2, 6))
    reward = rng.integers(0, 3, A).astype(float) if ties else rng.permutation(A).astype(float)
    return rng.dirichlet(np.ones(A)), rng.dirichlet(np.ones(A)), reward


def test_the_worked_example():
    np.testing.assert_allclose(calibrated_reward(REF, TIED), [0.2, 0.65, 0.65, 0.95], rtol=1e-14)
    np.testing.assert_allclose(BestOf(2).apply(REF, TIED), [0.16, 0.39, 0.26, 0.19], rtol=1e-13)
    np.testing.assert_allclose(WorstOf(2).apply(REF, TIED), [0.64, 0.21, 0.14, 0.01], rtol=1e-13)


@given(st.integers(0, 10**6), st.booleans(), st.integers(1, 4))
def test_apply_is_the_enumeration(seed, ties, N):
    pi, _, reward = problem(seed, ties)
    np.testing.assert_allclose(BestOf(N).apply(pi, reward), enumerate_best(pi, reward, N), atol=1e-13)
    np.testing.assert_allclose(WorstOf(N).apply(pi, reward), enumerate_best(pi, reward, N, -1), atol=1e-13)


@given(st.integers(0, 10**6), st.booleans(), st.integers(1, 5), st.sampled_from([BestOf, WorstOf]))
def test_gradient_is_the_difference_quotient(seed, ties, N, kind):
    pi, ref, reward = problem(seed, ties)
    procedure, h = kind(N), 1e-6
    served = procedure.apply(ref, reward)
    gradient = procedure.gradient(pi, ref, reward)
    for i, j in itertools.combinations(range(len(pi)), 2):  # along the simplex
        move = h * min(pi[i], pi[j]) * (np.eye(len(pi))[i] - np.eye(len(pi))[j])
        up, down = (win_rate(procedure.apply(pi + s * move, reward), served, reward) for s in (1, -1))
        assert (up - down) / (2 * move[i]) == pytest.approx(gradient[i] - gradient[j], abs=2e-4)


@pytest.mark.parametrize("ties", [True, False])
def test_the_derivative_of_the_standard_win_rate_is_the_calibrated_reward(ties):
    pi, ref, reward = problem(3, ties)
    np.testing.assert_allclose(Standard().gradient(pi, ref, reward), calibrated_reward(ref, reward), atol=1e-14)
    np.testing.assert_array_equal(Standard().apply(pi, reward), BestOf(1).apply(pi, reward))
    np.testing.assert_allclose(Standard().apply(pi, reward), pi, rtol=1e-14)


def test_euler():
    """W is homogeneous of degree N in pi, so that pi . dW/dpi = N W: constants included."""
    pi, ref, reward = problem(8, True)
    for procedure in (BestOf(3), WorstOf(3), Standard()):
        W = win_rate(procedure.apply(pi, reward), procedure.apply(ref, reward), reward)
        assert pi @ procedure.gradient(pi, ref, reward) == pytest.approx(procedure.N * W, abs=1e-13)


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_worst_is_best_upside_down(seed, N):
    pi, ref, reward = problem(seed, True)
    best = win_rate(BestOf(N).apply(pi, -reward), BestOf(N).apply(ref, -reward), -reward)
    worst = win_rate(WorstOf(N).apply(pi, reward), WorstOf(N).apply(ref, reward), reward)
    assert worst == pytest.approx(1 - best, abs=1e-12)
    f = np.random.default_rng(seed).dirichlet(np.ones(50))
    F, mirrored = (np.cumsum(g) - g / 2 for g in (f, f[::-1]))
    assert WorstOf(N).win_rate(mirrored) == pytest.approx(1 - BestOf(N).win_rate(F), abs=1e-12)
    slope = WorstOf(N).derivative(mirrored)[::-1] + BestOf(N).derivative(F)
    np.testing.assert_allclose(slope, slope[0], atol=1e-12)


@pytest.mark.parametrize("procedure", [BestOf(3), WorstOf(4), Standard()])
def test_derivative_on_the_grid_is_that_of_win_rate(procedure):
    f = np.random.default_rng(0).dirichlet(np.ones(40))
    phi = procedure.derivative(np.cumsum(f) - f / 2)
    for i, j in [(0, 39), (3, 17), (20, 21)]:
        values = []
        for h in (1e-6, -1e-6):
            g = f.copy()
            g[i], g[j] = g[i] + h, g[j] - h
            values.append(procedure.win_rate(np.cumsum(g) - g / 2))
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(phi[i] - phi[j], abs=1e-6)


@given(st.integers(0, 10**6), st.integers(1, 400))
def test_served_mass_is_one_and_shapes_broadcast(seed, N):
    rng = np.random.default_rng(seed)
    pi, reward = rng.dirichlet(np.full(6, 0.2), size=(2, 3)), rng.integers(0, 3, 6).astype(float)
    for procedure in (BestOf(N), WorstOf(N)):
        served = inference_distribution(pi, reward, procedure)
        assert served.shape == (2, 3, 6) and (served >= 0).all()
        np.testing.assert_allclose(served.sum(-1), 1, rtol=1e-12)
        np.testing.assert_allclose(served[1, 2], procedure.apply(pi[1, 2], reward), rtol=1e-12)


def test_rare_responses_keep_their_digits():
    pi = np.array([1e-12, 0.5 - 1e-12, 0.5])
    served = BestOf(3).apply(pi, np.array([1.0, 0.0, 2.0]))
    assert served[0] == pytest.approx(3 * 0.25e-12, rel=1e-3) and served.sum() == pytest.approx(1)


def test_mean_of_the_calibrated_reward_is_one_half():
    rng = np.random.default_rng(0)
    pi, reward = rng.dirichlet(np.ones(30), size=20), rng.integers(0, 5, (20, 30)).astype(float)
    np.testing.assert_allclose((pi * calibrated_reward(pi, reward)).sum(-1), 0.5, rtol=1e-12)
    np.testing.assert_allclose(win_rate(pi, pi, reward), 0.5, rtol=1e-12)


def test_protocol():
    assert all(isinstance(p, Procedure) for p in (Standard(), BestOf(4), WorstOf(2)))


@pytest.mark.parametrize("N", [0, -1, 2.0, True, "4"])
@pytest.mark.parametrize("kind", [BestOf, WorstOf])
def test_bad_N(kind, N):
    with pytest.raises((ValueError, TypeError), match=f"N must be an integer >= 1, got {N!r}|'N': {N!r}"):
        kind(N)


def test_standard_draws_once():
    with pytest.raises(ValueError, match="draws once"):
        Standard(2)


@pytest.mark.parametrize(
    ("pi", "reward", "message"),
    [
        ([0.5, 0.6], [0, 1], "must sum to 1"),
        ([1.5, -0.5], [0, 1], "negative"),
        ([np.nan, 1], [0, 1], "negative or NaN"),
        ([0.5, 0.5], [0, np.inf], r"must be finite; reward\[1\] is -?inf"),
        ([0.5, 0.5], [0, 1, 2], "last axes|Type-check"),
        ([], [], "expected"),
    ],
)
def test_bad_input(pi, reward, message):
    for call in (
        calibrated_reward,
        BestOf(2).apply,
        WorstOf(2).apply,
        lambda p, r: inference_distribution(p, r, Standard()),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            call(np.array(pi, dtype=float), np.array(reward, dtype=float))


def test_leading_axes_that_differ():
    with pytest.raises(ValueError, match="leading axes"):
        calibrated_reward(np.full((2, 2), 0.5), np.zeros((3, 2)))
