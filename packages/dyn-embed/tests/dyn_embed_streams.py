"""Graphs, update streams and slow exact checks that several tests use."""

from itertools import pairwise

import networkx as nx
import numpy as np
from scipy.sparse.csgraph import shortest_path

from icml25.dyn_embed.levels import BootstrappedLevel
from icml25.dyn_embed.tree import ClusterTree


def random_graph(n, m, seed, top=8):
    rng = np.random.default_rng(seed)
    graph = nx.gnm_random_graph(n, m, seed=int(rng.integers(2**31)))
    for u, v in graph.edges:
        graph[u][v]["weight"] = float(rng.integers(1, top + 1))
    return graph


def random_update(emb, rng, top=8, nodes=True):
    """One random change of any kind; returns its name."""
    graph = emb.graph
    edges = list(graph.edges)
    kind = rng.choice(
        ["add", "remove", "raise", "lower", "add_node", "remove_node"], p=[0.4, 0.35, 0.1, 0.07, 0.04, 0.04]
    )
    if kind in ("add_node", "remove_node") and not nodes:
        kind = "add"
    if kind == "add_node":
        emb.add_node(("new", emb.version))
    elif kind == "remove_node" and len(graph) > 5:
        emb.remove_node(list(graph)[rng.integers(len(graph))])
    elif kind == "add" or not edges:
        here = list(graph)
        u, v = (here[i] for i in rng.choice(len(here), 2, replace=False))
        emb.add_edge(u, v, float(rng.integers(1, top + 1)))
    else:
        u, v = edges[rng.integers(len(edges))]
        w = graph[u][v]["weight"]
        if kind == "remove":
            emb.remove_edge(u, v)
        else:
            emb.update_edge(u, v, w + 1 if kind == "raise" else max(w - 1, 1))
    return kind


def all_pairs(emb):
    """Nodes, exact distances, tree distances."""
    nodes = list(emb.graph)
    exact = shortest_path(nx.to_scipy_sparse_array(emb.graph, nodes, dtype=float), directed=False)
    pairs = [(u, v) for u in nodes for v in nodes]
    return nodes, exact, emb.tree_distances(pairs).reshape(len(nodes), len(nodes))


def assert_dominates(emb):
    _, exact, tree = all_pairs(emb)
    finite = np.isfinite(exact)
    assert (tree[finite] >= exact[finite] * (1 - 1e-9)).all()
    cap = emb._trees[0].scales.cap
    assert (tree[~finite] >= 2 * cap * (1 - 1e-9)).all()
    assert (exact[finite] <= cap).all()


def assert_structure(level):
    """T equals a fresh tree, and H is exactly the inserted edges and the present paths of their end points."""
    if not isinstance(level, BootstrappedLevel) or level._tree is None:
        return
    base = level.tree.edges()
    salt_tree = level.tree
    fresh = ClusterTree(base, level.scales, 0, keys=salt_tree.keys, maintained=True)
    fresh_clusters = type(salt_tree.clusterings)(fresh.clusterings.adjacency, salt_tree.clusterings.offsets)
    np.testing.assert_allclose(salt_tree.clusterings.dist, fresh_clusters.dist, rtol=1e-12)
    np.testing.assert_array_equal(salt_tree.clusterings.center, fresh_clusters.center)
    assert level.size == len(base) + len(level.inserted)
    expected = dict(level.inserted)
    touched = sorted({x for edge in level.inserted for x in edge})
    for x, path in zip(touched, salt_tree.nodes(touched).T.tolist(), strict=True):
        if x in salt_tree.index:
            assert level.paths[x] == path
            expected |= {
                tuple(sorted(edge)): omega for edge, omega in zip(pairwise(path), level.scales.omegas, strict=True)
            }
        else:
            assert x not in level.paths
    assert {tuple(sorted(edge)): w for edge, w in level.sub.all_edges().items()} == expected
    assert set(level.degree) == {x for edge in expected for x in edge}
    assert level.h_edges == len(expected)
    assert_structure(level.sub)


def explicit_tree(emb):
    """The tree behind the vectors as a networkx graph built from the paths, and the place of every node of the graph in it."""
    nodes = list(emb.graph)
    blocks = emb._trees[0].blocks([emb._keys[v] for v in nodes])
    tree, place = nx.Graph(), {}
    tree.add_node("root")
    for column, v in enumerate(nodes):
        path = [
            (number, int(block.nodes[row, column]), block.scales.omegas[row])
            for number, block in enumerate(blocks)
            for row in range(int(block.depth[column]))
        ]
        place[v] = path[0][:2]
        for (*below, omega), (*above, _) in pairwise([*path, ("root", None, None)]):
            tree.add_edge(tuple(below), "root" if above[0] == "root" else tuple(above), weight=omega)
    return tree, place
