"""Dudley against quadrature, averages over signs against enumeration."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from icml25.ntp_bounds import dudley, entropy_frobenius, massart, rademacher_finite, rademacher_linear


@pytest.mark.parametrize(("p", "n"), [(1, 50), (10, 1000), (100, 10**5), (3, 10**8)])
def test_dudley_against_quadrature(p, n):
    R = 2.5
    value, alpha = dudley(lambda eps: entropy_frobenius(p, R, eps), R, n)

    def at(a):
        return (
            4 * a + 12 / math.sqrt(n) * quad(lambda eps: math.sqrt(p * math.log(1 + 2 * R / eps)), a, R, limit=200)[0]
        )

    candidates = [at(a) for a in np.geomspace(1e-9, R, 80)]
    expected = min(*candidates, R)
    assert expected * (1 - 1e-3) <= value <= expected * 1.002
    if value < R:
        assert at(alpha) == pytest.approx(value, rel=1e-3)
        assert value >= at(alpha) * (1 - 1e-9)  # trapezoids lie above a convex function


def test_dudley_scales_and_never_exceeds_the_radius():
    cover = lambda eps: entropy_frobenius(20, 1.0, eps)  # noqa: E731
    few, many = dudley(cover, 1.0, 10**8).value, dudley(cover, 1.0, 10**10).value
    assert few / many == pytest.approx(10, rel=1e-3)
    assert dudley(cover, 1.0, 1) == (1.0, 1.0)
    sizes = np.array([1.0, 1e4, 1e8])
    both = dudley(cover, 1.0, sizes)
    assert [dudley(cover, 1.0, n).value for n in sizes] == both.value.tolist()
    assert (np.diff(both.value) < 0).all()


def test_dudley_starts_above_zero_where_that_is_better():
    value, alpha = dudley(lambda eps: 1 / eps**4, 1.0, 10**6)  # the integral from 0 diverges
    assert 0 < alpha < 1 and 4 * alpha < value < 1
    assert alpha == pytest.approx((3 / 10**3) ** 0.5, rel=0.1)  # 4 = 12 / sqrt(n) / alpha^2


@pytest.mark.parametrize("bad", [lambda eps: -eps, lambda eps: 1.0, lambda eps: eps * math.nan])
def test_dudley_refuses_what_is_no_entropy(bad):
    with pytest.raises(ValueError, match="log_cover must give numbers >= 0"):
        dudley(bad, 1.0, 10)


def test_dudley_refuses_sizes():
    cover = lambda eps: 1 / eps  # noqa: E731
    with pytest.raises(ValueError, match="n must be positive"):
        dudley(cover, 1.0, 0)
    with pytest.raises(ValueError, match="radius"):
        dudley(cover, 0.0, 10)


def brute(F):
    n = F.shape[1]
    return np.mean([max(F @ np.array(signs)) for signs in itertools.product((-1, 1), repeat=n)]) / n


@given(seed=st.integers(0, 1000), n=st.integers(1, 6), k=st.integers(1, 5))
def test_finite_classes(seed, n, k):
    F = np.random.default_rng(seed).standard_normal((k, n))
    exact = rademacher_finite(F, None)
    assert exact.value == pytest.approx(brute(F), abs=1e-12) and exact.se == 0
    assert exact.value <= massart(F) + 1e-12
    shifted = rademacher_finite(F + np.random.default_rng(1).standard_normal(n), None)
    assert shifted.value == pytest.approx(exact.value, abs=1e-12)


def test_finite_by_monte_carlo():
    F = np.random.default_rng(0).standard_normal((7, 12))
    exact, sampled = rademacher_finite(F, None), rademacher_finite(F, 4000, seed=3)
    assert 0 < sampled.se < 0.01 and abs(sampled.value - exact.value) <= 3 * sampled.se
    assert rademacher_finite(F, 4000, seed=3) == sampled != rademacher_finite(F, 4000, seed=4)
    shifted = rademacher_finite(F + 5.0, 4000, seed=3)
    assert shifted.value == pytest.approx(sampled.value, abs=1e-5)  # each sign vector comes with its negative
    assert rademacher_finite(F[:1], 10).value == 0


@pytest.mark.parametrize(("offset", "size"), [(1e6, 1e-3), (0.0, 1e39), (0.0, 1e300), (0.0, 1e-300)])
def test_sampled_signs_keep_the_precision_of_the_values(offset, size):
    """Products are taken in single precision, of differences brought to size 1."""
    F = np.random.default_rng(0).standard_normal((7, 12))
    exact = rademacher_finite(F, 400).value
    assert rademacher_finite(offset + size * F, 400).value == pytest.approx(size * exact, rel=1e-5)
    Z = F[:, :3]
    exact = rademacher_linear(Z, 1.0, n_signs=400)
    assert rademacher_linear(size * Z, 1.0, n_signs=400) == pytest.approx([size * x for x in exact], rel=1e-5)


def test_massart():
    F = np.array([[3.0, 4.0], [0.0, 1.0]])
    assert massart(F) == pytest.approx(5 * math.sqrt(2 * math.log(2)) / 2)
    assert massart(F[:1]) == 0


def test_linear_predictors():
    Z = np.random.default_rng(0).standard_normal((8, 3))
    exact = rademacher_linear(Z, 2.0, n_signs=None)
    signs = np.array(list(itertools.product((-1, 1), repeat=8)))
    assert exact.value == pytest.approx(2 / 8 * np.linalg.norm(signs @ Z, axis=1).mean())
    assert exact.bound == pytest.approx(2 / 8 * np.linalg.norm(Z)) and exact.value <= exact.bound
    sampled = rademacher_linear(Z, 2.0, n_signs=4000, seed=1)
    assert abs(sampled.value - exact.value) <= 3 * sampled.se and sampled.bound == exact.bound


def test_linear_predictors_are_a_supremum():
    """(B/n) E |Z^T sigma| is the average of the best w of the ball: compare with many directions."""
    Z = np.random.default_rng(0).standard_normal((6, 2))
    angles = np.linspace(0, 2 * math.pi, 2000)
    F = 1.5 * np.stack([np.cos(angles), np.sin(angles)], 1) @ Z.T
    assert rademacher_finite(F, None).value == pytest.approx(rademacher_linear(Z, 1.5, n_signs=None).value, rel=1e-5)


def test_dudley_bounds_a_linear_class():
    """|w| <= 1 on points of the unit disc: the exact complexity lies below the chain, within a constant."""
    Z = np.random.default_rng(0).standard_normal((20_000, 2))
    Z /= np.maximum(np.linalg.norm(Z, axis=1, keepdims=True), 1)
    exact = rademacher_linear(Z, 1.0, n_signs=200)
    above = dudley(lambda eps: entropy_frobenius(2, 1.0, eps), 1.0, len(Z)).value
    assert exact.value + 3 * exact.se < above < 40 * exact.value


def test_several_outputs():
    Z = np.random.default_rng(0).standard_normal((4, 3))
    exact = rademacher_linear(Z, 1.0, outputs=3, n_signs=None)
    signs = np.array(list(itertools.product((-1, 1), repeat=12))).reshape(-1, 3, 4)
    assert exact.value == pytest.approx(math.sqrt(2) / 4 * np.linalg.norm(signs @ Z, axis=(1, 2)).mean())
    assert exact.bound == pytest.approx(math.sqrt(6) / 4 * np.linalg.norm(Z)) and exact.value <= exact.bound
    one = rademacher_linear(Z, 1.0, n_signs=None)
    assert rademacher_linear(Z, 1.0, outputs=1, n_signs=None).value == pytest.approx(math.sqrt(2) * one.value)


def test_enumeration_has_a_limit():
    with pytest.raises(ValueError, match="n must be at most 20; pass n_signs for Monte Carlo"):
        rademacher_finite(np.zeros((2, 21)), None)
    with pytest.raises(ValueError, match="Monte Carlo"):
        rademacher_linear(np.zeros((7, 2)), 1.0, outputs=3, n_signs=None)


def test_bad_input():
    for F in (np.zeros((0, 3)), np.zeros(3), np.array([[math.inf]])):
        with pytest.raises(ValueError, match="F "):
            rademacher_finite(F)
        with pytest.raises(ValueError, match="F "):
            massart(F)
    with pytest.raises(ValueError, match="B must be in"):
        rademacher_linear(np.zeros((2, 2)), -1.0)
    with pytest.raises(TypeError, match="seed"):
        rademacher_finite(np.eye(2), seed=None)
    with pytest.raises(TypeError, match="F must hold numbers"):
        massart([["a"]])
