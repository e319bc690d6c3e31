"""The linear model: recursion (1), simulation, fitting; the nonlinear rewards."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.switchback import Design, LinearMDP, NonlinearMDP, Panel, paper_mdp
from icml25.switchback.regression import regress


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 7), st.integers(1, 4), st.integers(0, 999))
def test_recursion_is_the_sum_of_ordered_products(T, p, seed):
    world = paper_mdp(T=T, p=p, delta=0.8, seed=seed)
    indirect = 0.0
    for t in range(1, T):
        for k in range(t):  # Phi_{t-1} ... Phi_{k+1} Gamma_k
            effect = world.Gamma[k]
            for j in range(k + 1, t):
                effect = world.Phi[j] @ effect
            indirect += world.beta[t] @ effect / T
    assert world.indirect_effect() == pytest.approx(indirect, abs=1e-12)
    assert world.direct_effect() == pytest.approx(world.gamma.mean())
    assert world.ate() == pytest.approx(indirect + world.gamma.mean(), abs=1e-12)


def test_order_of_the_products_matters():
    world = paper_mdp(T=6, p=3, delta=1.6, seed=0)
    wrong = 0.0
    for t in range(1, 6):
        for k in range(t):
            effect = world.Gamma[k]
            for j in reversed(range(k + 1, t)):
                effect = world.Phi[j] @ effect
            wrong += world.beta[t] @ effect / 6
    assert abs(wrong - world.indirect_effect()) > 1e-4


def test_ate_is_the_noiseless_difference(quiet):
    first = np.random.default_rng(0).normal(size=(4, 2))
    reward = {}
    for arm in (0, 1):
        A = np.full((4, 6), arm, dtype=np.int8)
        S = quiet.propagate(first, A, np.zeros((4, 5, 2)))
        reward[arm] = quiet.mean_reward(S, A)
    assert np.allclose((reward[1] - reward[0]).mean(1), quiet.ate(), atol=1e-10, rtol=0)


def test_simulation_has_the_moments_of_the_model():
    world = paper_mdp(T=4, p=2, delta=0.8, rho=0.7, seed=1)
    A = Design("UR").draw(2, 4, 0)
    S, actions, Y = world.simulate(A, seed=0, n_rep=40_000)
    assert actions.shape == Y.shape == (40_000, 2, 4) and S.shape == (40_000, 2, 4, 2)
    error = Y - world.mean_reward(S, actions)
    assert np.allclose(np.cov(error[:, 0].T), world.Sigma_e, atol=0.1)
    assert np.allclose(np.cov(error[:, 0].T, error[:, 1].T)[:4, 4:], 0, atol=0.1)  # days are independent
    step = S[:, 0, 1] - (world.phi0[0] + S[:, 0, 0] @ world.Phi[0].T + world.Gamma[0] * A[0, 0])
    assert np.allclose(np.cov(step.T), world.Q, atol=0.08) and np.allclose(step.mean(0), 0, atol=0.04)
    assert np.allclose(np.cov(S[:, 0, 0].T), np.eye(2), atol=0.05)


def test_simulation_is_reproducible_and_takes_a_table_per_replicate():
    world = paper_mdp(T=4, p=1)
    tables = np.stack([Design("UR").draw(6, 4, s) for s in range(3)])
    _S, A, Y = world.simulate(tables, seed=1, n_rep=3)
    again = world.simulate(tables, seed=np.random.default_rng(1), n_rep=3)
    assert np.array_equal(A, tables) and np.array_equal(Y, again[2])
    one = world.simulate(tables[0], seed=1)
    assert isinstance(one, Panel) and one.n_days == 6
    with pytest.raises(ValueError, match=r"\(n, 4\)"):
        world.simulate(np.zeros((6, 5)))
    with pytest.raises(ValueError, match="n_rep"):
        world.simulate(tables[0], n_rep=0)
    with pytest.raises(ValueError, match=r"\(2, n, 4\)"):
        world.simulate(tables, n_rep=2)


def test_fit_recovers_the_world():
    world = paper_mdp(T=4, p=2, delta=0.8, seed=1)
    fit = LinearMDP.fit(world.simulate(Design("AT", 2).draw(20_000, 4, 0), seed=0))
    for name in ("beta0", "beta", "gamma", "phi0", "Phi", "Gamma", "Sigma_e", "Q", "m1", "C1"):
        assert np.allclose(getattr(fit, name), getattr(world, name), atol=0.12), name
    assert abs(fit.ate() - world.ate()) < 0.06


def test_covariances_of_the_fit_are_unbiased_in_small_samples():
    world = paper_mdp(T=3, p=2, errors="none", rho=0.0, seed=1)  # Sigma_e = 1
    draws = [LinearMDP.fit(world.simulate(Design("UR").draw(10, 3, s), seed=s)) for s in range(250)]
    traces = np.array([[np.trace(fit.Sigma_e) / 3, np.trace(fit.Q) / 3] for fit in draws])
    assert np.all(np.abs(traces.mean(0) - 1) < 4 * traces.std(0) / np.sqrt(250))


@pytest.mark.parametrize("errors", ["ar", "ma", "exchangeable", "none"])
def test_error_correlations(errors):
    Sigma = paper_mdp(T=4, p=0, rho=0.5, errors=errors).Sigma_e
    C = (Sigma - np.eye(4)) / 1.5
    first = {
        "ar": [1, 0.5, 0.25, 0.125],
        "ma": [0.5, 0.375, 0.25, 0.125],
        "exchangeable": [1, 0.5, 0.5, 0.5],
        "none": [0.5, 0, 0, 0],
    }
    assert np.allclose(C[0], first[errors]) and np.allclose(C, C.T)


def test_paper_coefficients():
    world = paper_mdp(T=300, p=3, delta=1.6)
    for values, low, high in ((world.beta0, 0.5, 1.0), (world.beta, 0.1, 0.3), (world.phi0, 0.5, 1.0)):
        assert low <= np.abs(values).min() and np.abs(values).max() <= high and 0.4 < (values > 0).mean() < 0.6
    assert world.gamma.min() >= 0.5 and world.gamma.max() <= 0.8 and np.abs(world.Phi).max() <= 0.3
    assert abs(world.Gamma.mean() - 1.6) < 0.04 and abs(world.Gamma.std() - 0.3) < 0.03
    assert np.array_equal(world.Q, 1.5 * np.eye(3))
    assert 0.5 < np.abs(paper_mdp(T=300, p=3, kind="nonlinear").Phi).max() <= 0.6


def test_nonlinear_rewards_elementwise():
    world = paper_mdp(T=2, p=2, kind="nonlinear", delta=0.8)
    assert isinstance(world, NonlinearMDP)
    s, g = np.array([[0.3, -1.0], [0.5, 2.0]]), world.gamma
    for a in (0, 1):
        expected = [
            world.beta0[t]
            + sum(
                world.beta[t, j] * (2 * (np.sin(s[t, j] * a) + np.cos(s[t, j])) ** 2 + 3 * s[t, j] * g[t] * a)
                for j in range(2)
            )
            + (a * g[t] + np.cos(a * g[t])) ** 2
            for t in range(2)
        ]
        assert np.allclose(world.mean_reward(s, np.full(2, a, dtype=np.int8)), expected)


def test_nonlinear_truth_agrees_with_simulated_experiments():
    world = paper_mdp(T=6, p=2, kind="nonlinear", delta=0.8)
    ate, error = world.monte_carlo_ate(20_000, seed=1)
    assert 0 < error < 0.05 and world.monte_carlo_ate(20_000, seed=1) == (ate, error)
    means = [world.simulate(np.full((2, 6), a), seed=5, n_rep=10_000)[2].mean((1, 2)) for a in (0, 1)]
    gap = means[1] - means[0]
    assert abs(gap.mean() - ate) < 4 * np.hypot(error, gap.std() / 100)
    assert world.direct_effect() + world.indirect_effect() == pytest.approx(world.ate())
    no_carryover = NonlinearMDP(**{k: getattr(world, k) * (k != "Gamma") for k in world.__dataclass_fields__})
    assert no_carryover.indirect_effect() == pytest.approx(0, abs=1e-9)


def test_bad_models():
    world = paper_mdp(T=3, p=2)
    fields = {k: getattr(world, k) for k in world.__dataclass_fields__}
    with pytest.raises(ValueError, match=r"Phi must have shape \(2, 2, 2\)"):
        LinearMDP(**fields | {"Phi": np.zeros((3, 2, 2))})
    with pytest.raises(ValueError, match="Sigma_e must be positive semidefinite, its smallest eigenvalue is -1"):
        LinearMDP(**fields | {"Sigma_e": np.diag([1.0, 1.0, -1.0])})
    with pytest.raises(ValueError, match="Q must be symmetric"):
        LinearMDP(**fields | {"Q": np.array([[1.0, 0.5], [0.0, 1.0]])})
    with pytest.raises(ValueError, match="gamma must be finite"):
        LinearMDP(**fields | {"gamma": np.array([1.0, np.nan, 0.0])})
    for bad, name in (
        ({"rho": 1.5}, "rho"),
        ({"rho": -0.5, "errors": "ma"}, "rho"),
        ({"errors": "arma"}, "errors"),
        ({"kind": "x"}, "kind"),
        ({"T": 0}, "T"),
        ({"delta": np.inf}, "delta"),
    ):
        with pytest.raises(ValueError, match=name):
            paper_mdp(**bad)
    with pytest.raises(ValueError, match="leave no residuals"):
        LinearMDP.fit(world.simulate(Design("UR").draw(4, 3, 0), seed=0))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 999), st.sampled_from([0.0, 0.7]), st.booleans(), st.integers(0, 3))
def test_regressions_against_numpy(seed, ridge, by_arm, n_next):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(2, 12, 3, 3)) + 5, rng.normal(size=(2, 12, 3))
    arm = (rng.random((2, 12, 3)) < 0.7) | (np.arange(12) < 6)[:, None] if by_arm else np.ones((2, 12, 3), dtype=bool)
    fit = regress([X[..., :1], X[..., 1:]], y, n_next, arm if by_arm else None, ridge, residuals=True)
    for r in range(2):
        for t in range(3):
            mine = arm[r, :, t]
            Z = np.column_stack([np.ones(12), X[r, :, t]])[mine]
            targets = y[r, mine, t, None]
            if t < 2:
                targets = np.column_stack([targets, X[r, mine, t + 1, :n_next]])
            stacked = np.vstack([Z, np.sqrt(ridge) * np.eye(4)[1:]])
            expected = np.linalg.lstsq(stacked, np.vstack([targets, np.zeros((3, targets.shape[1]))]), rcond=None)[0]
            m = targets.shape[1]
            assert np.allclose(fit.coef[r, t, :m], expected[1:].T, atol=1e-9)
            assert np.allclose(fit.intercept[r, t, :m], expected[0], atol=1e-9)
            assert np.allclose(fit.residuals[r, t, :m][:, mine], (targets - Z @ expected).T, atol=1e-9)
            assert not fit.residuals[r, t][:, ~mine].any()
            assert not fit.coef[r, t, m:].any()
    assert (fit.rank == 3).all()


def one_time(X, y, **options):
    """A single regression: X (k, n) on y (n,)."""
    return regress([X.T[None, :, None]], y[None, :, None], 0, **options)


def test_regressions_are_as_accurate_as_lstsq_on_ill_conditioned_columns():
    rng = np.random.default_rng(0)
    base = rng.normal(size=50)
    true = np.array([1.0, -2.0, 3.0])
    for gap in (1e-1, 1e-3, 1e-5, 1e-7, 1e-9):
        X = np.stack([base, base + gap * rng.normal(size=50), 1e3 + rng.normal(size=50)])
        y = true @ X + 7.0
        fit = one_time(X, y)
        peer = np.linalg.lstsq(np.column_stack([np.ones(50), X.T]), y, rcond=None)[0][1:]
        assert fit.rank[0, 0] == 3
        assert np.abs(fit.coef[0, 0, 0] - true).max() < 10 * np.abs(peer - true).max() + 1e-12


def test_an_ill_conditioned_problem_leaves_the_others_alone():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3, 30, 4, 2)), rng.normal(size=(3, 30, 4))
    alone = regress([X], y, 2)
    X = X.copy()
    X[1, :, 2, 1] = 3 * X[1, :, 2, 0] + 1
    fit = regress([X], y, 2)
    assert fit.rank[1, 2] == 1 and fit.rank.sum() == 2 * 12 - 1
    others = np.ones((3, 4), dtype=bool)
    others[1, 1:3] = False  # its own, and the one before, whose target it is
    assert np.array_equal(fit.coef[others], alone.coef[others])


def test_rank_of_collinear_and_constant_columns():
    x = np.random.default_rng(0).normal(size=20)
    X = np.stack([x, 2 * x + 1, np.full(20, 0.1) * 3, x**2])
    fit = one_time(X, 3 * x)
    assert fit.rank[0, 0] == 2 and fit.coef[0, 0, 0, [2, 3]] == pytest.approx([0, 0], abs=1e-10)
    assert fit.coef[0, 0, 0, 0] + 2 * fit.coef[0, 0, 0, 1] == pytest.approx(3)
    far = one_time(np.stack([x + 1e6, 2 * (x + 1e6)]), 3 * x)
    assert far.rank[0, 0] == 1
    ridge = one_time(X, 3 * x, ridge=1e-3)
    assert np.isfinite(ridge.coef).all() and ridge.rank[0, 0] == 4 and abs(ridge.coef[0, 0, 0, 2]) < 1e-10
