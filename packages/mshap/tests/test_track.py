"""The track's own computations against closed forms, and its checks against false claims."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import icml25.mshap
from icml25.mshap import FLGame, LinearFractional, MShap, NoPayment, ShapleyEstimator

pytest.importorskip("benchopt")
pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def track():
    file = Path(icml25.mshap.__file__).parent / "track" / "objective.py"
    spec = importlib.util.spec_from_file_location("payments_objective", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def objective(track):
    made = track.Objective()
    made.budget, made.seed = "smoke", 3
    made.set_data("random", games=1, sizes=[2, 4])
    return made


def solved(objective, mechanism):
    out = {"seconds": 1.0, "peak_memory_mb": 1.0}
    for k, game in enumerate(objective.games):
        W = objective.public[f"W_{k}"]
        eq = FLGame(LinearFractional(W), game.gamma, game.capacity).solve(mechanism)
        out |= {f"contributions_{k}": eq.contributions, f"payments_{k}": eq.payments}
    return out


def test_shares_of_the_track_are_the_packages(objective):
    for k, game in enumerate(objective.games):
        s = np.linspace(1, 9, len(game.gamma))
        expected = ShapleyEstimator("exact").shares(LinearFractional(objective.public[f"W_{k}"]), s)
        np.testing.assert_allclose(game.shares(s), expected, atol=1e-12)


def test_an_equilibrium_passes(objective):
    row = objective.evaluate_result(**solved(objective, MShap()))
    assert row["reciprocity_gap"] < 1e-10 and row["exploitability"] < 1e-8
    assert row["payment_error"] < 1e-10 and row["budget_residual"] < 1e-10
    assert row["richer_beyond"] == 0 and row["least_utility"] >= 0 and row["feasible"] == 1


def test_false_claims_show(objective):
    result = solved(objective, MShap())
    result["contributions_1"] = result["contributions_1"] * 0.5
    row = objective.evaluate_result(**result)
    assert row["exploitability"] > 1e-4 and row["payment_error"] > 1e-4
    result = solved(objective, MShap())
    result["payments_0"] = result["payments_0"] - [0.1, 0.0]
    row = objective.evaluate_result(**result)
    assert row["budget_residual"] == pytest.approx(0.1) and row["reciprocity_gap"] > 0.01
    result["contributions_0"] = result["contributions_0"] + 1000.0
    assert objective.evaluate_result(**result)["feasible"] == 0


def test_no_payments_are_judged_by_their_own_rule(objective):
    result = solved(objective, NoPayment())
    row = objective.evaluate_result(mechanism="none", **result)
    assert row["exploitability"] < 1e-7 and row["payment_error"] == 0 and row["reciprocity"] < 0.95
    assert objective.evaluate_result(mechanism="shap", **result)["payment_error"] > 1e-3


def test_closed_form_and_shares(track):
    made = track.Objective()
    made.budget, made.seed = "smoke", 0
    made.set_data("homogeneous", sizes=[10], alpha=0.384, beta=0.438, gamma=0.00045)
    result = {"seconds": 1.0, "peak_memory_mb": 1.0, "contributions_0": np.full(10, 101.602)}
    row = made.evaluate_result(**result)
    assert row["closed_form_error"] < 1e-4
    assert row["gain_over_bound"] == pytest.approx(1017.02 / 61.5188 / 10 ** (1 / 1.438), rel=1e-4)
    alone = made.evaluate_result(mechanism="none", **(result | {"contributions_0": np.full(10, 6.05188)}))
    assert alone["closed_form_error"] < 1e-4
    made.set_data("scale", n=9, groups=3)
    given = made.public
    estimator = ShapleyEstimator(orders=given["orders"])
    shares = estimator.shares(LinearFractional(given["W"], groups=given["groups"]), given["s"])
    row = made.evaluate_result(seconds=1.0, peak_memory_mb=1.0, shares=shares)
    assert row["share_error"] < 1e-12 and row["efficiency_error"] < 1e-12
    row = made.evaluate_result(seconds=1.0, peak_memory_mb=1.0, shares=shares[::-1])
    assert row["share_error"] > 1e-4


def test_an_agent_that_gives_nothing_and_pays_shows(objective):
    result = solved(objective, MShap())
    result["contributions_0"] = np.array([0.0, 5.0])
    result["payments_0"] = np.array([-10.0, 10.0])
    row = objective.evaluate_result(**result)
    assert row["reciprocity_gap"] == np.inf and row["unfair_games"] == row["taxed_games"] == 0.5
    assert row["reciprocity"] == pytest.approx(1)


def test_the_peer_computes_the_same(track):
    from icml25.mshap.bench import reevaluated_shares, shares

    made = track.Objective()
    made.budget, made.seed = "smoke", 0
    made.set_data("scale", n=9, groups=3)
    one, other = shares(made.public, {}), reevaluated_shares(made.public, {})
    np.testing.assert_allclose(one["shares"], other["shares"], atol=1e-12)
    np.testing.assert_allclose(one["slope"], other["slope"], atol=1e-12)


def test_federated_averaging(track):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3, 40, 5)), rng.integers(0, 10, (3, 40))
    nobody = track.train_together(X, y, np.zeros(3, dtype=int))
    assert (nobody == 0).all()
    two = track.train_together(X, y, np.array([40, 20, 0]))
    np.testing.assert_allclose(track.train_together(X[:2], y[:2], np.array([40, 20])), two)
    X[1, 20:], y[1, 20:], X[2] = 9.0, 0, 9.0  # data that are not given do not matter
    np.testing.assert_allclose(track.train_together(X, y, np.array([40, 20, 0])), two)
    assert np.abs(two).max() > 0.01
