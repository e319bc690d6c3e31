"""The protocol "contextual risk" against closed forms."""

import numpy as np
import pytest

from icml25.shared.protocols import risk_bandit as protocol

KINDS = [
    {"kind": "regret", "environment": "equal"},
    {"kind": "regret", "environment": "varied"},
    {"kind": "regression", "family": "logistic"},
    {"kind": "regression", "family": "step"},
    {"kind": "eigenvalues"},
    {"kind": "utilities"},
    {"kind": "assembly", "n": 300, "contexts": 0},
    {"kind": "assembly", "n": 300, "contexts": 7},
]


@pytest.mark.parametrize("settings", KINDS, ids=["-".join(map(str, s.values())) for s in KINDS])
def test_draw_is_reproducible_and_scored(settings):
    public, truth = protocol.draw(settings, seed=3, budget="smoke")
    again, _ = protocol.draw(settings, seed=3, budget="smoke")
    other, _ = protocol.draw(settings, seed=4, budget="smoke")
    np.testing.assert_array_equal(public["contexts"], again["contexts"])
    if settings.get("family") != "step":
        assert (public["contexts"] != other["contexts"]).any()
    for array in (public.get("outcomes", np.zeros(1)), public["contexts"]):
        assert array.min() >= 0 and array.max() <= 1
    example = protocol.example(public)
    scores = protocol.evaluate(public, truth, example)
    claimed = dict.fromkeys(scores, -1.0)
    columns = protocol.evaluate(public, truth, claimed | example | {"extra": 2.5})
    assert columns.pop("extra") == 2.5
    assert columns == scores  # a solver's own scalars take no score's place
    assert columns and all(isinstance(value, float) and np.isfinite(value) for value in columns.values())
    assert "values" not in public


def test_unknown_kind():
    with pytest.raises(ValueError, match="kind"):
        protocol.draw({"kind": "other"}, seed=0, budget="smoke")


def test_utilities_of_the_uniform_law():
    s = np.linspace(0, 1, 2001)
    assert protocol._utility("mean", "utilities")(s, s) == pytest.approx(0.5)
    assert protocol._utility("mean_variance", "utilities")(s, s) == pytest.approx(0.5 - 1 / 12, abs=1e-6)
    assert protocol._utility("cvar", "utilities")(s, s) == pytest.approx(0.05, abs=1e-6)
    assert protocol._utility("cvar", "regret")(s, s) == pytest.approx(0.125, abs=1e-6)
    assert protocol._utility("entropic", "utilities")(s, s) == pytest.approx(
        -np.log((1 - np.exp(-2)) / 2) / 2, abs=1e-6
    )


@pytest.mark.parametrize("environment", ["equal", "varied"])
def test_values_are_those_of_the_outcomes(environment):
    """Monte Carlo of the sampler against the tabulated truth, 4.5 standard errors."""
    amplitude, scales = protocol.ENVIRONMENTS[environment]
    x, rng = np.array([0.13, 0.71]), np.random.default_rng(0)
    truth = protocol._values(x, "utilities", environment)
    assert truth.shape == (4, 2, 5)
    for i, a in ((0, 0), (1, 3)):
        y = protocol._outcomes(rng, np.full(200_000, x[i] + a / 5), np.full(200_000, scales[a]), amplitude)
        error = 4.5 * y.std() / np.sqrt(len(y))
        assert abs(y.mean() - truth[0, i, a]) < error
        assert abs(y.mean() - y.var() - truth[1, i, a]) < 3 * error
        worst = np.sort(y)[: len(y) // 10]
        assert abs(worst.mean() - truth[2, i, a]) < 10 * error
        assert abs(-np.log(np.exp(-2 * y).mean()) / 2 - truth[3, i, a]) < 3 * error


def test_regret_of_known_policies():
    public, truth = protocol.draw({"kind": "regret", "environment": "equal"}, seed=0, budget="smoke")
    values = truth["values"]
    best = protocol.evaluate(public, truth, {"actions": values.argmax(-1)})
    assert best["relative_regret"] == best["relative_regret_cvar"] == 0
    one = protocol.evaluate(public, truth, {"actions": np.zeros(values.shape[:-1], int), "oracle_calls": 2.0})
    lost = (values.max(-1) - values[..., 0]).sum((1, 2)) / (values.max(-1) - values.mean(-1)).sum((1, 2))
    assert one["relative_regret_mean"] == pytest.approx(lost[0])
    assert one["relative_regret"] == pytest.approx(lost.mean())
    assert one["oracle_call_excess"] == 0  # 192 rounds: 64 + 128
    uniform = np.random.default_rng(0).integers(5, size=values.shape[:-1])
    assert abs(protocol.evaluate(public, truth, {"actions": uniform})["relative_regret"] - 1) < 0.3


@pytest.mark.parametrize(("environment", "low", "high"), [("equal", 0, 0.01), ("varied", 0.3, 1)])
def test_where_risk_matters(environment, low, high):
    """Share of contexts in which the action that is best in the mean is not in CVaR."""
    _, truth = protocol.draw({"kind": "regret", "environment": environment}, seed=0, budget="quick")
    mean, cvar = truth["values"].argmax(-1)
    assert low <= (mean != cvar).mean() <= high


def test_slope_of_linear_and_of_stopped_regret():
    public, _ = protocol.draw({"kind": "regret", "environment": "equal"}, seed=0, budget="smoke")
    values = np.zeros((2, 1, 192, 5))
    values[..., 0] = 1.0
    linear = protocol.evaluate(public, {"values": values}, {"actions": np.ones((2, 1, 192), int)})
    assert linear["regret_slope"] == pytest.approx(1)
    stopped = np.ones((2, 1, 192), int)
    stopped[..., 48:] = 0
    assert protocol.evaluate(public, {"values": values}, {"actions": stopped})["regret_slope"] == pytest.approx(0)


@pytest.mark.parametrize(
    "change",
    [lambda a: a + 5, lambda a: a - 1, lambda a: a * 1.0, lambda a: a[:, :, :-1]],
    ids=["5", "-1", "float", "short"],
)
def test_bad_actions_are_refused(change):
    public, truth = protocol.draw({"kind": "regret", "environment": "equal"}, seed=0, budget="smoke")
    with pytest.raises(ValueError, match="actions"):
        protocol.evaluate(public, truth, {"actions": change(protocol.example(public)["actions"])})


@pytest.mark.parametrize("family", ["logistic", "step"])
def test_error_of_the_truth_and_of_a_shift(family):
    """The truth has no error; theta = 1 has that of the squared distance of two CDFs, here computed from the data."""
    public, truth = protocol.draw({"kind": "regression", "family": family}, seed=0, budget="smoke")
    w, weight = protocol._gauss(public["n_w"])
    shape = (1, 2, len(public["gammas"]), public["n_w"])
    one = np.ones(shape[:-1])
    result = {
        "theta": np.ones(shape),
        "unprojected": 2 * np.ones(shape),
        "rank": one,
        "bound": 2 * one,
    }
    columns = protocol.evaluate(public, truth, result)
    if family == "step":  # integral of (s - 3 s^2 + 2 s^3)^2
        expected = 1 / 3 + 9 / 5 + 4 / 7 - 6 / 4 + 4 / 5 - 12 / 6
    else:
        s, m = protocol._gauss(64)
        x, a = public["contexts"][0], public["actions"][0]
        phi = protocol._phi(x + a / 5, public["scales"][a], public["amplitude"], w, s)
        expected = (((weight * (1 - 6 * w * (1 - w))) @ phi) ** 2 @ m).mean()
    assert columns["error"] == pytest.approx(expected, rel=2e-3)
    assert columns["own_bound_ratio"] == pytest.approx(np.sqrt(400 * expected) / 2, rel=2e-3)
    if family == "step":  # Thm 3.6 with closed-form eigenvalues: those above n^-0.8
        known = 4 / ((2 * np.arange(1, 5) - 1) ** 2 * np.pi**2)
        ratios = []
        for n in (100, 400):
            kept = known[known >= n**-0.8]
            noise = np.sqrt(2 * (2 * np.log(20) + np.log(1 + n * kept).sum()))
            ratios.append(np.sqrt(n * expected) / (noise + n**0.2 * np.sqrt(36 / 30)))
        assert columns["bound_ratio"] == pytest.approx(max(ratios), rel=2e-3)
    assert columns["projection_gain"] > 0 == columns["projection_harm"] and columns["rank"] == 1
    swapped = result | {"theta": result["unprojected"], "unprojected": result["theta"]}
    assert protocol.evaluate(public, truth, swapped)["projection_harm"] > 0
    theta = np.broadcast_to(6 * w * (1 - w), shape)
    exact = protocol.evaluate(public, truth, result | {"theta": theta + 1e-9})
    assert exact["error"] < 1e-15


def test_rank_against_the_closed_form():
    public, truth = protocol.draw({"kind": "regression", "family": "step"}, seed=0, budget="smoke")
    result = protocol.example(public)
    known = 4 / ((2 * np.arange(1, 50) - 1) ** 2 * np.pi**2)
    ranks = np.array([[[(known >= n**-0.8).sum()] for n in (100, 400)]])
    assert protocol.evaluate(public, truth, result | {"rank": ranks})["rank_deviation"] == 0
    assert protocol.evaluate(public, truth, result | {"rank": np.add(ranks, [[[0], [2]]])})["rank_deviation"] == 2


def test_eigenvalues():
    public, truth = protocol.draw({"kind": "eigenvalues"}, seed=0, budget="smoke")
    known = 4 / ((2 * np.arange(1, 7) - 1) ** 2 * np.pi**2)
    w, weight = protocol._gauss(64)
    kernel = protocol._design(public, public["contexts"], public["actions"], w) / 200
    spectrum = np.linalg.eigvalsh(np.sqrt(weight)[:, None] * kernel * np.sqrt(weight))[::-1][:8]
    columns = protocol.evaluate(
        public, truth, {"step": known * 1.01, "quadrature": spectrum, "galerkin": spectrum - 1e-3}
    )
    assert columns["eigenvalue_error"] == pytest.approx(0.01)
    assert columns["spectrum_error"] < 1e-12
    assert columns["galerkin_gap"] == pytest.approx(1e-3)


def test_advantage():
    public, truth = protocol.draw({"kind": "utilities"}, seed=0, budget="smoke")
    values = truth["values"]
    assert values.shape == (2, 4, 2000, 5)
    best = protocol.evaluate(public, truth, {"actions": values.argmax(-1)})
    assert best["advantage_min"] == 1 and best["relative_regret"] == 0
    mean_best = np.repeat(values[:, :1].argmax(-1), 4, axis=1)
    columns = protocol.evaluate(public, truth, {"actions": mean_best})
    assert columns["advantage_mean_varied"] == columns["advantage_mean_equal"] == 1
    assert columns["advantage_cvar_varied"] < 0.7 < columns["advantage_cvar_equal"]
    worst = protocol.evaluate(public, truth, {"actions": values.argmin(-1)})
    assert worst["advantage_min"] < 0


def test_operator():
    public, truth = protocol.draw({"kind": "assembly", "n": 300, "contexts": 7}, seed=0, budget="quick")
    assert len(np.unique(public["contexts"])) == 7
    w = protocol._gauss(public["n_w"])[0]
    s, m = protocol._gauss(80)
    z, h = public["contexts"] + public["actions"] / 5, public["scales"][public["actions"]]
    phi = protocol._phi(z, h, public["amplitude"], w, s)
    exact = np.einsum("ngq,nhq,q->gh", phi, phi, m) / 300
    assert protocol.evaluate(public, truth, {"operator": exact})["operator_error"] < 1e-10
    assert protocol.evaluate(public, truth, {"operator": exact + 0.1})["operator_error"] == pytest.approx(0.1)
