"""Graphs as arrays, and shifted shortest-path trees computed from scratch by scipy's Dijkstra."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int, Int32
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from icml25.dyn_embed.inputs import length_matrix

__all__ = ["Adjacency", "shifted_trees"]

SMALL = 2**15


class Adjacency:
    """Weighted undirected graph in compressed rows; a removed edge keeps its place with an infinite weight.

    Parameters
    ----------
    n : number of vertices 0..n-1.
    ends : (m, 2) end points of the edges, each edge once.
    weights : (m,) positive weights.
    """

    def __init__(self, n: int, ends: Int[np.ndarray, "m 2"], weights: Float[np.ndarray, " m"]) -> None:
        matrix = length_matrix(n, ends, weights)
        matrix.sort_indices()
        self.n = n
        self.indptr, self.indices, self.weights = matrix.indptr, matrix.indices, matrix.data

    def around(self, v: int) -> tuple[Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
        """Neighbours of v and the weights of the edges to them, removed ones with infinity."""
        row = slice(self.indptr[v], self.indptr[v + 1])
        return self.indices[row], self.weights[row]

    def set_weight(self, x: int, y: int, weight: float) -> None:
        """Change the weight of the edge (x, y) in place."""
        for v, u in ((x, y), (y, x)):
            neighbours, weights = self.around(v)
            weights[np.searchsorted(neighbours, u)] = weight

    def edges(self) -> tuple[Int[np.ndarray, "m 2"], Float[np.ndarray, " m"]]:
        """End points and weights of the edges that are left, each edge once."""
        rows = np.repeat(np.arange(self.n), np.diff(self.indptr))
        kept = (rows < self.indices) & np.isfinite(self.weights)
        return np.column_stack([rows[kept], self.indices[kept]]), self.weights[kept]


def shifted_trees(
    adjacency: Adjacency, offsets: Float[np.ndarray, "scales n"]
) -> tuple[Float[np.ndarray, "scales n"], Int32[np.ndarray, "scales n"], Int32[np.ndarray, "scales n"]]:
    """Shortest paths from a source that reaches every vertex u directly over a length off_u, once per scale.

    Parameters
    ----------
    adjacency : the graph, without removed edges.
    offsets : (scales, n) lengths off_u > 0.

    Returns
    -------
    dist, parent, center : dist(v) = min_u off_u + d(u, v); the vertex before v on that path (-1: the source); the
        minimising u (Miller, Peng & Xu 2013).
    """
    n, entries = adjacency.n, len(adjacency.weights)
    dist, parent = np.empty(offsets.shape), np.empty(offsets.shape, dtype=np.int32)
    center = np.empty_like(parent)
    together = max(1, SMALL // (n + entries + 1))  # scales of a small graph share a call
    for first in range(0, len(offsets), together):
        some = slice(first, first + together)
        k = len(offsets[some])
        source, everyone = k * n, np.arange(k * n, dtype=np.int32)
        copies = np.arange(k, dtype=np.int32)[:, None]
        indices = np.concatenate([(adjacency.indices + n * copies).ravel(), everyone])
        starts = np.append((adjacency.indptr[:-1] + entries * copies).ravel(), [k * entries, len(indices)])
        lengths = np.concatenate([np.tile(adjacency.weights, k), offsets[some].ravel()])
        graph = csr_array((lengths, indices, starts), shape=(source + 1, source + 1))
        reach, before = (row[:source] for row in dijkstra(graph, indices=source, return_predecessors=True))
        direct = before == source
        root = np.where(direct, everyone, before)
        while not np.array_equal(above := root[root], root):  # pointer doubling
            root = above
        dist[some] = reach.reshape(k, n)
        parent[some] = np.where(direct, -1, before - n * (everyone // max(n, 1))).reshape(k, n)
        center[some] = root.reshape(k, n) - n * copies
    return dist, parent, center
