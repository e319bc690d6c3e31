"""Distortion against exact distances, and the baselines' closed forms."""

import math

import networkx as nx
import numpy as np
import pytest
from dyn_embed_streams import random_graph

from icml25.dyn_embed import DynamicEmbedding, StaticEmbedding, distortion, frechet_embedding, landmark_embedding


def test_distortion_columns():
    graph = random_graph(150, 250, 0)
    emb = DynamicEmbedding(graph, q=2, seed=0)
    rows = distortion(emb, n_pairs=400, seed=1)
    lengths = dict(nx.all_pairs_dijkstra_path_length(graph))
    assert len(rows["pair"]) == 400 and all(u != v for u, v in rows["pair"])
    np.testing.assert_allclose(rows["d"], [lengths[u].get(v, math.inf) for u, v in rows["pair"]])
    np.testing.assert_array_equal(rows["tree"], emb.tree_distances(rows["pair"]))
    np.testing.assert_array_equal(rows["lp"], emb.distances(rows["pair"]))
    again = distortion(emb, n_pairs=400, seed=1)
    assert again["pair"] == rows["pair"]
    chosen = distortion(emb, [(3, 4), (4, 3), (5, 5)])
    assert chosen["d"].tolist() == [lengths[3].get(4, math.inf)] * 2 + [0.0] and chosen["lp"][2] == 0
    with pytest.raises(ValueError, match="1 nodes"):
        distortion(StaticEmbedding(nx.empty_graph(1)))
    with pytest.raises(ValueError, match="n_pairs"):
        distortion(emb, n_pairs=0)
    with pytest.raises(nx.NodeNotFound):
        distortion(emb, [(0, "nobody")])


def test_frechet_embedding_never_stretches():
    graph = random_graph(40, 120, 1)
    graph.add_edges_from(nx.utils.pairwise(graph))
    exact = np.array([[d[v] for v in graph] for _, d in nx.all_pairs_dijkstra_path_length(graph)])
    for p in (1, 2, math.inf):
        X = frechet_embedding(graph, p=p, seed=0)
        norm = np.linalg.norm(X[:, None] - X[None], ord=p, axis=2)
        assert (norm <= exact * (1 + 1e-9)).all()
    assert X.shape == (40, math.ceil(math.log2(40)) * math.ceil(math.log(40)))
    assert norm[np.triu_indices(40, 1)].min() > 0
    np.testing.assert_array_equal(frechet_embedding(graph, seed=3), frechet_embedding(graph, seed=3))
    assert frechet_embedding(graph, c=2, seed=0).shape[1] == 6 * 8


def test_frechet_sets_halve_in_size():
    n = 64
    star = nx.star_graph(n - 1)  # distance 0 for members, 1 or 2 otherwise: zeros count the members
    X = frechet_embedding(star, c=50, p=math.inf, seed=0)
    members = (X == 0).sum(0).reshape(6, -1).mean(1)
    np.testing.assert_allclose(members[:3], [32, 16, 8], rtol=0.1)


def test_landmark_embedding_is_a_lower_bound_and_spreads():
    path = nx.path_graph(17)
    X = landmark_embedding(path, 3, seed=0)
    assert X.shape == (17, 3)
    first, second, third = X.argmin(0)
    assert {second, third} <= {0, 16} or second in (0, 16)
    np.testing.assert_array_equal(X[:, 0], np.abs(np.arange(17) - first))
    np.testing.assert_array_equal(X[:, 1], np.abs(np.arange(17) - second))
    assert third == np.minimum(X[:, 0], X[:, 1]).argmax()
    assert (np.abs(X[:, None] - X[None]).max(2) <= np.abs(np.subtract.outer(np.arange(17), np.arange(17)))).all()
    for k, match in ((0, "k is 0"), (18, "17 nodes")):
        with pytest.raises(ValueError, match=match):
            landmark_embedding(path, k)


def test_baselines_of_disconnected_and_tiny_graphs():
    graph = nx.disjoint_union(nx.path_graph(4), nx.path_graph(3))
    for X in (frechet_embedding(graph, seed=0), landmark_embedding(graph, 4, seed=0)):
        assert np.isfinite(X).all() and X.max() <= 3
    assert frechet_embedding(nx.empty_graph(1)).shape == (1, 1)
    for use in (frechet_embedding, landmark_embedding):
        with pytest.raises(ValueError, match="no nodes"):
            use(nx.Graph())
