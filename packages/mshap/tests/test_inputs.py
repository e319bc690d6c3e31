"""What users pass in: an answer, or an error that names the argument."""

import subprocess
import sys

import numpy as np
import pytest

from icml25.mshap import (
    CallableAccuracy,
    FLGame,
    LinearFractional,
    MShap,
    NoPayment,
    PowerLaw,
    WelfareBG,
    fit_linear_fractional,
    reciprocity,
)

W, GAMMA, TAU = np.eye(3) * 0.2, [0.01, 0.02, 0.03], [10.0, 20.0, 30.0]


@pytest.mark.parametrize(
    ("costs", "capacity", "match"),
    [
        ([0.1, -0.1, 0.1], TAU, r"costs\[1\] is -0.1; expected a finite number and at least 0"),
        ([0.1, 0.1, np.nan], TAU, r"costs\[2\] is nan"),
        ([0.1, 0.1], TAU, "costs has 2 entries; expected 3"),
        ([], TAU, "costs is empty"),
        (GAMMA, [1, 2], "capacity has 2 entries; expected 3"),
        (GAMMA, [1, -2, 3], r"capacity\[1\] is -2"),
        (GAMMA, [1, np.inf, 3], r"capacity\[1\] is inf"),
        (GAMMA, [], "capacity is empty"),
        (GAMMA, [TAU], "capacity has shape"),
    ],
)
def test_bad_games(costs, capacity, match):
    with pytest.raises(ValueError, match=match):
        FLGame(LinearFractional(W), costs, capacity)


@pytest.mark.parametrize(
    "costs",
    [["a", "b", "c"], [True, False, True], [1j, 1j, 1j], np.array([1, None, 2], dtype=object)],
    ids=["text", "bool", "complex", "object"],
)
def test_costs_that_are_not_numbers(costs):
    with pytest.raises(TypeError, match="costs has dtype"):
        FLGame(LinearFractional(W), costs, TAU)


@pytest.mark.parametrize(
    ("matrix", "groups", "match"),
    [
        ([[0.1, -0.2], [0.1, 0.1]], None, r"W\[0, 1\] is -0.2"),
        ([[0.1, np.nan], [0.1, 0.1]], None, r"W\[0, 1\] is nan"),
        ([[0.1, 0.2]], None, "expected a square matrix"),
        ([0.1, 0.2], None, "expected 2 axes"),
        (W, [0, 1, 3], "groups has entries from 0 to 3; expected 0 to 2"),
        (W, [0.0, 1.0], "groups has dtype float64"),
    ],
)
def test_bad_weights(matrix, groups, match):
    with pytest.raises(ValueError, match=match):
        LinearFractional(matrix, groups)


def test_bad_options():
    with pytest.raises(ValueError, match="baseline is 'zero'"):
        FLGame(LinearFractional(W), GAMMA, TAU, baseline="zero")
    with pytest.raises(ValueError, match=r"B is 1\.5"):
        WelfareBG(1.5)
    with pytest.raises(ValueError, match="alpha is -1"):
        PowerLaw(-1, 0.5)
    with pytest.raises(ValueError, match="offset is 0"):
        PowerLaw(1, 0.5, offset=0)
    for wrong in ("0.8", True, None, np.array([0.1, 0.2])):
        with pytest.raises(TypeError, match="expected a number in"):
            WelfareBG(wrong)
        with pytest.raises(TypeError, match="expected a number above 0"):
            PowerLaw(wrong, 0.5)
    with pytest.raises(TypeError, match="shapley is 'exact'; expected a ShapleyEstimator"):
        MShap("exact")
    with pytest.raises(ValueError, match="offset is 1e-300"):
        PowerLaw(0.5, 0.5, offset=1e-300)
    with pytest.raises(ValueError, match="overflow"):
        FLGame(LinearFractional(np.full((2, 2), 1e300)), [0.1, 0.1], [1e10, 1e10])
    with pytest.raises(TypeError, match="f and grad"):
        CallableAccuracy(lambda S: S, grad=3)


def test_bad_accuracy_functions():
    with pytest.raises(ValueError, match=r"the accuracy function returned shape \(5,\); expected \(5, 3\)"):
        FLGame(CallableAccuracy(lambda S: S.sum(1)), GAMMA, TAU)
    with pytest.raises(ValueError, match="returned NaN"):
        FLGame(CallableAccuracy(lambda S: S * np.nan), GAMMA, TAU)
    with pytest.raises(ValueError, match=r"grad returned shape \(1, 3\); expected \(1, 3, 3\)"):
        FLGame(CallableAccuracy(lambda S: S / 100, lambda S: S), GAMMA, TAU).accuracy.own_gradient(np.ones((1, 3)))
    with pytest.warns(UserWarning, match="the accuracy of agent 1 falls"):
        FLGame(CallableAccuracy(lambda S: S * [1, -1, 1] / 100), GAMMA, TAU)
    with pytest.warns(UserWarning, match="the accuracy of agent 0 falls as agent 1 gives"):
        FLGame(CallableAccuracy(lambda S: np.stack([S[:, 2] - S[:, 1], *S[:, 1:].T], 1) / 100), GAMMA, TAU)


class Costs:
    def __init__(self, at_zero, shape):
        self.at_zero, self.shape = at_zero, shape

    def value(self, s):
        return np.full(self.shape, self.at_zero)

    def grad(self, s):
        return np.ones(len(s))


@pytest.mark.parametrize(
    ("costs", "match"),
    [
        (Costs(0.0, 2), "costs.value returned"),
        (Costs(1.0, 3), "no data cost nothing"),
        (Costs(np.nan, 3), "costs.value returned"),
    ],
    ids=["shape", "zero", "nan"],
)
def test_bad_cost_objects(costs, match):
    with pytest.raises(ValueError, match=match):
        FLGame(LinearFractional(W), costs, TAU)


def test_contributions_are_checked():
    game = FLGame(LinearFractional(W), GAMMA, TAU)
    with pytest.raises(ValueError, match=r"s\[0\] is 11; expected at most the capacity 10"):
        MShap().payments(game, [11, 1, 1])
    with pytest.raises(ValueError, match=r"s\[1\] is -1"):
        game.gains([1, -1, 1])


def test_other_containers_and_unchanged_inputs():
    pd = pytest.importorskip("pandas")
    reference = FLGame(LinearFractional(W), GAMMA, TAU).solve(MShap()).contributions
    frozen = np.asfortranarray(W)
    frozen.flags.writeable = False
    tau = np.array(TAU)
    tau.flags.writeable = False
    series = pd.Series(GAMMA, index=["c", "a", "b"])
    game = FLGame(LinearFractional(pd.DataFrame(frozen)), series, tau)
    game.capacity[0] += 0
    np.testing.assert_array_equal(game.solve(MShap()).contributions, reference)
    np.testing.assert_array_equal(
        FLGame(LinearFractional(frozen), GAMMA, [10, 20, 30]).solve(MShap()).contributions, reference
    )
    with pytest.raises(TypeError, match="W has dtype object"):
        LinearFractional(pd.DataFrame(W).astype(object))


def test_huge_and_tiny_scales_and_ties():
    for factor in (1e-6, 1e6):
        eq = FLGame(
            LinearFractional(np.full((3, 3), 0.1 / factor)), np.full(3, 0.01 / factor), np.full(3, 50 * factor)
        ).solve(MShap())
        assert eq.converged and np.ptp(eq.contributions) < 1e-6 * eq.contributions.max()
        assert eq.reciprocity == pytest.approx(1, abs=1e-8)


def test_fit_finds_the_weights_again():
    rng = np.random.default_rng(0)
    true = LinearFractional(np.array([[0.2, 0.05], [0.0, 0.3]]), groups=[0, 1, 0, 1])
    S = rng.random((12, 4)) * 100
    fitted = fit_linear_fractional(S, true(S), groups=[0, 1, 0, 1])
    np.testing.assert_allclose(fitted.W, true.W, atol=1e-4)
    np.testing.assert_allclose(fitted(S), true(S), atol=1e-6)
    full = fit_linear_fractional(S, true(S))
    np.testing.assert_allclose(full(S), true(S), atol=1e-4)
    assert full.W.shape == (4, 4) and (full.W >= 0).all()


def test_fit_never_swallows_a_failure(monkeypatch):
    rng = np.random.default_rng(0)
    S, acc = rng.random((6, 2)), rng.random((6, 2)) * 0.9

    def fails(*args, **kwargs):
        raise RuntimeError("Optimal parameters not found")

    monkeypatch.setattr("scipy.optimize.curve_fit", fails)
    with pytest.raises(RuntimeError, match="the fit of row 0 of W failed: Optimal"):
        fit_linear_fractional(S, acc)


@pytest.mark.parametrize(
    ("S", "acc", "match"),
    [
        (np.ones((3, 2)), np.ones((3, 3)) / 2, "expected the same shape"),
        (np.ones((3, 2)), np.ones((3, 2)), "acc has an entry 1"),
        (np.ones((1, 2)), np.ones((1, 2)) / 2, "S has 1 measurements; expected at least 2"),
        (-np.ones((3, 2)), np.ones((3, 2)) / 2, r"S\[0, 0\] is -1"),
        (np.zeros((3, 2)), np.ones((3, 2)) / 2, r"agents \[0, 1\] never contribute"),
        (np.array([[1.0, 0], [2, 0], [3, 0]]), np.ones((3, 2)) / 2, r"agents \[1\] never contribute"),
        (np.ones((3, 2)), np.ones((3, 2)) / 2, "S has rank below 2"),
    ],
    ids=["shapes", "one", "few", "negative", "zeros", "silent", "proportional"],
)
def test_bad_measurements(S, acc, match):
    with pytest.raises(ValueError, match=match):
        fit_linear_fractional(S, acc)


def test_import_is_light():
    code = "import sys, icml25.mshap; print([m for m in ('flwr', 'pandas', 'scipy.optimize', 'icml25.shared') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_methods_have_docstrings():
    import inspect

    import icml25.mshap as package

    for name in package.__all__:
        thing = getattr(package, name)
        if inspect.isclass(thing):
            for key, value in inspect.getmembers(thing):
                if not key.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                    owner = next(c for c in thing.__mro__ if key in vars(c))
                    assert vars(owner)[key].__doc__, f"{name}.{key}"


def test_an_agent_that_pays_for_its_harm_is_treated_as_it_treats():
    assert reciprocity([0.5, 0.2], [0.0, -0.3], [0.5, -0.1]) == 1
    assert reciprocity([0.5, 0.2], [0.0, -0.4], [0.5, -0.1]) == -np.inf


def test_mechanisms_from_a_generator():
    game = FLGame(LinearFractional(W), GAMMA, TAU)
    rows = game.compare(mechanism for mechanism in (NoPayment(), MShap()))
    assert [row["mechanism"] for row in rows] == [row["mechanism"] for row in game.compare([NoPayment(), MShap()])]
