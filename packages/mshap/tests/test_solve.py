"""Equilibria: closed forms, certificates, welfare, other mechanisms, pitfalls."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from icml25.mshap import (
    CallableAccuracy,
    FLGame,
    LinearFractional,
    MShap,
    NoPayment,
    PowerLaw,
    ShapleyEstimator,
    WelfareBG,
    compare,
    evaluate,
    exploitability,
    free_riders,
    reciprocity,
    solve,
)

HOMOGENEOUS = [
    (5, 0.5, 0.5, 0.01, 7.54988, 58.7140),
    (30, 1.0, 0.4, 0.0005, 117.477, 6760.63),
    (10, 0.384, 0.438, 0.00045, 60.5188, 1016.02),
]


def random_game(n, seed, capacity=100.0, gamma=0.01):
    rng = np.random.default_rng(seed)
    return FLGame(LinearFractional(rng.random((n, n)) * 0.2), rng.random(n) * gamma, np.full(n, capacity))


class Quadratic:
    """c_i = γ_i s_i + κ s_i²."""

    def __init__(self, gamma, kappa):
        self.gamma, self.kappa = gamma, kappa

    def value(self, s):
        return self.gamma * s + self.kappa * s**2

    def grad(self, s):
        return self.gamma + 2 * self.kappa * s


@pytest.mark.parametrize(("n", "alpha", "beta", "gamma", "alone", "total"), HOMOGENEOUS)
def test_homogeneous_closed_form(n, alpha, beta, gamma, alone, total):
    game = FLGame(PowerLaw(alpha, beta), np.full(n, gamma), np.full(n, 1000.0))
    eq = game.solve(MShap())
    k = np.arange(1, n + 1)
    root = brentq(lambda s: (alpha * beta * (k * s + 1) ** (-beta - 1)).sum() - gamma, 0, 1000, xtol=1e-13)
    np.testing.assert_allclose(eq.contributions, root, rtol=1e-6)
    assert eq.contributions.sum() == pytest.approx(total, rel=1e-5)
    none = game.solve(NoPayment())
    assert none.contributions.sum() == pytest.approx((alpha * beta / gamma) ** (1 / (beta + 1)) - 1, rel=1e-5)
    assert none.contributions.sum() == pytest.approx(alone, rel=1e-5)
    assert (eq.contributions.sum() + 1) / (none.contributions.sum() + 1) >= n ** (1 / (beta + 1))
    assert eq.converged and eq.exploitability < 1e-9
    assert eq.reciprocity == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize("shapley", [None, 13])
def test_both_solvers_find_the_certified_equilibrium(n, shapley):
    game = random_game(n, n)
    mechanism = MShap(ShapleyEstimator(num_pairs=shapley))
    one, other = game.solve(mechanism), game.solve(mechanism, method="dynamics")
    np.testing.assert_allclose(one.contributions, other.contributions, rtol=1e-4, atol=1e-4)
    for eq in (one, other):
        assert eq.converged and eq.exploitability < 1e-6 * game.accuracies(game.capacity).sum()
        assert eq.budget_residual < 1e-12
        assert eq.utilities.min() >= -1e-9
        assert abs(eq.reciprocity - 1) < 1e-8
    assert one.contributions.max() > 1


def test_exploitability_finds_the_best_deviation():
    game, s = random_game(3, 5), np.array([30.0, 1.0, 5.0])
    for mechanism in (MShap(), NoPayment(), WelfareBG()):
        gains = []
        for i in range(3):
            grid = np.repeat(s[None], 4001, axis=0)
            grid[:, i] = np.linspace(0, 100, 4001)
            gains.append(max(mechanism.utilities(game, row)[i] for row in grid[::20]) - mechanism.utilities(game, s)[i])
        found = exploitability(game, mechanism, s)
        assert found == pytest.approx(max(gains), abs=1e-3)
        assert found >= max(gains) - 1e-9


@pytest.mark.parametrize(
    "mechanism",
    [MShap(), MShap(ShapleyEstimator(num_pairs=3)), NoPayment(), WelfareBG(0.5)],
    ids=["shap", "sampled", "none", "bg"],
)
def test_own_gradient_is_of_the_whole_utility(mechanism):
    game = FLGame(
        LinearFractional(np.random.default_rng(1).random((4, 4)) * 0.2),
        Quadratic(np.array([1, 2, 3, 4]) * 1e-3, 1e-4),
        [50.0] * 4,
    )
    s, h = np.array([3.0, 20.0, 7.0, 11.0]), 1e-5
    unit = h * np.eye(4)
    numeric = [
        (mechanism.utilities(game, s + u)[i] - mechanism.utilities(game, s - u)[i]) / (2 * h)
        for i, u in enumerate(unit)
    ]
    np.testing.assert_allclose(mechanism.own_gradient(game, s), numeric, atol=1e-6)
    t = np.array([1.0, 2.0, 3.0, 4.0])
    moved = [mechanism.utilities(game, np.where(np.arange(4) == i, t, s))[i] for i in range(4)]
    np.testing.assert_allclose(mechanism.deviation_utilities(game, s, [t, s])[0], moved, atol=1e-12)
    np.testing.assert_allclose(
        mechanism.deviation_utilities(game, s, [t, s])[1], mechanism.utilities(game, s), atol=1e-12
    )


def test_payments_of_each_mechanism():
    game, s = random_game(3, 6), np.array([10.0, 20.0, 30.0])
    assert (NoPayment().payments(game, s) == 0).all()
    cost = game.costs.value(s)
    bg = WelfareBG(0.8).payments(game, s)
    assert bg[0] == pytest.approx(0.8 * (cost[0] - (cost[1] + cost[2]) / 2))
    assert abs(bg.sum()) < 1e-15
    shares = ShapleyEstimator("exact").shares(game.accuracy, s)
    np.testing.assert_allclose(MShap().payments(game, s), shares - game.gains(s), atol=1e-15)


def test_welfare_falls_beyond_the_equilibrium():
    rng = np.random.default_rng(0)
    game = random_game(5, 7, gamma=0.02)
    eq = game.solve(MShap())
    assert (eq.contributions < game.capacity).any()
    for _ in range(200):
        more = eq.contributions + rng.random(5) * (game.capacity - eq.contributions)
        assert (game.gains(more) - game.costs.value(more)).sum() <= eq.welfare + 1e-9


@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 2**31), n=st.integers(2, 5), factor=st.floats(1e-3, 1e3))
def test_units_do_not_matter(seed, n, factor):
    rng = np.random.default_rng(seed)
    W, gamma, tau = rng.random((n, n)) * 0.2, rng.random(n) * 0.01, np.full(n, 50.0)
    one = FLGame(LinearFractional(W), gamma, tau).solve(MShap(), init=tau / 2)
    other = FLGame(LinearFractional(W / factor), gamma / factor, tau * factor).solve(MShap(), init=tau * factor / 2)
    np.testing.assert_allclose(other.utilities, one.utilities, atol=1e-6)
    assert one.reciprocity == pytest.approx(1, abs=1e-8) and one.budget_residual < 1e-9
    assert one.utilities.min() >= -1e-9 and one.exploitability < 1e-6


def test_baseline_is_what_balances_the_budget():
    accuracy, n = PowerLaw(0.5, 0.5), 3
    gamma, tau, s = np.full(n, 0.01), np.full(n, 50.0), np.array([1.0, 5.0, 9.0])
    game = FLGame(accuracy, gamma, tau)
    assert game.gains(np.zeros(n)) == pytest.approx(0)
    assert abs(MShap().payments(game, s).sum()) < 1e-15
    with pytest.warns(UserWarning, match=r"payments will sum to -1.5"):
        literal = FLGame(accuracy, gamma, tau, baseline="none")
    assert MShap().payments(literal, s).sum() == pytest.approx(-1.5)
    np.testing.assert_allclose(literal.solve(MShap()).contributions, game.solve(MShap()).contributions)
    FLGame(LinearFractional(np.eye(n)), gamma, tau, baseline="none")  # a(0) = 0: no warning


def test_dynamics_with_some_agents_and_a_given_step():
    game = random_game(4, 8)
    reference = game.solve(MShap()).contributions
    some = game.solve(MShap(), method="dynamics", agents_per_step=2, seed=3)
    assert some.converged
    np.testing.assert_allclose(some.contributions, reference, atol=1e-3)
    again = game.solve(MShap(), method="dynamics", agents_per_step=2, seed=3)
    np.testing.assert_array_equal(some.contributions, again.contributions)
    fixed = game.solve(MShap(), method="dynamics", step=500.0)
    np.testing.assert_allclose(fixed.contributions, reference, atol=1e-3)
    short = game.solve(MShap(), method="dynamics", step=1.0, max_iter=3)
    assert not short.converged and short.n_iter == 3 and short.exploitability > 1e-6
    assert (short.contributions % 1 != 0).any(), "no rounding inside the dynamics"


def test_contributions_can_leave_and_reach_the_edges():
    game = FLGame(LinearFractional(np.full((2, 2), 0.1)), [1.0, 1e-6], [10.0, 10.0])
    for start in ([0.0, 0.0], [10.0, 10.0]):
        for method in ("potential", "dynamics"):
            np.testing.assert_allclose(game.solve(MShap(), method=method, init=start).contributions, [0, 10], atol=1e-9)


def test_restarts_take_the_best_of_several_equilibria():
    game = FLGame(LinearFractional(np.ones((2, 2))), [0.01, 0.01], [100.0, 100.0])  # any split of 9 samples
    one, best = game.solve(NoPayment()), random_game(4, 3).solve(NoPayment(), restarts=3)
    assert one.contributions.sum() == pytest.approx(9, abs=1e-3)
    assert best.welfare >= random_game(4, 3).solve(NoPayment()).welfare - 1e-9


def test_one_agent():
    game = FLGame(PowerLaw(0.5, 0.5), [0.01], [100.0])
    for mechanism in (MShap(), NoPayment(), WelfareBG()):
        eq = game.solve(mechanism)
        assert abs(eq.payments[0]) < 1e-15
        assert eq.shares == pytest.approx(eq.gains)
        assert eq.contributions[0] == pytest.approx((0.25 / 0.01) ** (1 / 1.5) - 1, rel=1e-4)


def test_an_agent_without_capacity_is_left_out():
    game = FLGame(LinearFractional(np.eye(3) * 0.2), [1e-3] * 3, [10.0, 0.0, 10.0])
    for mechanism in (MShap(), NoPayment(), WelfareBG()):
        eq = game.solve(mechanism)
        assert eq.contributions[1] == 0 and eq.shares[1] == 0
    assert game.solve(MShap()).reciprocity == pytest.approx(1)
    empty = FLGame(LinearFractional(np.eye(2)), [1e-3] * 2, [0.0, 0.0]).solve(MShap())
    assert empty.data_share == 0 and empty.reciprocity == 1 and empty.converged


def test_reciprocity_and_free_riders():
    assert reciprocity([0.5, 0.2], [0.0, 0.0], [0.25, 0.4]) == pytest.approx(0.5)
    assert reciprocity([0.5, 0.2], [-0.25, 0.2], [0.25, 0.4]) == pytest.approx(1)
    assert reciprocity([0.5, 0.0], [0, 0], [0.4, 0.0]) == 1
    assert reciprocity([0.5, 0.1], [0, 0], [0.4, 0.0]) == pytest.approx(1.25)
    assert free_riders([0.5, 0.1], [0, 0], [0.4, 0.0]) == [1]
    assert np.isnan(reciprocity([0.5], [0], [0]))
    with pytest.raises(ValueError, match="payments has 1 entries; expected 2"):
        reciprocity([1, 2], [1], [1, 2])


def test_reciprocity_is_computed_and_not_assumed():
    """At any point; and payments that are off show."""
    game, s = random_game(3, 9), np.array([1.0, 2.0, 3.0])
    shares, gains = ShapleyEstimator().shares(game.accuracy, s), game.gains(s)
    assert evaluate(game, MShap(), s).reciprocity == pytest.approx(1, abs=1e-12)
    assert evaluate(game, MShap(), s).exploitability > 1e-3
    assert reciprocity(gains, MShap().payments(game, s) - [0.1, 0, 0], shares) < 0.99


def test_compare():
    game = FLGame(LinearFractional(np.array([[0.2, 0.1], [0.1, 0.1]])), [0.01, 0.001], [50.0, 50.0])
    rows = compare(game, [MShap(), NoPayment(), WelfareBG(0.8)])
    assert [row["mechanism"] for row in rows] == ["mshap", "none", "welfare-bg"]
    assert rows[1]["data_gain"] == 1 and rows[0]["data_gain"] > 1
    assert rows[0]["data_gain"] == pytest.approx(rows[0]["total_data"] / rows[1]["total_data"])
    assert np.isnan(game.compare([MShap()])[0]["data_gain"])
    with pytest.raises(ValueError, match="mechanisms is empty"):
        compare(game, [])


def test_frame():
    pd = pytest.importorskip("pandas")
    frame = random_game(3, 1).solve(MShap()).to_frame()
    assert isinstance(frame, pd.DataFrame) and frame.shape == (3, 7)
    assert frame["payments"].sum() == pytest.approx(0, abs=1e-12)


def test_callable_game_is_the_formula():
    W = np.random.default_rng(2).random((3, 3)) * 0.2
    tau, gamma = [20.0] * 3, [0.01, 0.02, 0.03]
    formula = FLGame(LinearFractional(W), gamma, tau).solve(MShap())
    for shapley in (None, ShapleyEstimator(num_pairs=3)):
        found = FLGame(CallableAccuracy(lambda S: 1 - 1 / (1 + S @ W.T)), gamma, tau).solve(MShap(shapley), tol=1e-6)
        np.testing.assert_allclose(found.contributions, formula.contributions, rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"method": "newton"}, "method is 'newton'"),
        ({"tol": 0.0}, "tol is 0"),
        ({"step": -1.0, "method": "dynamics"}, "step is -1"),
        ({"agents_per_step": 5}, "agents_per_step is 5; the game has 3"),
        ({"agents_per_step": 0}, "agents_per_step is 0"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"init": [1.0, 2.0]}, "init has 2 entries; expected 3"),
        ({"init": [1.0, 2.0, 1e9]}, r"init\[2\] is 1e\+09; expected at most the capacity 100"),
        ({"restarts": -1}, "restarts is -1"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(ValueError, match=match):
        solve(random_game(3, 0), MShap(), **options)


def test_potential_is_for_mshap():
    with pytest.raises(ValueError, match="NoPayment here has no potential"):
        solve(random_game(3, 0), NoPayment(), method="potential")
    with pytest.raises(ValueError, match="MShap with exact shares"):
        solve(random_game(3, 0), MShap(ShapleyEstimator(num_pairs=3)), method="potential")
    rows = compare(random_game(3, 0), [MShap(), NoPayment(), MShap(ShapleyEstimator(num_pairs=3))], method="potential")
    assert all(row["converged"] for row in rows)


def sigmoid(S, middle, width):
    return np.tile(1 / (1 + np.exp(-(S.sum(1, keepdims=True) - middle) / width)), (1, S.shape[1]))


def test_a_stationary_point_with_a_better_deviation_is_not_converged():
    game = FLGame(CallableAccuracy(lambda S: sigmoid(S, 20, 2)), [0.005, 0.005], [50.0, 50.0])
    for method in ("potential", "dynamics"):
        with pytest.warns(UserWarning, match=r"no equilibrium: an agent gains 1\.[78]"):
            eq = game.solve(MShap(), method=method, init=[0.0, 0.0])
        assert not eq.converged and eq.exploitability > 1.7 and eq.contributions.sum() == 0
    assert game.solve(MShap(), init=[0.0, 0.0], restarts=6).converged


def test_restarts_take_the_largest_welfare():
    """Nobody gives, or both do: two equilibria."""
    game = FLGame(CallableAccuracy(lambda S: sigmoid(S, 60, 5)), [0.005, 0.005], [50.0, 50.0])
    nobody = game.solve(NoPayment(), init=[0.0, 0.0])
    assert nobody.converged and nobody.welfare == pytest.approx(0, abs=1e-12)
    best = game.solve(NoPayment(), init=[0.0, 0.0], restarts=8)
    assert best.converged and best.welfare > 1


def test_exploitability_looks_beyond_the_first_hill():
    def steps(S):
        return 0.3 * (1 - np.exp(-S)) + 0.03 * np.clip((S - 5) / 0.01, 0, 1)

    game = FLGame(CallableAccuracy(steps), [0.015], [50.0])
    s = np.array([np.log(20)])
    fine = np.linspace(0, 50, 500_001)[:, None]
    gain = (steps(fine) - 0.015 * fine).max() - (steps(s) - 0.015 * s)[0]
    assert exploitability(game, NoPayment(), s) == pytest.approx(gain, rel=1e-3) and gain > 0.01
    with pytest.warns(UserWarning, match="no equilibrium"):
        assert not game.solve(NoPayment()).converged


def test_exploitability_sees_both_ends():
    """Utilities that are best at nothing, and at everything."""
    line = FLGame(CallableAccuracy(lambda S: S / 100), [0.02, 0.001], [50.0, 50.0])
    assert exploitability(line, NoPayment(), [50.0, 50.0]) == pytest.approx(0.5)
    assert exploitability(line, NoPayment(), [0.0, 0.0]) == pytest.approx(0.45)
    assert exploitability(line, NoPayment(), [0.0, 50.0]) == pytest.approx(0, abs=1e-15)
    jump = FLGame(CallableAccuracy(lambda S: np.where(S >= 50, 0.9, 0.0)), [0.001], [50.0])
    assert exploitability(jump, NoPayment(), [0.0]) == pytest.approx(0.85)
    entry = FLGame(CallableAccuracy(lambda S: 0.01 * S), LumpCost(), [50.0])
    assert exploitability(entry, NoPayment(), [50.0]) == pytest.approx(0.5)


class LumpCost:
    """1 as soon as anything is given."""

    def value(self, s):
        return np.where(s > 0, 1.0, 0.0)

    def grad(self, s):
        return np.zeros(len(s))


def test_reciprocity_of_an_agent_that_gives_nothing_and_is_taxed():
    assert reciprocity([0.1, 0.5], [-0.4, 0.4], [0, 0.6]) == -np.inf
    assert free_riders([0.1, 0.5], [-0.4, 0.4], [0, 0.6]) == []
    assert reciprocity([0.5, 0.001], [0, 0], [0.5, 0.005]) == pytest.approx(0.2), "small shares count"


def test_welfare_leaves_payments_out():
    """They cancel only with gains over a(0)."""
    with pytest.warns(UserWarning, match="payments will sum"):
        game = FLGame(PowerLaw(0.5, 0.5), [0.01, 0.02], [50.0, 50.0], baseline="none")
    found = evaluate(game, MShap(), [3.0, 4.0])
    assert found.payments.sum() == pytest.approx(-1)
    assert found.welfare == pytest.approx(found.accuracies.sum() - found.costs.sum())


def test_first_step_is_half_of_the_inverse_curvature():
    from icml25.mshap.solve import _half_ratio

    assert _half_ratio(np.array([3.0, 4.0]), np.array([0.0, 2.0])) == 1.25
    assert _half_ratio(np.zeros(2), np.ones(2)) == _half_ratio(np.ones(2), np.zeros(2)) == np.inf


def test_distinct_agents_move_in_a_step():
    game = random_game(4, 8)
    for seed in range(5):
        with np.errstate(all="ignore"):
            eq = game.solve(MShap(), method="dynamics", agents_per_step=3, step=1.0, max_iter=1, seed=seed)
        assert (eq.contributions != 1).sum() == 3


@pytest.mark.parametrize("wrong", [MShap, "mshap", None], ids=["class", "text", "none"])
def test_mechanisms_are_checked(wrong):
    game = random_game(2, 0)
    for call in (solve, lambda g, m: evaluate(g, m, [1.0, 1.0]), lambda g, m: exploitability(g, m, [1.0, 1.0])):
        with pytest.raises(TypeError, match="expected a Mechanism such as MShap"):
            call(game, wrong)
    with pytest.raises(TypeError, match="expected a Mechanism"):
        compare(game, [wrong])


def test_groups_give_the_deviations_of_the_full_matrix():
    rng, ids = np.random.default_rng(0), np.arange(14) % 3
    W, tau = rng.random((3, 3)) * 0.1, np.full(14, 50.0)
    s, T = rng.random(14) * 50, rng.random((2, 14)) * 50
    formula = LinearFractional(W, groups=ids)
    plain = CallableAccuracy(formula)
    mechanism = MShap(ShapleyEstimator(num_pairs=3))
    games = [FLGame(accuracy, np.full(14, 0.01), tau) for accuracy in (formula, plain)]
    one, other = (mechanism.deviation_utilities(game, s, T) for game in games)
    np.testing.assert_allclose(one, other, atol=1e-12)
