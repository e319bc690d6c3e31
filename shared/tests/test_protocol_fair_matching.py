"""The protocol of max-min fair bandits: closed forms, brute force, and results that cannot be."""

from itertools import permutations

import numpy as np
import pytest

from icml25.shared.protocols import fair_matching as protocol


def brute_force(means: np.ndarray) -> float:
    n, k = means.shape
    return max(min(means[i, arm] for i, arm in enumerate(arms)) for arms in permutations(range(k), n))


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 5), (4, 4)])
def test_max_min_value_is_the_best_matching(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        means = rng.integers(0, 5, shape) / 5
        assert protocol.max_min_value(means) == brute_force(means)


def test_the_published_instance() -> None:
    means = np.array(protocol.SHI2021)
    assert protocol.max_min_value(means) == 0.67
    assert protocol.minimal_gap(means) == pytest.approx(0.06)
    assert protocol.uniform_regret(means) == pytest.approx(0.511, abs=5e-4)
    assert protocol.minimal_gap(np.full((2, 3), 0.5)) == np.inf


def uniform_result(public: dict) -> dict:
    """Cyclic shifts, whose regret is known round by round."""
    result = {}
    for i in range(public["n_problems"]):
        means, points = public[f"means{i}"], public[f"checkpoints{i}"]
        n, k = means.shape
        horizon = int(points[-1])
        value, players = protocol.max_min_value(means), np.arange(n)
        cycle = np.array([max(0.0, value - means[players, (players + t) % k].min()) for t in range(k)])
        regret = np.array([cycle.sum() * (t // k) + cycle[: t % k].sum() for t in points])
        pulls = np.full((n, k), float(horizon // k))
        for t in range(horizon % k):
            pulls[players, (players + t) % k] += 1
        result |= {f"regret{i}": np.tile(regret, (2, 1)), f"pulls{i}": np.tile(pulls, (2, 1, 1))}
    return result


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "shi2021", "T": 10_000},
        {"kind": "horizons"},
        {"kind": "gaps", "wide": 0.4, "narrow": 0.1, "T": 10_000},
        {"kind": "sizes", "T": 10_000},
        {"kind": "random", "T": 10_000},
    ],
    ids=lambda settings: settings["kind"],
)
def test_the_uniform_policy_has_relative_regret_one(settings: dict) -> None:
    public, truth = protocol.draw(settings, seed=3, budget="smoke")
    columns = protocol.evaluate(public, truth, uniform_result(public))
    assert columns["relative_regret"] == pytest.approx(1, rel=1e-3)
    assert columns["late_regret"] == pytest.approx(columns["regret_per_round"], rel=0.02)
    if settings["kind"] == "horizons":
        assert columns["growth"] == pytest.approx(100, rel=1e-3)
    if settings["kind"] == "gaps":
        assert columns["growth"] == pytest.approx(0.25, rel=1e-3)
    assert np.isnan(columns["wrong_runs"])


def test_active_pairs_and_messages_are_counted() -> None:
    public, truth = protocol.draw({"kind": "shi2021", "T": 1000}, seed=0, budget="smoke")
    good = public["means0"] >= truth["value"][0]
    bad = good.copy()
    bad[0, 0] = True
    active = np.stack([good, bad, good, np.zeros_like(good)])  # fair, an unfair pair, fair, nothing left
    more = {"active0": active, "comm_rounds0": np.array([10, 30]), "epochs": 4.0}
    columns = protocol.evaluate(public, truth, uniform_result(public) | more)
    assert columns["wrong_runs"] == 0.5
    assert columns["comm_rounds"] == 20
    assert columns["comm_growth"] == 1
    assert columns["epochs"] == 4.0


@pytest.mark.parametrize(
    "fault",
    [
        "falls",
        "too low",
        "too high",
        "too many pulls",
        "collides for nothing",
        "not finite",
        "shape",
        "negative",
        "no counts",
        "one arm for all",
    ],
)
def test_impossible_results_are_refused(fault: str) -> None:
    public, truth = protocol.draw({"kind": "shi2021", "T": 1000}, seed=0, budget="smoke")
    result = uniform_result(public)
    if fault == "falls":
        result["regret0"] = result["regret0"].copy()
        result["regret0"][:, 5] = 1e4
    elif fault == "too low":
        result["regret0"] = result["regret0"] / 10
    elif fault == "too high":
        result["regret0"] = result["regret0"] * 10
    elif fault == "too many pulls":
        result["pulls0"] = result["pulls0"] * 2
    elif fault == "collides for nothing":
        result = {name: np.zeros_like(value) for name, value in result.items()}
    elif fault == "not finite":
        result["regret0"] = np.full_like(result["regret0"], np.nan)
    elif fault == "no counts":
        result["pulls0"] = np.full_like(result["pulls0"], np.nan)
    elif fault == "one arm for all":
        result["pulls0"] = np.zeros_like(result["pulls0"])
        result["pulls0"][:, :, 7] = 1000
    elif fault == "shape":
        result["regret0"] = result["regret0"][:, -3:]
    else:
        result["pulls0"] = -result["pulls0"]
    with pytest.raises(ValueError, match="regret0"):
        protocol.evaluate(public, truth, result)


def test_a_solver_cannot_name_its_own_regret() -> None:
    public, truth = protocol.draw({"kind": "shi2021", "T": 1000}, seed=0, budget="smoke")
    columns = protocol.evaluate(public, truth, uniform_result(public) | {"relative_regret": 0.0})
    assert columns["relative_regret"] == pytest.approx(1, rel=1e-2)


def test_the_example_is_a_valid_result() -> None:
    public, truth = protocol.draw({"kind": "sizes", "T": 1000}, seed=0, budget="smoke")
    assert protocol.evaluate(public, truth, protocol.example(public))["relative_regret"] > 1


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="kind is 'x'"):
        protocol.draw({"kind": "x"}, seed=0, budget="smoke")
