"""What users pass by mistake: an error that says what came and what was expected, and nothing has changed."""

import math

import networkx as nx
import numpy as np
import pytest
from dyn_embed_streams import assert_dominates

from icml25.dyn_embed import (
    DecrementalEmbedding,
    DynamicEmbedding,
    ShiftedClustering,
    StaticEmbedding,
    distortion,
    frechet_embedding,
    landmark_embedding,
)

EVERY = [DynamicEmbedding, DecrementalEmbedding, StaticEmbedding, frechet_embedding, landmark_embedding]


@pytest.mark.parametrize(
    "use", [*EVERY, lambda g: ShiftedClustering(g, 3)], ids=[*(f.__name__ for f in EVERY), "clustering"]
)
def test_graphs(use):
    for graph in (nx.DiGraph([(0, 1)]), nx.MultiGraph([(0, 1)]), nx.MultiDiGraph([(0, 1)])):
        with pytest.raises(nx.NetworkXNotImplemented, match="undirected"):
            use(graph)
    with pytest.raises(TypeError, match=r"list; expected a networkx\.Graph"):
        use([(0, 1)])
    with pytest.raises(ValueError, match="self loop at 1"):
        use(nx.Graph([(0, 1), (1, 1)]))


def path_with(weight):
    graph = nx.path_graph(4)
    nx.set_edge_attributes(graph, 2, "weight")
    if weight == "missing":
        del graph[1][2]["weight"]
    else:
        graph[1][2]["weight"] = weight
    return graph


BAD_WEIGHTS = [
    ("3.5", TypeError),
    (None, TypeError),
    (True, TypeError),
    (1 + 0j, TypeError),
    ([1], TypeError),
    (math.nan, ValueError),
    (0, ValueError),
    (-1, ValueError),
    (math.inf, ValueError),
    (np.float64("nan"), ValueError),
    (1e-300, ValueError),
    (1e300, ValueError),
]


@pytest.mark.parametrize(("weight", "error"), BAD_WEIGHTS, ids=[str(w) for w, _ in BAD_WEIGHTS])
def test_weights(weight, error):
    for use in EVERY:
        with pytest.raises(error, match=r"weight of the edge \(1, 2\)"):
            use(path_with(weight))
    emb = DynamicEmbedding(nx.path_graph(4), seed=0)
    before, version = emb.embed_many(emb.graph), emb.version
    for change in (
        lambda: emb.add_edge(0, 3, weight),
        lambda: emb.update_edge(0, 1, weight),
        lambda: emb.add_edges_from([(0, 2), (0, 3, weight)]),
    ):
        with pytest.raises(error, match=r"weight of the edge \(0, [13]\)"):
            change()
    assert nx.utils.graphs_equal(emb.graph, DynamicEmbedding(nx.path_graph(4)).graph)
    assert emb.version == version
    np.testing.assert_array_equal(emb.embed_many(emb.graph), before)


def test_missing_weights_count_one_and_numpy_numbers_are_fine():
    emb = DynamicEmbedding(path_with("missing"), seed=0)
    assert emb.graph[1][2]["weight"] == 1.0 and emb.graph[0][1]["weight"] == 2.0
    emb.add_edge(0, 3, np.float32(2.5))
    emb.add_edge(np.int64(0), np.int64(2), np.int32(3))
    emb.add_edges_from(np.array([[0, 1], [3, 1]]))
    emb.remove_edges_from(np.array([[0, 1]]))
    assert set(emb.graph[1]) == {2, 3}
    assert emb.graph[0][3]["weight"] == 2.5 and emb.graph[0][2]["weight"] == 3.0 and len(emb.graph) == 4


def test_a_weight_name_that_no_edge_carries_warns():
    graph = nx.path_graph(3)
    nx.set_edge_attributes(graph, 5.0, "length")
    for name in ("weight", "lenght"):
        with pytest.warns(UserWarning, match=f"'{name}'.*length"):
            DynamicEmbedding(graph, weight=name)
    with pytest.warns(UserWarning, match="'cost'.*nothing"):
        StaticEmbedding(nx.path_graph(3), weight="cost")
    assert DynamicEmbedding(graph, weight="length").graph[0][1]["weight"] == 5.0
    assert DynamicEmbedding(graph, weight=None).graph[0][1]["weight"] == 1.0
    DynamicEmbedding(nx.path_graph(3))
    DynamicEmbedding(nx.Graph(), weight="cost")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"q": 0}, ValueError, "q is 0"),
        ({"q": 1.5}, TypeError, "q is 1.5"),
        ({"q": True}, TypeError, "q is True"),
        ({"q": "two"}, ValueError, "'two'"),
        ({"p": 0.5}, ValueError, "p is 0.5"),
        ({"p": math.nan}, ValueError, "p is nan"),
        ({"p": "2"}, TypeError, "p is '2'"),
        ({"n_signs": 0}, ValueError, "n_signs is 0"),
        ({"n_trees": 0}, ValueError, "n_trees is 0"),
        ({"n_trees": 2.0}, TypeError, "n_trees is 2.0"),
        ({"scale": "big"}, ValueError, "'big'.*'raw' or 'noncontracting'"),
        ({"seed": -1}, ValueError, "seed is -1; expected an integer >= 0"),
        ({"seed": "a"}, TypeError, "seed is 'a'.*expected an integer >= 0, a numpy Generator or None"),
        ({"seed": True}, TypeError, "seed is True"),
        ({"seed": 0.5}, TypeError, "seed is 0.5"),
        ({"lazy": None}, TypeError, "lazy is None.*expected True or False"),
        ({"lazy": "no"}, TypeError, "lazy is 'no'"),
        ({"phase_length": 0}, ValueError, "phase_length is 0"),
        ({"n_capacity": 3}, ValueError, "n_capacity is 3.*>= 4"),
        ({"max_weight": 0}, ValueError, "max_weight is 0"),
        ({"min_weight": math.inf}, ValueError, "min_weight is inf"),
        ({"min_weight": 3, "max_weight": 2}, ValueError, "min_weight is 3, above max_weight"),
        ({"max_weight": 0.5}, ValueError, r"edge \(0, 1\) is 1; expected within"),
        ({"min_weight": 2}, ValueError, r"edge \(0, 1\) is 1; expected within"),
        ({"min_weight": 1, "max_weight": 2.0**51}, ValueError, r"2\*\*50"),
    ],
    ids=str,
)
def test_options(options, error, match):
    with pytest.raises(error, match=match):
        DynamicEmbedding(nx.path_graph(4), **options)


def test_seeds_of_the_others():
    graph = nx.path_graph(4)
    emb = StaticEmbedding(graph, seed=np.uint8(3))
    for use in (
        lambda s: StaticEmbedding(graph, seed=s),
        lambda s: DecrementalEmbedding(graph, seed=s),
        lambda s: ShiftedClustering(graph, 3, seed=s),
        lambda s: frechet_embedding(graph, seed=s),
        lambda s: landmark_embedding(graph, 2, seed=s),
        lambda s: distortion(emb, seed=s),
    ):
        with pytest.raises(ValueError, match="seed is -1; expected an integer >= 0"):
            use(-1)
        with pytest.raises(TypeError, match="seed is 'a'"):
            use("a")


def test_hard_limits():
    emb = DynamicEmbedding(nx.path_graph(4), min_weight=0.5, max_weight=2, seed=0)
    dim = emb.dim
    for weight in (0.4, 3):
        with pytest.raises(ValueError, match="min_weight, max_weight"):
            emb.add_edge(0, 3, weight)
    emb.add_edge(0, 3, 2)
    emb.add_edge(0, 2, 0.5)
    assert emb.dim == dim
    decremental = DecrementalEmbedding(nx.path_graph(4), max_weight=2)
    with pytest.raises(ValueError, match="max_weight"):
        decremental.update_edge(0, 1, 3)


def test_too_many_scales():
    graph = nx.Graph()
    graph.add_edge("a", "b", weight=1e-9)
    graph.add_edge("b", "c", weight=1e9)
    with pytest.raises(ValueError, match=r"1e-09 and 1e\+09.*2\*\*50"):
        DynamicEmbedding(graph)
    emb = DynamicEmbedding(nx.path_graph(3), seed=0)
    emb.add_edge(0, 2, 1e-9)
    with pytest.raises(ValueError, match=r"2\*\*50"):
        emb.add_edge(0, "new", 1e9)
    assert "new" not in emb.graph
    assert_dominates(emb)
    emb.remove_edge(0, 2)
    emb.add_edge(0, "new", 1e9)  # fits, now that the short edge is gone
    assert_dominates(emb)


def test_updates():
    emb = DynamicEmbedding(nx.path_graph(4), seed=0)
    for u, v in ((0, 2), (0, "nobody"), ("nobody", 0)):
        with pytest.raises(nx.NetworkXError, match="is not in the graph"):
            emb.remove_edge(u, v)
        with pytest.raises(nx.NetworkXError, match="is not in the graph"):
            emb.update_edge(u, v, 2)
    with pytest.raises(nx.NetworkXError, match="'nobody' is not in the graph"):
        emb.remove_node("nobody")
    with pytest.raises(ValueError, match="self loop"):
        emb.add_edge(1, 1)
    with pytest.raises(ValueError, match="None"):
        emb.add_edge(1, None)
    with pytest.raises(ValueError, match="None"):
        emb.add_node(None)
    with pytest.raises(ValueError, match="does not equal itself"):
        emb.add_node(math.nan)
    with pytest.raises(TypeError, match="not hashable"):
        emb.add_node([1])
    for bad in (1, "ab", (1,), (1, 2, 3, 4)):
        with pytest.raises(ValueError, match="edges contains"):
            emb.add_edges_from([bad])
        with pytest.raises(ValueError, match="edges contains"):
            emb.remove_edges_from([bad])
    with pytest.raises(nx.NetworkXError, match="0-2"):
        emb.remove_edges_from([(0, 1), (0, 2)])
    with pytest.raises(nx.NetworkXError, match="twice"):
        emb.remove_edges_from([(0, 1), (1, 0)])
    assert emb.version == 0 and set(emb.graph.edges) == {(0, 1), (1, 2), (2, 3)}
    emb.add_node(2)
    assert emb.version == 0


def test_queries():
    emb = DynamicEmbedding(nx.path_graph(4), seed=0)
    for query in (
        lambda: emb.embed("nobody"),
        lambda: emb.embed_many([0, "nobody"]),
        lambda: emb.distance(0, "nobody"),
        lambda: emb.tree_distance("nobody", 0, check_connected=True),
        lambda: emb.embed_sparse("nobody"),
    ):
        with pytest.raises(nx.NodeNotFound, match="'nobody' is not in the graph"):
            query()
    with pytest.raises(TypeError, match="expected a collection of nodes"):
        emb.embed_many("ab")
    with pytest.raises(TypeError, match="not hashable"):
        emb.embed([0, 1])
    for pairs in ([0, 1], ["ab"], [(0, 1, 2)]):
        with pytest.raises(ValueError, match="pairs contains"):
            emb.distances(pairs)


@pytest.mark.parametrize("kind", [DynamicEmbedding, DecrementalEmbedding, StaticEmbedding])
def test_empty_and_tiny_graphs(kind):
    empty = kind(nx.Graph())
    assert empty.embed_many([]).shape == (0, empty.dim)
    with pytest.raises(nx.NodeNotFound, match="0 nodes"):
        empty.embed(0)
    graph = nx.Graph()
    graph.add_node("a")
    assert kind(graph, seed=0).distance("a", "a") == 0
    graph.add_node("b")
    emb = kind(graph, seed=0)
    assert emb.tree_distance("a", "b") > 0
    with pytest.raises(TypeError, match="expected a networkx"):
        kind("graph")


def test_inputs_are_not_modified():
    graph = nx.path_graph(5)
    graph.nodes[0]["color"] = "red"
    copy = graph.copy()
    emb = DynamicEmbedding(graph, seed=0)
    emb.remove_edge(0, 1)
    emb.embed(0)
    frechet_embedding(graph, seed=0)
    landmark_embedding(graph, 2, seed=0)
    assert nx.utils.graphs_equal(graph, copy)
    frozen = nx.freeze(graph)
    DynamicEmbedding(frozen).add_edge(0, 4)
    DynamicEmbedding(nx.subgraph_view(graph)).add_edge(0, 4)


def test_a_graph_with_labels_of_several_types():
    graph = nx.Graph([(1, "1"), ("1", (1, 2)), ((1, 2), frozenset([3]))])
    emb = DynamicEmbedding(graph, seed=0)
    emb.add_edge(1.5, 1)
    assert len({tuple(row) for row in emb.embed_many(emb.graph)}) > 1
    assert_dominates(emb)
