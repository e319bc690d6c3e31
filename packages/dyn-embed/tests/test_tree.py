"""Scales, ids and signs, and the tree of one level."""

import math

import networkx as nx
import numpy as np
import pytest
from dyn_embed_streams import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.dyn_embed import StaticEmbedding, distortion
from icml25.dyn_embed.tree import Scales, derive, mix64, signs


def test_mix64_is_splitmix64():
    # First outputs of SplitMix64 with seed 0: its state grows by the golden constant.
    golden = 0x9E3779B97F4A7C15
    assert [mix64(k * golden % 2**64, 0) for k in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    words = np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64)
    assert mix64(words, 12345).tolist() == [mix64(int(w), 12345) for w in words]
    assert len({derive(7, a, b) for a in range(50) for b in range(50)}) == 2500


@given(wmin=st.floats(1e-100, 1e100), ratio=st.floats(1, 1e20))
def test_scales(wmin, ratio):
    scales = Scales(wmin, wmin * ratio)
    d, omega = scales.diameters, scales.omegas
    assert len(d) == len(omega) == scales.count
    assert d[-1] == wmin * ratio and d[0] <= wmin * (1 + 1e-12) and d[0] > wmin / 2.1
    np.testing.assert_allclose(d[1:] / d[:-1], 2)
    height = np.concatenate([[0], np.cumsum(omega)])
    np.testing.assert_allclose(2 * height[1:-1], d[1:])  # two vertices that first meet at level i are D_i apart
    assert 2 * height[-1] == pytest.approx(2 * d[-1])


def test_signs_are_fair_and_fixed():
    nodes = mix64(np.arange(10_000, dtype=np.uint64), 5)[None]
    values = signs(nodes, np.array([1, 2], dtype=np.uint64))
    assert set(np.unique(values)) == {-1.0, 1.0}
    assert abs(values.mean()) < 4 / math.sqrt(20_000)
    assert abs((values[0] * values[1]).mean()) < 4 / math.sqrt(10_000)


def test_tree_distances_of_one_level_are_an_ultrametric_of_diameters():
    graph = random_graph(25, 50, 2)
    emb = StaticEmbedding(graph, seed=1)
    nodes = list(graph)
    d = emb.tree_distances([(u, v) for u in nodes for v in nodes]).reshape(25, 25)
    diameters = emb.levels[0]
    allowed = [0.0, *diameters[1:], 2 * diameters[-1]]
    assert all(min(abs(x - a) for a in allowed) <= 1e-9 * x for x in d.ravel())
    np.testing.assert_array_equal(d, d.T)
    assert ((d == 0) == np.eye(25, dtype=bool)).all()
    assert (d[:, None, :] <= np.maximum(d[:, :, None], d[None]) * (1 + 1e-12)).all()


def test_nodes_are_intersections_of_clusters_from_the_top():
    emb = StaticEmbedding(random_graph(40, 90, 4), seed=2)
    tree = emb._trees[0]
    keys = tree.keys.tolist()
    ids, centers = tree.nodes(keys), tree._center
    assert (ids[-1] == tree.root).all()
    for level in range(2, emb.levels[0].size + 1):
        same_id = ids[level - 1][:, None] == ids[level - 1]
        same_clusters = (centers[level - 2 :, :, None] == centers[level - 2 :, None, :]).all(0)
        np.testing.assert_array_equal(same_id, same_clusters)
    assert len(np.unique(ids)) < ids.size and len(np.unique(ids[1:-1])) > 2
    levels_of = {}
    for level, row in enumerate(ids.tolist()):
        for node in row:
            assert levels_of.setdefault(node, level) == level


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 20), seed=st.integers(0, 10**6), top=st.sampled_from([1, 8, 10**6]))
def test_static_domination(n, seed, top):
    emb = StaticEmbedding(random_graph(n, min(2 * n, n * (n - 1) // 2), seed, top), seed=seed)
    rows = distortion(emb, [(u, v) for u in range(n) for v in range(u)])
    finite = np.isfinite(rows["d"])
    assert (rows["tree"][finite] >= rows["d"][finite] * (1 - 1e-9)).all()
    assert (rows["tree"][~finite] >= emb.levels[0][-1]).all()


def test_expected_stretch_of_one_level():
    graph = nx.random_regular_graph(4, 100, seed=1)
    pairs = list(graph.edges)[:50] + [(0, v) for v in range(1, 50)]
    rows = [distortion(StaticEmbedding(graph, seed=seed), pairs) for seed in range(60)]
    ratio = np.array([r["tree"] / r["d"] for r in rows])
    scales = StaticEmbedding(graph, seed=0).levels[0].size
    bound = 4 * math.log(100) * (scales + 1)
    mean, error = ratio.mean(0), ratio.std(0) / math.sqrt(len(ratio))
    assert (mean + 4 * error <= bound).all()
    assert mean.mean() < bound / 2  # the bound is loose: a wrong tree would still meet it
    assert mean.mean() > 1
