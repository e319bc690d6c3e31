"""Follow a stream of edge insertions and deletions, and estimate shortest paths on the way."""

import math

import networkx as nx
import numpy as np
from benchopt import BaseObjective
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

TOLERANCE = 1e-9


def graph_of(kind, n, degree, top, seed):
    """Random regular graph or grid, with whole weights 1..top: its edges and weights."""
    graph = nx.convert_node_labels_to_integers(
        nx.grid_2d_graph(math.isqrt(n), math.isqrt(n))
        if kind == "grid"
        else nx.random_regular_graph(degree, n, seed=seed)
    )
    edges = np.array(graph.edges, dtype=np.int64)
    return edges, np.random.default_rng([seed, 0]).integers(1, top + 1, size=len(edges)).astype(float)


def stream_of(edges, weights, n, length, kind, top, seed):
    """Updates (is an insertion, u, v, weight): "random" (half insertions, m/2 to 2 m edges), "insert", or "replace" (old ones by new ones)."""
    rng = np.random.default_rng([seed, 1])
    alive = [(*edge, w) for edge, w in zip(edges.tolist(), weights.tolist(), strict=True)]
    present = {frozenset(edge[:2]) for edge in alive}
    old, updates = len(alive), []
    for step in range(length):
        balance = 1 if len(alive) <= len(edges) // 2 else 0 if len(alive) >= 2 * len(edges) else rng.random() < 0.5
        insertion = {"random": balance, "insert": True, "replace": step % 2 == 1}[kind]
        if insertion:
            while (pair := frozenset(rng.choice(n, 2, replace=False).tolist())) in present:
                pass
            alive.append((*sorted(pair), float(rng.integers(1, top + 1))))
            present.add(pair)
            updates.append((1, *alive[-1]))
        else:
            if kind == "replace":  # one of the first graph's edges, which stand first
                i, old = rng.integers(old), old - 1
                alive[i], alive[old] = alive[old], alive[i]
                u, v, w = alive.pop(old)
            else:
                i = rng.integers(len(alive))
                alive[i], alive[-1] = alive[-1], alive[i]
                u, v, w = alive.pop()
            present.remove(frozenset((u, v)))
            updates.append((0, u, v, w))
    return np.array(updates, dtype=float).reshape(-1, 4)


def distances_after(edges, weights, updates, n, pairs):
    """Exact distances of pairs after all updates."""
    alive = {frozenset(edge): w for edge, w in zip(edges.tolist(), weights.tolist(), strict=True)}
    for insertion, u, v, w in updates.tolist():
        pair = frozenset((int(u), int(v)))
        if insertion:
            alive[pair] = w
        else:
            del alive[pair]
    ends = np.array([sorted(pair) for pair in alive], dtype=np.int64).reshape(-1, 2)
    matrix = csr_array((np.array(list(alive.values())), (ends[:, 0], ends[:, 1])), shape=(n, n))
    sources, row = np.unique(pairs[:, 0], return_inverse=True)
    return dijkstra(matrix, directed=False, indices=sources)[row, pairs[:, 1]]


def random_pairs(rng, n, count):
    """Pairs of different vertices."""
    left = rng.integers(n, size=count)
    return np.column_stack([left, (left + rng.integers(1, n, size=count)) % n])


def stretch_bound(n, scales):
    """Bound of the expected stretch of one level: 4 ln n (L + 1)."""
    return 4 * math.log(n) * (scales + 1)


class Objective(BaseObjective):
    """Domination, stretch and time of distance estimates in a changing graph."""

    name = "Graph embedding"
    parameters = {"budget": ["smoke"], "seed": [0]}  # noqa: RUF012
    sampling_strategy = "run_once"

    def set_data(self, problem, sizes, degree, top, updates, stream, pairs, checks, graph="regular", replicates=1):
        """Draw a graph, a stream, and pairs to look at, per size."""
        self.problem, self.sizes = problem, list(sizes)
        self.public, self.exact = {}, []
        for i, n in enumerate(sizes):
            seed = int(np.random.SeedSequence([self.seed, n]).generate_state(1)[0])
            edges, weights = graph_of(graph, n, degree, top, seed)
            length = round(math.sqrt(len(edges)) / 2) if updates == "half a phase" else updates
            changes = stream_of(edges, weights, n, length, stream, top, seed)
            rng = np.random.default_rng([seed, 2])
            when = np.linspace(0, length, checks + 1).astype(np.int64)[1:]
            asked = (
                np.stack([random_pairs(rng, n, pairs) for _ in when]) if checks else np.empty((0, pairs, 2), np.int64)
            )
            self.public |= {
                f"edges_{i}": edges,
                f"weights_{i}": weights,
                f"updates_{i}": changes,
                f"queries_{i}": random_pairs(rng, n, max(length, 1)),
                f"check_{i}": when,
                f"pairs_{i}": asked,
            }
            self.exact.append(
                np.array([distances_after(edges, weights, changes[:t], n, p) for t, p in zip(when, asked, strict=True)])
            )
        self.replicates = replicates

    def get_objective(self):
        """Hand out graphs, streams and pairs, without distances."""
        return {
            "problem": self.problem,
            "sizes": self.sizes,
            "replicates": self.replicates,
            "budget": self.budget,
            "seed": self.seed,
            **self.public,
        }

    def evaluate_result(self, seconds, peak_memory_mb, **result):
        """Compare with exact distances, or read the times."""
        rows = {"scaling": self.read_times, "growth": self.growth}.get(self.problem, self.estimates)
        arrays = {key: value for key, value in result.items() if isinstance(value, np.ndarray)}
        scalars = {key: value for key, value in result.items() if key not in arrays}
        return {**scalars, **rows(**arrays), "seconds": seconds, "peak_memory_mb": peak_memory_mb}

    def estimates(self, lower, estimate):
        """``lower`` and ``estimate`` (checks, pairs): a distance said never to be too short, and the best guess."""
        finite = np.isfinite(self.exact[0])
        exact, lower, estimate = self.exact[0][finite], lower[finite], estimate[finite]
        ratio = estimate / exact
        off = (ratio < 0.5) | (ratio > 4 * np.median(ratio))
        return {
            "violations": float((lower < exact * (1 - TOLERANCE)).mean()),
            "mean_stretch": float((lower / exact).mean()),
            "spread": float(np.divide(*np.quantile(ratio, [0.95, 0.05]))),
            "off_share": float(off.mean()),
        }

    def growth(self, **arrays):
        """``lp_i`` (replicates, pairs) per size: stretch of the mean over replicates."""
        means, over, low = [], [], []
        for i, n in enumerate(self.sizes):
            stretch = arrays[f"lp_{i}"].mean(0) / self.exact[i][-1]
            scales = math.ceil(math.log2(n - 1)) + 1
            bound = stretch_bound(n, scales)
            if len(self.public[f"updates_{i}"]):  # H has at most this many vertices, and as many scales
                vertices = 2 * len(self.public[f"updates_{i}"]) * (scales + 1)
                bound *= stretch_bound(vertices, scales)
            means.append(stretch.mean())
            over.append(stretch.max() / bound)
            low.append(stretch.min())
        return {
            "mean_stretch": float(means[-1]),
            "stretch_growth": float(means[-1] / means[0]),
            "over_bound": float(max(over)),
            "least_stretch": float(min(low)),
        }

    def read_times(self, update_seconds, query_seconds):
        """Mean seconds of an update with two queries, and of a query in an unchanged graph, per size; a slope takes three sizes."""
        edges = [len(self.public[f"edges_{i}"]) for i in range(len(update_seconds))]
        columns = {f"update_ms_{m}": 1000 * float(s) for m, s in zip(edges, update_seconds, strict=True)}
        slope = np.polyfit(np.log(edges), np.log(update_seconds), 1)[0] if len(edges) > 2 else np.nan
        return {
            **columns,
            "slope": float(slope),
            "query_ms": 1000 * float(query_seconds[-1]),
            "query_growth": float(query_seconds[-1] / query_seconds[0]),
        }

    def get_one_result(self):
        """Return a result of the right shape."""
        n = len(self.sizes)
        if self.problem == "scaling":
            arrays = {"update_seconds": np.arange(1.0, n + 1), "query_seconds": np.ones(n)}
        elif self.problem == "growth":
            arrays = {f"lp_{i}": np.ones((self.replicates, self.exact[i].shape[1])) for i in range(n)}
        else:
            arrays = {"lower": np.ones_like(self.exact[0]), "estimate": np.ones_like(self.exact[0])}
        return {**arrays, "seconds": 0.0, "peak_memory_mb": 0.0}
