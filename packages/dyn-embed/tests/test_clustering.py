"""Clusterings with exponential shifts: brute force, history independence, and the facts that the guarantees rest on."""

import math

import networkx as nx
import numpy as np
import pytest
from dyn_embed_streams import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from icml25.dyn_embed import ShiftedClustering
from icml25.dyn_embed.clustering import Clusterings, shift_offsets
from icml25.dyn_embed.inputs import check_graph, index_graph
from icml25.dyn_embed.static import Adjacency, shifted_trees


def clusterings_of(graph, seed, diameters):
    nodes, ends, weights = index_graph(check_graph(graph, "weight"))
    uniform = np.random.default_rng(seed).random((len(diameters), len(nodes)))
    offsets = shift_offsets(uniform, np.asarray(diameters, dtype=float))
    return Clusterings(Adjacency(len(nodes), ends, weights), offsets)


def test_static_trees_are_the_brute_force_minimum():
    graph = random_graph(30, 60, 0)
    c = clusterings_of(graph, 1, [4.0, 16.0, 64.0])
    d = np.array([[lengths.get(v, np.inf) for v in graph] for _, lengths in nx.all_pairs_dijkstra_path_length(graph)])
    total = c.offsets[:, :, None] + d
    np.testing.assert_allclose(c.dist, total.min(1), rtol=1e-12)
    np.testing.assert_array_equal(c.center, total.argmin(1))
    for scale in range(3):
        for v, u in enumerate(c.parent[scale].tolist()):
            expected = c.offsets[scale, v] if u < 0 else c.dist[scale, u] + graph[u][v]["weight"]
            assert c.dist[scale, v] == pytest.approx(expected, rel=1e-12)


def test_offsets_are_half_the_diameter_minus_a_truncated_exponential():
    n, diameter = 4000, 10.0
    uniform = np.random.default_rng(0).random((1, n))
    delta = diameter / 2 - shift_offsets(uniform, np.array([diameter]))[0]
    assert (delta >= 0).all() and (delta < diameter / 2).all()
    beta = 2 * math.log(n) / diameter
    law = stats.truncexpon(b=beta * diameter / 2, scale=1 / beta)
    assert stats.kstest(delta, law.cdf).pvalue > 1e-3


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 25), density=st.floats(0.1, 1), seed=st.integers(0, 10**6))
def test_updates_equal_a_computation_from_scratch(n, density, seed):
    rng = np.random.default_rng(seed)
    graph = random_graph(n, int(density * n * (n - 1) / 2), seed)
    c = clusterings_of(graph, seed, [2.0, 8.0, 40.0])
    for _ in range(15):
        edges = list(graph.edges)
        if not edges:
            break
        x, y = edges[rng.integers(len(edges))]
        before = c.center.copy()
        if rng.random() < 0.6:
            graph.remove_edge(x, y)
            changed = c.raise_weight(x, y, math.inf)
        else:
            graph[x][y]["weight"] += float(rng.exponential(3))
            changed = c.raise_weight(x, y, graph[x][y]["weight"])
        ends, weights = c.adjacency.edges()
        assert {(*e, w) for e, w in zip(map(tuple, ends.tolist()), weights.tolist(), strict=True)} == {
            (min(u, v), max(u, v), w) for u, v, w in graph.edges(data="weight")
        }
        dist, _, center = shifted_trees(Adjacency(n, ends, weights), c.offsets)
        np.testing.assert_allclose(c.dist, dist, rtol=1e-9)
        np.testing.assert_array_equal(c.center, center)
        assert changed == set(np.flatnonzero((before != center).any(0)).tolist())


def test_clusters_have_bounded_diameter_in_the_present_graph():
    graph = random_graph(60, 180, 3)
    clustering = ShiftedClustering(graph, 12, seed=0)
    rng = np.random.default_rng(1)
    for _ in range(100):
        u, v = list(graph.edges)[rng.integers(graph.number_of_edges())]
        graph.remove_edge(u, v)
        before = clustering.labels()
        clustering.remove_edge(u, v)
        after = clustering.labels()
        assert clustering.changes == [x for x in graph if before[x] != after[x]]
        lengths = dict(nx.all_pairs_dijkstra_path_length(graph))
        assert all(lengths[a].get(b, np.inf) <= 12 for a in graph for b in graph if after[a] == after[b])


def test_edges_are_cut_no_more_often_than_the_bound():
    graph = nx.grid_2d_graph(12, 12)
    diameter, runs = 16.0, 300
    beta = 2 * math.log(144) / diameter
    cuts = np.zeros(graph.number_of_edges())
    for seed in range(runs):
        labels = ShiftedClustering(graph, diameter, seed=seed).labels()
        cuts += [labels[u] != labels[v] for u, v in graph.edges]
    bound = 1 - math.exp(-beta)
    error = math.sqrt(bound * (1 - bound) / runs)
    assert (cuts / runs).max() <= 1.1 * bound + 4 * error
    assert 0.1 < (cuts / runs).mean() <= 1.1 * bound


def test_increases_and_refusals():
    graph = nx.path_graph(4)
    clustering = ShiftedClustering(graph, 100, seed=0)
    assert len(set(clustering.labels().values())) < 4
    clustering.increase_weight(1, 2, 1000)
    labels = clustering.labels()
    assert {labels[0], labels[1]}.isdisjoint({labels[2], labels[3]})
    with pytest.raises(ValueError, match=r"\(1, 2\).*only rise"):
        clustering.increase_weight(1, 2, 1)
    with pytest.raises(nx.NetworkXError, match="0-3"):
        clustering.remove_edge(0, 3)
    for diameter in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="diameter"):
            ShiftedClustering(graph, diameter)
    assert nx.utils.graphs_equal(graph, nx.path_graph(4))
