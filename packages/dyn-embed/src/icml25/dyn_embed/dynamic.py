"""The fully dynamic embedding."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import networkx as nx

from icml25.dyn_embed.embedding import Embedding, present_edges
from icml25.dyn_embed.inputs import (
    Flag,
    GraphLike,
    Node,
    Number,
    Seed,
    check_flag,
    check_integer,
    check_node,
    check_tuple,
    check_weight,
    edge_weight,
    set_edge,
)
from icml25.dyn_embed.levels import BootstrappedLevel, StaticLevel, make_level
from icml25.dyn_embed.tree import Scales, derive

__all__ = ["DynamicEmbedding"]

AUTO_EDGES = 2000


class DynamicEmbedding(Embedding[StaticLevel | BootstrappedLevel]):
    """Vectors of the nodes of a graph under edge insertions and deletions, each computed when it is asked for.

    d(u, v) <= tree_distance(u, v) always; ||phi(u) - phi(v)||_1 has an expectation between half of the tree distance and the
    tree distance, and is never above it (for p > 1 between tree distance / 4q and tree distance). The expectation of the
    tree distance is at most O(log n)^2q d(u, v) for weights polynomial in n.

    Parameters
    ----------
    graph : networkx.Graph, undirected, or None for an empty one; nodes, edges and weights are copied.
    q : number of levels: time per update about m^(1/q), distortion growing with q; 1 recomputes at the first query after an
        update; "auto": 1 below 2000 edges, else 2.
    p : the norm, in [1, inf].
    weight : name of the edge attribute; edges without it weigh 1; None: all weigh 1.
    max_weight, min_weight : hard limits of the weights; None: inferred, and widened when an update needs it, at the price of a
        rebuild.
    n_capacity : number of nodes to provide for; None: those of the graph. It doubles when exceeded, at the price of a rebuild.
    n_signs : families of signs (fewer chance cancellations in the norm, longer vectors).
    n_trees : independent copies; vectors are concatenated, and `tree_distance` is the smallest of theirs.
    scale : "raw", or "noncontracting": multiplied by 2 (p = 1) or 4q (p > 1), so that E||phi(u) - phi(v)||_p >= d(u, v).
    phase_length : insertions before a rebuild; None: m^((q-1)/q).
    lazy : build trees at the next query instead of within the update that makes it necessary; the vectors are the same.
    seed : int, Generator or None.

    Raises
    ------
    networkx.NetworkXNotImplemented: the graph is directed or a multigraph.
    ValueError, TypeError: a bad weight, a self loop, a parameter out of its range, or weights with a ratio above 2**50.

    Notes
    -----
    Seed and updates alone decide the vectors, in every process, whatever was asked in between. The guarantees hold in expectation over the seed, for updates that are chosen without looking at the vectors (an oblivious
    adversary). Vectors of untouched nodes may change with any update: compare `version` before you reuse one.

    Banihashem et al., Fully Dynamic Embedding into l_p Spaces, ICML 2025.
    """

    def __init__(
        self,
        graph: GraphLike = None,
        *,
        q: Number = 2,
        p: Number = 1.0,
        weight: str | None = "weight",
        max_weight: Number = None,
        min_weight: Number = None,
        n_capacity: Number = None,
        n_signs: Number = 1,
        n_trees: Number = 1,
        scale: Any = "raw",
        phase_length: Number = None,
        lazy: Flag = True,
        seed: Seed = None,
    ) -> None:
        super().__init__(
            graph,
            p=p,
            weight=weight,
            max_weight=max_weight,
            min_weight=min_weight,
            n_capacity=n_capacity,
            n_signs=n_signs,
            n_trees=n_trees,
            scale=scale,
            seed=seed,
        )
        if isinstance(q, str):
            if q != "auto":
                raise ValueError(f"q is {q!r}; expected an integer >= 1 or 'auto'")
            q = 1 if self._graph.number_of_edges() < AUTO_EDGES else 2
        self.q = check_integer("q", q, 1)
        self.phase_length = None if phase_length is None else check_integer("phase_length", phase_length, 1)
        self.lazy = check_flag("lazy", lazy)
        self._trees = [
            make_level(self.q, self._scales(), derive(self._salt, 0, copy), self.phase_length)
            for copy in range(self.n_trees)
        ]
        for tree in self._trees:
            tree.replace(self._edges())
        self._settle()

    # ---- updates ----

    def add_edge(self, u: Node, v: Node, weight: Number = 1) -> None:
        """Add an edge, with its nodes where they are new; an edge that is there gets the weight.

        Raises
        ------
        ValueError, TypeError: a self loop, a bad label or a bad weight. The graph is then as it was.
        """
        self.add_edges_from([(u, v, weight)])

    def add_edges_from(self, edges: Iterable[Any]) -> None:
        """Add edges (u, v), (u, v, weight) or (u, v, attributes), as `add_edge` does; if one is refused, none is added."""
        checked: list[tuple[Hashable, Hashable, float]] = []
        for edge in edges:
            u, v, value = (*check_tuple("edges", edge, (2, 3), "(u, v) or (u, v, weight)"), 1.0)[:3]
            if isinstance(value, Mapping):
                value = 1.0 if self.weight is None else value.get(self.weight, 1.0)
            if check_node(u) == check_node(v):
                raise ValueError(f"the edge ({u!r}, {v!r}) is a self loop; expected two different nodes")
            checked.append((u, v, self._check_limits(u, v, check_weight(u, v, value))))
        new = {node for u, v, _ in checked for node in (u, v)} - self._keys.keys()
        self._widen([w for *_, w in checked], len(self._keys) + len(new))
        for u, v, weight in checked:
            for node in (u, v):
                self._intern(node)
            self._set(u, v, weight)
        self._settle()

    def update_edge(self, u: Node, v: Node, weight: Number) -> None:
        """Change the weight of an edge that is there.

        Raises
        ------
        networkx.NetworkXError: there is no such edge.
        """
        edge_weight(self._graph, u, v)
        self.add_edge(u, v, weight)

    def remove_edge(self, u: Node, v: Node) -> None:
        """Remove an edge; its nodes stay.

        Raises
        ------
        networkx.NetworkXError: there is no such edge.
        """
        self.remove_edges_from([(u, v)])

    def remove_edges_from(self, edges: Iterable[Any]) -> None:
        """Remove edges (u, v); if one is missing, none is removed."""
        for u, v in present_edges(self._graph, edges):
            self._unset(u, v)
        self._settle()

    def add_node(self, node: Node) -> None:
        """Add a node without edges; nothing happens if it is there."""
        if check_node(node) not in self._keys:
            self._widen([], len(self._keys) + 1)
            self._intern(node)
            self._settle()

    def remove_node(self, node: Node) -> None:
        """Remove a node with its edges.

        Raises
        ------
        networkx.NetworkXError: there is no such node.
        """
        if check_node(node) not in self._keys:
            raise nx.NetworkXError(f"The node {node!r} is not in the graph")
        for neighbour in list(self._graph[node]):
            self._unset(node, neighbour)
        self._graph.remove_node(node)
        del self._keys[node]
        self.version += 1
        self._settle()

    def rebuild(self) -> None:
        """Start a new phase (with fresh randomness if q > 1) now, with bounds fitted to the current graph."""
        self._fit_bounds()
        for tree in self._trees:
            tree.rescale(self._scales())
            tree.prepare()
        self.version += 1

    @property
    def stats(self) -> dict[str, Any]:
        """Counters, summed over the trees.

        Returns
        -------
        updates; rebuilds per level, from q down to 1; affected_vertices, whose clusters changed by deletions; h_vertices and
        h_edges of the graphs between the levels; rebuild_seconds.
        """
        by_level = list(zip(*(tree.below for tree in self._trees), strict=True))
        upper = [[level for level in copies if isinstance(level, BootstrappedLevel)] for copies in by_level[:-1]]
        return {
            "updates": self.version,
            "rebuilds": [sum(level.rebuilds for level in copies) for copies in by_level],
            "affected_vertices": sum(level.affected for copies in upper for level in copies),
            "h_vertices": [sum(len(level.degree) for level in copies) for copies in upper],
            "h_edges": [sum(level.h_edges for level in copies) for copies in upper],
            "rebuild_seconds": sum(level.seconds for copies in by_level for level in copies),
        }

    def _intern(self, node: Node) -> None:
        if node not in self._keys:
            self._keys[node] = self._next_key
            self._next_key += 1
            self._graph.add_node(node)
            self.version += 1

    def _set(self, u: Node, v: Node, weight: float) -> None:
        a, b = self._keys[u], self._keys[v]
        old = self._graph[u][v]["weight"] if self._graph.has_edge(u, v) else None
        if old == weight:
            return
        for tree in self._trees:
            if old is not None and weight > old:
                tree.raise_weight(a, b, weight)
            else:
                if old is not None:
                    tree.delete(a, b)
                tree.insert(a, b, weight)
        set_edge(self._graph, u, v, weight)
        self.version += 1

    def _unset(self, u: Node, v: Node) -> None:
        for tree in self._trees:
            tree.delete(self._keys[u], self._keys[v])
        self._graph.remove_edge(u, v)
        self.version += 1

    def _widen(self, weights: Sequence[float], n_nodes: int) -> None:
        if self._exceeds(weights, n_nodes):
            for tree in self._trees:
                tree.rescale(self._scales())

    def _settle(self) -> None:
        if not self.lazy:
            for tree in self._trees:
                tree.prepare()

    def _all_scales(self) -> list[Scales]:
        return [level.scales for level in self._trees[0].below]

    # ---- state ----

    def _options(self) -> dict[str, Any]:
        return super()._options() | {"q": self.q, "phase_length": self.phase_length, "lazy": self.lazy}

    def _tree_states(self) -> list[Any]:
        return [tree.state() for tree in self._trees]

    def _restore_trees(self, states: list[Any]) -> None:
        for copy, (tree, state) in enumerate(zip(self._trees, states, strict=True)):
            tree.salt = derive(self._salt, 0, copy)
            tree.rescale(self._scales())
            tree.restore(state)
