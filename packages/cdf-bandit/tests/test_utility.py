"""Utilities against closed forms, and their Lipschitz constants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.cdf_bandit import (
    CVaR,
    Entropic,
    Expectation,
    MeanVariance,
    Moment,
    Probability,
    SmoothedQuantile,
    Variance,
    interval,
)

ALL = [
    Expectation(),
    Moment(2),
    Moment(3),
    Variance(),
    MeanVariance(1.0),
    MeanVariance(0.3, mean_weight=0.7),
    CVaR(0.1),
    CVaR(1.0),
    Entropic(2.0),
    SmoothedQuantile(0.3, 0.1),
    Probability(0.4, 0.2),
]
NAMES = [repr(u) for u in ALL]


def nodes(lo=0.0, hi=1.0, n=64):
    measure = interval(lo, hi, n)
    return measure.points, measure.weights


UNIFORM = {
    "Expectation()": 0.5,
    "Moment(order=2)": 1 / 3,
    "Moment(order=3)": 1 / 4,
    "Variance()": 1 / 12,
    "MeanVariance(rho=1.0, mean_weight=1.0)": 0.5 - 1 / 12,
    "MeanVariance(rho=0.3, mean_weight=0.7)": 0.35 - 0.3 / 12,
    "CVaR(alpha=0.1)": 0.05,
    "CVaR(alpha=1.0)": 0.5,
    "Entropic(beta=2.0)": -0.5 * np.log((1 - np.exp(-2)) / 2),
    "SmoothedQuantile(tau=0.3, h=0.1)": 0.3,
    "Probability(c=0.4, h=0.2)": 0.6,
}


@pytest.mark.parametrize("utility", ALL, ids=NAMES)
def test_uniform_outcome(utility):
    s, m = nodes()
    assert utility(s, s, m) == pytest.approx(UNIFORM[repr(utility)], abs=1e-12)


@pytest.mark.parametrize("utility", ALL, ids=NAMES)
def test_power_law_at_two_resolutions(utility):
    """F = s^2 against sums over exact quantiles; piecewise linear parts are of order Q^-2."""
    u = (np.arange(200_000) + 0.5) / 200_000
    y = np.sqrt(u)
    k = {1: y, 2: y**2, 3: y**3}
    expected = {
        "Expectation()": k[1].mean(),
        "Moment(order=2)": k[2].mean(),
        "Moment(order=3)": k[3].mean(),
        "Variance()": y.var(),
        "MeanVariance(rho=1.0, mean_weight=1.0)": y.mean() - y.var(),
        "MeanVariance(rho=0.3, mean_weight=0.7)": 0.7 * y.mean() - 0.3 * y.var(),
        "CVaR(alpha=0.1)": y[u < 0.1].mean(),
        "CVaR(alpha=1.0)": y.mean(),
        "Entropic(beta=2.0)": -np.log(np.exp(-2 * y).mean()) / 2,
        "SmoothedQuantile(tau=0.3, h=0.1)": y[(u > 0.2) & (u < 0.4)].mean(),
        "Probability(c=0.4, h=0.2)": 1 - ((0.6**3 - 0.2**3) / 3) / 0.4,
    }[repr(utility)]
    errors = []
    for n in (16, 64):
        s, m = nodes(n=n)
        errors.append(abs(utility(s**2, s, m) - expected))
    assert errors[0] < 20 / 16**2 / 10 and errors[1] < 1 / 64**2 + 1e-8


@pytest.mark.parametrize("utility", [u for u in ALL if not isinstance(u, (Probability, Moment))], ids=repr)
def test_shift_and_unit(utility):
    """Outcomes 10 + 4 Y: means shift and scale, variances scale by the square."""
    s, m = nodes()
    wide, weights = nodes(10.0, 14.0)
    F = s**1.7
    value, moved = utility(F, s, m), utility(F, wide, weights)
    if isinstance(utility, Variance):
        assert moved == pytest.approx(16 * value)
    elif isinstance(utility, MeanVariance):
        mean, variance = Expectation()(F, s, m), Variance()(F, s, m)
        assert moved == pytest.approx(utility.mean_weight * (10 + 4 * mean) - utility.rho * 16 * variance)
    elif isinstance(utility, Entropic):
        assert moved == pytest.approx(10 + 4 * Entropic(8.0)(F, s, m))
    else:
        assert moved == pytest.approx(10 + 4 * value)


def test_thresholds_outside_the_domain():
    s, m = nodes()
    assert Probability(-2, 0.5)(s, s, m) == pytest.approx(1)
    assert Probability(3, 0.5)(s, s, m) == pytest.approx(0)
    assert Probability(1.0, 0.5)(s, s, m) == pytest.approx(0.125)


def test_leading_axes():
    s, m = nodes()
    F = np.stack([s, s**2, s**3, np.ones(64), np.zeros(64), (s > 0.5) * 1.0]).reshape(2, 3, 64)
    for utility in ALL:
        values = utility(F, s, m)
        assert values.shape == (2, 3) and np.isfinite(values).all()
        assert values[0, 1] == pytest.approx(utility(F[0, 1], s, m))


def mixture_cdf(seed):
    rng = np.random.default_rng(seed)
    s, _ = nodes()
    weights = rng.dirichlet(np.full(4, 0.5))
    shapes = np.array([s ** rng.uniform(0.2, 4) for _ in range(2)] + [(s >= rng.random()) * 1.0 for _ in range(2)])
    return weights @ shapes


@settings(max_examples=60, deadline=None)
@given(one=st.integers(0, 10_000), two=st.integers(0, 10_000))
def test_lipschitz(one, two):
    """|u(F) - u(G)| <= L |F - G| in L2, also for CDFs with jumps."""
    s, m = nodes()
    F, G = mixture_cdf(one), mixture_cdf(two)
    apart = np.sqrt((F - G) ** 2 @ m)
    for utility in ALL:
        assert abs(utility(F, s, m) - utility(G, s, m)) <= utility.lipschitz * apart * 1.02 + 1e-9, utility


def test_lipschitz_constants():
    assert Expectation().lipschitz == 1
    assert CVaR(0.25).lipschitz == 4
    assert SmoothedQuantile(0.5, 0.1).lipschitz == pytest.approx(5)
    assert MeanVariance(2.0, mean_weight=0.5).lipschitz == pytest.approx(0.5 + 4 / np.sqrt(3))
    assert MeanVariance(2.0).lipschitz_on(-1.0, 2.0) == pytest.approx(3 + 9 * 4 / np.sqrt(3))
    assert Moment(2).lipschitz == pytest.approx(2 / np.sqrt(3))
    assert CVaR(0.25).lipschitz_on(3, 5) == 8
    assert Probability(0.5, 0.125).lipschitz == 2


def test_variance_near_a_point_mass_needs_the_constant():
    """A point mass at 0 against mass eps at 1: the ratio reaches past 1 towards 2/sqrt(3) = 1.1547."""
    s, m = nodes(n=400)
    eps = 1e-3
    F, G = np.ones(400), np.full(400, 1 - eps)
    ratio = abs(Variance()(F, s, m) - Variance()(G, s, m)) / np.sqrt((F - G) ** 2 @ m)
    assert 0.99 < ratio < Variance().lipschitz
    G = 1 - eps * s  # a tail that follows the tight case, s - mean
    ratio = abs(Variance()(F, s, m) - Variance()(G, s, m)) / np.sqrt((F - G) ** 2 @ m)
    assert 1.15 < ratio <= Variance().lipschitz + 1e-9


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), shift=st.floats(0.0, 1.0))
def test_monotone_under_stochastic_dominance(seed, shift):
    s, m = nodes()
    F = mixture_cdf(seed)
    better = F * shift  # puts mass at the upper end: smaller CDF everywhere
    for utility in (Expectation(), CVaR(0.2), Entropic(3.0), SmoothedQuantile(0.4, 0.2), Probability(0.5, 0.1)):
        assert utility(better, s, m) >= utility(F, s, m) - 1e-9


def test_mean_variance_of_the_example():
    """Example 2.6: rho mean - (1 - rho) var."""
    s, m = nodes()
    assert MeanVariance(1 - 0.3, mean_weight=0.3)(s, s, m) == pytest.approx(0.3 * 0.5 - 0.7 / 12)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: CVaR(0), "alpha"),
        (lambda: CVaR(1.1), "alpha"),
        (lambda: CVaR(float("nan")), "alpha"),
        (lambda: CVaR("0.1"), "alpha"),
        (lambda: Entropic(0), "beta"),
        (lambda: Entropic(-1.0), "beta"),
        (lambda: Entropic(True), "beta"),
        (lambda: SmoothedQuantile(0.05, 0.1), "tau"),
        (lambda: SmoothedQuantile(0.5, 0), "h must"),
        (lambda: Probability(0.5, -1), "h must"),
        (lambda: MeanVariance(-1), "rho"),
        (lambda: MeanVariance(1, mean_weight=-1), "mean_weight"),
        (lambda: Moment(0), "order"),
        (lambda: Moment(1.5), "order"),
    ],
    ids=range(14),
)
def test_bad_parameters(make, name):
    with pytest.raises((TypeError, ValueError), match=name):
        make()


def test_lipschitz_away_from_zero():
    """The extremal pair has F - G proportional to the weight of F: k s^(k-1) for a moment."""
    for lo, hi in ((90.0, 100.0), (-3.0, 1.0)):
        s, m = nodes(lo, hi)
        for utility, gap in ((Moment(2), s), (Moment(3), s**2), (Expectation(), 1 + 0 * s), (Variance(), s - lo)):
            gap = 1e-3 * gap / abs(gap).max()
            ratio = abs(utility(1 - gap, s, m) - utility(1 + 0 * s, s, m)) / np.sqrt(gap**2 @ m / (hi - lo))
            constant = utility.lipschitz_on(lo, hi)
            assert ratio <= constant * (1 + 1e-6)
            assert ratio > 0.9 * constant or isinstance(utility, Variance)
    assert Moment(2).lipschitz_on(90, 100) > 1900


@pytest.mark.parametrize("beta", [1e-12, 1e-6, 1.0, 30.0, 800.0, 1e3, 1e5, 1e90])
def test_entropic_risk_at_any_aversion(beta):
    """Uniform outcomes and point masses; the answer never leaves the domain."""
    s, m = nodes()
    expected = 0.5 - beta / 24 if beta < 1e-3 else -(np.log(-np.expm1(-beta)) - np.log(beta)) / beta
    assert Entropic(beta)(s, s, m) == pytest.approx(expected, rel=1e-9)
    assert Entropic(beta)(0 * s, s, m) == pytest.approx(1, abs=1e-3)  # at hi, but for the width of the last cell
    assert Entropic(beta)(0 * s + 1, s, m) == pytest.approx(0, abs=1e-3)
