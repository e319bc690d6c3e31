"""Shares against brute force, axioms, closed forms; the potential; permutations."""

import math
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.mshap import (
    CallableAccuracy,
    LinearFractional,
    PowerLaw,
    ShapleyEstimator,
    sample_orders,
    settle,
    shapley_shares,
)

W4 = np.array(
    [
        [0.131, 0.0613, 0.0178, 0.0131],
        [0.1645, 0.1834, 0.1253, 0.1486],
        [0.1133, 0.1877, 0.165, 0.0105],
        [0.1729, 0.0164, 0.1486, 0.0434],
    ]
)
S4 = np.array([3.0, 5.0, 1.0, 7.0])


def brute_force(A, n):
    """The definition: a sum over coalitions without i."""
    shares = np.zeros(n)
    for i in range(n):
        others = [j for j in range(n) if j != i]
        for size in range(n):
            for X in combinations(others, size):
                shares[i] += (A({*X, i}) - A(set(X))) / (n * math.comb(n - 1, size))
    return shares


def total_of(W, s):
    return lambda X: sum(1 - 1 / (1 + sum(row[j] * s[j] for j in X)) for row in W)


def as_callable(W):
    return CallableAccuracy(lambda S: 1 - 1 / (1 + S @ W.T))


def difference(f, s, i, h=1e-5):
    unit = np.eye(len(s))[i] * h
    return (f(s + unit) - f(s - unit)) / (2 * h)


def test_reference_game():
    estimator, accuracy = ShapleyEstimator("exact"), LinearFractional(W4)
    np.testing.assert_allclose(estimator.shares(accuracy, S4), [0.7561, 0.8096, 0.2056, 0.5118], atol=5e-4)
    np.testing.assert_allclose(estimator.own_gradient(accuracy, S4), [0.184, 0.103, 0.184, 0.051], atol=5e-4)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
def test_exact_is_the_definition(n):
    rng = np.random.default_rng(n)
    W, s = rng.random((n, n)) * 0.2, rng.random(n) * 20
    expected = brute_force(total_of(W, s), n)
    np.testing.assert_allclose(ShapleyEstimator("exact").shares(LinearFractional(W), s), expected, atol=1e-12)
    np.testing.assert_allclose(ShapleyEstimator("exact").shares(as_callable(W), s), expected, atol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "power", "callable"])
def test_all_permutations_are_exact(kind):
    rng = np.random.default_rng(2)
    W, s, t = rng.random((4, 4)) * 0.2, rng.random(4) * 20, rng.random(4) * 20
    accuracy = {"linear": LinearFractional(W), "power": PowerLaw(0.5, 0.7), "callable": as_callable(W)}[kind]
    exact, orders = ShapleyEstimator("exact"), np.array(list(permutations(range(4))))
    along = ShapleyEstimator(orders=orders)
    for name in ("shares", "own_gradient"):
        np.testing.assert_allclose(getattr(along, name)(accuracy, s), getattr(exact, name)(accuracy, s), atol=1e-8)
    np.testing.assert_allclose(
        along.deviation_shares(accuracy, s, t[None]), exact.deviation_shares(accuracy, s, t[None]), atol=1e-10
    )
    for one, other in zip(along.potential(accuracy, s), exact.potential(accuracy, s), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)


@pytest.mark.parametrize("method", ["exact", "permutation"])
@pytest.mark.parametrize("kind", ["linear", "grouped", "power", "callable", "jacobian"])
def test_derivatives_are_finite_differences(method, kind):
    rng = np.random.default_rng(3)
    W, s = rng.random((5, 5)) * 0.2, 1 + rng.random(5) * 20
    accuracy = {
        "linear": LinearFractional(W),
        "grouped": LinearFractional(W[:2, :2], groups=[0, 1, 1, 0, 1]),
        "power": PowerLaw(0.5, 0.7),
        "callable": as_callable(W),
        "jacobian": CallableAccuracy(lambda S: 1 - 1 / (1 + S @ W.T), lambda S: W / (1 + S @ W.T)[..., None] ** 2),
    }[kind]
    estimator = ShapleyEstimator(method, num_pairs=7 if method == "permutation" else None)
    own, (_, slope) = estimator.own_gradient(accuracy, s), estimator.potential(accuracy, s)
    for i in range(5):
        assert own[i] == pytest.approx(difference(lambda x, i=i: estimator.shares(accuracy, x)[i], s, i), abs=1e-6)
        assert slope[i] == pytest.approx(difference(lambda x: estimator.potential(accuracy, x)[0], s, i), abs=1e-6)
    if method == "exact":
        np.testing.assert_allclose(own, slope, atol=1e-12)


def test_potential_is_hart_and_mas_colells():
    accuracy, estimator = LinearFractional(W4), ShapleyEstimator("exact")
    shares = estimator.shares(accuracy, S4)
    whole = estimator.potential(accuracy, S4)[0]
    for i in range(4):
        assert shares[i] == pytest.approx(whole - estimator.potential(accuracy, np.where(np.arange(4) == i, 0, S4))[0])


@pytest.mark.parametrize("method", ["exact", "permutation"])
def test_deviations_are_one_at_a_time(method):
    rng = np.random.default_rng(4)
    s, t = rng.random(4) * 20, rng.random(4) * 20
    estimator = ShapleyEstimator(method, num_pairs=3 if method == "permutation" else None)
    for accuracy in (LinearFractional(W4), as_callable(W4)):
        moved = [estimator.shares(accuracy, np.where(np.arange(4) == i, t, s))[i] for i in range(4)]
        np.testing.assert_allclose(estimator.deviation_shares(accuracy, s, t[None])[0], moved, atol=1e-12)


def test_permutations_are_unbiased():
    n, rng = 5, np.random.default_rng(5)
    W, s = rng.random((n, n)) * 0.2, rng.random(n) * 20
    accuracy = LinearFractional(W)
    draws = np.array([ShapleyEstimator(num_pairs=2, seed=k).shares(accuracy, s) for k in range(200)])
    gradients = np.array([ShapleyEstimator(num_pairs=7, seed=k).own_gradient(accuracy, s) for k in range(200)])
    exact = ShapleyEstimator("exact")
    for sample, truth in ((draws, exact.shares(accuracy, s)), (gradients, exact.own_gradient(accuracy, s))):
        error = sample.std(0, ddof=1) / 200**0.5
        assert (np.abs(sample.mean(0) - truth) < 4 * error).all()
        assert error.max() > 0


def test_orders_are_balanced_pairs():
    orders = sample_orders(6, 13, seed=1)
    assert orders.shape == (26, 6)
    np.testing.assert_array_equal(orders[::2], orders[1::2, ::-1])
    for agent in range(6):
        np.testing.assert_array_equal((orders[:24] == agent).sum(0), np.full(6, 4))
    assert sample_orders(30).shape == (2 * 30 * 4, 30)
    assert sample_orders(1).shape == (2, 1)
    np.testing.assert_array_equal(sample_orders(6, 13, seed=1), orders)
    assert (sample_orders(6, 13, seed=2) != orders).any()


@settings(deadline=None, max_examples=25)
@given(n=st.integers(1, 6), seed=st.integers(0, 2**31), pairs=st.integers(1, 9))
def test_axioms(n, seed, pairs):
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=2**n), rng.normal(size=2**n)
    bits = 2 ** np.arange(n)
    for options in ({"method": "exact"}, {"method": "permutation", "num_pairs": pairs}):
        one = shapley_shares(lambda m: first[m @ bits], n, **options)
        two = shapley_shares(lambda m: second[m @ bits], n, **options)
        both = shapley_shares(lambda m: (first + 3 * second)[m @ bits], n, **options)
        assert one.sum() == pytest.approx(first[-1] - first[0], abs=1e-9)
        np.testing.assert_allclose(both, one + 3 * two, atol=1e-9)
        null = shapley_shares(lambda m: first[m[:, 1:] @ bits[1:]] if n > 1 else np.zeros(len(m)), n, **options)
        assert abs(null[0]) < 1e-12
    symmetric = shapley_shares(lambda m: m.sum(1) ** 1.5, n, "exact")
    np.testing.assert_allclose(symmetric, n**0.5, atol=1e-12)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**31), n=st.integers(2, 6))
def test_relabelling_permutes(seed, n):
    rng = np.random.default_rng(seed)
    W, s, order = rng.random((n, n)), rng.random(n) * 10, rng.permutation(n)
    estimator = ShapleyEstimator("exact")
    shares = estimator.shares(LinearFractional(W), s)
    np.testing.assert_allclose(
        estimator.shares(LinearFractional(W[np.ix_(order, order)]), s[order]), shares[order], atol=1e-12
    )


def test_groups_are_blocks():
    W, groups = np.array([[0.2, 0.05], [0.1, 0.3]]), np.array([0, 1, 0, 1, 1])
    s = np.arange(1.0, 6)
    full = LinearFractional(W[np.ix_(groups, groups)])
    grouped = LinearFractional(W, groups=groups)
    rows = np.array([s, 0 * s, 2 * s])
    for name in ("__call__", "own_gradient", "total", "total_gradient"):
        np.testing.assert_allclose(getattr(grouped, name)(rows), getattr(full, name)(rows), atol=1e-14)
    for estimator in (ShapleyEstimator("exact"), ShapleyEstimator(num_pairs=6)):
        np.testing.assert_allclose(estimator.shares(grouped, s), estimator.shares(full, s), atol=1e-13)


@pytest.mark.parametrize(
    "options", [{"method": "exact"}, {"num_pairs": 1}, {"num_pairs": 5}, {"orders": [[3, 1, 0, 2, 5, 4]]}]
)
def test_large_values_still_add_up(options):
    """v = 2e10 + (Σw)² has φ_i = w_i Σw, and single precision would lose it all."""
    w = np.arange(1.0, 7)
    squared = shapley_shares(lambda m: 2e10 + (m @ w) ** 2, 6, **options)
    linear = shapley_shares(lambda m: 2e10 + m @ w, 6, **options)
    assert squared.sum() == pytest.approx(441, abs=1e-3)
    np.testing.assert_allclose(linear, w, atol=1e-3)
    if "orders" not in options:  # a pair of opposite permutations is exact for pairwise games
        np.testing.assert_allclose(squared, 21 * w, atol=1e-3)


def test_chunks_do_not_matter(monkeypatch):
    accuracy, estimator = LinearFractional(W4), ShapleyEstimator("exact")
    sampled = ShapleyEstimator(num_pairs=9)
    everything = [e.shares(a, S4) for e in (estimator, sampled) for a in (accuracy, as_callable(W4))]
    slopes = estimator.potential(accuracy, S4)[1]
    monkeypatch.setattr("icml25.mshap.shapley._MASKS_PER_CHUNK", 12)
    monkeypatch.setattr("icml25.mshap.accuracy._FLOATS_PER_CHUNK", 33)
    chunked = [e.shares(a, S4) for e in (estimator, sampled) for a in (accuracy, as_callable(W4))]
    np.testing.assert_allclose(chunked, everything, atol=1e-13)
    np.testing.assert_allclose(estimator.potential(accuracy, S4)[1], slopes, atol=1e-13)


def test_generator_seeds_are_drawn_once():
    estimator = ShapleyEstimator(num_pairs=3, seed=np.random.default_rng(0))
    accuracy = LinearFractional(W4)
    np.testing.assert_array_equal(estimator.shares(accuracy, S4), estimator.shares(accuracy, S4))


def test_settle():
    accuracy = LinearFractional(W4)
    masks = (np.arange(16)[:, None] >> np.arange(4) & 1) * S4
    values = accuracy.total(masks) + 0.4
    gains = accuracy(S4[None])[0]
    payments = settle(gains, values)
    np.testing.assert_allclose(payments, ShapleyEstimator("exact").shares(accuracy, S4) - gains, atol=1e-12)
    assert abs(payments.sum()) < 1e-12
    named = {tuple(np.flatnonzero(row).tolist()): v for row, v in zip(masks, values.tolist(), strict=True)}
    np.testing.assert_allclose(settle(gains, named), payments, atol=1e-14)
    with pytest.raises(ValueError, match="expected gains"):
        settle(gains + 0.1, values)
    with pytest.raises(ValueError, match=r"2\^4 = 16"):
        settle(gains, values[:-1])
    for key, error, match in (
        (0, TypeError, "the key 0; expected tuples or frozensets"),
        ((2, 0), ValueError, r"names the coalition \[0, 2\] twice"),
        ((0, 9), ValueError, "unknown coalition"),
        ((0, 0), ValueError, "unknown coalition"),
    ):
        with pytest.raises(error, match=match):
            settle(gains, named | {key: 1.0})
    del named[0, 2]
    with pytest.raises(ValueError, match=r"lacks the coalition \[0, 2\]"):
        settle(gains, named)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"method": "montecarlo"}, "method is 'montecarlo'"),
        ({"method": "exact", "num_pairs": 3}, "neither num_pairs nor orders"),
        ({"num_pairs": 0}, "num_pairs is 0"),
        ({"num_pairs": 2, "orders": [[0, 1]]}, "both given"),
        ({"orders": [[0, 0, 1]]}, r"orders\[0\] is not a permutation"),
        ({"orders": [[0.0, 1.0]]}, "orders has dtype float64"),
    ],
)
def test_bad_estimators(options, match):
    with pytest.raises(ValueError, match=match):
        ShapleyEstimator(**options)


def test_bad_games():
    with pytest.raises(ValueError, match="method='permutation'"):
        shapley_shares(lambda m: m.sum(1), 21, "exact")
    with pytest.raises(ValueError, match="n is 0"):
        shapley_shares(lambda m: m.sum(1), 0)
    with pytest.raises(ValueError, match="v returned shape"):
        shapley_shares(lambda m: m, 3)
    with pytest.raises(ValueError, match="NaN"):
        shapley_shares(lambda m: np.full(len(m), np.nan), 3)
    for wrong in (np.ones(8, dtype=complex), np.array(["a"] * 8), np.ones(8, dtype=bool)):
        with pytest.raises(TypeError, match="v returned dtype"):
            shapley_shares(lambda m, wrong=wrong: wrong[: len(m)], 3)
    with pytest.raises(ValueError, match="orders are of 2 agents; the game has 3"):
        shapley_shares(lambda m: m.sum(1), 3, orders=[[0, 1]])
    with pytest.raises(TypeError, match="n is True"):
        shapley_shares(lambda m: m.sum(1), True)
