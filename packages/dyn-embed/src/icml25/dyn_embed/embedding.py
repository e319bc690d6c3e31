"""What all embeddings share, and the two that keep one tree: static and decremental."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import networkx as nx
import numpy as np
from jaxtyping import Float

from icml25.dyn_embed.inputs import (
    GraphLike,
    Node,
    Number,
    Seed,
    check_graph,
    check_integer,
    check_node,
    check_number,
    check_seed,
    check_tuple,
    check_weight,
    edge_weight,
    set_edge,
)
from icml25.dyn_embed.levels import BootstrappedLevel, Edges, StaticLevel, pack, unpack
from icml25.dyn_embed.tree import ClusterTree, Scales, derive

__all__ = ["DecrementalEmbedding", "Embedding", "StaticEmbedding", "present_edges"]

MAX_RATIO = 2.0**50
_STATE_FORMAT = 1
_COUNTERS = ("version", "_next_key", "_salt", "_low", "_high", "_capacity")
Tree = TypeVar("Tree", bound=ClusterTree | StaticLevel | BootstrappedLevel)
E = TypeVar("E", bound="Embedding")


def lp_norm(rows: Float[np.ndarray, "k dim"], p: float) -> Float[np.ndarray, " k"]:
    """l_p norm of each row, without overflow or underflow."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    unit = np.where(largest > 0, largest, 1.0)
    return unit * np.linalg.norm(rows / unit[:, None], ord=p, axis=1)


class Embedding(Generic[Tree]):
    """What the three embeddings share: a checked copy of the graph, keys of its nodes, bounds on weights, and queries."""

    def __init__(
        self,
        graph: GraphLike,
        *,
        p: Number = 1.0,
        weight: str | None = "weight",
        max_weight: Number = None,
        min_weight: Number = None,
        n_capacity: Number = None,
        n_signs: Number = 1,
        n_trees: Number = 1,
        scale: Any = "raw",
        seed: Seed = None,
    ) -> None:
        self.p = check_number("p", p, low=1.0, infinite=True)
        self.n_signs = check_integer("n_signs", n_signs, 1)
        self.n_trees = check_integer("n_trees", n_trees, 1)
        if scale not in ("raw", "noncontracting"):
            raise ValueError(f"scale is {scale!r}; expected 'raw' or 'noncontracting'")
        self.scale, self.weight = scale, weight
        self.min_weight, self.max_weight = (
            None if bound is None else check_number(name, bound, low=0.0, open_low=True)
            for name, bound in (("min_weight", min_weight), ("max_weight", max_weight))
        )
        if self.min_weight and self.max_weight and self.min_weight > self.max_weight:
            raise ValueError(f"min_weight is {min_weight!r}, above max_weight, which is {max_weight!r}")
        self.version = 0
        """Number of changes (and calls of rebuild) so far. The vector of any node may change with it."""
        self._graph = check_graph(nx.Graph() if graph is None else graph, weight)
        n = self._graph.number_of_nodes()
        self.n_capacity = None if n_capacity is None else check_integer("n_capacity", n_capacity, max(n, 1))
        for u, v, w in self._graph.edges(data="weight"):
            self._check_limits(u, v, w)
        self._fit_bounds()
        self._keys: dict[Hashable, int] = {node: key for key, node in enumerate(self._graph)}
        self._next_key = n
        self._salt = int(check_seed(seed).integers(2**64, dtype=np.uint64))
        self._trees: Sequence[Tree] = ()

    # ---- queries ----

    @property
    def graph(self) -> nx.Graph:
        """The current graph, as a view that cannot be changed; every edge has its "weight"."""
        return nx.graphviews.generic_graph_view(self._graph, nx.Graph)

    @property
    def dim(self) -> int:
        """Length of a vector; it changes only when a bound on weights or nodes is exceeded."""
        return self.n_trees * self.n_signs * sum(scales.count for scales in self._all_scales())

    @property
    def levels(self) -> list[Float[np.ndarray, " L"]]:
        """Diameters D_1 < D_2 < ... of the clusters, per block of the vectors."""
        return [scales.diameters.copy() for scales in self._all_scales()]

    def embed(self, node: Node) -> Float[np.ndarray, " dim"]:
        """Vector of a node.

        Parameters
        ----------
        node : a node of the graph.

        Returns
        -------
        (dim,) float64.

        Raises
        ------
        networkx.NodeNotFound: there is no such node.
        """
        return self.embed_many([node])[0]

    def embed_many(self, nodes: Iterable[Node]) -> Float[np.ndarray, "k dim"]:
        """Vectors of nodes, one a row.

        Raises
        ------
        networkx.NodeNotFound: one of them is not there.
        TypeError: `nodes` is a text.
        """
        if isinstance(nodes, (str, bytes)):
            raise TypeError(f"nodes is {nodes!r}; expected a collection of nodes (one node: embed)")
        keys = [self._key(node) for node in nodes]
        parts = [
            block.coordinates(self._sign_salts(copy, level))
            for copy, tree in enumerate(self._trees)
            for level, block in enumerate(tree.blocks(keys))
        ]
        factor = (self.n_signs * self.n_trees) ** (-1 / self.p)
        if self.scale == "noncontracting":
            factor *= 2 if self.p == 1 else 4 * len(self._all_scales())
        return factor * np.hstack(parts)

    def embed_sparse(self, node: Node) -> tuple[np.ndarray, np.ndarray]:
        """Positions and values of the coordinates of a node's vector that are not zero."""
        vector = self.embed(node)
        indices = np.flatnonzero(vector)
        return indices, vector[indices]

    def distance(self, u: Node, v: Node, *, check_connected: bool = False) -> float:
        """||phi(u) - phi(v)||_p.

        Parameters
        ----------
        u, v : nodes of the graph.
        check_connected : search for a path first, and return inf if there is none. Without it the distance of
            disconnected nodes is as large as that of the farthest connected ones could be.
        """
        return math.inf if check_connected and self._apart(u, v) else float(self.distances([(u, v)])[0])

    def distances(self, pairs: Iterable[Any]) -> Float[np.ndarray, " k"]:
        """||phi(u) - phi(v)||_p of pairs (u, v)."""
        nodes, left, right = _split(pairs)
        vectors = self.embed_many(nodes)
        return lp_norm(vectors[left] - vectors[right], self.p)

    def tree_distance(self, u: Node, v: Node, *, check_connected: bool = False) -> float:
        """Distance in the tree behind the vectors, never below the shortest path; the smallest over `n_trees` trees.

        Parameters
        ----------
        u, v : nodes of the graph.
        check_connected : search for a path first, and return inf if there is none.
        """
        return math.inf if check_connected and self._apart(u, v) else float(self.tree_distances([(u, v)])[0])

    def tree_distances(self, pairs: Iterable[Any]) -> Float[np.ndarray, " k"]:
        """Distances of pairs (u, v) in the tree, never below the shortest paths."""
        nodes, left, right = _split(pairs)
        keys = [self._key(node) for node in nodes]
        zero = np.zeros(len(left))
        lengths = [
            sum((block.tree_distances(left, right) for block in tree.blocks(keys)), zero) for tree in self._trees
        ]
        return np.min(lengths, axis=0)

    def _key(self, node: Node) -> int:
        if check_node(node) not in self._keys:
            raise nx.NodeNotFound(f"Node {node!r} is not in the graph, which has {len(self._keys)} nodes")
        return self._keys[node]

    def _apart(self, u: Node, v: Node) -> bool:
        for node in (u, v):
            self._key(node)
        return not nx.has_path(self._graph, u, v)

    def _sign_salts(self, copy: int, level: int) -> np.ndarray:
        return np.array([derive(self._salt, 1, copy, level, r) for r in range(self.n_signs)], dtype=np.uint64)

    def _all_scales(self) -> list[Scales]:
        """Scales of every block, of one tree."""
        return [self._trees[0].scales]

    # ---- bounds ----

    def _check_limits(self, u: Node, v: Node, weight: float) -> float:
        if not (self.min_weight or 0.0) <= weight <= (self.max_weight or math.inf):
            limits = f"[{self.min_weight}, {self.max_weight}]"
            raise ValueError(
                f"weight of the edge ({u!r}, {v!r}) is {weight:g}; expected within [min_weight, max_weight] = {limits}"
            )
        return weight

    def _fit_bounds(self, more: Sequence[float] = ()) -> None:
        """Set the bounds to the user's limits, else to what the graph and more weights need."""
        limits = [bound for bound in (self.min_weight, self.max_weight) if bound is not None]
        known = [w for *_, w in self._graph.edges(data="weight")] + [*limits, *more] or [1.0]
        low, high = self.min_weight or min(known), self.max_weight or max(known)
        if high / low > MAX_RATIO:
            raise ValueError(
                f"weights between {low:g} and {high:g} need too many scales; expected a ratio of at most 2**50 = {MAX_RATIO:.3g}"
            )
        self._low, self._high = low, high
        self._capacity = max(self.n_capacity or 0, self._graph.number_of_nodes(), 2)

    def _exceeds(self, weights: Sequence[float], n_nodes: int) -> bool:
        """Widen the bounds, by a factor of two at least, to hold new weights and nodes; tell whether that was needed."""
        before = self._low, self._high, self._capacity
        low, high = min(weights, default=self._low), max(weights, default=self._high)
        low = min(low, self._low / 2) if low < self._low else self._low
        high = max(high, 2 * self._high) if high > self._high else self._high
        if high / low > MAX_RATIO:
            self._fit_bounds(weights)  # without what has left the graph since
        else:
            self._low, self._high = low, high
        while self._capacity < n_nodes:
            self._capacity *= 2
        return before != (self._low, self._high, self._capacity)

    def _scales(self) -> Scales:
        return Scales(self._low, (self._capacity - 1) * self._high)

    # ---- state ----

    def _options(self) -> dict[str, Any]:
        names = ("p", "weight", "max_weight", "min_weight", "n_capacity", "n_signs", "n_trees", "scale")
        return {name: getattr(self, name) for name in names}

    def _edges(self) -> Edges:
        return {(self._keys[u], self._keys[v]): w for u, v, w in self._graph.edges(data="weight")}

    def state_dict(self) -> dict[str, Any]:
        """All that decides this and future vectors: numbers, texts, lists, numpy arrays, and the node labels.

        Trees are not in it; `from_state_dict` computes them again, and they are the same.
        """
        counters = {name: getattr(self, name) for name in _COUNTERS}
        return {
            "format": _STATE_FORMAT,
            "kind": type(self).__name__,
            "options": self._options(),
            "counters": counters,
            "nodes": list(self._keys),
            "keys": np.array(list(self._keys.values()), dtype=np.uint64),
            "edges": pack(self._edges()),
            "trees": self._tree_states(),
        }

    @classmethod
    def from_state_dict(cls: type[E], state: Mapping[str, Any]) -> E:
        """An embedding in the state of `state_dict`, possibly after a round trip through JSON.

        Raises
        ------
        ValueError: the state is of another class or format.
        """
        found = state.get("kind"), state.get("format")
        if found != (cls.__name__, _STATE_FORMAT):
            raise ValueError(f"state has (kind, format) = {found}; expected {(cls.__name__, _STATE_FORMAT)}")
        self = cls(nx.Graph(), **state["options"])
        for name in _COUNTERS:
            setattr(self, name, state["counters"][name])
        nodes = [_as_label(node) for node in state["nodes"]]
        self._keys = {node: int(key) for node, key in zip(nodes, state["keys"], strict=True)}
        label = {key: node for node, key in self._keys.items()}
        self._graph.add_nodes_from(nodes)
        for (a, b), w in unpack(state["edges"]).items():
            self._graph.add_edge(label[a], label[b], weight=w)
        self._restore_trees(state["trees"])
        return self

    def _tree_states(self) -> list[Any]:
        raise NotImplementedError

    def _restore_trees(self, states: list[Any]) -> None:
        raise NotImplementedError


def _split(pairs: Iterable[Any]) -> tuple[list[Hashable], np.ndarray, np.ndarray]:
    """Distinct nodes of pairs, and the positions of the first and second nodes among them."""
    index: dict[Hashable, int] = {}
    positions = []
    for pair in pairs:
        nodes = check_tuple("pairs", pair, (2,), "pairs (u, v) of nodes")
        positions.append([index.setdefault(check_node(node), len(index)) for node in nodes])
    left, right = np.array(positions, dtype=np.int64).reshape(-1, 2).T
    return list(index), left, right


def _as_label(node: Any) -> Hashable:
    """A label as it was before JSON turned tuples into lists."""
    return tuple(map(_as_label, node)) if isinstance(node, list) else node


class StaticEmbedding(Embedding[ClusterTree]):
    """Vectors of the nodes of a fixed graph: one tree of nested random clusters, computed once.

    Parameters
    ----------
    graph : networkx.Graph, undirected; copied.
    **options : p, weight, max_weight, min_weight, n_capacity, n_signs, n_trees, scale and seed of `DynamicEmbedding`.

    Notes
    -----
    d(u, v) <= tree_distance(u, v), with expectation at most 4 ln(n) (L + 1) d(u, v) for L scales.
    """

    def __init__(self, graph: GraphLike = None, **options: Any) -> None:
        super().__init__(graph, **options)
        self._grow()

    def _grow(self) -> None:
        edges, scales = self._edges(), self._scales()
        self._trees = [ClusterTree(edges, scales, derive(self._salt, 0, copy)) for copy in range(self.n_trees)]

    def _tree_states(self) -> list[Any]:
        return []

    def _restore_trees(self, states: list[Any]) -> None:
        self._grow()


class DecrementalEmbedding(Embedding[ClusterTree]):
    """Vectors under edge deletions and weight increases only: one tree, kept up to date (the setting of the ICML 2024 paper).

    Parameters
    ----------
    graph : networkx.Graph, undirected; copied.
    **options : p, weight, max_weight, min_weight, n_capacity, n_signs, n_trees, scale and seed of `DynamicEmbedding`.

    Notes
    -----
    The vectors equal at any time those of a fresh tree with the same shifts. The bound on the expected distortion is that of
    `StaticEmbedding`, for updates that are chosen without looking at the vectors.
    """

    def __init__(self, graph: GraphLike = None, **options: Any) -> None:
        super().__init__(graph, **options)
        self._grow([(self._edges(), None)] * self.n_trees)

    def remove_edge(self, u: Node, v: Node) -> None:
        """Remove an edge.

        Raises
        ------
        networkx.NetworkXError: there is no such edge.
        """
        edge_weight(self._graph, u, v)
        self._graph.remove_edge(u, v)
        self._raise(u, v, math.inf)

    def remove_edges_from(self, edges: Iterable[Any]) -> None:
        """Remove edges (u, v); if one is missing, none is removed."""
        for u, v in present_edges(self._graph, edges):
            self.remove_edge(u, v)

    def update_edge(self, u: Node, v: Node, weight: Number) -> None:
        """Raise the weight of an edge.

        Raises
        ------
        networkx.NetworkXError: there is no such edge.
        ValueError: the weight is lower than before: that takes a `DynamicEmbedding`.
        """
        old, new = edge_weight(self._graph, u, v), self._check_limits(u, v, check_weight(u, v, weight))
        if new < old:
            raise ValueError(f"weight of the edge ({u!r}, {v!r}) may only rise here: it is {old:g}, got {new:g}")
        wider = self._exceeds([new], 0)
        set_edge(self._graph, u, v, new)
        self._raise(u, v, new)
        if wider:
            self._grow([(tree.edges(), tree.keys) for tree in self._trees])

    def _raise(self, u: Hashable, v: Hashable, weight: float) -> None:
        for tree in self._trees:
            tree.raise_weight(self._keys[u], self._keys[v], weight)
        self.version += 1

    def _grow(self, parts: Sequence[tuple[Edges, np.ndarray | None]]) -> None:
        self._trees = [
            ClusterTree(edges, self._scales(), derive(self._salt, 0, copy), maintained=True, keys=keys)
            for copy, (edges, keys) in enumerate(parts)
        ]

    def _tree_states(self) -> list[Any]:
        return [tree.keys for tree in self._trees]

    def _restore_trees(self, states: list[Any]) -> None:
        self._grow([(self._edges(), np.asarray(keys, dtype=np.uint64)) for keys in states])


def present_edges(graph: nx.Graph, edges: Iterable[Any]) -> list[tuple[Hashable, Hashable]]:
    """Edges (u, v) that are all in the graph, each once, or an error before anything is done."""
    found: dict[frozenset[Hashable], tuple[Hashable, Hashable]] = {}
    for edge in edges:
        u, v, *_ = check_tuple("edges", edge, (2, 3), "(u, v)")
        edge_weight(graph, check_node(u), check_node(v))
        if frozenset((u, v)) in found:
            raise nx.NetworkXError(f"The edge {u!r}-{v!r} is to be removed twice")
        found[frozenset((u, v))] = (u, v)
    return list(found.values())
