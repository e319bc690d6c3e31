"""The dynamic embedding, and embeddings of the first graph, on the track graph-embedding."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

LEVELS = {"q1": 1, "q2": 2, "q3": 3, "q2-trees8": 2}
SMOKE = ("q2", "landmarks")
LONG_STREAM, LARGE = 1_000, 20_000
METHODS = {
    "stream": ("q1", "q2", "q3"),
    "replaced": ("q2", "q2-trees8", "frechet", "landmarks"),
    "scaling": ("q1", "q2", "q3"),
}


def warm_up() -> None:
    """Load what the clock should not see."""
    import networkx as nx

    from icml25.dyn_embed import DynamicEmbedding

    DynamicEmbedding(nx.path_graph(9), q=2, seed=0).distance(0, 8)


def _graph(arrays: dict[str, np.ndarray], case: int) -> Any:
    import networkx as nx

    graph = nx.Graph()
    ends, weights = arrays[f"edges_{case}"].tolist(), arrays[f"weights_{case}"].tolist()
    graph.add_nodes_from(range(1 + max(max(edge) for edge in ends)))
    graph.add_weighted_edges_from((u, v, w) for (u, v), w in zip(ends, weights, strict=True))
    return graph


def _apply(emb: Any, update: list[float]) -> None:
    insertion, u, v, w = update
    if insertion:
        emb.add_edge(int(u), int(v), w)
    else:
        emb.remove_edge(int(u), int(v))


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def follow(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Keep an embedding along the stream, with a query per update (ten updates in a long stream), and note its distances at the checks."""
    from icml25.dyn_embed import DynamicEmbedding

    emb = DynamicEmbedding(_graph(arrays, 0), **params["options"], seed=params["seed"])
    tree, lp, early = [], [], 0.0
    every = 10 if len(arrays["updates_0"]) > 300 else 1
    updates, queries, checks = (arrays[f"{name}_0"].tolist() for name in ("updates", "queries", "check"))
    for step, (update, (u, _)) in enumerate(zip(updates, queries, strict=True), start=1):
        _apply(emb, update)
        if step % every == 0:
            emb.embed(u)
        while len(tree) < len(checks) and checks[len(tree)] == step:
            pairs = arrays["pairs_0"][len(tree)].tolist()
            tree.append(emb.tree_distances(pairs))
            lp.append(emb.distances(pairs))
        if step == len(updates) // 5:
            early = _peak_mb()
    return {"lower": np.array(tree), "estimate": np.array(lp), "late_memory_mb": _peak_mb() - early}


def frozen(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Embed the first graph and look at the vectors only."""
    from icml25.dyn_embed import frechet_embedding, landmark_embedding

    graph = _graph(arrays, 0)
    if params["method"] == "frechet":
        X, order = frechet_embedding(graph, seed=params["seed"]), 1
    else:
        X, order = landmark_embedding(graph, seed=params["seed"]), np.inf
    pairs = arrays["pairs_0"]
    lp = np.linalg.norm(X[pairs[..., 0]] - X[pairs[..., 1]], ord=order, axis=-1)
    return {"lower": lp, "estimate": lp}


def replicate(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """l_1 distances of independent embeddings, after the insertions."""
    from icml25.dyn_embed import DynamicEmbedding

    out = {}
    for case in range(params["cases"]):
        graph, rows = _graph(arrays, case), []
        for copy in range(params["replicates"]):
            emb = DynamicEmbedding(graph, **params["options"], seed=1000 * params["seed"] + copy)
            emb.embed(0)  # the phase starts here, before the insertions
            for update in arrays[f"updates_{case}"].tolist():
                _apply(emb, update)
            rows.append(emb.distances(arrays[f"pairs_{case}"][0].tolist()))
        out[f"lp_{case}"] = np.array(rows)
    return out


def time_updates(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Mean seconds of an update with two queries over one phase and its rebuild (of 8 updates without phases)."""
    from icml25.dyn_embed import DynamicEmbedding

    per_update, per_query = [], []
    for case in range(params["cases"]):
        emb = DynamicEmbedding(_graph(arrays, case), **params["options"], seed=params["seed"])
        emb.embed(0)
        target = emb.stats["rebuilds"][0] + (8 if emb.q == 1 else 1)
        updates, queries = arrays[f"updates_{case}"].tolist(), arrays[f"queries_{case}"].tolist()
        start, steps = time.perf_counter(), 0
        while emb.stats["rebuilds"][0] < target:
            _apply(emb, updates[steps])
            for v in queries[steps]:
                emb.embed(v)
            steps += 1
        per_update.append((time.perf_counter() - start) / steps)
        for update in updates[steps : steps + 20]:  # a graph H for the queries to meet
            _apply(emb, update)
        emb.embed(0)
        start = time.perf_counter()
        for u, v in queries[:100]:
            emb.embed(u)
            emb.embed(v)
        per_query.append((time.perf_counter() - start) / 200)
    return {"update_seconds": np.array(per_update), "query_seconds": np.array(per_query)}


class Solver(BaseSolver):
    """DynamicEmbedding with q levels, and two embeddings that are not kept up to date."""

    name = "dyn-embed"
    sampling_strategy = "run_once"
    parameters = {"method": ["q1", "q2", "q3", "q2-trees8", "frechet", "landmarks"]}  # noqa: RUF012

    def skip(self, problem: str, updates_0: np.ndarray, budget: str, **_: Any) -> tuple[bool, str | None]:
        """Leave out what a problem does not ask about."""
        if problem == "growth":
            methods = ("q2",) if len(updates_0) else ("q1",)
        elif problem == "stream" and len(updates_0) > LONG_STREAM:
            methods = ("q2",)
        else:
            methods = METHODS[problem]
        if budget == "smoke":
            methods = tuple(method for method in methods if method in SMOKE) or methods
        return self.method not in methods, f"{self.method} is not asked about"

    def set_objective(
        self, problem: str, sizes: list[int], replicates: int, budget: str, seed: int, **arrays: np.ndarray
    ) -> None:
        """Note the stream."""
        self.arrays = arrays
        options = {"q": LEVELS.get(self.method, 0), "n_trees": 8 if self.method == "q2-trees8" else 1}
        self.params = {
            "method": self.method,
            "options": options,
            "cases": len(sizes) - (self.method == "q3" and sizes[-1] * 4 > LARGE and budget != "paper"),
            "replicates": replicates,
            "seed": int(seed),
        }
        follows = frozen if self.method in ("frechet", "landmarks") else follow
        self.function = {"growth": replicate, "scaling": time_updates}.get(problem, follows).__name__

    def run(self, _: Any) -> None:
        """Run in a process of its own."""
        self.result = measure(__file__, self.function, self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return distances or times, seconds and memory."""
        return self.result
