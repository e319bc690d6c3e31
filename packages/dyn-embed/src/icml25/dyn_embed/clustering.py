"""Low-diameter clusterings with exponential shifts, kept under edge deletions and weight increases."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable

import numpy as np
from jaxtyping import Float

from icml25.dyn_embed.inputs import (
    GraphLike,
    Node,
    Number,
    Seed,
    check_graph,
    check_number,
    check_seed,
    check_weight,
    edge_weight,
    index_graph,
    set_edge,
)
from icml25.dyn_embed.static import Adjacency, shifted_trees

__all__ = ["Clusterings", "ShiftedClustering", "shift_offsets"]


def shift_offsets(
    uniform: Float[np.ndarray, "scales n"], diameters: Float[np.ndarray, " scales"]
) -> Float[np.ndarray, "scales n"]:
    """off_v = D/2 - delta_v with delta_v ~ Exp(beta), beta = 2 ln(n) / D, conditioned on delta_v < D/2.

    The conditioned distribution is inverted in closed form: off_v = ln(1 + (n - 1) U) / beta with U uniform on (0, 1).

    Parameters
    ----------
    uniform : (scales, n) numbers in (0, 1).
    diameters : (scales,) D, in units of distance.

    Returns
    -------
    (scales, n) offsets in (0, D/2).
    """
    n = max(uniform.shape[1], 3)
    return np.log1p((n - 1) * uniform) * diameters[:, None] / (2 * math.log(n))


class Clusterings:
    """Clusterings of one graph at several scales: v belongs to argmin_u off_u + d(u, v).

    The shortest-path tree of every scale is kept. A deletion or weight increase off the tree changes nothing; on the tree it
    reruns Dijkstra inside the subtree below the edge, so the state always equals a computation from scratch.

    Parameters
    ----------
    adjacency : the graph; it is changed in place by `raise_weight`.
    offsets : (scales, n) fixed offsets.
    """

    def __init__(self, adjacency: Adjacency, offsets: Float[np.ndarray, "scales n"]) -> None:
        self.adjacency, self.offsets = adjacency, offsets
        self.dist, self.parent, self.center = shifted_trees(adjacency, offsets)

    def raise_weight(self, x: int, y: int, weight: float) -> set[int]:
        """Raise the weight of the edge (x, y), to infinity to remove it.

        Returns
        -------
        The vertices whose center changed on some scale.
        """
        self.adjacency.set_weight(x, y, weight)
        changed: set[int] = set()
        for above, below in ((x, y), (y, x)):
            for scale in np.flatnonzero(self.parent[:, below] == above).tolist():
                changed.update(self._repair(scale, below))
        return changed

    def _repair(self, scale: int, root: int) -> list[int]:
        """Recompute the subtree below `root`, and return the vertices whose center changed."""
        dist, parent, center = self.dist[scale], self.parent[scale], self.center[scale]
        below = [root]
        for v in below:  # grows while it is read
            neighbours, _ = self.adjacency.around(v)
            below.extend(neighbours[parent[neighbours] == v].tolist())
        inside = set(below)
        old = center[below]
        # Entries (distance, center, vertex, parent): ties go to the smaller center.
        heap: list[tuple[float, int, int, int]] = []
        for v, offset in zip(below, self.offsets[scale, below].tolist(), strict=True):
            heap.append((offset, v, v, -1))
            neighbours, weights = self.adjacency.around(v)
            candidates = ((dist[neighbours] + weights).tolist(), center[neighbours].tolist(), neighbours.tolist())
            for length, c, u in zip(*candidates, strict=True):
                if length <= offset and u not in inside:
                    heap.append((length, c, v, u))
        heapq.heapify(heap)
        while inside:
            length, c, v, u = heapq.heappop(heap)
            if v not in inside:
                continue
            inside.remove(v)
            dist[v], center[v], parent[v] = length, c, u
            neighbours, weights = self.adjacency.around(v)
            for u, total in zip(neighbours.tolist(), (length + weights).tolist(), strict=True):
                if u in inside:
                    heapq.heappush(heap, (total, c, u, v))
        return np.asarray(below)[old != center[below]].tolist()


class ShiftedClustering:
    """Clusters of bounded diameter of a graph under edge deletions and weight increases.

    Every vertex v draws a shift delta_v ~ Exp(beta), beta = 2 ln(n) / diameter, below diameter / 2, and keeps it; v joins the u
    that minimises d(u, v) - delta_u. Two vertices of a cluster are within `diameter`; an edge of weight w is cut with
    probability at most 1 - exp(-beta w) + 1/n, after any updates that do not look at the clusters.

    Parameters
    ----------
    graph : networkx.Graph, undirected; copied.
    diameter : bound on the distance of two vertices of a cluster, in units of the weights.
    weight : name of the edge attribute; edges without it weigh 1; None: all weigh 1.
    seed : int, Generator or None.

    Raises
    ------
    networkx.NetworkXNotImplemented: the graph is directed or a multigraph.
    ValueError, TypeError: a bad weight, a self loop, or a diameter that is not positive and finite.

    Notes
    -----
    Miller, Peng & Xu (SPAA 2013); under deletions Forster & Goranci (STOC 2019).
    """

    def __init__(
        self,
        graph: GraphLike,
        diameter: Number,
        *,
        weight: str | None = "weight",
        seed: Seed = None,
    ) -> None:
        self._graph = check_graph(graph, weight)
        self.diameter = check_number("diameter", diameter, low=0.0, open_low=True)
        self._nodes, ends, weights = index_graph(self._graph)
        self._index = {node: i for i, node in enumerate(self._nodes)}
        uniform = 1 - check_seed(seed).random((1, len(self._nodes)))  # in (0, 1]
        offsets = shift_offsets(uniform, np.array([self.diameter]))
        self._clusterings = Clusterings(Adjacency(len(self._nodes), ends, weights), offsets)
        self.changes: list[Hashable] = []
        """Nodes whose center changed in the last update."""

    def labels(self) -> dict[Hashable, Hashable]:
        """Center of the cluster of every node."""
        return {v: self._nodes[c] for v, c in zip(self._nodes, self._clusterings.center[0].tolist(), strict=True)}

    def remove_edge(self, u: Node, v: Node) -> None:
        """Remove an edge.

        Raises
        ------
        networkx.NetworkXError: there is no such edge.
        """
        edge_weight(self._graph, u, v)
        self._graph.remove_edge(u, v)
        self._raise(u, v, math.inf)

    def increase_weight(self, u: Node, v: Node, weight: Number) -> None:
        """Raise the weight of an edge.

        Raises
        ------
        networkx.NetworkXError: there is no such edge.
        ValueError: the weight is lower than before.
        """
        old, new = edge_weight(self._graph, u, v), check_weight(u, v, weight)
        if new < old:
            raise ValueError(f"weight of the edge ({u!r}, {v!r}) may only rise here: it is {old:g}, got {new:g}")
        set_edge(self._graph, u, v, new)
        self._raise(u, v, new)

    def _raise(self, u: Hashable, v: Hashable, weight: float) -> None:
        changed = self._clusterings.raise_weight(self._index[u], self._index[v], weight)
        self.changes = [self._nodes[i] for i in sorted(changed)]
