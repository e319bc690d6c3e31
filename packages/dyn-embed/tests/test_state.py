"""Round trips through pickle, state_dict and JSON, and the same vectors in every process."""

import copy
import json
import os
import pickle
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
from dyn_embed_streams import assert_structure, random_graph, random_update

from icml25.dyn_embed import DecrementalEmbedding, DynamicEmbedding, StaticEmbedding


def by_pickle(emb):
    return pickle.loads(pickle.dumps(emb))


def by_state(emb):
    return type(emb).from_state_dict(emb.state_dict())


def by_json(emb):
    return type(emb).from_state_dict(json.loads(json.dumps(emb.state_dict(), default=lambda array: array.tolist())))


@pytest.mark.parametrize("round_trip", [by_pickle, by_state, by_json, copy.deepcopy])
@pytest.mark.parametrize("q", [1, 2, 3])
@pytest.mark.parametrize("pending", [False, True])
def test_round_trip_keeps_vectors_now_and_later(round_trip, q, pending):
    rng = np.random.default_rng(q)
    emb = DynamicEmbedding(random_graph(20, 45, 0), q=q, p=2, n_trees=2, n_signs=2, seed=0)
    while not pending and len(emb.stats["rebuilds"]) > 1 and emb.stats["h_edges"][0] == 0:
        emb.embed(next(iter(emb.graph)))
        for _ in range(4):
            random_update(emb, rng)
    for _ in range(25 if pending else 0):
        emb.add_edge(*next(nx.non_edges(emb.graph)))
    if not pending:
        emb.embed(next(iter(emb.graph)))
    other = round_trip(emb)
    assert other.version == emb.version and other.dim == emb.dim and other.q == q
    assert other.stats["rebuilds"] == emb.stats["rebuilds"]
    assert other.stats["h_edges"] == emb.stats["h_edges"]
    assert nx.utils.graphs_equal(other.graph, emb.graph)
    streams = [np.random.default_rng(7), np.random.default_rng(7)]
    for _ in range(40):
        nodes = list(emb.graph)
        np.testing.assert_array_equal(other.embed_many(nodes), emb.embed_many(nodes))
        assert_structure(other._trees[0])
        edges = sorted(emb.graph.edges, key=repr)
        for one, stream in zip((emb, other), streams, strict=True):
            u, v = edges[stream.integers(len(edges))]
            if stream.random() < 0.5:
                one.remove_edge(u, v)
            else:
                one.add_edge(("new", one.version), u, int(stream.integers(1, 20)))
    assert other.graph.number_of_edges() == emb.graph.number_of_edges()


@pytest.mark.parametrize("round_trip", [by_pickle, by_state, by_json])
@pytest.mark.parametrize("kind", [DecrementalEmbedding, StaticEmbedding])
def test_round_trip_of_the_others(round_trip, kind):
    graph = nx.grid_2d_graph(4, 4)
    emb = kind(graph, seed=0, n_trees=2)
    if kind is DecrementalEmbedding:
        emb.remove_edges_from([((0, 0), (0, 1)), ((0, 0), (1, 0))])
        emb.update_edge((2, 2), (2, 3), 9)
    other = round_trip(emb)
    np.testing.assert_array_equal(other.embed_many(graph), emb.embed_many(graph))
    if kind is DecrementalEmbedding:
        for one in (emb, other):
            one.remove_edge((2, 2), (2, 3))
        np.testing.assert_array_equal(other.embed_many(graph), emb.embed_many(graph))


def test_a_restored_embedding_continues_after_the_bounds_grew():
    emb = DynamicEmbedding(random_graph(20, 45, 0), q=2, seed=0)
    emb.add_edge(0, 1, 500)
    emb.add_edge("x", "y", 0.01)
    other = by_json(emb)
    np.testing.assert_array_equal(other.embed_many(emb.graph), emb.embed_many(emb.graph))
    for one in (emb, other):
        one.add_edge("y", "z", 5000)
    np.testing.assert_array_equal(other.embed_many(emb.graph), emb.embed_many(emb.graph))


def test_states_of_another_kind_are_refused():
    state = StaticEmbedding(nx.path_graph(3), seed=0).state_dict()
    with pytest.raises(ValueError, match="StaticEmbedding"):
        DynamicEmbedding.from_state_dict(state)
    with pytest.raises(ValueError, match="format"):
        StaticEmbedding.from_state_dict(state | {"format": 99})


PROGRAM = """
import networkx as nx, numpy as np
from icml25.dyn_embed import DynamicEmbedding
graph = nx.relabel_nodes(nx.random_regular_graph(4, 30, seed=1), lambda v: f"node {v}")
emb = DynamicEmbedding(graph, q=3, n_trees=2, seed=5)
for i in range(20):
    emb.add_edge(f"node {i}", f"new {i % 7}", 2)
    emb.remove_edge(*next(iter(emb.graph.edges(f"node {i}"))))
    emb.embed("node 3")
emb.remove_node("node 4")
print(emb.embed_many(emb.graph).tobytes().hex())
"""


def test_the_same_vectors_in_every_process():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "12345")
    }
    assert len(outputs) == 1 and len(outputs.pop()) > 1000
