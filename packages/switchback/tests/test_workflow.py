"""Covariances, gains, the test of carryover, and recommendations."""

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.switchback import (
    DRL,
    OLS,
    Design,
    NotIdentifiedError,
    Panel,
    carryover_test,
    design_gain,
    paper_mdp,
    recommend_design,
    residual_covariance,
    weak_carryover_mse,
)


def history_of(world, n=60, seed=0):
    return world.simulate(np.zeros((n, world.n_times), dtype=int), seed=seed)


def covariance(T, seed):
    root = np.random.default_rng(seed).normal(size=(T, T))
    return root @ root.T


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.integers(1, 10), st.integers(0, 999))
def test_gain_is_equation_2(T, m, seed):
    Sigma, n = covariance(T, seed), 14
    block = [t // m for t in range(T)]
    odd = sum(Sigma[t, s] for t in range(T) for s in range(T) if block[s] > block[t] and (block[s] - block[t]) % 2)
    assert design_gain(Sigma, n, m) == pytest.approx(16 / (n * T**2) * odd, abs=1e-12)
    if m >= T:
        assert design_gain(Sigma, n, m) == 0


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 9), st.integers(0, 999))
def test_gain_of_uniform_random_is_equation_3(T, seed):
    Sigma, n = covariance(T, seed), 14
    above = sum(Sigma[t, s] for t in range(T) for s in range(t + 1, T))
    assert design_gain(Sigma, n, Design("UR")) == pytest.approx(8 / (n * T**2) * above, abs=1e-12)


def test_mse_by_double_sum_and_equal_designs_without_correlation():
    Sigma = covariance(6, 1)
    row = np.array([1, 1, -1, -1, 1, 1])
    expected = 4 / (10 * 36) * sum(row[t] * row[s] * Sigma[t, s] for t in range(6) for s in range(6))
    assert weak_carryover_mse(Sigma, 10, Design("AT", 2)) == pytest.approx(expected)
    designs = [Design("AD"), Design("AT", 1), Design("AT", 4), Design("UR"), Design("blocks", 2), Design("bojinov", 1)]
    values = [weak_carryover_mse(2.5 * np.eye(6), 10, design) for design in designs]
    assert np.allclose(values, 4 * 2.5 / (10 * 6))


@pytest.mark.parametrize(
    "design", [Design("AD"), Design("AT", 1), Design("AT", 3), Design("UR"), Design("blocks", 3)], ids=str
)
def test_mse_against_experiments(design):
    world, n, R = paper_mdp(T=6, p=0, rho=0.8), 4, 8_000
    rng = np.random.default_rng(7)
    A = np.stack([design.draw(n, 6, rng) for _ in range(R)])
    error = OLS().estimate(*world.simulate(A, seed=rng, n_rep=R)) - world.ate()
    assert np.mean(error**2) / weak_carryover_mse(world.Sigma_e, n, design) == pytest.approx(1, abs=0.07)


def test_residual_covariance_against_statsmodels():
    world = paper_mdp(T=3, p=2)
    for A, extra in ((np.zeros((20, 3), dtype=int), 0), (Design("AT", 1).draw(20, 3, 0), 1)):
        panel = world.simulate(A, seed=0)
        residuals = []
        for t in range(3):
            columns = [panel.states[:, t], panel.actions[:, t]] if extra else [panel.states[:, t]]
            residuals.append(sm.OLS(panel.rewards[:, t], sm.add_constant(np.column_stack(columns))).fit().resid)
        e = np.array(residuals)
        assert np.allclose(residual_covariance(panel), e @ e.T / (20 - 3 - extra))


def test_residual_covariance_finds_the_truth():
    world = paper_mdp(T=4, p=2, rho=0.7)
    assert np.allclose(residual_covariance(history_of(world, 20_000)), world.Sigma_e, atol=0.12)


def test_carryover_test():
    strong = paper_mdp(T=12, p=2, delta=2.4, seed=4)
    panel = strong.simulate(Design("AT", 3).draw(200, 12, 0), seed=0)
    found = carryover_test(panel, seed=0)
    fit = OLS().fit(panel)
    assert found.indirect_effect == pytest.approx(fit.indirect_effect_)
    assert found.size == pytest.approx(
        abs(fit.indirect_effect_) / (abs(fit.direct_effect_) + abs(fit.indirect_effect_))
    )
    assert found == carryover_test(panel, method="jackknife")
    bootstrap = carryover_test(panel, method="bootstrap", seed=0)
    assert 0.5 < found.std_error / bootstrap.std_error < 2 and found.std_error != bootstrap.std_error
    z = abs(found.indirect_effect) / found.std_error
    from scipy.stats import norm

    assert found.p_value == pytest.approx(2 * norm.sf(z), rel=1e-6)
    assert found == carryover_test(panel, seed=0) and found.p_value < 0.01
    none = Panel(np.zeros((20, 3, 0)), Design("AT", 1).draw(20, 3, 0), np.random.default_rng(0).normal(size=(20, 3)))
    assert carryover_test(none, seed=0).p_value == 1.0 and carryover_test(none, seed=0).size == 0.0


def test_carryover_test_has_its_level():
    world = paper_mdp(T=4, p=1, delta=0.0, seed=1)
    null = type(world)(**{k: getattr(world, k) * (k != "Gamma") for k in world.__dataclass_fields__})
    S, A, Y = null.simulate(Design("AT", 1).draw(40, 4, 0), seed=3, n_rep=120)
    rejected = np.mean([carryover_test(Panel(S[r], A[r], Y[r]), n_boot=60, seed=r).p_value < 0.05 for r in range(120)])
    assert rejected < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 120)


def test_history_alone():
    switch = recommend_design(history_of(paper_mdp(T=12, p=1, rho=0.9), 200), n_days=28, seed=0)
    assert switch.best.kind == "AT" and switch.needs_pilot and switch.carryover is None
    assert switch.positive_share > 0.95 and switch.lag_correlation.shape == (6,)
    assert switch.lag_correlation[0] == pytest.approx(1.5 * 0.9 / 2.5, abs=0.08)
    assert [row["design"] for row in switch.table] == [
        Design("AD"),
        Design("UR"),
        *(Design("AT", m) for m in (1, 2, 3, 4, 6)),
    ]
    assert switch.table[0]["gain"] == 0
    stay = recommend_design(history_of(paper_mdp(T=12, p=1, rho=-0.6), 200), n_days=28, seed=0)
    assert stay.best == Design("AD") and not stay.needs_pilot
    nothing = recommend_design(history_of(paper_mdp(T=12, p=1, errors="none", rho=0.0), 40), n_days=28, seed=2)
    assert nothing.best == Design("AD")


def test_gains_of_history_are_those_of_its_covariance():
    panel = history_of(paper_mdp(T=6, p=1, rho=0.7))
    report = recommend_design(panel, n_days=20, n_boot=2000, seed=0)
    Sigma = residual_covariance(panel)
    for row in report.table:
        assert row["gain"] == pytest.approx(design_gain(Sigma, 20, row["design"]), abs=1e-12)
    # bootstrap error of a sum over days: sqrt(N) times the spread of what one day adds
    e = np.column_stack(
        [sm.OLS(panel.rewards[:, t], sm.add_constant(panel.states[:, t])).fit().resid for t in range(6)]
    )
    weight = 4 / (20 * 36) * (1 - Design("AT", 2).correlation(6))
    of_day = np.einsum("it,ts,is->i", e, weight, e) / (60 - 2)
    assert report.table[3]["std_error"] == pytest.approx(np.sqrt(60) * of_day.std(), rel=0.1)


def test_pilot():
    world = paper_mdp(T=12, p=2, delta=0.0, rho=0.9)
    pilot = world.simulate(Design("AT", 3).draw(40, 12, 0), seed=1)
    report = recommend_design(pilot=pilot, n_days=40, seed=0)
    assert report.best.kind == "AT" and report.best.span <= 3 and not report.needs_pilot
    assert report.carryover.size < 0.5
    mse = {row["design"]: row["mse"] for row in report.table}
    for design in (Design("AD"), Design("AT", 1), Design("AT", 3)):
        tables = np.stack([design.draw(40, 12, s) for s in range(300)])
        true = np.mean((OLS().estimate(*world.simulate(tables, seed=5, n_rep=300)) - world.ate()) ** 2)
        assert 0.5 < mse[design] / true < 2
    assert "best: AT" in str(report) and "identified" in str(report)
    assert list(report.to_frame()["design"][:3]) == ["AD", "UR", "AT(1)"]


def test_strong_carryover_recommends_long_spans():
    world = paper_mdp(T=24, p=3, delta=2.4, rho=0.3)
    pilot = world.simulate(Design("AT", 6).draw(40, 24, 0), seed=1)
    report = recommend_design(pilot=pilot, n_days=40, seed=0, n_sim=100)
    assert report.best.kind == "AD" or report.best.span >= 6
    mse = {str(row["design"]): row["mse"] for row in report.table}
    assert mse["AT(1)"] > 2 * mse["AD"]


def test_results_do_not_depend_on_threads_and_repeat_with_the_seed():
    world = paper_mdp(T=6, p=1, delta=0.8)
    pilot, past = world.simulate(Design("AT", 2).draw(20, 6, 0), seed=1), history_of(world)
    options = {"n_days": 20, "n_sim": 30, "seed": 5}
    a = recommend_design(past, pilot, **options)
    for b in (recommend_design(past, pilot, **options), recommend_design(past, pilot, n_jobs=3, **options)):
        assert a.table == b.table and a.best == b.best and a.carryover == b.carryover
    assert a.table != recommend_design(None, pilot, **options).table  # history adds residual days
    assert a.table != recommend_design(past, pilot, **options | {"seed": 6}).table


def test_chunks_of_simulations(monkeypatch):
    pilot = paper_mdp(T=6, p=1).simulate(Design("AT", 2).draw(20, 6, 0), seed=1)
    whole = recommend_design(pilot=pilot, n_days=20, n_sim=400, seed=5)
    monkeypatch.setattr("icml25.switchback.workflow.CHUNK", 20 * 6 * 6)
    parts = recommend_design(pilot=pilot, n_days=20, n_sim=400, seed=5)
    assert len(parts.table) == len(whole.table)
    for a, b in zip(parts.table, whole.table, strict=True):
        assert abs(a["mse"] - b["mse"]) < 4 * np.hypot(a["std_error"], b["std_error"])


@pytest.mark.parametrize("with_history", [False, True])
def test_simulated_errors_have_the_covariance_of_the_residuals(with_history):
    """Without states the MSE has a closed form, at the unbiased covariance of few days."""
    world = paper_mdp(T=4, p=0, rho=0.7)
    pilot = world.simulate(Design("AT", 1).draw(8, 4, 0), seed=1)
    past = history_of(world, 6) if with_history else None
    designs = [Design("AD"), Design("AT", 1)]
    report = recommend_design(past, pilot, n_days=10, candidates=designs, n_sim=4000, seed=3)
    Sigma = residual_covariance(pilot)
    if past is not None:  # days of both, drawn in proportion
        Sigma = (8 * Sigma + 6 * residual_covariance(past)) / 14
    for row in report.table:
        assert row["mse"] / weak_carryover_mse(Sigma, 10, row["design"]) == pytest.approx(1, abs=0.1)


def test_candidates_in_any_order():
    pilot = paper_mdp(T=6, p=1, delta=0.8).simulate(Design("AT", 2).draw(20, 6, 0), seed=1)
    designs = [Design("AD"), Design("UR"), Design("UR", fresh=True), Design("AT", 1), Design("blocks", 2)]
    options = {"pilot": pilot, "n_days": 20, "n_sim": 20, "seed": 5}
    rows = {row["design"]: row for row in recommend_design(candidates=designs, **options).table}
    for other in (designs[::-1], designs[2:]):
        for row in recommend_design(candidates=other, **options).table:
            assert row == rows[row["design"]]


class Recorder(OLS):
    """OLS that keeps the rewards it saw."""

    def estimate(self, states, actions, rewards):
        self.seen = np.array(actions), np.array(rewards)
        return super().estimate(states, actions, rewards)


def test_simulated_days_have_random_signs():
    rng = np.random.default_rng(0)
    A = Design("AT", 2).draw(400, 4, 0)
    skewed = np.tile(rng.exponential(size=(400, 1)) - 1, 4)
    recorder = Recorder()
    pilot = Panel(np.zeros((400, 4, 0)), A, skewed)
    recommend_design(pilot=pilot, n_days=40, estimator=recorder, candidates=[Design("AD")], n_sim=100, seed=0)
    arms, rewards = recorder.seen
    noise = rewards[..., 0] - np.where(arms[..., 0] == 1, *[skewed[A[:, 0] == a, 0].mean() for a in (1, 0)])
    skewness = np.mean(noise**3) / np.mean(noise**2) ** 1.5
    assert abs(skewness) < 0.4  # 2 without signs; the standard error of 4000 days is about 0.1
    assert abs(np.mean(noise)) < 4 * noise.std() / np.sqrt(noise.size)


def test_switching_needs_a_gain_of_two_standard_errors():
    between = 0
    for seed in range(8):
        report = recommend_design(history_of(paper_mdp(T=8, p=1, errors="none", rho=0.0), 40, seed), n_days=28, seed=2)
        top = max(report.table, key=lambda row: row["gain"])
        z = top["gain"] / top["std_error"] if top["gain"] > 0 else 0.0
        assert (report.best != Design("AD")) == report.needs_pilot == (z > 2)
        between += 0.6 < z < 1.9
    assert between


def test_ties_go_to_the_fewest_switches():
    """Without correlation and carryover all designs are equal: the least error is a matter of luck."""
    A = Design("AT", 2).draw(200, 6, 0)
    pilot = Panel(np.zeros((200, 6, 0)), A, np.random.default_rng(0).normal(size=(200, 6)))
    designs = [Design("AT", m) for m in (1, 2, 3)]
    fewer = []
    for seed in range(8):
        report = recommend_design(pilot=pilot, n_days=10, candidates=designs, n_sim=20, n_boot=2, seed=seed)
        least = min(report.table, key=lambda row: row["mse"])["design"]
        assert report.best.switches(6) <= least.switches(6)
        fewer.append(report.best.switches(6) < least.switches(6))
    assert any(fewer)


def test_other_estimators_and_odd_days():
    pilot = paper_mdp(T=6, p=1, delta=0.8).simulate(Design("AT", 2).draw(20, 6, 0), seed=1)
    report = recommend_design(
        pilot=pilot, n_days=21, estimator=DRL(), n_sim=10, seed=0, candidates=[Design("AD"), Design("AT", 2)]
    )
    assert all(row["identified"] == 1 and row["mse"] > 0 for row in report.table)


def test_bad_requests():
    world = paper_mdp(T=6, p=1, delta=0.8)
    pilot, past = world.simulate(Design("AT", 2).draw(20, 6, 0), seed=1), history_of(world)
    with pytest.raises(ValueError, match=r"history must be under one arm, it has both; .* pilot="):
        recommend_design(pilot, n_days=20)
    with pytest.raises(ValueError, match="at least one panel"):
        recommend_design(n_days=20)
    with pytest.raises(ValueError, match="T = 3 times a day, pilot has 6"):
        recommend_design(history_of(paper_mdp(T=3, p=1)), pilot, n_days=20)
    with pytest.raises(NotIdentifiedError, match="arm 1 never occurs"):
        recommend_design(pilot=past, n_days=20)
    with pytest.raises(NotIdentifiedError, match=r"of 2 days under AT\(1\) identifies"):
        recommend_design(pilot=pilot, n_days=2, candidates=[Design("AT", 1)], n_sim=3, seed=0)
    for options, match in (
        ({"n_days": 1}, "n_days"),
        ({"n_days": 20, "n_sim": 1}, "n_sim"),
        ({"n_days": 20, "n_jobs": 0}, "n_jobs"),
        ({"n_days": 20, "candidates": []}, "candidates"),
    ):
        with pytest.raises(ValueError, match=match):
            recommend_design(pilot=pilot, **options)
    with pytest.raises(ValueError, match="n = 2 days leave no residuals with p = 1 states; at least 3"):
        residual_covariance(Panel(past.states[:2], past.actions[:2], past.rewards[:2]))
    S = past.states.copy()
    S[:, 2] = 4.0
    with pytest.raises(ValueError, match="collinear at time 2"):
        residual_covariance(Panel(S, past.actions, past.rewards))


def test_bad_types():
    pilot = paper_mdp(T=6, p=1, delta=0.8).simulate(Design("AT", 2).draw(20, 6, 0), seed=1)
    for estimator in (OLS, "OLS"):
        with pytest.raises(TypeError, match=r"estimator must be OLS\(\), LSTD\(\), DRL\(\) or None"):
            recommend_design(pilot=pilot, n_days=20, estimator=estimator)
    with pytest.raises(ValueError, match="candidates must be a list of Designs"):
        recommend_design(pilot=pilot, n_days=20, candidates=Design("AD"))
    with pytest.raises(TypeError, match=r"each of candidates must be a Design .*, got 'AD'"):
        recommend_design(pilot=pilot, n_days=20, candidates=["AD"])
    with pytest.raises(TypeError, match=r"design must be a Design .*, got 'AD'"):
        weak_carryover_mse(np.eye(3), 10, "AD")
    with pytest.raises(ValueError, match="span must be an integer >= 1, got 'AD'"):
        design_gain(np.eye(3), 10, "AD")
    with pytest.raises(ValueError, match="size of Sigma_e"):
        weak_carryover_mse(np.zeros((0, 0)), 10, Design("AD"))
    with pytest.raises(ValueError, match="Sigma_e must be real numbers"):
        weak_carryover_mse(np.eye(3) + 1j, 10, Design("AD"))


def test_bad_covariances():
    for bad, match in (
        (np.diag([1.0, -2.0]), "Sigma_e must be positive semidefinite, its smallest eigenvalue is -2"),
        (np.array([[1.0, 0.5], [0.1, 1.0]]), "Sigma_e must be symmetric"),
        (np.ones((2, 3)), r"Sigma_e must be square, got shape \(2, 3\)"),
        (np.full((2, 2), np.nan), "Sigma_e must be finite"),
    ):
        with pytest.raises(ValueError, match=match):
            weak_carryover_mse(bad, 10, Design("AD"))
    with pytest.raises(ValueError, match="n_days"):
        weak_carryover_mse(np.eye(2), 0, Design("AD"))
    with pytest.raises(ValueError, match="span"):
        design_gain(np.eye(2), 10, 0)
    assert weak_carryover_mse(np.ones((3, 3)), 10, Design("AT", 1)) == pytest.approx(4 / 90)  # singular is fine
