"""How far the distances of an embedding are from the shortest paths."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from scipy.sparse.csgraph import dijkstra

from icml25.dyn_embed.embedding import Embedding
from icml25.dyn_embed.inputs import Number, Seed, check_integer, check_seed, index_graph, length_matrix

__all__ = ["distortion"]


def distortion(
    embedding: Embedding,
    pairs: Iterable[Any] | None = None,
    *,
    n_pairs: Number = 1000,
    seed: Seed = None,
) -> dict[str, Any]:
    """Compare tree and l_p distances with exact shortest paths (scipy's Dijkstra).

    Parameters
    ----------
    embedding : an embedding of at least two nodes.
    pairs : pairs (u, v) of nodes; None draws `n_pairs` pairs of different nodes.
    n_pairs : number of pairs to draw.
    seed : int, Generator or None, for the draw.

    Returns
    -------
    dict of columns, ready for a data frame: pair (list), d (shortest path, inf where there is none), tree, lp.

    Raises
    ------
    ValueError: the graph has fewer than two nodes and no pairs are given.
    """
    graph = embedding.graph
    nodes, ends, weights = index_graph(graph)
    if pairs is None:
        if len(nodes) < 2:
            raise ValueError(f"the graph has {len(nodes)} nodes; expected at least 2 to draw pairs from")
        rng = check_seed(seed)
        left = rng.integers(len(nodes), size=check_integer("n_pairs", n_pairs, 1))
        right = (left + rng.integers(1, len(nodes), size=len(left))) % len(nodes)
        chosen: list[tuple[Hashable, Hashable]] = [(nodes[i], nodes[j]) for i, j in zip(left, right, strict=True)]
    else:
        chosen = [tuple(pair) for pair in pairs]
    tree, lp = embedding.tree_distances(chosen), embedding.distances(chosen)
    index = {node: i for i, node in enumerate(nodes)}
    rows = np.array([[index[u], index[v]] for u, v in chosen], dtype=np.int64).reshape(-1, 2)
    sources, position = np.unique(rows[:, 0], return_inverse=True)
    exact = np.empty(len(rows))
    lengths = length_matrix(len(nodes), ends, weights)
    for start in range(0, len(sources), 64):  # 64 rows of distances at a time
        some = (position >= start) & (position < start + 64)
        if some.any():
            block = dijkstra(lengths, indices=sources[start : start + 64])
            exact[some] = block[position[some] - start, rows[some, 1]]
    return {"pair": chosen, "d": exact, "tree": tree, "lp": lp}
