"""OLS, LSTD and DRL: exact cases, equivariance, libraries, resampling, warnings."""

import warnings

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import legendre

from icml25.switchback import (
    DRL,
    LSTD,
    OLS,
    Design,
    LinearMDP,
    NotIdentifiedError,
    OverlapWarning,
    Panel,
    UnstableLSTDWarning,
    alternating_time,
    difference_in_means,
    paper_mdp,
)

LINEAR = [OLS(), LSTD()]
ALL = [OLS(), LSTD(), DRL()]


def by_name(estimator):
    return repr(estimator)


@pytest.mark.parametrize("estimator", LINEAR, ids=by_name)
@pytest.mark.parametrize("design", [Design("AT", 1), Design("AT", 3), Design("UR", fresh=True)], ids=str)
def test_exact_without_noise(quiet, estimator, design):
    A = design.draw(40, 6, 5)
    panel = quiet.simulate(A, seed=1)
    assert estimator.fit(panel).ate_ == pytest.approx(quiet.ate(), abs=1e-8)


def test_exact_effects_of_ols(quiet):
    fit = OLS().fit(quiet.simulate(Design("UR", fresh=True).draw(60, 6, 5), seed=1))
    assert fit.direct_effect_ == pytest.approx(quiet.direct_effect(), abs=1e-8)
    assert fit.indirect_effect_ == pytest.approx(quiet.indirect_effect(), abs=1e-8)
    assert abs(quiet.indirect_effect()) > 0.005


def test_ols_coefficients_are_those_of_statsmodels(panel):
    fit = OLS().fit(panel).coefficients_
    for t in range(panel.n_times):
        X = sm.add_constant(np.column_stack([panel.states[:, t], panel.actions[:, t]]), has_constant="add")
        reward = sm.OLS(panel.rewards[:, t], X).fit().params
        assert np.allclose(reward, [fit["beta0"][t], *fit["beta"][t], fit["gamma"][t]], atol=1e-10)
        if t + 1 < panel.n_times:
            for j in range(2):
                state = sm.OLS(panel.states[:, t + 1, j], X).fit().params
                assert np.allclose(state, [fit["phi0"][t, j], *fit["Phi"][t, j], fit["Gamma"][t, j]], atol=1e-10)


def test_ridge_of_ols(panel):
    fit = OLS(ridge=3.0).fit(panel).coefficients_
    X = np.column_stack([panel.states[:, 0], panel.actions[:, 0]])
    Xc, yc = X - X.mean(0), panel.rewards[:, 0] - panel.rewards[:, 0].mean()
    coef = np.linalg.solve(Xc.T @ Xc + 3 * np.eye(3), Xc.T @ yc)
    assert np.allclose([*fit["beta"][0], fit["gamma"][0]], coef)
    assert np.isclose(fit["beta0"][0], panel.rewards[:, 0].mean() - X.mean(0) @ coef)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 999))
def test_without_states_ols_is_the_mean_difference_at_each_time(seed):
    rng = np.random.default_rng(seed)
    A = Design("UR", fresh=True).draw(30, 4, rng)
    if not (A.any(0) & ~A.all(0)).all():
        return
    Y = rng.normal(size=(30, 4))
    expected = np.mean([Y[A[:, t] == 1, t].mean() - Y[A[:, t] == 0, t].mean() for t in range(4)])
    assert OLS().fit(Panel(np.zeros((30, 4, 0)), A, Y)).ate_ == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 999))
def test_alternating_days_without_features_is_the_difference_of_daily_totals(seed):
    rng = np.random.default_rng(seed)
    A = Design("AD").draw(8, 5, rng)
    Y = rng.normal(size=(8, 5))
    total = Y.sum(1)
    expected = (total[A[:, 0] == 1].mean() - total[A[:, 0] == 0].mean()) / 5
    panel = Panel(rng.normal(size=(8, 5, 2)), A, Y)
    assert LSTD(degree=0).fit(panel).ate_ == pytest.approx(expected, abs=1e-12)
    assert difference_in_means(panel) == pytest.approx(expected, abs=1e-12)


def test_lstd_by_hand(panel):
    fit, T = LSTD().fit(panel), panel.n_times
    for a in (0, 1):
        after = np.zeros(panel.n_days)
        for t in reversed(range(T)):
            X = np.column_stack([np.ones(panel.n_days), panel.states[:, t]])
            mine = panel.actions[:, t] == a
            theta = np.linalg.lstsq(X[mine], (panel.rewards[:, t] + after)[mine], rcond=None)[0]
            after = X @ theta
            assert np.allclose(fit.values_[a][:, t], after, atol=1e-9)
    assert fit.ate_ == pytest.approx((fit.values_[1][:, 0] - fit.values_[0][:, 0]).mean() / T)


def features(panel, degree, time_degree):
    """The basis of the paper's code, without its constant."""
    n, T, p = panel.states.shape
    low, high = panel.states.min(0), panel.states.max(0)
    x = (panel.states - low) / np.where(high > low, high - low, np.inf)
    columns = [legendre.Legendre.basis(k)(x[:, :, j]) for j in range(p) for k in range(1, degree + 1)]
    times = [np.tile(legendre.Legendre.basis(k)(np.arange(1, T + 1) / T), (n, 1)) for k in range(1, time_degree + 1)]
    return np.stack([*columns, *times], axis=-1)


def test_legendre_features_by_time(panel):
    F, T = features(panel, 3, 0), panel.n_times
    fit = LSTD(degree=3).fit(panel)
    after = np.zeros(panel.n_days)
    for t in reversed(range(T)):
        X = np.column_stack([np.ones(panel.n_days), F[:, t]])
        mine = panel.actions[:, t] == 1
        after = X @ np.linalg.lstsq(X[mine], (panel.rewards[:, t] + after)[mine], rcond=None)[0]
        assert np.allclose(fit.values_[1][:, t], after, atol=1e-7)


def test_pooled_lstd_by_matrix_powers(panel):
    n, T = panel.rewards.shape
    phi = np.concatenate([features(panel, 2, 1), np.ones((n, T, 1))], axis=-1)
    value = {}
    for a in (0, 1):
        mine = panel.actions == a
        S0 = sum(np.outer(phi[i, t], phi[i, t]) for i in range(n) for t in range(T) if mine[i, t])
        S1 = sum(np.outer(phi[i, t], phi[i, t + 1]) for i in range(n) for t in range(T - 1) if mine[i, t])
        Y = panel.rewards - panel.rewards.mean(0)
        r = sum(phi[i, t] * Y[i, t] for i in range(n) for t in range(T) if mine[i, t])
        q = len(r)
        S0 = S0 + 1e-6 * np.trace(S0) / q * np.diag(np.r_[np.ones(q - 1), 0.0])
        M, b = np.linalg.solve(S0, S1), np.linalg.solve(S0, r)
        theta = sum(np.linalg.matrix_power(M, j) @ b for j in range(T))
        value[a] = (phi[:, 0] @ theta).mean()
        last = phi[:, -1] @ b + panel.rewards[:, -1].mean()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnstableLSTDWarning)
            fit = LSTD(degree=2, time_degree=1, pooling="time").fit(panel)
        assert np.allclose(fit.values_[a][:, -1], last, atol=1e-8)
        assert fit.spectral_radius_[a] == pytest.approx(np.abs(np.linalg.eigvals(M)).max(), rel=1e-8)
    assert fit.ate_ == pytest.approx((value[1] - value[0]) / T, abs=1e-8)


def test_pooled_lstd_that_explodes_warns():
    world = paper_mdp(T=48, p=3, delta=6.0, seed=12)
    panel = world.simulate(Design("AT", 1).draw(8, 48, 12), seed=12)
    estimator = LSTD(degree=2, time_degree=1, pooling="time")
    with pytest.warns(UnstableLSTDWarning, match=r"spectral radius 1\.18 .* T = 48 .* every 1 points"):
        fit = estimator.fit(panel)
    assert max(fit.spectral_radius_.values()) > 1 and abs(fit.ate_) > 100
    with pytest.warns(UnstableLSTDWarning):
        estimator.estimate(panel.states[None], panel.actions[None], panel.rewards[None])
    calm = world.simulate(Design("AD").draw(32, 48, 0), seed=4)
    value = LSTD(degree=1, time_degree=0, pooling="time").fit(calm)
    assert max(value.spectral_radius_.values()) <= 1.2 and np.isfinite(value.ate_)


def test_constant_column_is_scaled_to_zero(panel):
    S = np.concatenate([panel.states, np.full((40, 6, 1), 7.0)], axis=2)
    with_constant = Panel(S, panel.actions, panel.rewards)
    a, b = (LSTD(degree=2, ridge=1e-9).fit(this).ate_ for this in (panel, with_constant))
    assert a == pytest.approx(b, abs=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableLSTDWarning)
        a, b = (LSTD(degree=2, pooling="time", ridge=1e-9).fit(this).ate_ for this in (panel, with_constant))
    assert a == pytest.approx(b, abs=1e-5)


@pytest.mark.parametrize("estimator", ALL, ids=by_name)
def test_equivariance(panel, estimator):
    S, A, Y = panel.states, panel.actions, panel.rewards
    ate = estimator.fit(panel).ate_
    shift = np.linspace(-5, 9, 6)
    assert estimator.fit(Panel(S, A, 3.5 * Y + shift)).ate_ == pytest.approx(3.5 * ate, abs=1e-8)
    rng = np.random.default_rng(0)
    maps, moves = rng.normal(size=(6, 2, 2)) + 3 * np.eye(2), 10 * rng.normal(size=(6, 2))
    mapped = np.einsum("ntj,tkj->ntk", S, maps) + moves
    assert estimator.fit(Panel(S, 1 - A, Y)).ate_ == pytest.approx(-ate, abs=1e-10)
    order = rng.permutation(40)
    assert estimator.fit(Panel(S[order], A[order], Y[order])).ate_ == pytest.approx(ate, abs=1e-10)
    if not isinstance(estimator, DRL):  # the noise covariance pooled over t is not equivariant to maps that vary with t
        assert estimator.fit(Panel(mapped, A, Y)).ate_ == pytest.approx(ate, abs=1e-8)
    same_map = S @ maps[0].T + moves[0]
    assert estimator.fit(Panel(same_map, A, Y)).ate_ == pytest.approx(ate, abs=1e-7)


@pytest.mark.parametrize("estimator", [*ALL, OLS(ridge=2.0), LSTD(degree=2), DRL(cross_fit=2)], ids=by_name)
@pytest.mark.parametrize("pooling", ["none", "time"])
def test_constants_at_each_time_leave_estimates_alone(panel, estimator, pooling):
    if pooling == "time":
        if not isinstance(estimator, LSTD):
            estimator = DRL(value=LSTD(degree=2, time_degree=1, pooling="time"))
        else:
            estimator = LSTD(degree=estimator.degree, pooling="time", ridge=None if estimator.degree > 1 else 0.5)
    S, A, Y = panel.states, panel.actions, panel.rewards
    fit = estimator.fit(panel)
    ate, values = fit.ate_, getattr(fit, "values_", None)
    for shift in (100.0, 1e6, 1e4 * np.linspace(-5, 9, 6)):
        moved = estimator.fit(Panel(S, A, Y + shift))
        assert moved.ate_ == pytest.approx(ate, abs=1e-7)
        if values is not None:  # values have the level of the rewards that are left
            left = np.cumsum(np.broadcast_to(shift, 6)[::-1])[::-1]
            assert np.allclose(moved.values_[1] - left, values[1], atol=1e-6)


@pytest.mark.parametrize("estimator", [DRL(), DRL(cross_fit=2), LSTD(degree=2), LSTD(pooling="time")], ids=by_name)
def test_units_of_the_states_do_not_matter(panel, estimator):
    other = Panel(panel.states * [1e7, 0.05], panel.actions, panel.rewards)
    assert estimator.fit(other).ate_ == pytest.approx(estimator.fit(panel).ate_, rel=1e-9)


@pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-5])
@pytest.mark.parametrize("unit", [1.0, 1e5])
def test_drl_does_not_depend_on_the_axes_of_the_states(gap, unit):
    actions = alternating_time(40, 4, span=2, seed=1)
    panel = paper_mdp(T=4, p=2, delta=0.8, seed=1).simulate(actions, seed=1)
    states = panel.states.copy()
    states[..., 1] = states[..., 0] + gap * states[..., 1]
    turned = DRL().fit(Panel(states * unit, actions, panel.rewards))
    assert turned.ate_ == pytest.approx(DRL().fit(panel).ate_, rel=1e-6)


def test_noise_free_days_that_grow_alike():
    """Without state noise the days' states differ by 1e-9 of their size at the end of the day."""
    for seed in (0, 2, 3, 4, 5):
        world = paper_mdp(T=9, p=3, delta=0.8, seed=seed)
        fields = {k: getattr(world, k) for k in ("beta0", "beta", "gamma", "phi0", "Phi", "Gamma", "m1")}
        quiet = LinearMDP(**fields, Sigma_e=np.zeros((9, 9)), Q=np.zeros((3, 3)), C1=np.eye(3))
        panel = quiet.simulate(Design("UR").draw(60, 9, 5), seed=1)
        for estimator in LINEAR:
            assert estimator.fit(panel).ate_ == pytest.approx(quiet.ate(), abs=1e-8)


NEAR = [*ALL, DRL(value=LSTD(ridge=1e-6)), LSTD(pooling="time", ridge=0.0), DRL(value=LSTD(pooling="time"))]


@pytest.mark.parametrize("gap", [0.0, 1e-13, 1e-11, 1e-8])
@pytest.mark.parametrize("estimator", NEAR, ids=by_name)
def test_nearly_collinear_states(panel, estimator, gap):
    twin = panel.states[..., :1] + gap * np.random.default_rng(0).normal(size=(40, 6, 1))
    S = np.concatenate([panel.states, twin], axis=2)
    good = np.concatenate([panel.states, np.random.default_rng(1).normal(size=(40, 6, 1))], axis=2)
    out = estimator.estimate(np.stack([S, good]), np.stack([panel.actions] * 2), np.stack([panel.rewards] * 2))
    assert out[1] == pytest.approx(estimator.fit(Panel(good, panel.actions, panel.rewards)).ate_, abs=1e-10)
    if isinstance(estimator, DRL) and estimator.value is not None:  # regularised: the twin adds nothing
        assert out[0] == pytest.approx(estimator.fit(panel).ate_, abs=0.3)
        return
    assert np.isnan(out[0])
    with pytest.raises(ValueError, match="collinear"):
        estimator.fit(Panel(S, panel.actions, panel.rewards))


def test_design_that_the_table_cannot_come_from(panel):
    for design in (Design("AD"), Design("AT", 1), Design("AT", 3), Design("blocks", 3)):
        with pytest.raises(ValueError, match=r"design = .* never draws the arms of day \d+ \(of 40\)"):
            DRL(design=design).fit(panel)
    for design in (Design("AT", 2), Design("blocks", 2), Design("UR"), Design("UR", fresh=True)):
        assert np.isfinite(DRL(design=design).fit(panel).ate_)
    A = panel.actions.copy()
    A[7, 5] = 1 - A[7, 5]
    with pytest.raises(ValueError, match=r"day 7 "):
        DRL(design=Design("AT", 2)).estimate(panel.states[None], A[None], panel.rewards[None])


def test_memory_of_drl_follows_its_rows(panel):
    two, many = (DRL(design=d)._copies(panel.actions[None]) for d in (Design("AT", 2), Design("UR", fresh=True)))
    assert two == DRL()._copies(panel.actions[None]) == 4 + 2 and many == 4 + 64


@pytest.mark.parametrize("scale", [1e-9, 1e11])
@pytest.mark.parametrize("estimator", ALL, ids=by_name)
def test_large_and_small_numbers(panel, estimator, scale):
    ate = estimator.fit(panel).ate_
    big = Panel(panel.states * scale, panel.actions, panel.rewards * scale + 1e3 * scale)
    assert estimator.fit(big).ate_ / scale == pytest.approx(ate, rel=1e-6)
    far = Panel(panel.states + 1e6, panel.actions, panel.rewards)
    assert estimator.fit(far).ate_ == pytest.approx(ate, rel=1e-5)


@pytest.mark.parametrize(
    "estimator", [*ALL, LSTD(degree=2), DRL(cross_fit=2), DRL(smooth="local"), DRL(self_normalize=True)], ids=by_name
)
def test_batches_are_single_fits(estimator):
    world = paper_mdp(T=5, p=2, delta=0.8)
    tables = np.stack([Design("AT", 2).draw(24, 5, s) for s in range(4)])
    S, A, Y = world.simulate(tables, seed=1, n_rep=4)
    together = estimator.estimate(S, A, Y)
    assert np.allclose(together, [estimator.fit(Panel(S[r], A[r], Y[r])).ate_ for r in range(4)], atol=1e-10)


def test_chunks_do_not_change_estimates(monkeypatch):
    world = paper_mdp(T=4, p=2)
    S, A, Y = world.simulate(Design("AT", 2).draw(20, 4, 0), seed=1, n_rep=7)
    whole = OLS().estimate(S, A, Y)
    monkeypatch.setattr("icml25.switchback.estimators.CHUNK", 20 * 4 * 6 * 4 * 3)
    assert np.allclose(OLS().estimate(S, A, Y), whole, atol=1e-13)


def test_replicates_that_do_not_identify_are_nan():
    world = paper_mdp(T=3, p=1)
    S, A, Y = world.simulate(Design("AT", 1).draw(8, 3, 0), seed=1, n_rep=2)
    A[1, :, 2] = 1
    for estimator in ALL:
        out = estimator.estimate(S, A, Y)
        assert np.isfinite(out[0]) and np.isnan(out[1])
    with pytest.raises(ValueError, match="do not fit"):
        OLS().estimate(S, A[:1], Y)
    with pytest.raises(ValueError, match="finite"):
        OLS().estimate(S * np.nan, A, Y)
    for arguments, match in (
        ((S[:, :0], A[:, :0], Y[:, :0]), r"must have n >= 1 days and T >= 1 times, got shape \(2, 0, 3, 1\)"),
        ((S[:, :, :0], A[:, :, :0], Y[:, :, :0]), r"n >= 1 days and T >= 1"),
        ((S, A, Y + 1j), "rewards must be real numbers, got dtype complex"),
        ((np.ma.masked_greater(S, 0), A, Y), "states has .* masked"),
        ((S, A, Y - 1e307), r"rewards must be below 1e\+100"),
        ((S, A + 1, Y), "actions must be 0 or 1"),
    ):
        with pytest.raises(ValueError, match=match):
            OLS().estimate(*arguments)


def test_drl_is_lstd_under_alternating_days():
    panel = paper_mdp(T=8, p=3, delta=1.6).simulate(Design("AD").draw(20, 8, 0), seed=3)
    fit = DRL().fit(panel)
    assert fit.ate_ == pytest.approx(LSTD().fit(panel).ate_, abs=1e-10)
    for a in (0, 1):
        assert np.allclose(fit.ratios_[a], 2.0 * (panel.actions == a), atol=1e-10)
        assert np.allclose(fit.ess_[a], 10)
    assert DRL(design=Design("AD")).fit(panel).ate_ == pytest.approx(fit.ate_, abs=1e-10)


def log_normal(s, m, C):
    gap = s - m
    return -0.5 * gap @ np.linalg.solve(C, gap) - 0.5 * np.log(np.linalg.det(C))


def test_drl_by_hand():
    world = paper_mdp(T=4, p=2, delta=0.8, seed=3)
    panel = world.simulate(Design("AT", 1).draw(30, 4, 1), seed=2)
    n, T, p = panel.states.shape
    coef = OLS().fit(panel).coefficients_
    eps = [
        panel.states[:, t + 1]
        - coef["phi0"][t]
        - panel.states[:, t] @ coef["Phi"][t].T
        - np.outer(panel.actions[:, t], coef["Gamma"][t])
        for t in range(T - 1)
    ]
    Q = sum(e.T @ e for e in eps) / ((n - p - 2) * (T - 1))
    rows = [panel.actions[0], panel.actions[1], np.zeros(T), np.ones(T)]
    C = [np.cov(panel.states[:, 0].T)]
    means = [[panel.states[:, 0].mean(0)] for _ in rows]
    for t in range(T - 1):
        C.append(coef["Phi"][t] @ C[t] @ coef["Phi"][t].T + Q)
        for m, c in zip(means, rows, strict=True):
            m.append(coef["phi0"][t] + coef["Phi"][t] @ m[t] + coef["Gamma"][t] * c[t])
    V = LSTD().fit(panel).values_
    fit, psi = DRL().fit(panel), {}
    for a in (0, 1):
        psi[a] = V[a][:, 0].copy()
        for i in range(n):
            for t in range(T):
                w = 0.0
                if panel.actions[i, t] == a:
                    s = panel.states[i, t]
                    top = np.exp(log_normal(s, means[2 + a][t], C[t]))
                    w = top / sum(0.5 * (rows[c][t] == a) * np.exp(log_normal(s, means[c][t], C[t])) for c in (0, 1))
                assert fit.ratios_[a][i, t] == pytest.approx(w, rel=1e-6)
                after = V[a][i, t + 1] if t + 1 < T else 0.0
                psi[a][i] += w * (panel.rewards[i, t] + after - V[a][i, t])
        assert np.allclose(fit.ess_[a], fit.ratios_[a].sum(0) ** 2 / (fit.ratios_[a] ** 2).sum(0))
    assert fit.ate_ == pytest.approx((psi[1] - psi[0]).mean() / T, abs=1e-9)
    clipped = DRL(clip=1.5).fit(panel)
    assert np.allclose(clipped.ratios_[1], np.minimum(fit.ratios_[1], 1.5))
    normal = DRL(self_normalize=True).fit(panel)
    assert np.allclose(normal.ratios_[1].mean(0), 1) and np.allclose(
        normal.ratios_[1], fit.ratios_[1] / fit.ratios_[1].mean(0)
    )


@pytest.mark.parametrize(
    "design",
    [Design("AT", 2), Design("UR"), Design("UR", fresh=True), Design("blocks", 2), Design("bojinov", 1)],
    ids=str,
)
def test_ratios_average_to_one(design):
    world = paper_mdp(T=8, p=2, delta=0.4, seed=3)
    panel = world.simulate(design.draw(20_000, 8, 3), seed=2)
    fit = DRL().fit(panel)
    for a in (0, 1):
        assert np.abs(fit.ratios_[a].mean(0) - 1).max() < 0.05
    assert abs(fit.ate_ - world.ate()) < 0.08


def test_many_rows_take_the_moments_of_the_mixture():
    world = paper_mdp(T=8, p=2, delta=0.8, seed=3)
    panel = world.simulate(Design("UR", fresh=True).draw(4000, 8, 3), seed=2)  # 256 rows, above the 64
    fit = DRL().fit(panel)
    assert all(np.abs(w.mean(0) - 1).max() < 0.15 for w in fit.ratios_.values())
    assert abs(fit.ate_ - world.ate()) < 0.25
    assert np.allclose(
        fit.ratios_[1][:, 0], 1 / panel.actions[:, 0].mean() * panel.actions[:, 0]
    )  # S_1 owes nothing to the arm

    coef, (m1, C1), p = OLS().fit(panel).coefficients_, (panel.states[:, 0].mean(0), np.cov(panel.states[:, 0].T)), 2
    eps = [
        panel.states[:, t + 1]
        - coef["phi0"][t]
        - panel.states[:, t] @ coef["Phi"][t].T
        - np.outer(panel.actions[:, t], coef["Gamma"][t])
        for t in range(7)
    ]
    C2 = coef["Phi"][0] @ C1 @ coef["Phi"][0].T + sum(e.T @ e for e in eps) / ((4000 - p - 2) * 7)
    treated = panel.actions[:, 1] == 1
    before = panel.actions[treated, 0].mean()
    base, push = coef["phi0"][0] + coef["Phi"][0] @ m1, coef["Gamma"][0]
    spread = before * (1 - before) * np.outer(push, push)
    for i in np.flatnonzero(treated)[:5]:
        s = panel.states[i, 1]
        top, bottom = log_normal(s, base + push, C2), log_normal(s, base + before * push, C2 + spread)
        assert fit.ratios_[1][i, 1] == pytest.approx(np.exp(top - bottom) / treated.mean(), rel=1e-5)


def test_doubly_robust():
    """With values that are wrong, the ratios of the right model still give the effect."""
    world = paper_mdp(T=3, p=2, delta=0.8, seed=3)
    panel = world.simulate(Design("AT", 1).draw(200_000, 3, 3), seed=2)
    wrong = LSTD(degree=0)
    plain, corrected = wrong.fit(panel).ate_, DRL(value=wrong).fit(panel).ate_
    assert abs(plain - world.ate()) > 0.04
    assert abs(corrected - world.ate()) < 0.01


def test_design_rows_of_drl():
    world = paper_mdp(T=6, p=2, delta=0.8, seed=3)
    panel = world.simulate(Design("AT", 2).draw(30, 6, 1), seed=2)
    assert DRL(design=Design("AT", 2)).fit(panel).ate_ == pytest.approx(DRL().fit(panel).ate_, abs=1e-12)
    fresh = world.simulate(Design("UR", fresh=True).draw(60, 6, 1), seed=2)
    given, seen = DRL(design=Design("UR", fresh=True)).fit(fresh), DRL().fit(fresh)
    assert given.ratios_[1][fresh.actions[:, 0] == 1, 0] == pytest.approx(
        2.0
    )  # exact probability, not the table's share
    assert given.ate_ != pytest.approx(seen.ate_, abs=1e-6)


def test_local_smoothing_keeps_quadratics_and_takes_away_noise():
    from icml25.switchback.estimators import _smooth_over_time

    t = np.arange(40) / 40
    curve = (1 + 2 * t - 3 * t**2)[None, :, None]
    assert np.allclose(_smooth_over_time(curve), curve, atol=1e-8)
    noisy = curve + 0.3 * np.random.default_rng(0).normal(size=(1, 40, 1))
    assert np.mean((_smooth_over_time(noisy) - curve) ** 2) < 0.5 * np.mean((noisy - curve) ** 2)


def test_cross_fitting_leaves_the_fold_out():
    panel = paper_mdp(T=3, p=1, delta=0.8).simulate(Design("AT", 1).draw(24, 3, 0), seed=1)
    fit = DRL(cross_fit=2).fit(panel)
    test = np.arange(24) // 2 % 2 == 0
    learnt = LSTD()
    theta, basis, _ = learnt._learn(panel.states[None, ~test], panel.actions[None, ~test], panel.rewards[None, ~test])
    assert np.allclose(fit.values_[1][test], learnt._value(theta, basis(panel.states[None, test]))[1][0])
    with pytest.raises(ValueError, match="13 folds are more than the 12 pairs"):
        DRL(cross_fit=13).fit(panel)


def test_features_of_days_outside_the_range_are_clipped():
    from icml25.switchback.estimators import _Basis

    S = np.random.default_rng(0).normal(size=(1, 30, 2, 1))
    basis = _Basis(S, 2, 0, minmax=True)
    far = np.stack([np.full((1, 2, 1), -50.0), np.full((1, 2, 1), 50.0)], axis=1)
    edges = np.stack([S.min(axis=1), S.max(axis=1)], axis=1)
    assert np.allclose(basis(far), basis(edges)) and np.ptp(basis(far)) > 0.5


def test_poor_overlap_warns():
    panel = paper_mdp(T=3, p=1, delta=2.4).simulate(Design("AT", 1).draw(2000, 3, 0), seed=4)
    S = panel.states.copy()
    S[:4, 1] = np.array([60.0, 60.0, -60.0, -60.0])[:, None]  # far from where any row of the table leads
    with pytest.warns(OverlapWarning, match=r"density ratio of arm \d is .* at t = 1, where 1 days are effective"):
        fit = DRL().fit(Panel(S, panel.actions, panel.rewards))
    assert min(ess.min() for ess in fit.ess_.values()) == pytest.approx(1, abs=1e-3)


def test_standard_errors(panel):
    fit = OLS().fit(panel)
    a, b = fit.std_error(seed=0), fit.std_error(seed=np.random.default_rng(0))
    assert a == b != fit.std_error(seed=1)
    low, high = fit.conf_int(0.9, seed=0)
    assert (high + low) / 2 == pytest.approx(fit.ate_) and (high - low) / 2 == pytest.approx(1.6448536 * a)
    pairs = np.arange(40).reshape(20, 2)
    left = []
    for g in range(20):
        days = np.delete(pairs, g, axis=0).ravel()
        left.append(OLS().fit(Panel(panel.states[days], panel.actions[days], panel.rewards[days])).ate_)
    expected = np.sqrt(19 / 20 * np.sum((np.array(left) - np.mean(left)) ** 2))
    assert fit.std_error("jackknife") == pytest.approx(expected, rel=1e-8)
    assert 0.5 < a / expected < 2


def test_pairs_are_resampled_not_days():
    """With errors shared by a pair of days, the paired difference has no noise at all."""
    rng = np.random.default_rng(0)
    A = Design("AD").draw(40, 3, 0)
    Y = np.repeat(rng.normal(size=(20, 3)), 2, axis=0) * 5 + A
    fit = OLS().fit(Panel(np.zeros((40, 3, 0)), A, Y))
    assert fit.ate_ == pytest.approx(1) and fit.std_error(seed=0) < 1e-12 and fit.std_error("jackknife") < 1e-12


@pytest.mark.parametrize(
    ("estimator", "n"), [(OLS(), 24), (LSTD(), 38), (DRL(), 38), (LSTD(pooling="time"), 12)], ids=str
)
def test_few_days_take_the_jackknife(estimator, n):
    """Five days a regressor: 5 (p + 2) = 25 for OLS, 10 (p + 1) = 40 for LSTD and DRL, over T with pooling."""
    world = paper_mdp(T=3, p=3)
    panel = world.simulate(Design("AD").draw(n, 3, 0), seed=1)
    fit = estimator.fit(panel)
    assert fit.std_error(seed=0) == fit.std_error("jackknife") == fit.std_error(seed=1)
    assert np.diff(fit.conf_int(seed=0))[0] == pytest.approx(2 * 1.959964 * fit.std_error("jackknife"))
    with pytest.warns(UserWarning, match=f"{n} days are fewer than 5 for each of"):
        assert fit.std_error("bootstrap", seed=0) != fit.std_error("jackknife")
    more = estimator.fit(world.simulate(Design("AD").draw(n + 2, 3, 0), seed=1))
    assert more.std_error(seed=0) == more.std_error("bootstrap", seed=0)


def test_standard_errors_of_ten_days():
    world = paper_mdp(T=6, p=3, delta=0.8, seed=1)
    S, A, Y = world.simulate(Design("AT", 2).draw(10, 6, 0), seed=3, n_rep=200)
    spread = OLS().estimate(S, A, Y).std()
    errors = [OLS().fit(Panel(S[r], A[r], Y[r])).std_error(seed=0) for r in range(200)]
    assert np.median(errors) < 2 * spread


def test_bootstrap_coverage():
    world = paper_mdp(T=4, p=1, delta=0.0, rho=0.5)
    S, A, Y = world.simulate(Design("AD").draw(40, 4, 0), seed=11, n_rep=300)
    covered = 0
    for r in range(300):
        low, high = OLS().fit(Panel(S[r], A[r], Y[r])).conf_int(seed=r)
        covered += low <= world.ate() <= high
    assert 0.90 <= covered / 300 <= 0.98


def test_mean_squared_error_falls_with_days():
    world = paper_mdp(T=4, p=2, delta=0.8)
    errors = []
    for n in (20, 320):
        e = OLS().estimate(*world.simulate(Design("AT", 1).draw(n, 4, 0), seed=1, n_rep=200)) - world.ate()
        errors.append(np.sqrt(np.mean(e**2)))
    assert 3 < errors[0] / errors[1] < 6.5  # sqrt(16) and the small sample's n / (n - p - 2)


def test_parameters():
    drl = DRL(value=LSTD(degree=2), clip=5)
    assert drl.get_params()["value__degree"] == 2 and drl.get_params(deep=False)["clip"] == 5
    assert drl.set_params(value__degree=3, clip=None).value.degree == 3
    assert repr(drl) == "DRL(value=LSTD(degree=3))"
    with pytest.raises(ValueError, match="no parameter 'rigde'; it has \\['ridge'\\]"):
        OLS().set_params(rigde=1)


def test_sklearn_clone():
    base = pytest.importorskip("sklearn.base")
    assert base.clone(DRL(value=LSTD(degree=2))).value.degree == 2


def test_bad_parameters(panel):
    for estimator, match in (
        (OLS(ridge=-1), "ridge"),
        (OLS(ridge=np.nan), "ridge"),
        (LSTD(degree=-1), "degree"),
        (LSTD(degree=1.5), "degree"),
        (LSTD(pooling="all"), "pooling must be 'none' or 'time', got 'all'"),
        (LSTD(time_degree=2), "time_degree must be 0"),
        (LSTD(ridge=-1.0), "ridge"),
        (DRL(density="kde"), "density"),
        (DRL(smooth="loess"), "smooth"),
        (DRL(clip=0), "clip"),
        (DRL(cross_fit=0), "cross_fit"),
        (DRL(value=LSTD(degree=-1)), "degree"),
    ):
        with pytest.raises(ValueError, match=match):
            estimator.fit(panel)
    for estimator, wrong, match in (
        (OLS(), {"ridge": "a"}, "ridge must be a number, got 'a'"),
        (OLS(), {"ridge": None}, "ridge must be a number"),
        (LSTD(), {"ridge": True}, "ridge must be a number, got True"),
        (DRL(), {"value": OLS()}, r"value must be an LSTD or None, got OLS\(\)"),
        (DRL(), {"value": LSTD}, "value must be an LSTD or None"),
        (DRL(), {"design": "AT"}, r"design must be a Design such as Design\('AT', 6\), got 'AT'"),
        (DRL(), {"clip": "a"}, "clip must be a number"),
    ):
        with pytest.raises(TypeError, match=match):
            estimator.set_params(**wrong).fit(panel)
    with pytest.raises(ValueError, match="value is None, so 'value__degree' cannot be set"):
        DRL().set_params(value__degree=2)
    with pytest.raises(ValueError, match="not fitted"):
        OLS().std_error()
    fit = OLS().fit(panel)
    with pytest.raises(ValueError, match="method must be 'bootstrap' or 'jackknife', got 'delta'"):
        fit.std_error("delta")
    with pytest.raises(ValueError, match="n_boot"):
        fit.std_error(n_boot=1)
    with pytest.raises(ValueError, match="level"):
        fit.conf_int(95)


def test_bad_panels():
    world = paper_mdp(T=3, p=3)
    few = world.simulate(Design("AT", 1).draw(4, 3, 0), seed=0)
    with pytest.raises(ValueError, match=r"n = 4 days are too few for p = 3 states: OLS needs n >= p \+ 2 = 5.*t = 0"):
        OLS().fit(few)
    with pytest.raises(
        ValueError, match=r"arm 0 has 2 of n = 4 days at time 0 \(t = 0\), fewer than the 4 features of p = 3"
    ):
        LSTD().fit(few)
    assert np.isfinite(OLS(ridge=1.0).fit(few).ate_) and np.isfinite(LSTD(ridge=1.0).fit(few).ate_)
    panel = world.simulate(Design("AT", 1).draw(20, 3, 0), seed=0)
    S = panel.states.copy()
    S[:, 1, 2] = 2 * S[:, 1, 0] - S[:, 1, 1]
    twin = Panel(S, panel.actions, panel.rewards)
    with pytest.raises(ValueError, match=r"collinear at time 1 \(t = 1\).*rank 4 of 5.*OLS\(ridge"):
        OLS().fit(twin)
    with pytest.raises(ValueError, match=r"collinear at time 1 \(t = 1\) in arm 0.*rank 3 of 4.*LSTD\(ridge"):
        LSTD().fit(twin)
    assert np.isfinite(OLS(ridge=1e-6).fit(twin).ate_)
    A = panel.actions.copy()
    A[:, 2] = 1
    for estimator in [*ALL, LSTD(pooling="time"), OLS(ridge=1.0)]:
        with pytest.raises(NotIdentifiedError, match="arm 0 never occurs at time 2"):
            estimator.fit(Panel(panel.states, A, panel.rewards))


def test_resamples_that_do_not_identify_are_reported():
    world = paper_mdp(T=2, p=3)
    panel = world.simulate(Design("AT", 1).draw(8, 2, 0), seed=0)
    with (
        pytest.warns(UserWarning, match="of 200 bootstrap samples do not identify"),
        pytest.warns(UserWarning, match=r"8 days are fewer than 5 for each of 5 regressors.*method='jackknife'"),
    ):
        OLS().fit(panel).std_error("bootstrap", seed=0)
    tiny = world.simulate(Design("AT", 1).draw(6, 2, 0), seed=0)
    with pytest.raises(ValueError, match="do not identify the effect"):
        OLS().fit(tiny).std_error("jackknife")
    pair = paper_mdp(T=2, p=0).simulate(Design("AT", 1).draw(2, 2, 0), seed=0)
    with pytest.raises(ValueError, match="at least 2 pairs"):
        OLS().fit(pair).std_error()


def test_inputs_are_left_alone(panel):
    S, A, Y = panel.states.copy(), panel.actions.copy(), panel.rewards.copy()
    for estimator in ALL:
        estimator.fit(panel).std_error(n_boot=5, seed=0)
    R = (S[None], A[None], Y[None])
    OLS().estimate(*R)
    assert (
        np.array_equal(R[0][0], panel.states) and np.array_equal(S, panel.states) and np.array_equal(Y, panel.rewards)
    )


def test_one_time_point():
    world = paper_mdp(T=1, p=2)
    panel = world.simulate(Design("AT", 1).draw(30, 1, 0), seed=0)
    assert OLS().fit(panel).indirect_effect_ == 0
    assert DRL().fit(panel).ate_ == pytest.approx(LSTD().fit(panel).ate_, abs=1e-10)
    assert isinstance(LinearMDP.fit(panel), LinearMDP)
