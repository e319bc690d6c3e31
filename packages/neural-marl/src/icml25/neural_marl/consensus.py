"""Consensus matrices of a graph, and gossip: x^i <- sum_j (A^G)_ij x^j."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
from jaxtyping import Float

__all__ = ["consensus_matrix", "gossip", "mixing_rate", "validate_consensus"]

EDGE_COST = 32  # of a gathered sum over an edge, in multiply-adds of a matrix product


def neighbours(graph: nx.Graph) -> Float[np.ndarray, "N N"]:
    """Adjacency matrix of a connected undirected graph, agents in the order of its nodes.

    Raises
    ------
    TypeError: the graph is directed, or no networkx graph.
    ValueError: no nodes, or not connected.
    """
    if not isinstance(graph, nx.Graph):
        raise TypeError(f"graph must be a networkx.Graph, got {type(graph).__name__}")
    if graph.is_directed():
        raise TypeError("graph is directed; consensus over directed graphs needs push-sum, which is not offered here")
    nodes = list(graph)
    if not nodes:
        raise ValueError("graph has no nodes")
    if (components := nx.number_connected_components(graph)) > 1:
        raise ValueError(f"graph has {components} connected components; expected 1")
    if nodes != list(range(len(nodes))):
        order = ", ".join(f"agent {i} = {node!r}" for i, node in enumerate(nodes))
        warnings.warn(f"graph nodes are taken in their order: {order}", stacklevel=3)
    index = {node: i for i, node in enumerate(nodes)}
    adjacency = np.zeros((len(nodes), len(nodes)))
    for u, v in graph.edges():
        adjacency[index[u], index[v]] = adjacency[index[v], index[u]] = 1.0
    np.fill_diagonal(adjacency, 0.0)
    return adjacency


def consensus_matrix(
    graph: nx.Graph, rule: str = "metropolis", seed: int | np.random.Generator = 0
) -> Float[np.ndarray, "N N"]:
    """Doubly stochastic matrix with positive entries on the graph's edges and the diagonal, zero elsewhere.

    Parameters
    ----------
    graph : connected, undirected; agents are its nodes in their order.
    rule : "metropolis", A_ij = 1 / (1 + max(d_i, d_j)); "lazy_metropolis", 1 / (2 max(d_i, d_j)); "max_degree",
        1 / (1 + max_k d_k); "random", uniform entries scaled to row and column sums of 1 (Sinkhorn).
    seed : of the random rule.

    Raises
    ------
    TypeError: a directed graph.
    ValueError: a graph that is not connected, or an unknown rule.
    """
    edges = neighbours(graph)
    degree = edges.sum(1)
    larger = np.maximum(degree[:, None], degree)
    if rule == "metropolis":
        A = edges / (1 + larger)
    elif rule == "lazy_metropolis":
        A = edges / np.maximum(2 * larger, 1)
    elif rule == "max_degree":
        A = edges / (1 + degree.max())
    elif rule == "random":
        return _sinkhorn(np.random.default_rng(seed).uniform(0.05, 1, edges.shape) * (edges + np.eye(len(edges))))
    else:
        raise ValueError(f"rule is {rule!r}; expected metropolis, max_degree, lazy_metropolis or random")
    np.fill_diagonal(A, 1 - A.sum(1))
    return A


def _sinkhorn(A: np.ndarray) -> np.ndarray:
    """Scale rows and columns in turn; entries on a symmetric support with its diagonal always converge."""
    for _ in range(100_000):
        A = A / A.sum(1, keepdims=True)
        A = A / A.sum(0)
        if np.abs(A.sum(1) - 1).max() < 1e-14 * len(A):
            break
    return A


def mixing_rate(A: np.ndarray) -> float:
    """sigma_2(A), the second singular value: a round of gossip shrinks the disagreement at least by this factor."""
    singular = np.linalg.svd(np.asarray(A, dtype=np.float64), compute_uv=False)
    return float(singular[1]) if len(singular) > 1 else 0.0


def validate_consensus(A: np.ndarray, graph: nx.Graph | None = None) -> Float[np.ndarray, "N N"]:
    """Return A as float64 once it is seen to be a consensus matrix (of the graph, where one is given).

    Raises
    ------
    ValueError: naming the entry, row or column that is wrong, or sigma_2 when it is not below 1.
    """
    A = np.asarray(A, dtype=np.float64)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not len(A):
        raise ValueError(f"A has shape {A.shape}; expected (N, N)")
    if not np.isfinite(A).all() or (A < 0).any():
        i, j = np.argwhere(~(A >= 0) | ~np.isfinite(A))[0]
        raise ValueError(f"A[{i}, {j}] is {A[i, j]:g}; expected a finite number, at least 0")
    for axis, name in ((1, "row"), (0, "column")):
        sums = A.sum(axis)
        if (worst := int(np.argmax(np.abs(sums - 1)))) >= 0 and abs(sums[worst] - 1) > 1e-9:
            raise ValueError(f"{name} {worst} of A sums to {sums[worst]:.6g}; expected 1 (A must be doubly stochastic)")
    if (np.diagonal(A) <= 0).any():
        i = int(np.argmin(np.diagonal(A)))
        raise ValueError(f"A[{i}, {i}] is 0; every agent must keep a part of its own value")
    if graph is not None:
        edges = neighbours(graph)
        if len(edges) != len(A):
            raise ValueError(f"A is for {len(A)} agents, the graph has {len(edges)} nodes")
        if (off := (A > 0) & (edges + np.eye(len(A)) == 0)).any():
            i, j = np.argwhere(off)[0]
            raise ValueError(f"A[{i}, {j}] is {A[i, j]:g}, but {i} and {j} are no neighbours in the graph; expected 0")
    if (sigma := mixing_rate(A)) >= 1 - 1e-12:
        raise ValueError(f"A has sigma_2 = {sigma:.6g}; expected less than 1 (gossip would never agree)")
    return A


def gossip_matrix(A: np.ndarray, rounds: int) -> Float[np.ndarray, "N N"]:
    """A^rounds in float64; for A (T, N, N) the product of its matrices in turn, from the first on again after the last."""
    A = np.asarray(A, dtype=np.float64)
    if A.ndim not in (2, 3) or A.shape[-1] != A.shape[-2]:
        raise ValueError(f"A has shape {A.shape}; expected (N, N) or (T, N, N)")
    if rounds < 0:
        raise ValueError(f"rounds is {rounds}; expected at least 0")
    if A.ndim == 2:
        return np.linalg.matrix_power(A, rounds)
    product = np.eye(A.shape[-1])
    for k in range(rounds):
        product = A[k % len(A)] @ product
    return product


def mix(weights: Any, x: Any) -> Any:
    """sum_j weights_ij x^j on every leaf of a pytree whose axis 0 is the agent."""

    def on_leaf(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return np.tensordot(weights, leaf, 1).astype(np.result_type(leaf, np.float32), copy=False)
        return jnp.tensordot(jnp.asarray(weights, leaf.dtype), leaf, 1, precision=jax.lax.Precision.HIGHEST)

    return jax.tree.map(on_leaf, x)


def mix_edges(A: np.ndarray, rounds: int, x: Any) -> Any:
    """mix(A^rounds, x) by sums over the edges of the graph, round for round: O(|E| P rounds) for P numbers an agent."""
    receiver, sender = np.nonzero(A)

    def on_leaf(leaf: Any) -> Any:
        exact = (np if isinstance(leaf, np.ndarray) else jnp).promote_types(leaf.dtype, np.float32)
        weights = A[receiver, sender].astype(exact)[:, None]
        flat = leaf.reshape(len(A), -1).astype(exact)
        if isinstance(leaf, np.ndarray):
            for _ in range(rounds):
                sent, flat = flat, np.zeros_like(flat)
                np.add.at(flat, receiver, weights * sent[sender])
            return flat.reshape(leaf.shape)

        def one_round(_: Any, flat: Any) -> Any:
            return jax.ops.segment_sum(weights * flat[sender], receiver, len(A), indices_are_sorted=True)

        return jax.lax.fori_loop(0, rounds, one_round, flat).astype(leaf.dtype).reshape(leaf.shape)

    return jax.tree.map(on_leaf, x)


def mixer(A: np.ndarray, rounds: int) -> Callable[[Any], Any]:
    """x -> A^rounds x: by the power of A, or over edges where these are so few that it is less work."""
    A = np.asarray(A, dtype=np.float64)
    if A.ndim == 2 and rounds > 0 and EDGE_COST * rounds * np.count_nonzero(A) < A.size:
        return partial(mix_edges, A, rounds)
    return partial(mix, gossip_matrix(A, rounds))


def gossip(x: Any, A: np.ndarray, rounds: int) -> Any:
    """Rounds of x^i <- sum_j A_ij x^j; the mean over agents stays, the disagreement shrinks by sigma_2 a round or faster.

    Parameters
    ----------
    x : array (N, ...) or a pytree of such, axis 0 the agent; numpy or jax, floating point.
    A : (N, N) consensus matrix, or (T, N, N) for a graph that changes from round to round. Its powers are taken in float64;
        on large sparse graphs the rounds are sums over edges instead.
    rounds : at least 0.

    Returns
    -------
    like x.

    Raises
    ------
    ValueError: shapes that do not match, or negative rounds.
    """
    mixed = mixer(A, rounds)
    n = np.shape(A)[-1]
    for leaf in jax.tree.leaves(x):
        if np.ndim(leaf) < 1 or np.shape(leaf)[0] != n:
            raise ValueError(f"x has a leaf of shape {np.shape(leaf)}; expected ({n}, ...)")
    return mixed(x)
