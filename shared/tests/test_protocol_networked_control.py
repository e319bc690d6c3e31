"""The protocol of networked control against closed forms and brute force."""

import numpy as np
import pytest

from icml25.shared.protocols import networked_control as protocol

MDP = {"kind": "mdp", "dataset": "mdp", "graph": "ring", "n_agents": 3, "n_states": 4, "n_actions": 2, "n_problems": 2}
MDP |= {"conflict": 0.0, "gamma": 0.8, "T": 1000, "checkpoints": 30}
GRID = {"kind": "grid", "dataset": "grid", "graph": "complete", "n_agents": 2, "width": 3, "height": 2}
GRID |= {"reset_every": 3, "gamma": 0.9, "T": {"smoke": 20, "quick": 100}, "checkpoints": 3}


def tables(public, seed=0):
    shape = protocol._shape(public)
    return np.random.default_rng(seed).dirichlet(np.ones(shape[-1]), shape[:-1])


def test_draws():
    public, truth = protocol.draw(MDP, seed=1, budget="quick")
    again, _ = protocol.draw(MDP, seed=1, budget="smoke")
    other, _ = protocol.draw(MDP, seed=2, budget="smoke")
    assert public["P"].shape == (2, 4, 8, 4) and public["R"].shape == (2, 3, 4, 8)
    assert np.array_equal(public["P"], again["P"]) and not np.array_equal(public["P"], other["P"])
    np.testing.assert_allclose(public["P"].sum(-1), 1)
    assert public["steps"][0] == 0 and public["steps"][-1] == 1000
    assert not {"optimum", "uniform", "models"} & set(public)
    own = public["R"][0, 1].reshape(4, 2, 2, 2)  # agent 1's reward depends on its own action only
    assert np.ptp(own, axis=(1, 3)).max() == 0 and np.ptp(own, axis=2).min() > 0
    assert (truth["optimum"] > truth["uniform"]).all()


def test_conflicts_cancel():
    calm, _ = protocol.draw(MDP, seed=1, budget="quick")
    public, _ = protocol.draw({**MDP, "n_problems": 1, "conflict": 3.0}, seed=1, budget="quick")
    np.testing.assert_allclose(public["R"][0].mean(0), calm["R"][0].mean(0))
    assert np.abs(public["R"][0, 0] - public["R"][0].mean(0)).max() > 2


@pytest.mark.parametrize(
    ("graph", "degrees"), [("ring", [2] * 4), ("path", [1, 2, 2, 1]), ("star", [3, 1, 1, 1]), ("complete", [3] * 4)]
)
def test_graphs(graph, degrees):
    edges = protocol.adjacency(graph, 4)
    assert edges.sum(0).tolist() == edges.sum(1).tolist() == degrees


def test_value_by_iteration():
    public, truth = protocol.draw(MDP, seed=0, budget="quick")
    policy, model = tables(public)[0, 0], truth["models"][0]
    V = np.zeros(4)
    for _ in range(300):
        new = np.zeros(4)
        for s in range(4):
            for index, joint in enumerate(np.ndindex(2, 2, 2)):
                p = np.prod([policy[i, s, a] for i, a in enumerate(joint)])
                new[s] += p * (public["R"][0, :, s, index].mean() + 0.8 * public["P"][0, s, index] @ V)
        V = new
    assert protocol.policy_value(model, policy) == pytest.approx(V.mean(), rel=1e-9)


def test_optimum_by_enumeration():
    _, truth = protocol.draw({**MDP, "n_agents": 2, "n_states": 2}, seed=0, budget="quick")
    model, best = truth["models"][1], -np.inf
    for first in np.ndindex(2, 2):
        for second in np.ndindex(2, 2):
            best = max(best, protocol.policy_value(model, np.eye(2)[np.array([first, second])]))
    assert truth["optimum"][1] == pytest.approx(best)


def test_grid_by_simulation():
    public, truth = protocol.draw(GRID, seed=0, budget="quick")
    policy, model = tables(public)[0, 0], truth["models"][0]
    rng, n, total = np.random.default_rng(1), 40_000, 0.0
    x, y = rng.integers(3, size=(2, n)), rng.integers(2, size=(2, n))
    for t in range(3):
        state = np.ravel_multi_index(y * 3 + x, (6, 6))
        actions = np.stack([(rng.random((n, 1)) > policy[i, state].cumsum(1)[:, :-1]).sum(1) for i in range(2)])
        x = np.clip(x + np.array([0, 0, -1, 1, 0])[actions], 0, 2)
        y = np.clip(y + np.array([-1, 1, 0, 0, 0])[actions], 0, 1)
        distance = [np.minimum(*(abs(x[i] - u) + abs(y[i] - v) for i in range(2))) for u, v in public["landmarks"]]
        total = total - 0.9**t * np.sum(distance, 0)
    expected = total.mean() / (1 - 0.9**3)
    assert protocol.policy_value(model, policy) == pytest.approx(expected, abs=5 * total.std() / 200 / (1 - 0.9**3))


def test_grid_optimum_by_hand():
    # one agent on three cells, episodes of two steps: only the cell two steps away costs, 1 and then 0
    settings = {**GRID, "n_agents": 1, "width": 3, "height": 1, "reset_every": 2, "gamma": 0.5}
    public, truth = protocol.draw(settings, seed=0, budget="quick")
    corner = public["landmarks"][0, 0] != 1
    assert truth["optimum"][0] == pytest.approx(-(1 / 3) / 0.75 if corner else 0.0)


def test_metrics():
    public, truth = protocol.draw(MDP, seed=0, budget="quick")
    example = protocol.evaluate(public, truth, protocol.example(public))
    assert example["relative_gap"] == pytest.approx(1) and example["remaining_gap"] == pytest.approx(1)
    assert example["gap_area"] == pytest.approx(1) and example["gap_slope"] == pytest.approx(0, abs=1e-6)
    policies = tables(public)
    values = np.array([[protocol.policy_value(truth["models"][r], p) for p in policies[r]] for r in range(2)])
    gap = truth["optimum"][:, None] - values
    got = protocol.evaluate(public, truth, {"policies": policies, "sent": 3})
    assert got["remaining_gap"] == pytest.approx((gap[:, -1] / gap[:, 0]).mean()) and got["sent"] == 3
    steps = public["steps"]
    relative = gap / (truth["optimum"] - truth["uniform"])[:, None]
    area = ((relative[:, 1:] + relative[:, :-1]) / 2 * np.diff(steps)).sum(1) / 1000
    assert got["gap_area"] == pytest.approx(area.mean())
    assert got["reward"] == pytest.approx(0.2 * values[:, -1].mean())


def test_bootstrap_interval():
    public, truth = protocol.draw({**MDP, "n_problems": 6}, seed=0, budget="quick")
    got = protocol.evaluate(public, truth, {"policies": tables(public)})
    assert got["remaining_gap_low"] < got["remaining_gap_median"] < got["remaining_gap_high"]
    same = protocol.evaluate(public, truth, protocol.example(public))
    assert same["remaining_gap_low"] == pytest.approx(1) and same["remaining_gap_high"] == pytest.approx(1)


def test_runs_of_a_grid():
    assert protocol.draw(GRID, seed=0, budget="quick")[0]["runs"] == 2
    assert protocol.draw({**GRID, "runs": 1}, seed=0, budget="quick")[0]["runs"] == 1


def test_slope_of_a_known_rate(monkeypatch):
    public, truth = protocol.draw({**MDP, "n_problems": 1, "T": 3000, "checkpoints": 40}, seed=0, budget="quick")
    curve = truth["optimum"][0] - 5 / (public["steps"] + 10.0)
    monkeypatch.setattr(protocol, "_values", lambda *_: curve[None])
    assert protocol.evaluate(public, truth, {"policies": np.zeros(2)})["gap_slope"] == pytest.approx(-1)


def test_labels():
    public, truth = protocol.draw(GRID, seed=0, budget="smoke")
    shape = list(protocol._shape(public))
    shape[1] = 2
    uniform = np.full(shape, 0.2)
    left = np.eye(5)[np.full(shape[:-1], 2)]
    got = protocol.evaluate(public, truth, {"policies_D1": uniform, "policies_D3": left, "policies_m10": uniform})
    assert got["gap_D1"] == pytest.approx(1) and got["spread_width"] == 0
    assert got["spread_depth"] == pytest.approx(abs(got["gap_D1"] - got["gap_D3"])) and got["spread_depth"] > 0.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p[:, :1], "policies have shape"),
        (lambda p: p * 1.1, "no probabilities"),
        (lambda p: p - 0.5, "no probabilities"),
        (lambda p: p * np.nan, "no probabilities"),
    ],
)
def test_refused(change, message):
    public, truth = protocol.draw(MDP, seed=0, budget="quick")
    with pytest.raises(ValueError, match=message):
        protocol.evaluate(public, truth, {"policies": change(tables(public))})


def test_unknown_settings():
    with pytest.raises(ValueError, match="kind is 'maze'"):
        protocol.draw({**MDP, "kind": "maze"}, seed=0, budget="quick")
    with pytest.raises(ValueError, match="graph is 'line'"):
        protocol.adjacency("line", 3)
