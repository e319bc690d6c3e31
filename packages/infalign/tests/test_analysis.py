"""The unit interval: closed forms, the table of the specification, and the optimum by an independent solver."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_bvp

from icml25.infalign import (
    BestOf,
    ConvergenceError,
    Standard,
    WorstOf,
    beta_for_kl,
    exponential,
    fit_optimal,
    identity,
    logarithm,
    optimal,
    optimum_at_kl,
    power,
    tilted,
    tradeoff,
    worst_power,
)

TABLE = [  # optimum, u, log u, e^5u, e^10u, -e^-5u, -e^-10u, power: quadrature with 4001 points
    (BestOf(4), 0.1, [0.7059, 0.6562, 0.6185, 0.6994, 0.7057, 0.5925, 0.5630, 0.7050]),
    (BestOf(4), 0.5, [0.8732, 0.7998, 0.7682, 0.8566, 0.8715, 0.7230, 0.6859, 0.8665]),
    (BestOf(4), 1.0, [0.9411, 0.8770, 0.8631, 0.9192, 0.9351, 0.8352, 0.8095, 0.9284]),
    (WorstOf(4), 0.5, [0.9479, 0.8860, 0.9270, 0.7465, 0.6763, 0.9439, 0.9476, 0.9475]),
    (BestOf(2), 0.5, [0.8156, 0.7917, 0.7682, 0.8154, 0.8031, 0.7348, 0.7041, 0.8132]),
    (WorstOf(2), 0.5, [0.8603, 0.8403, 0.8559, 0.7529, 0.6936, 0.8587, 0.8509, 0.8596]),
]


@pytest.mark.parametrize(("procedure", "kl", "expected"), TABLE, ids=[f"{p} {kl}" for p, kl, _ in TABLE])
def test_table(procedure, kl, expected):
    k = 2 * procedure.N - 1
    last = power(k) if isinstance(procedure, BestOf) else worst_power(k)
    transforms = [None, identity(), logarithm(math.inf), *map(exponential, (5, 10, -5, -10)), last]
    found = [tradeoff(t, procedure, [kl])["win_rate"][0] for t in transforms]
    np.testing.assert_allclose(found, expected, atol=1.1e-4)
    assert found[0] >= max(found[1:])


@pytest.mark.parametrize("n", [2, 4, 7])
def test_log_gives_the_best_of_n_distribution(n):
    tilt = tilted(logarithm(math.inf), 1 / (n - 1))
    np.testing.assert_allclose(tilt.f, n * tilt.u ** (n - 1), rtol=1e-5)
    assert tilt.kl == pytest.approx(math.log(n) - (n - 1) / n, abs=1e-6)
    for procedure in (Standard(), BestOf(2), BestOf(5)):
        assert tilt.win_rate(procedure) == pytest.approx(n / (n + 1), abs=1e-6)
    if n == 4:
        assert tilt.kl == pytest.approx(0.63629436, abs=1e-6)
        assert tilt.win_rate(WorstOf(4)) == pytest.approx(0.9529869511, abs=1e-6)


@given(st.sampled_from([identity(), exponential(10), exponential(-10), power(7)]), st.sampled_from([1, 2, 4, 9]))
def test_no_tilt_at_large_beta(transform, N):
    for beta in (1e9, math.inf):
        tilt = tilted(transform, beta)
        assert tilt.kl == pytest.approx(0, abs=1e-12)
        for procedure in (BestOf(N), WorstOf(N), Standard()):
            assert tilt.win_rate(procedure) == pytest.approx(0.5, abs=1e-5)
    assert fit_optimal(BestOf(N), math.inf).kl == 0
    constant = tilted(lambda u: np.full_like(u, 3.0), 0.1)
    assert constant.kl == pytest.approx(0, abs=1e-12) and (constant.f == 1).all()


@given(st.floats(1e-4, 3), st.sampled_from([identity(), exponential(10), exponential(-10)]))
def test_beta_for_kl_inverts(kl, transform):
    assert tilted(transform, beta_for_kl(transform, kl)).kl == pytest.approx(kl, rel=1e-8)


def test_large_beta_limit():
    """F = u: Phi = N^2/(2N-1) u^{2N-1}, and -N^2/(2N-1) (1-u)^{2N-1}."""
    for N in (2, 4):
        k, u = 2 * N - 1, np.linspace(0, 1, 101)
        np.testing.assert_allclose(optimal(BestOf(N), 1e3)(u), power(k)(u), atol=1e-3)
        np.testing.assert_allclose(optimal(WorstOf(N), 1e3)(u), worst_power(k)(u), atol=1e-3)
        fitted = fit_optimal(BestOf(N), 1e4)
        assert np.ptp(fitted.phi) == pytest.approx(N**2 / k, rel=1e-3)


def test_the_standard_optimum_is_the_identity():
    fitted = fit_optimal(Standard(), 0.3)
    same = tilted(identity(), 0.3)
    np.testing.assert_allclose(fitted.f, same.f, rtol=1e-8)


@pytest.mark.parametrize("procedure", [BestOf(4), WorstOf(4), BestOf(2)])
@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_optimum_solves_the_boundary_value_problem(procedure, beta):
    """The fixed point as an ODE: F' = f, (log f)' = N^2/beta (F u)^{N-1}, F(0) = 0, F(1) = 1; upside down for worst-of-N."""
    N = procedure.N

    def slopes(u, y):
        x = y[0] * u if isinstance(procedure, BestOf) else (1 - y[0]) * (1 - u)
        return np.stack([np.exp(y[1]), N**2 / beta * np.maximum(x, 0) ** (N - 1)])

    fitted = fit_optimal(procedure, beta)
    u = np.linspace(0, 1, 501)
    guess = np.stack([np.interp(u, fitted.u, fitted.F), np.interp(u, fitted.u, np.log(fitted.f)) + 0.1 * np.sin(5 * u)])
    solved = solve_bvp(slopes, lambda a, b: np.array([a[0], b[0] - 1]), u, guess, tol=1e-8, max_nodes=10**5)
    assert solved.success
    np.testing.assert_allclose(solved.sol(fitted.u), [fitted.F, np.log(fitted.f)], atol=2e-4)  # of cells of 1/4001


@given(st.integers(0, 10**6))
def test_no_density_beats_the_optimum(seed):
    rng = np.random.default_rng(seed)
    procedure, beta = (BestOf, WorstOf)[seed % 2](int(rng.integers(2, 6))), float(rng.uniform(0.05, 2))
    best = fit_optimal(procedure, beta, points=401)
    bumps = np.cumsum(rng.normal(size=401)) * rng.uniform(0, 0.3)
    f = best.f * np.exp(bumps - bumps.max())
    f /= f.mean()
    W = procedure.win_rate(np.cumsum(f / 401) - f / 802)
    assert W - beta * (f * np.log(f)).mean() <= best.win_rate(procedure) - beta * best.kl + 1e-12


def test_small_beta_converges():
    for procedure in (BestOf(2), BestOf(64), WorstOf(4), WorstOf(64)):
        fitted = fit_optimal(procedure, 0.01)
        phi = procedure.derivative(fitted.F)
        np.testing.assert_allclose(phi - phi[0], fitted.phi - fitted.phi[0], atol=1e-8)


def test_tradeoff():
    kls = [0.0, 0.1, 0.5, 2.0]
    for transform in (identity(), exponential(10), None):
        table = tradeoff(transform, BestOf(4), kls)
        assert set(table) == {"kl", "beta", "win_rate", "standard_win_rate"}
        assert table["win_rate"][0] == pytest.approx(0.5) == table["standard_win_rate"][0]
        assert (np.diff(table["win_rate"]) > 0).all() and (np.diff(table["beta"]) < 0).all()
        np.testing.assert_array_equal(table["kl"], kls)
    assert optimum_at_kl(BestOf(4), 0.5).kl == pytest.approx(0.5, abs=1e-7)


def test_bad_input():
    with pytest.raises(ValueError, match=r"beta must lie in \(0, inf\]"):
        tilted(identity(), 0)
    with pytest.raises(ValueError, match=r"beta must lie in \(0, inf\]"):
        fit_optimal(BestOf(2), -1)
    with pytest.raises(ValueError, match="kl must be >= 0"):
        beta_for_kl(identity(), -0.1)
    with pytest.raises(ValueError, match="kl must be >= 0"):
        optimum_at_kl(BestOf(2), math.nan)
    with pytest.raises(ValueError, match=r"cannot be reached; expected a number in \[0, 8\.29"):
        beta_for_kl(identity(), 9)
    with pytest.raises(ValueError, match="cannot be reached"):
        beta_for_kl(lambda u: np.zeros_like(u), 0.1)
    with pytest.raises(ValueError, match="points"):
        tilted(identity(), 1, points=1)
    with pytest.raises(ConvergenceError, match="after 3 iterations"):
        fit_optimal(BestOf(4), 0.1, max_iterations=3)
