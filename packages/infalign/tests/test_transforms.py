"""Transformations: formulas, normalisation, limits, bad input."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icml25.infalign import (
    BestOf,
    best_of_n,
    exponential,
    from_grid,
    gumbel,
    identity,
    logarithm,
    optimal,
    power,
    worst_of_n,
    worst_power,
)

U = np.linspace(0, 1, 201)
K = 100
FORMULAS = [
    (identity(), lambda u: u),
    (exponential(10), lambda u: np.exp(10 * u)),
    (exponential(-5), lambda u: -np.exp(-5 * u)),
    (exponential(0.02), lambda u: np.exp(0.02 * u)),
    (logarithm(K), lambda u: np.log(np.maximum(u, 1 / (2 * K)))),
    (gumbel(K), lambda u: -np.log(-np.log(np.clip(u, 1 / (2 * K), 1 - 1 / (2 * K))))),
    (power(7), lambda u: u**7),
    (worst_power(3), lambda u: -((1 - u) ** 3)),
    (from_grid(U, np.sin(U)), np.sin),
]


@pytest.mark.parametrize(("transform", "formula"), FORMULAS, ids=lambda x: getattr(x, "name", ""))
def test_a_transform_is_its_formula_up_to_shift_and_scale(transform, formula):
    values, plain = transform(U), formula(U)
    np.testing.assert_allclose((values - values[7]) * transform.scale, plain - plain[7], atol=1e-9 * transform.scale)
    assert values.dtype == np.float64 and (np.diff(values) >= 0).all()


@pytest.mark.parametrize(("transform", "formula"), FORMULAS, ids=lambda x: getattr(x, "name", ""))
def test_mean_0_and_range_1(transform, formula):
    assert np.ptp(transform(U)) == pytest.approx(1, abs=1e-9)
    assert transform((np.arange(10**6) + 0.5) / 10**6).mean() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("sign", [-1, 1])
def test_small_exponents_reach_the_identity(sign):
    for t in (1e-12, 1e-6, 0.0099, 0.0101):
        transform = exponential(sign * t)
        np.testing.assert_allclose(transform(U), U - 0.5, atol=t / 6)
        # mean 0 to rounding, on both sides of the switch to the series
        x, w = np.polynomial.legendre.leggauss(20)
        assert w @ transform((x + 1) / 2) == pytest.approx(0, abs=1e-12)


def test_unnormalized():
    np.testing.assert_allclose(exponential(-3, normalize=False)(U), -np.exp(-3 * U))
    np.testing.assert_allclose(from_grid([0, 0.5, 1], [1, 2, 5], normalize=False)([0, 0.25, 0.75]), [1, 1.5, 3.5])
    assert (from_grid([0, 1], [3, 3])(U) == 0).all()


def test_recommended():
    names = {N: (best_of_n(N).name, worst_of_n(N).name) for N in (1, 2, 3, 4, 32)}
    assert names[1] == ("u", "u") and names[2] == names[3] == ("exp(5u)", "-exp(-5u)")
    assert names[4] == names[32] == ("exp(10u)", "-exp(-10u)")


def test_logarithm_is_clamped_at_half_a_rollout():
    assert logarithm(50)(0.0) == logarithm(50)(0.01) < logarithm(50)(0.0101)
    assert np.isneginf(logarithm(math.inf)(0.0)) and np.isfinite(gumbel()([0.0, 1.0])).all()


def test_the_optimum_as_a_transform():
    transform = optimal(BestOf(4), 0.2)
    assert transform.name == "optimal for BestOf(N=4)" and np.ptp(transform([0, 1])) == pytest.approx(1)
    assert (np.diff(transform(U)) >= 0).all()


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.floats(-700, 700).filter(lambda t: abs(t) > 1e-9))
def test_exponentials_are_monotone_and_bounded(u, t):
    values = exponential(t)(np.sort(u))
    assert (np.diff(values) >= 0).all() and (np.abs(values) <= 1 + 1e-12).all()


@pytest.mark.parametrize("transform", [t for t, _ in FORMULAS], ids=lambda t: t.name)
@pytest.mark.parametrize("bad", [-1e-9, 1.0001, np.nan])
def test_outside_the_unit_interval(transform, bad):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]; 1 values do not"):
        transform([0.5, bad])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: exponential(0), "0 < |t| <= 700"),
        (lambda: exponential(701), "overflows"),
        (lambda: exponential(-701), "overflows"),
        (lambda: exponential(math.nan), "got nan"),
        (lambda: exponential(math.inf), "got inf"),
        (lambda: logarithm(0), "K must be at least 1"),
        (lambda: gumbel(math.inf), "K must be finite"),
        (lambda: power(0), "k must be positive"),
        (lambda: worst_power(-1), "k must be positive"),
        (lambda: from_grid([0, 0], [0, 1]), "increase"),
        (lambda: from_grid([0, 1], [0, 1, 2]), "shape"),
        (lambda: from_grid([0, 1], [0, math.nan]), "finite"),
        (lambda: from_grid([0, 2], [0, 1]), "must lie in"),
        (lambda: best_of_n(0), "N must be an integer >= 1"),
        (lambda: worst_of_n(2.5), "2.5"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises((ValueError, TypeError)) as error:  # TypeError: the annotation itself, where types are checked
        make()
    assert message in str(error.value)
