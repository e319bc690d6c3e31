"""The protocol of switchback experiments against closed forms."""

import numpy as np
import pytest

from icml25.shared.protocols import switchback_experiment as protocol

SETTINGS = {"n": 6, "T": 8, "p": 2, "delta": 0.8, "rho": 0.5, "replicates": 5, "designs": "AD+AT3+UR"} | {
    "worlds": 1,
    "pilots": 0,
}


def test_shapes_and_determinism():
    public, truth = protocol.draw(SETTINGS, seed=3, budget="smoke")
    again, truth_again = protocol.draw(SETTINGS, seed=3, budget="quick")
    other, _ = protocol.draw(SETTINGS, seed=4, budget="smoke")
    assert np.array_equal(truth["ate"], truth_again["ate"])
    for name, replicates in (("AD", 5), ("AT3", 5), ("UR", 5)):
        assert public[f"states_{name}"].shape == (replicates, 6, 8, 2)
        assert public[f"actions_{name}"].shape == public[f"rewards_{name}"].shape == (replicates, 6, 8)
        assert np.array_equal(public[f"rewards_{name}"], again[f"rewards_{name}"])
        assert not np.array_equal(public[f"rewards_{name}"], other[f"rewards_{name}"])
    assert not {"ate", "error_covariance"} & set(public)


def test_designs():
    rng = np.random.default_rng(0)
    for name in ("AD", "AT1", "AT3", "UR"):
        A = protocol._assign(name, 200, 6, 8, rng)
        assert set(np.unique(A)) == {0, 1}
        assert (A[:, 0::2] == A[:, :1]).all() and (A[:, 1::2] == 1 - A[:, :1]).all()
        assert abs(A[:, 0, 0].mean() - 0.5) < 0.15
    assert np.ptp(protocol._assign("AD", 3, 4, 8, rng), axis=2).max() == 0
    row = protocol._assign("AT3", 1, 2, 8, rng)[0, 0]
    assert np.array_equal(row ^ row[0], [0, 0, 0, 1, 1, 1, 0, 0])


def test_effect_is_the_noiseless_difference_of_the_arms():
    world = protocol._world(8, 2, 1.6, 0.5, np.random.default_rng(1))
    quiet = np.random.default_rng(2)
    means = []
    for arm in (0, 1):
        actions = np.full((400, 500, 8), arm, dtype=np.int8)
        means.append(protocol._simulate(world, actions, quiet)[1].mean((1, 2)))
    gap = means[1] - means[0]
    assert abs(gap.mean() - protocol._effect(world)) < 4 * gap.std() / 20
    # closed form for T = 2: the arm at time 1 moves the state of time 2 by Gamma_1
    two = protocol._world(2, 3, 0.8, 0.5, np.random.default_rng(3))
    expected = (two["reward_arm"].sum() + two["reward_slope"][1] @ two["state_arm"][0]) / 2
    assert np.isclose(protocol._effect(two), expected, rtol=1e-12)


def test_errors_have_the_covariance_and_it_is_public_without_states():
    settings = SETTINGS | {"p": 0, "replicates": 20_000, "designs": "AD", "rho": -0.5, "n": 2, "T": 4}
    public, truth = protocol.draw(settings, seed=0, budget="smoke")
    Y = public["rewards_AD"]
    both = Y[:, 0] + Y[:, 1]  # the arms' sum is the same on each pair of days: errors alone vary
    Sigma = public["error_covariance"]
    lag = np.abs(np.subtract.outer(np.arange(4), np.arange(4)))
    assert np.allclose(Sigma, 1.5 * (-0.5) ** lag + np.eye(4))
    assert np.allclose(np.cov(both.T) / 2, Sigma, atol=0.1)
    gap = np.where(public["actions_AD"][:, 0] == 1, Y[:, 0] - Y[:, 1], Y[:, 1] - Y[:, 0]).mean(1)
    assert abs(gap.mean() - truth["ate"]) < 4 * gap.std() / np.sqrt(len(gap))


def test_transition_follows_the_world():
    world = protocol._world(3, 2, 0.8, 0.5, np.random.default_rng(1))
    A = protocol._assign("UR", 1, 60_000, 3, np.random.default_rng(0))
    S, _ = protocol._simulate(world, A, np.random.default_rng(5))
    X = np.column_stack([np.ones(60_000), S[0, :, 0], A[0, :, 0]])
    coef, *_ = np.linalg.lstsq(X, S[0, :, 1], rcond=None)
    expected = np.vstack([world["state_level"][0], world["state_slope"][0].T, world["state_arm"][0]])
    assert np.allclose(coef, expected, atol=0.05)
    assert np.allclose((S[0, :, 1] - X @ coef).var(0), 1.5, atol=0.06)


def test_metrics_of_one_design():
    out = protocol.evaluate({}, {"ate": np.array([-2.0])}, {"estimates": np.array([-1.0, -4.0]), "note": 3})
    assert out["rmse"] == pytest.approx(np.sqrt(2.5))
    assert out["relative_rmse"] == pytest.approx(np.sqrt(2.5) / 2)
    assert out["bias"] == pytest.approx(-0.5) and out["abs_bias"] == pytest.approx(0.5)
    assert out["note"] == 3.0
    low, high = np.array([-3.0, -1.0]), np.array([0.0, 1.0])
    result = {"estimates": np.array([-2.0, -2.0]), "low": low, "high": high}
    assert protocol.evaluate({}, {"ate": np.array([-2.0])}, result)["coverage"] == 0.5


def test_metrics_of_several_designs():
    truth = {"ate": np.array([1.0])}
    rmse = np.array([[1.0, 2.0, 4.0], [2.0, 1.0, 8.0], [1.0, 3.0, 5.0]])
    estimates = 1 + rmse[:, :, None] * np.array([1.0, -1.0])
    public = {"designs": ["AT1", "AT6", "AD"]}
    out = protocol.evaluate(public, truth, {"estimates": estimates, "estimators": "A+B+C"})
    assert out["AD_over_AT1_B"] == pytest.approx(8 / 2)
    assert out["AT1_over_AD_B"] == pytest.approx(2 / 8) and out["rmse_C_AT6"] == pytest.approx(3.0)
    assert out["rank_agreement"] == out["agreement_A_B"] == out["agreement_B_C"] == pytest.approx(0.5)
    assert out["agreement_A_C"] == pytest.approx(1.0)
    two = {"estimates": estimates[:, ::2], "estimators": "A+B+C"}  # no ranking of two designs
    out = protocol.evaluate({"designs": ["AT1", "AD"]}, truth, two)
    assert out["AT1_over_AD_C"] == pytest.approx(1 / 5) and "rank_agreement" not in out
    out = protocol.evaluate({}, truth, {"estimates": estimates[0], "predicted_mse": np.array([1.0, 4.0, 20.0])})
    assert out["mse_error"] == pytest.approx(0.2)


def test_advice_is_judged_by_the_rmse_of_least_squares():
    out = protocol.evaluate(
        {}, {"ate": np.array([1.0]), "rmse": np.array([1.0, 2.0, 1.2])}, {"recommended": np.array([0, 0, 1, 2])}
    )
    assert out == {"good_advice": 0.75, "regret": pytest.approx((1 + 1 + 2 + 1.2) / 4)}
    settings = SETTINGS | {"pilots": 2, "n": 20, "replicates": 400}
    public, truth = protocol.draw(settings, seed=0, budget="smoke")
    assert public["states_pilot"].shape == (2, 20, 8, 2) and not any(key.endswith("AD") for key in public)
    assert truth["rmse"].shape == (3,) and (truth["rmse"] > 0).all()
    assert protocol.evaluate(public, truth, protocol.example(public))["regret"] >= 1


def test_least_squares_is_exact_without_noise_and_unbiased_with_it():
    world = protocol._world(8, 2, 1.6, 0.5, np.random.default_rng(1))
    quiet = world | {"covariance": 1e-24 * np.eye(8)}
    rng = np.random.default_rng(0)
    for this, days, bound in ((quiet, 6, 0.5), (world, 40, 0.1)):
        actions = protocol._assign("UR", 400, days, 8, rng)
        states, rewards = protocol._simulate(this, actions, rng)
        error = protocol._least_squares(states, rewards, actions) - protocol._effect(this)
        assert abs(error.mean()) < 4 * error.std() / 20 < bound
    direct = quiet | {"state_arm": 0 * quiet["state_arm"], "reward_slope": 0 * quiet["reward_slope"]}
    states, rewards = protocol._simulate(direct, actions, rng)
    assert np.allclose(protocol._least_squares(states, rewards, actions), protocol._effect(direct), atol=1e-9)


def test_several_worlds():
    settings = SETTINGS | {"worlds": 2, "replicates": 6}
    public, truth = protocol.draw(settings, seed=0, budget="smoke")
    assert public["rewards_AD"].shape == (6, 6, 8) and truth["ate"].shape == (2,) and np.ptp(truth["ate"]) > 0
    estimates = np.repeat(truth["ate"], 3) + np.array([0.1, 0.2, 0.3, -0.1, -0.2, -0.3])
    out = protocol.evaluate(public, truth, {"estimates": estimates})
    assert out["bias"] == pytest.approx(0, abs=1e-12) and out["abs_bias"] == pytest.approx(0.2)
    assert out["relative_rmse"] == pytest.approx(out["rmse"] / np.sqrt((truth["ate"] ** 2).mean()))
    # each part of the experiments is from its own world
    big, truth = protocol.draw(settings | {"replicates": 2000, "delta": 2.4}, seed=0, budget="smoke")
    error = protocol._least_squares(*(big[f"{kind}_AD"] for kind in ("states", "rewards", "actions")))
    halves = error.reshape(2, 1000)
    assert np.all(np.abs(halves.mean(1) - truth["ate"]) < 4 * halves.std(1) / np.sqrt(1000))


def test_bad_results_are_refused_and_the_example_passes():
    public, truth = protocol.draw(SETTINGS, seed=0, budget="smoke")
    assert protocol.evaluate(public, truth, protocol.example(public))["relative_rmse"] == pytest.approx(1.0)
    with pytest.raises(ValueError, match="estimates"):
        protocol.evaluate(public, truth, {"estimates": np.array([np.nan])})
    with pytest.raises(ValueError, match=r"shape \(\)"):
        protocol.evaluate(public, truth, {"estimates": np.array(1.0)})
