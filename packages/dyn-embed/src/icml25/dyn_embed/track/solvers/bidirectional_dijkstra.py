"""Exact distances: networkx's bidirectional Dijkstra for each pair, when it is asked for."""

from icml25.shared.isolated import BaseSolver, measure

WAIT = 200


def warm_up():
    """Load what the clock should not see."""
    import networkx as nx

    nx.bidirectional_dijkstra(nx.path_graph(9), 0, 8)


def follow(arrays, params):
    """Keep the graph, and search at each query."""
    import math
    import time

    import networkx as nx
    import numpy as np

    def distance(u, v):
        try:
            return nx.bidirectional_dijkstra(graph, u, v)[0]
        except nx.NetworkXNoPath:
            return math.inf

    seconds, searches = [], []
    for i in range(params["cases"]):
        edges, weights = arrays[f"edges_{i}"].tolist(), arrays[f"weights_{i}"].tolist()
        graph = nx.Graph()
        graph.add_weighted_edges_from((u, v, w) for (u, v), w in zip(edges, weights, strict=True))
        found, checks = [], arrays[f"check_{i}"].tolist()
        updates, queries = arrays[f"updates_{i}"].tolist(), arrays[f"queries_{i}"].tolist()
        start = time.perf_counter()
        steps = updates[:WAIT] if params["problem"] == "scaling" else updates
        for step, ((insertion, u, v, w), pair) in enumerate(zip(steps, queries, strict=False), start=1):
            graph.add_edge(int(u), int(v), weight=w) if insertion else graph.remove_edge(int(u), int(v))
            if params["problem"] == "scaling":
                distance(*pair)
            while checks and step == checks[0]:
                row = len(found)
                found.append([distance(*p) for p in arrays[f"pairs_{i}"][row].tolist()])
                checks.pop(0)
        seconds.append((time.perf_counter() - start) / len(steps))
        start = time.perf_counter()
        for pair in queries[:100]:
            distance(*pair)
        searches.append((time.perf_counter() - start) / 200)  # a query is one of a pair's two vertices
    if params["problem"] == "scaling":
        return {"update_seconds": np.array(seconds), "query_seconds": np.array(searches)}
    return {"lower": np.array(found), "estimate": np.array(found)}


class Solver(BaseSolver):
    """networkx.bidirectional_dijkstra."""

    name = "bidirectional Dijkstra"
    sampling_strategy = "run_once"

    def skip(self, problem, **_):
        """It has no vectors."""
        return problem == "growth", "exact: no stretch"

    def set_objective(self, problem, sizes, replicates, budget, seed, **arrays):
        """Note the stream."""
        self.arrays, self.params = arrays, {"problem": problem, "cases": len(sizes)}

    def run(self, _):
        """Follow the stream in a process of its own."""
        self.result = measure(__file__, "follow", self.arrays, self.params)

    def get_result(self):
        """Return distances or times."""
        return self.result
