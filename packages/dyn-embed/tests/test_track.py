"""The track's protocol against closed forms."""

import math

import networkx as nx
import numpy as np
import pytest

pytest.importorskip("benchopt")
pytestmark = pytest.mark.bench


@pytest.fixture
def objective_module():
    import importlib.util
    from pathlib import Path

    import icml25.dyn_embed

    file = Path(icml25.dyn_embed.__file__).parent / "track" / "objective.py"
    spec = importlib.util.spec_from_file_location("graph_embedding_objective", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SETTINGS = {"sizes": [30], "degree": 4, "top": 8, "updates": 60, "stream": "random", "pairs": 50, "checks": 4}


def objective_of(module, **settings):
    objective = module.Objective()
    objective.budget, objective.seed = "smoke", 3
    objective.set_data(**{"problem": "stream", **SETTINGS, **settings})
    return objective


def replayed(public, steps, i=0):
    graph = nx.Graph()
    graph.add_nodes_from(range(int(public[f"edges_{i}"].max()) + 1))
    weights = public[f"weights_{i}"]
    graph.add_weighted_edges_from((*e, w) for e, w in zip(public[f"edges_{i}"].tolist(), weights.tolist(), strict=True))
    for insertion, u, v, w in public[f"updates_{i}"][:steps].tolist():
        assert graph.has_edge(u, v) != bool(insertion)
        graph.add_edge(u, v, weight=w) if insertion else graph.remove_edge(u, v)
    return graph


@pytest.mark.parametrize("stream", ["random", "replace", "insert"])
def test_exact_distances_follow_the_stream(objective_module, stream):
    objective = objective_of(objective_module, stream=stream)
    public = objective.get_objective()
    assert not any("exact" in key for key in public)
    for row, (step, pairs) in enumerate(zip(public["check_0"], public["pairs_0"], strict=True)):
        lengths = dict(nx.all_pairs_dijkstra_path_length(replayed(public, step)))
        expected = [lengths[u].get(v, math.inf) for u, v in pairs.tolist()]
        np.testing.assert_allclose(objective.exact[0][row], expected)
    first, last = replayed(public, 0), replayed(public, 60)
    if stream == "replace":
        assert last.number_of_edges() == first.number_of_edges() == 60
        assert 30 <= sum(last.has_edge(u, v) for u, v in first.edges) <= 34  # a few come back by chance
    if stream == "insert":
        assert last.number_of_edges() == 120


def test_estimates(objective_module):
    objective = objective_of(objective_module, graph="grid", sizes=[25], updates=20)
    exact = objective.exact[0]
    assert np.isfinite(exact).any()
    row = objective.evaluate_result(
        lower=exact, estimate=exact, seconds=1.0, peak_memory_mb=2.0, extra=5.0, violations=9.0
    )
    assert row["violations"] == 0 and row["mean_stretch"] == row["spread"] == 1 and row["off_share"] == 0
    assert row["seconds"] == 1 and row["extra"] == 5
    row = objective.evaluate_result(lower=exact * 0.99, estimate=exact * 0.4, seconds=1.0, peak_memory_mb=2.0)
    assert row["violations"] == 1 and row["mean_stretch"] == pytest.approx(0.99) and row["off_share"] == 1


def test_growth_and_times(objective_module):
    growth = objective_of(objective_module, problem="growth", sizes=[16, 64], top=1, updates=0, checks=1, replicates=2)
    lp = {f"lp_{i}": np.stack([growth.exact[i][-1] * s for s in ((1, 3), (2, 6))[i]]) for i in range(2)}
    row = growth.evaluate_result(**lp, seconds=0.0, peak_memory_mb=0.0)
    assert row["mean_stretch"] == pytest.approx(4) and row["stretch_growth"] == pytest.approx(2)
    assert row["least_stretch"] == pytest.approx(2)
    bounds = [4 * math.log(n) * (math.ceil(math.log2(n - 1)) + 2) for n in (16, 64)]
    assert row["over_bound"] == pytest.approx(max(2 / bounds[0], 4 / bounds[1]))
    inserted = objective_of(
        objective_module, problem="growth", sizes=[16], top=1, updates=10, stream="insert", checks=1, replicates=1
    )
    row = inserted.evaluate_result(lp_0=inserted.exact[0], seconds=0.0, peak_memory_mb=0.0)
    assert row["over_bound"] == pytest.approx(
        1 / (4 * math.log(16) * 6 * 4 * math.log(20 * 6) * 6)
    )  # 5 scales at both levels
    scaling = objective_of(objective_module, problem="scaling", sizes=[20, 80, 320], pairs=0, checks=0)
    times = {"query_seconds": np.array([1.0, 2.0]), "seconds": 0.0, "peak_memory_mb": 0.0}
    row = scaling.evaluate_result(update_seconds=np.array([0.001, 0.008]), **times)
    assert (
        math.isnan(row["slope"]) and row["query_growth"] == 2
    )  # a slope of two sizes would stand beside those of three
    assert scaling.evaluate_result(update_seconds=np.array([0.001, 0.008, 0.064]), **times)["slope"] == pytest.approx(
        1.5
    )
    assert row["update_ms_40"] == pytest.approx(1) and row["update_ms_160"] == pytest.approx(8)
    for one in (growth, scaling):
        assert one.evaluate_result(**one.get_one_result())
