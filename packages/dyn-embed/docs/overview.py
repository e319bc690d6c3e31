"""Update time against the number of edges, and the stretch of pairs, by q, into overview.json and overview.svg."""

import json
import sys
import time
from pathlib import Path

import matplotlib as mpl
import networkx as nx
import numpy as np

from icml25.dyn_embed import DynamicEmbedding, distortion

HERE = Path(__file__).parent
SIZES = (250, 1000, 4000, 16_000)
QS = (1, 2, 3)
SEEDS = range(8)


def regular_graph(n):
    """8-regular with weights 1..8."""
    graph, rng = nx.random_regular_graph(8, n, seed=n), np.random.default_rng(n)
    for u, v in graph.edges:
        graph[u][v]["weight"] = int(rng.integers(1, 9))
    return graph


def updates_of(graph, rng):
    """Insertions and deletions in equal shares, for ever."""
    edges, n = list(graph.edges), len(graph)
    while True:
        if rng.random() < 0.5:
            u, v = rng.choice(n, 2, replace=False).tolist()
            if not (graph.has_edge(u, v) or (u, v) in edges[-500:] or (v, u) in edges[-500:]):
                edges.append((u, v))
                yield "add_edge", (u, v, int(rng.integers(1, 9)))
        else:
            i = rng.integers(len(edges))
            edges[i], edges[-1] = edges[-1], edges[i]
            yield "remove_edge", edges.pop()


def time_per_update(n, q):
    """Mean CPU milliseconds of an update with two queries: over a phase and its rebuild for q > 1, over 8 updates for q = 1."""
    graph, rng = regular_graph(n), np.random.default_rng(q)
    emb = DynamicEmbedding(graph, q=q, seed=q)
    emb.embed(0)
    target = emb.stats["rebuilds"][0] + (8 if q == 1 else 1)
    seconds, steps = 0.0, 0
    for method, arguments in updates_of(graph, rng):
        if method == "add_edge" and emb.graph.has_edge(*arguments[:2]):
            continue
        a, b = rng.integers(n, size=2).tolist()
        start = time.process_time()
        getattr(emb, method)(*arguments)
        emb.embed(a)
        emb.embed(b)
        seconds += time.process_time() - start
        steps += 1
        if emb.stats["rebuilds"][0] >= target:
            return 1000 * seconds / steps


def stretch(q, n_trees):
    """Tree distance over shortest path of 1,000 pairs, after 30 insertions into an 8-regular graph of 1,000 nodes, per seed."""
    rows = []
    for seed in SEEDS:
        graph = regular_graph(1000)
        emb = DynamicEmbedding(graph, q=q, n_trees=n_trees, seed=seed)
        emb.embed(0)
        emb.add_edges_from(list(nx.non_edges(graph))[:: 500_000 // 31][:30])
        found = distortion(emb, n_pairs=1000, seed=seed)
        rows.append(found["tree"] / found["d"])
    return np.concatenate(rows)


def main():
    """Measure (unless asked only to draw), store, draw."""
    if "draw" not in sys.argv:
        times = {str(q): [time_per_update(n, q) for n in SIZES] for q in QS}
        bins = np.geomspace(1, 4096, 37)
        histograms = {
            f"q = {q}" + (f", {k} trees" if k > 1 else ""): np.histogram(stretch(q, k), bins)[0].tolist()
            for q, k in ((1, 1), (2, 1), (3, 1), (2, 8))
        }
        result = {
            "edges": [4 * n for n in SIZES],
            "ms": times,
            "bins": bins.round(4).tolist(),
            "histograms": histograms,
        }
        (HERE / "overview.json").write_text(json.dumps(result) + "\n")
    result = json.loads((HERE / "overview.json").read_text())
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "dyn-embed"
    mpl.rcParams["axes.spines.top"] = mpl.rcParams["axes.spines.right"] = False
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.8), layout="constrained")
    for q, ms in result["ms"].items():
        left.loglog(result["edges"], ms, "o-", label="q = 1 (recompute)" if q == "1" else f"q = {q}", markersize=4)
    left.set(xlabel="edges", ylabel="CPU ms per update and two queries")
    left.legend(fontsize=7, frameon=False)
    for number, (name, counts) in enumerate(result["histograms"].items()):
        share = np.array(counts) / sum(counts)
        style = {"linestyle": "--", "color": "C1"} if "trees" in name else {"color": f"C{number}"}
        right.stairs(share, result["bins"], label=name, linewidth=1.4, **style)
    right.set(xscale="log", xlabel="tree distance / shortest path", ylabel="share of pairs")
    right.legend(fontsize=7, frameon=False)
    figure.savefig(HERE / "overview.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
