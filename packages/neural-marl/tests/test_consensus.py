"""Consensus matrices and gossip."""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.neural_marl import consensus_matrix, gossip, mixing_rate, validate_consensus
from icml25.neural_marl.consensus import mix, mix_edges, mixer
from icml25.neural_marl.theory import gossip_rounds

RULES = ["metropolis", "max_degree", "lazy_metropolis", "random"]


def connected(n: int, seed: int) -> nx.Graph:
    """A random tree and a few more edges."""
    rng = np.random.default_rng(seed)
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((int(rng.integers(i)), i) for i in range(1, n))
    graph.add_edges_from(tuple(map(int, rng.integers(n, size=2))) for _ in range(n // 2))
    return graph


@pytest.mark.parametrize("rule", RULES)
@settings(deadline=None, max_examples=15)
@given(n=st.integers(1, 12), seed=st.integers(0, 1000))
def test_doubly_stochastic_on_the_graph(rule, n: int, seed: int) -> None:
    graph = connected(n, seed)
    A = consensus_matrix(graph, rule, seed)
    np.testing.assert_allclose(A.sum(0), 1, atol=1e-12)
    np.testing.assert_allclose(A.sum(1), 1, atol=1e-12)
    edges = nx.to_numpy_array(graph, weight=None) > 0
    np.testing.assert_array_equal(A > 0, edges | np.eye(n, dtype=bool))
    assert mixing_rate(A) < 1
    validate_consensus(A, graph)


def test_rules_on_a_star() -> None:
    star = nx.star_graph(3)  # degrees 3, 1, 1, 1
    assert consensus_matrix(star)[0, 1] == 1 / 4
    assert consensus_matrix(star, "lazy_metropolis")[0, 1] == 1 / 6
    assert consensus_matrix(star, "max_degree")[1, 1] == 3 / 4
    path = nx.path_graph(4)  # degrees 1, 2, 2, 1
    assert consensus_matrix(path)[0, 0] == pytest.approx(2 / 3)
    assert consensus_matrix(path, "lazy_metropolis")[0, 0] == 3 / 4


@pytest.mark.parametrize("n", [3, 4, 5, 8, 13])
def test_mixing_rate_of_the_metropolis_ring(n: int) -> None:
    assert mixing_rate(consensus_matrix(nx.cycle_graph(n))) == pytest.approx(
        1 / 3 + 2 / 3 * np.cos(2 * np.pi / n), abs=1e-12
    )


@settings(deadline=None, max_examples=25)
@given(n=st.integers(2, 10), rounds=st.integers(0, 12), seed=st.integers(0, 1000))
def test_gossip_keeps_the_mean_and_contracts(n: int, rounds: int, seed: int) -> None:
    A = consensus_matrix(connected(n, seed), "random", seed)
    x = np.random.default_rng(seed).normal(size=(n, 3, 2))
    y = gossip(x, A, rounds)
    np.testing.assert_allclose(y.mean(0), x.mean(0), atol=1e-12)
    before, after = (np.linalg.norm(v - v.mean(0)) for v in (x, y))
    assert after <= mixing_rate(A) ** rounds * before + 1e-12


def test_gossip_is_repeated_averaging() -> None:
    A = consensus_matrix(nx.path_graph(4))
    x = np.arange(8.0).reshape(4, 2)
    np.testing.assert_allclose(gossip(x, A, 3), A @ (A @ (A @ x)), atol=1e-14)
    np.testing.assert_array_equal(gossip(x, A, 0), x)


def test_a_graph_that_changes() -> None:
    first, second = consensus_matrix(nx.path_graph(3)), consensus_matrix(nx.star_graph(2), "random")
    x = np.arange(3.0)
    np.testing.assert_allclose(gossip(x, np.stack([first, second]), 3), first @ second @ first @ x)


def test_rounds_over_edges_are_the_power() -> None:
    A = consensus_matrix(nx.cycle_graph(200), "random")
    x = np.random.default_rng(0).normal(size=(200, 3, 2))
    edges, power = mixer(A, 2), np.linalg.matrix_power(A, 2)
    assert edges.func is mix_edges and mixer(A, 5).func is mix
    tree = {"numpy": x, "jax": jnp.asarray(x, jnp.float32), "half": jnp.asarray(x, jnp.bfloat16)}
    got = edges(tree)
    np.testing.assert_allclose(got["numpy"], np.tensordot(power, x, 1), atol=1e-14)
    np.testing.assert_allclose(jax.jit(edges)(tree["jax"]), np.tensordot(power, x, 1), atol=1e-6)
    np.testing.assert_array_equal(gossip(x, A, 2), got["numpy"])
    assert got["half"].dtype == jnp.bfloat16 and got["numpy"].dtype == np.float64


def test_pytree_dtype_and_jit() -> None:
    A = consensus_matrix(nx.cycle_graph(4))
    tree = {"a": jnp.arange(4, dtype=jnp.bfloat16), "b": jnp.ones((4, 2, 2))}
    out = jax.jit(lambda t: gossip(t, A, 2))(tree)
    assert out["a"].dtype == jnp.bfloat16 and out["b"].dtype == jnp.float32
    np.testing.assert_allclose(out["b"], 1, rtol=1e-6)
    with jax.enable_x64(True):
        assert gossip(jnp.ones(4, jnp.float64), A, 2).dtype == jnp.float64


def test_many_rounds_keep_the_mean_in_float32() -> None:
    A = consensus_matrix(connected(30, 0), "random")
    x = jnp.asarray(np.random.default_rng(0).normal(10, 1, (30, 5)), jnp.float32)
    np.testing.assert_allclose(np.asarray(gossip(x, A, 5000)), np.tile(x.mean(0), (30, 1)), rtol=1e-6)


def test_rounds_for_a_tolerance() -> None:
    A = consensus_matrix(nx.cycle_graph(6))  # sigma_2 = 2/3
    assert gossip_rounds(A, 1e-3) == 18  # (2/3)^17 = 1.01e-3
    x = np.linalg.svd(A)[2][1]
    assert np.linalg.norm(gossip(x, A, 18)) <= 1e-3 < np.linalg.norm(gossip(x, A, 17))
    assert gossip_rounds(np.full((5, 5), 0.2), 1e-9) == 1


def test_order_of_the_nodes_is_reported() -> None:
    graph = nx.Graph([("b", "a"), ("a", "c")])
    with pytest.warns(UserWarning, match="agent 0 = 'b', agent 1 = 'a', agent 2 = 'c'"):
        A = consensus_matrix(graph)
    np.testing.assert_array_equal(A == 0, [[0, 0, 1], [0, 0, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    ("A", "message"),
    [
        (np.eye(3), "sigma_2 = 1"),
        ([[0.5, 0.5], [0.5, 0.6]], r"row 1 of A sums to 1\.1"),
        ([[0.9, 0.1], [0.2, 0.8]], r"column 0 of A sums to 1\.1"),
        ([[1.2, -0.2], [-0.2, 1.2]], r"A\[0, 1\] is -0\.2"),
        ([[np.nan, 1.0], [1.0, 0.0]], r"A\[0, 0\] is nan"),
        ([[0.0, 0.5, 0.5], [0.5, 0.25, 0.25], [0.5, 0.25, 0.25]], r"A\[0, 0\] is 0"),
        (np.ones((2, 3)), r"shape \(2, 3\)"),
    ],
)
def test_no_consensus_matrix(A, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        validate_consensus(np.asarray(A))


def test_matrix_off_the_graph() -> None:
    A = np.full((3, 3), 1 / 3)
    with pytest.raises(ValueError, match=r"A\[0, 2\] is 0\.333"):
        validate_consensus(A, nx.path_graph(3))
    with pytest.raises(ValueError, match="A is for 3 agents, the graph has 4 nodes"):
        validate_consensus(A, nx.path_graph(4))


def test_graphs_that_are_refused() -> None:
    with pytest.raises(ValueError, match="2 connected components"):
        consensus_matrix(nx.Graph([(0, 1), (2, 3)]))
    with pytest.raises(TypeError, match="directed"):
        consensus_matrix(nx.DiGraph([(0, 1), (1, 0)]))
    with pytest.raises(ValueError, match="no nodes"):
        consensus_matrix(nx.Graph())
    with pytest.raises(ValueError, match="rule is 'best'"):
        consensus_matrix(nx.path_graph(2), "best")
    with pytest.raises(ValueError, match="rounds is -1"):
        gossip(np.ones(2), np.full((2, 2), 0.5), -1)
    with pytest.raises(ValueError, match=r"leaf of shape \(3,\)"):
        gossip(np.ones(3), np.full((2, 2), 0.5), 1)
