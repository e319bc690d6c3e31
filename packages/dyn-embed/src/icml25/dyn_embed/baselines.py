"""Embeddings of a fixed graph that people use today: Frechet (Bourgain) and landmarks."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from scipy.sparse.csgraph import dijkstra

from icml25.dyn_embed.inputs import (
    GraphLike,
    Number,
    Seed,
    check_graph,
    check_integer,
    check_number,
    check_seed,
    index_graph,
    length_matrix,
)

__all__ = ["frechet_embedding", "landmark_embedding"]


def frechet_embedding(
    graph: GraphLike,
    *,
    c: Number = 1.0,
    p: Number = 1.0,
    weight: str | None = "weight",
    seed: Seed = None,
) -> Float[np.ndarray, "n dim"]:
    """Bourgain's embedding: coordinates are distances to random sets of 2^-j n nodes, j = 1..log2(n), c ln(n) sets each.

    Parameters
    ----------
    graph : networkx.Graph of at least one node.
    c : sets per size, over ln(n).
    p : the norm; coordinates are divided by dim^(1/p).
    weight : name of the edge attribute; edges without it weigh 1; None: all weigh 1.
    seed : int, Generator or None.

    Returns
    -------
    (n, dim), rows in the order of the graph's nodes. Infinite distances are replaced by the largest finite one.

    Notes
    -----
    Linial, London & Rabinovich (1995): ||f(u) - f(v)||_1 <= d(u, v) <= O(log n) ||f(u) - f(v)||_1.
    """
    n, lengths = _lengths(graph, weight)
    p, c = check_number("p", p, 1.0, infinite=True), check_number("c", c, 0.0, open_low=True)
    rng = check_seed(seed)
    columns = []
    for j in range(1, max(math.ceil(math.log2(n)), 1) + 1):
        for _ in range(max(math.ceil(c * math.log(n)), 1)):
            members = np.empty(0, dtype=np.int64)
            while not len(members):
                members = np.flatnonzero(rng.random(n) < 2.0**-j)
            columns.append(dijkstra(lengths, indices=members, min_only=True))
    return _finite(np.column_stack(columns)) / len(columns) ** (1 / p)


def landmark_embedding(
    graph: GraphLike,
    k: Number = 16,
    *,
    weight: str | None = "weight",
    seed: Seed = None,
) -> Float[np.ndarray, "n k"]:
    """Distances to k landmarks, each the node farthest from those before it.

    Parameters
    ----------
    graph : networkx.Graph of at least one node.
    k : number of landmarks, at most the number of nodes.
    weight : name of the edge attribute; edges without it weigh 1; None: all weigh 1.
    seed : int, Generator or None, for the first landmark.

    Returns
    -------
    (n, k), rows in the order of the graph's nodes: the l_inf distance of two rows never exceeds that of the nodes. Infinite
    distances are replaced by the largest finite one.
    """
    n, lengths = _lengths(graph, weight)
    if check_integer("k", k, 1) > n:
        raise ValueError(f"k is {k}; expected at most the graph's {n} nodes")
    landmark = int(check_seed(seed).integers(n))
    columns = []
    for _ in range(k):
        columns.append(dijkstra(lengths, indices=landmark))
        landmark = int(np.min(columns, axis=0).argmax())
    return _finite(np.column_stack(columns))


def _lengths(graph: GraphLike, weight: str | None) -> tuple[int, object]:
    nodes, ends, weights = index_graph(check_graph(graph, weight))
    if not nodes:
        raise ValueError("the graph has no nodes; expected at least one")
    return len(nodes), length_matrix(len(nodes), ends, weights)


def _finite(distances: np.ndarray) -> np.ndarray:
    finite = np.isfinite(distances)
    return np.where(finite, distances, distances[finite].max(initial=0.0))
