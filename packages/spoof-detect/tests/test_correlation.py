"""The statistic and its null distribution: libraries, brute force over permutations, closed forms, simulation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from icml25.spoof_detect import correlation_test, expected_statistic, fisher_difference, required_tokens

settings.register_profile("icml25", deadline=None, max_examples=40)
settings.load_profile("icml25")


@given(st.integers(0, 10**6), st.integers(50, 300))
def test_statistic_is_pearsons(seed, n):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal(n), rng.poisson(1, n) + rng.random(n)
    result = correlation_test(x, y)
    assert result.statistic == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)
    assert result.z == pytest.approx(result.statistic * math.sqrt(n - 1))
    assert result.p_value == pytest.approx(stats.norm.sf(result.z))
    assert (result.n, result.precision, result.method) == (n, pytest.approx(n - 3), "asymptotic")


def test_binary_sequences_give_the_chi_square_statistic():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2, 200), rng.integers(0, 2, 200)
    table = np.array([[np.sum((x == a) & (y == b)) for b in (0, 1)] for a in (0, 1)])
    statistic = correlation_test(x, y).statistic
    assert 200 * statistic**2 == pytest.approx(stats.chi2_contingency(table, correction=False).statistic)


def test_variance_over_all_permutations_is_one_over_n_minus_one():
    x, y = np.array([0.0, 1, 1, 0, 1, 3]), np.array([0.2, 5, 1, 1, 0, 2])
    found = [correlation_test(x[list(p)], y, method="asymptotic") for p in itertools.permutations(range(6))]
    statistics = np.array([f.statistic for f in found])
    assert statistics.mean() == pytest.approx(0, abs=1e-12)
    assert statistics.var() == pytest.approx(1 / 5, abs=1e-12)
    assert np.var([f.z for f in found]) == pytest.approx(1, abs=1e-12)


def test_variance_over_all_permutations_within_groups_is_that_of_z():
    x, y = np.array([0.0, 1, 1, 0, 5, 2, 9]), np.array([0.2, 5, 1, 1, 0, 2, 1])
    groups = np.array([7, 7, 7, 7, 3, 3, 3])
    found = []
    for p in itertools.permutations(range(4)):
        for q in itertools.permutations(range(4, 7)):
            order = [*p, *q]
            found.append(correlation_test(x[order], y, groups, method="asymptotic"))
    assert np.mean([f.z for f in found]) == pytest.approx(0, abs=1e-12)
    assert np.var([f.z for f in found]) == pytest.approx(1, abs=1e-12)
    f = found[0]
    assert f.z == pytest.approx(f.statistic * math.sqrt(f.precision + 2))


def test_stratified_statistic_is_the_partial_correlation():
    rng = np.random.default_rng(1)
    groups = np.repeat([0, 1, 2], [40, 60, 80])
    x, y = rng.random(180) + groups, rng.random(180) + 3 * groups
    indicators = np.eye(3)[groups]
    a, b = (v - indicators @ np.linalg.lstsq(indicators, v, rcond=None)[0] for v in (x, y))
    stratified = correlation_test(x, y, groups)
    assert stratified.statistic == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert correlation_test(x, y).z > 10 and abs(stratified.z) < 4
    order = rng.permutation(180)
    assert correlation_test(x[order], y[order], groups[order]).z == pytest.approx(stratified.z)


def test_stouffer_is_its_formula():
    rng = np.random.default_rng(2)
    groups = np.repeat([0, 1, 2, 3], [40, 60, 80, 3])  # three are too few for a group
    x, y = rng.random(183), rng.random(183)
    s = [stats.pearsonr(x[groups == g], y[groups == g]).statistic for g in range(3)]
    w = np.array([37, 57, 77])
    result = correlation_test(x, y, groups, pool="stouffer")
    assert result.z == pytest.approx(w @ np.arctanh(s) / math.sqrt(w.sum()))
    assert math.atanh(result.statistic) == pytest.approx(w @ np.arctanh(s) / w.sum())
    assert result.precision == w.sum()


@pytest.mark.parametrize("groups", [None, np.repeat([0, 1], [3, 3])])
def test_permutation_p_is_the_share_of_all_permutations(groups):
    x, y = np.array([0.0, 1, 1, 0, 1, 3]), np.array([0.2, 1, 5, 1, 0, 2])
    labels = np.zeros(6, dtype=int) if groups is None else groups
    orders = [p for p in itertools.permutations(range(6)) if (labels[list(p)] == labels).all()]
    products = np.array([x[list(p)] @ y for p in orders])
    exact = np.mean(products >= x @ y - 1e-9)
    found = correlation_test(x, y, groups, method="permutation", n_permutations=40_000)
    assert found.method == "permutation"
    assert found.p_value == pytest.approx(exact, abs=0.01)


def test_permutation_is_chosen_for_few_pairs_and_is_reproducible():
    rng = np.random.default_rng(3)
    x, y = rng.random(49), rng.random(49)
    first = correlation_test(x, y, seed=5)
    assert first.method == "permutation" and first == correlation_test(x, y, method="permutation", seed=5)
    assert first != correlation_test(x, y, seed=6)
    assert correlation_test(np.r_[x, 0.5], np.r_[y, 0.5]).method == "asymptotic"


def test_smallest_permutation_p():
    x = np.arange(40.0)
    assert correlation_test(x, x, n_permutations=999).p_value == 1 / 1000
    assert correlation_test(x, -x, n_permutations=999).p_value == 1


def test_permutations_come_in_blocks(monkeypatch):
    from icml25.spoof_detect import spoof_test

    rng = np.random.default_rng(4)
    x, y = rng.integers(0, 2, 30).astype(float), rng.random(30)
    whole = correlation_test(x, y, n_permutations=5000).p_value
    monkeypatch.setattr(spoof_test, "_PERMUTED_VALUES", 100)
    assert correlation_test(x, y, n_permutations=5000).p_value == pytest.approx(whole, abs=0.02)


def test_level_on_independent_sequences():
    rng = np.random.default_rng(5)
    p = [
        correlation_test(rng.random(300) < 0.5, np.log1p(rng.zipf(1.7, 300) - 1)).p_value  # heavy-tailed counts
        for _ in range(5000)
    ]
    assert 0.04 <= np.mean(np.array(p) <= 0.05) <= 0.06


@pytest.mark.parametrize(("a", "b", "q"), [(0.8, 0.5, 0.5), (0.9, 0.6, 0.2), (0.7, 0.25, 0.7)])
def test_power_formula_matches_simulation(a, b, q):
    rng = np.random.default_rng(6)
    seen = rng.random(200_000) < q
    x = rng.random(200_000) < np.where(seen, a, b)
    assert correlation_test(x, seen).statistic == pytest.approx(expected_statistic(a, b, q), rel=0.03)


def test_power_formula_by_hand():
    assert expected_statistic(0.8, 0.5, 0.5) == pytest.approx(0.3145, abs=5e-5)
    assert expected_statistic(0.8, 0.5, 0.5) * math.sqrt(999) == pytest.approx(9.94, abs=5e-3)
    assert expected_statistic(0.5, 0.8, 0.5) == -expected_statistic(0.8, 0.5, 0.5)
    n = required_tokens(0.8, 0.5, 0.5, alpha=0.01, power=0.9)
    assert n == 1 + math.ceil(((2.3263479 + 1.2815516) / 0.3144855) ** 2) == 133


def test_required_tokens_by_hand():
    assert required_tokens(0.8, 0.5, 0.5, 1e-17, 0.5) == 1 + math.ceil((8.493793 / 0.3144855) ** 2)
    assert required_tokens(0.8, 0.5, 0.5, 0.9, 0.1) == 2  # nothing is asked
    assert required_tokens(0.6, 0.5, 0.5, 0.05, 0.8) == 1 + math.ceil(((1.6448536 + 0.8416212) / 0.1005038) ** 2)


def test_types_of_numbers():
    for call, name in (
        (lambda: required_tokens("a", 0.5, 0.5), "a is 'a'"),
        (lambda: required_tokens(0.8, 0.5, 0.5, None), "alpha is None"),
        (lambda: expected_statistic(0.8, 0.5, True), "q is True"),
        (lambda: fisher_difference("a", 4, 0, 9), "S is 'a'"),
        (lambda: fisher_difference(0, 4, 0, "b"), "n2 is 'b'"),
    ):
        with pytest.raises(TypeError, match=f"{name}; expected a real number"):
            call()


def test_a_difference_too_small_to_count_text_for():
    with pytest.raises(ValueError, match="expected a larger difference"):
        required_tokens(1e-320, 0, 0.5)


def test_required_tokens_reach_the_power():
    rng = np.random.default_rng(7)
    n = required_tokens(0.8, 0.6, 0.5)
    rejected = []
    for _ in range(2000):
        seen = rng.random(n) < 0.5
        rejected.append(correlation_test(rng.random(n) < np.where(seen, 0.8, 0.6), seen).p_value <= 0.01)
    assert np.mean(rejected) == pytest.approx(0.9, abs=0.03)


def test_fisher_difference():
    assert fisher_difference(0.3, 403, 0.1, 403) == pytest.approx(
        (math.atanh(0.3) - math.atanh(0.1)) / math.sqrt(2 / 400)
    )
    assert fisher_difference(0.3, 403, 0.1, 403) == pytest.approx(2.958, abs=2e-3)
    assert fisher_difference(0.3, 50, 0.1, 90) == -fisher_difference(0.1, 90, 0.3, 50)
    assert fisher_difference(0.2, 40, 0.2, 70) == 0
    assert fisher_difference(1, 40, 1, 40) == 0 and math.isfinite(fisher_difference(1, 40, -1, 40))


@pytest.mark.parametrize(
    ("x", "y"), [(np.ones(60), np.arange(60.0)), (np.arange(60.0), np.full(60, 0.1)), (np.full(60, 1 / 3), np.ones(60))]
)
@pytest.mark.parametrize("pool", ["concat", "stratified", "stouffer"])
def test_constant_sequences_say_nothing(x, y, pool):
    groups, pool = (None, "stratified") if pool == "concat" else (np.repeat([0, 1], 30), pool)
    result = correlation_test(x, y, groups, pool=pool)
    assert result.status == "degenerate" and result.p_value == 1 and math.isnan(result.statistic)


def test_one_constant_group_does_not_matter():
    rng = np.random.default_rng(8)
    x, y = rng.random(60), rng.random(60)
    alone = correlation_test(x, y)
    groups = np.repeat([0, 1], [60, 20])
    for pool in ("stratified", "stouffer"):
        both = correlation_test(np.r_[x, np.full(20, 0.7)], np.r_[y, rng.random(20)], groups, pool=pool)
        if pool == "stouffer":
            assert both.z == pytest.approx(math.atanh(alone.statistic) * math.sqrt(57))
        else:
            assert both.z == pytest.approx(alone.z)


@pytest.mark.parametrize("unit", [1e-300, 1e-170, 1e155, 1e200, 1e307])
@pytest.mark.parametrize("pool", ["concat", "stratified", "stouffer"])
def test_units_do_not_matter(unit, pool):
    rng = np.random.default_rng(9)
    x, y = rng.random(60), rng.random(60)
    groups, pool = (None, "stratified") if pool == "concat" else (np.repeat([0, 1], 30), pool)
    expected = correlation_test(x, y, groups, pool=pool)
    for found in (correlation_test(x * unit, y, groups, pool=pool), correlation_test(x, y * unit, groups, pool=pool)):
        assert found.z == pytest.approx(expected.z) and found.statistic == pytest.approx(expected.statistic)
    exact = correlation_test(x[:20] * unit, y[:20], method="permutation")
    assert exact.p_value == pytest.approx(correlation_test(x[:20], y[:20], method="permutation").p_value, abs=1e-3)


def test_fisher_bound():
    assert fisher_difference(1, 40, 0, 40) == pytest.approx(math.atanh(1 - 1 / 40) / math.sqrt(2 / 37))
    z = [fisher_difference(s, 40, 0, 40) for s in (-1, -0.99, -0.5, 0, 0.5, 0.97, 0.98, 0.999, 1)]
    assert z == sorted(z) and z[-1] == z[-3] and z[0] == -z[-1]  # never decreasing


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": "abc"}, "x has dtype <U3"),
        ({"x": [1j, 0, 1, 2]}, "x has dtype complex128; expected real numbers"),
        ({"y": [None, 0, 1, 2]}, "y has dtype object"),
        ({"groups": [None, 0, 1, 2]}, "groups are labels that cannot be sorted"),
        ({"seed": "a"}, "seed is 'a'"),
    ],
)
def test_bad_types(changes, message):
    with pytest.raises(TypeError, match=message):
        correlation_test(**{"x": [0.0, 1, 0, 1], "y": [0.0, 1, 2, 1]} | changes)


@pytest.mark.parametrize("n_permutations", ["a", 10.5, True, 0])
def test_bad_number_of_permutations(n_permutations):
    with pytest.raises(ValueError, match=f"n_permutations is {n_permutations!r}; expected a whole number"):
        correlation_test([0.0, 1, 0, 1], [0.0, 1, 2, 1], n_permutations=n_permutations)
    with pytest.raises(ValueError, match="seed is -1"):
        correlation_test([0.0, 1, 0, 1], [0.0, 1, 2, 1], seed=-1)


@pytest.mark.parametrize(("lengths", "status"), [([3, 3, 3], "too_short"), ([3, 3, 4], "ok"), ([1] * 60, "too_short")])
def test_stouffer_of_short_groups(lengths, status):
    groups, n = np.repeat(np.arange(len(lengths)), lengths), sum(lengths)
    for method in ("asymptotic", "permutation"):
        result = correlation_test(np.arange(float(n)), np.arange(float(n)) ** 2, groups, method, pool="stouffer")
        assert result.status == status and (result.p_value == 1) == (status != "ok")


def test_level_of_stouffer_on_short_groups():
    rng = np.random.default_rng(10)
    groups, p = np.repeat(np.arange(40), 5), []
    for _ in range(2000):
        x, y = rng.random(200) < 0.5, np.log1p(rng.zipf(1.7, 200) - 1)
        p.append(correlation_test(x, y, groups, pool="stouffer").p_value)
    assert np.mean(np.array(p) <= 0.05) <= 0.06 and np.mean(np.array(p) <= 0.01) <= 0.015


@pytest.mark.parametrize("n", [0, 1, 3])
def test_too_short(n):
    result = correlation_test(np.arange(float(n)), np.arange(float(n)))
    assert result.status == "too_short" and result.p_value == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": [0.0, 1, np.nan, 1]}, r"x is nan at position 2"),
        ({"y": [0.0, np.inf, 1, 1]}, r"y is inf at position 1"),
        ({"y": [0.0, 1]}, r"x has shape \(4,\), y \(2,\)"),
        ({"x": [[0.0, 1, 1, 1]]}, r"x has shape \(1, 4\); expected \(n,\)"),
        ({"groups": [0, 1]}, r"groups \(2,\)"),
        ({"x": [[0.0, 1], [1.0]]}, r"x is no array .*; expected \(n,\) numbers"),
        ({"groups": [[0, 1], [1]]}, r"groups is no array .*; expected \(n,\) labels"),
        ({"method": "exact"}, r"method is 'exact'; expected one of 'auto', 'asymptotic', 'permutation'"),
        ({"pool": "mean"}, r"pool is 'mean'; expected one of 'stratified', 'stouffer'"),
        ({"n_permutations": 0}, r"n_permutations is 0"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises(ValueError, match=message):
        correlation_test(**{"x": [0.0, 1, 0, 1], "y": [0.0, 1, 2, 1]} | changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.2, 40, 0, 40), "S is 1.2"),
        ((0, 40, math.nan, 40), "S2 is nan"),
        ((0, 3, 0, 40), "n is 3; expected more than 3"),
        ((0, 40, 0, math.inf), "n2 is inf"),
    ],
)
def test_fisher_difference_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        fisher_difference(*arguments)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (expected_statistic, (1.2, 0.5, 0.5), "a is 1.2"),
        (expected_statistic, (0.8, -0.1, 0.5), "b is -0.1"),
        (expected_statistic, (0.8, 0.5, 1), "q is 1"),
        (expected_statistic, (math.nan, 0.5, 0.5), "a is nan"),
        (expected_statistic, (1, 1, 0.5), "the colour is constant"),
        (required_tokens, (0.5, 0.5, 0.5), "expected a > b"),
        (required_tokens, (0.8, 0.5, 0.5, 0), "alpha is 0"),
        (required_tokens, (0.8, 0.5, 0.5, 0.01, 1), "power is 1"),
    ],
)
def test_power_refuses(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


@pytest.mark.parametrize("scale", [1e-99, 1e-85, 1e-31, 1e31, 1e80, 1e99, 1e200])
def test_the_unit_of_both_sequences_does_not_matter(scale):
    x, y, groups = np.random.default_rng(0).normal(size=100), np.arange(100.0), np.repeat([0, 1], 50)
    y = x + 0.01 * y
    for options in ({}, {"groups": groups}, {"groups": groups, "pool": "stouffer"}, {"method": "permutation"}):
        plain, scaled = correlation_test(x, y, **options), correlation_test(x * scale, y * scale, **options)
        assert scaled.status == plain.status == "ok"
        assert scaled.statistic == pytest.approx(plain.statistic, rel=1e-9)
        assert scaled.p_value == pytest.approx(plain.p_value, rel=1e-6)
