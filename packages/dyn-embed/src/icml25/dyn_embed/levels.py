"""The recursion over levels: a static tree at the bottom, decremental trees with a graph of insertions above."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from icml25.dyn_embed.tree import Block, ClusterTree, Scales, derive

__all__ = ["BootstrappedLevel", "Edges", "StaticLevel", "make_level", "pack", "unpack"]

Edge = tuple[int, int]
Edges = dict[Edge, float]


def _edge(a: int, b: int) -> Edge:
    return (a, b) if a < b else (b, a)


def pack(edges: Edges) -> dict[str, np.ndarray]:
    """Edges as arrays."""
    ends = np.array(list(edges), dtype=np.uint64).reshape(-1, 2)
    return {"ends": ends, "weights": np.array(list(edges.values()), dtype=np.float64)}


def unpack(state: dict[str, Any]) -> Edges:
    """Edges from the arrays, or lists, of `pack`."""
    ends = np.asarray(state["ends"], dtype=np.uint64).reshape(-1, 2)
    weights = np.asarray(state["weights"], dtype=np.float64)
    return {(a, b): w for (a, b), w in zip(ends.tolist(), weights.tolist(), strict=True)}


def make_level(q: int, scales: Scales, salt: int, phase_length: int | None = None) -> StaticLevel | BootstrappedLevel:
    """Level q of the recursion on an empty graph."""
    return StaticLevel(scales, salt) if q == 1 else BootstrappedLevel(q, scales, salt, phase_length)


class StaticLevel:
    """Level 1: the tree is computed from scratch at the first query after an update.

    Parameters
    ----------
    scales : they bound every finite distance from above and every weight from below.
    salt : decides the tree.
    """

    def __init__(self, scales: Scales, salt: int) -> None:
        self.scales, self.salt = scales, salt
        self.edges: Edges = {}
        self.rebuilds, self.seconds, self.affected = 0, 0.0, 0
        self._tree: ClusterTree | None = None

    @property
    def below(self) -> list[StaticLevel | BootstrappedLevel]:
        """This level and those below it."""
        return [self]

    def insert(self, a: int, b: int, weight: float) -> None:
        """Add an edge that is not there."""
        self.edges[_edge(a, b)] = weight
        self._tree = None

    def delete(self, a: int, b: int) -> None:
        """Remove an edge."""
        del self.edges[_edge(a, b)]
        self._tree = None

    def raise_weight(self, a: int, b: int, weight: float) -> None:
        """Raise the weight of an edge."""
        self.insert(a, b, weight)

    def replace(self, edges: Edges) -> None:
        """Start again with other edges."""
        self.edges, self._tree = edges, None

    def rescale(self, scales: Scales) -> None:
        """Take other scales."""
        self.scales, self._tree = scales, None

    def prepare(self) -> None:
        """Compute what a query needs."""
        self._built()

    def blocks(self, keys: Sequence[int]) -> list[Block]:
        """Tree paths of vertices."""
        return self._built().blocks(keys)

    def all_edges(self) -> Edges:
        """The graph."""
        return dict(self.edges)

    def state(self) -> dict[str, Any]:
        """What `restore` needs."""
        return {"rebuilds": self.rebuilds, **pack(self.edges)}

    def restore(self, state: dict[str, Any]) -> None:
        """Return to a state."""
        self.replace(unpack(state))
        self.rebuilds = int(state["rebuilds"])

    def _built(self) -> ClusterTree:
        if self._tree is None:
            start = time.perf_counter()
            self._tree = ClusterTree(self.edges, self.scales, self.salt)
            self.rebuilds += 1
            self.seconds += time.perf_counter() - start
        return self._tree


class BootstrappedLevel:
    """Level q >= 2: a tree T under deletions, and a smaller graph H that a level q-1 keeps.

    A phase starts with a tree T of the graph of that moment. T then sees deletions only. H holds the edges inserted since, and
    for every vertex with such an edge its path in T to the root. A vertex is found by walking up T until the path meets H.
    After m^((q-1)/q) insertions the next query starts a new phase.

    Parameters
    ----------
    q : level, at least 2.
    scales : they bound every finite distance from above and every weight from below.
    salt : decides the trees of all phases.
    phase_length : insertions in a phase instead of m^((q-1)/q).
    """

    def __init__(self, q: int, scales: Scales, salt: int, phase_length: int | None = None) -> None:
        self.q, self.scales, self.salt, self.phase_length = q, scales, salt, phase_length
        self.rebuilds, self.seconds, self.affected = 0, 0.0, 0
        self.sub = make_level(q - 1, scales.inner(), 0)
        self.replace({})

    @property
    def below(self) -> list[StaticLevel | BootstrappedLevel]:
        """This level and those below it."""
        return [self, *self.sub.below]

    def replace(self, edges: Edges) -> None:
        """Start again with other edges; the phase begins at the next query."""
        self.waiting: Edges | None = edges
        self._tree: ClusterTree | None = None
        self.inserted: Edges = {}
        self.paths: dict[int, list[int]] = {}
        """Vertices of T with an inserted edge, and their paths in T as they stand in H."""
        self.degree: dict[int, int] = {}
        """Vertices of H but the root, and the number of their edges there."""
        self._incident: dict[int, int] = {}  # inserted edges at a vertex
        self._uses: dict[Edge, int] = {}  # paths through an edge of T
        self.sub.replace({})

    def rescale(self, scales: Scales) -> None:
        """Take other scales; a new phase begins at the next query."""
        edges = self.all_edges()
        self.scales = scales
        self.sub.rescale(scales.inner())
        self.replace(edges)

    def insert(self, a: int, b: int, weight: float) -> None:
        """Add an edge that is not there."""
        if self.waiting is not None:
            self.waiting[_edge(a, b)] = weight
            return
        self.inserted[_edge(a, b)] = weight
        self.insertions += 1
        if self.insertions > self.length:
            self._end_phase()
            return
        self._connect(a, b, weight)

    def delete(self, a: int, b: int) -> None:
        """Remove an edge."""
        if self.waiting is not None:
            del self.waiting[_edge(a, b)]
        elif _edge(a, b) in self.inserted:
            del self.inserted[_edge(a, b)]
            self._release(a, b)
            for x in (a, b):
                self._untouch(x)
            self._end_phase_if_small()
        else:
            self.raise_weight(a, b, math.inf)
            self.base_edges -= 1
            self._end_phase_if_small()

    def raise_weight(self, a: int, b: int, weight: float) -> None:
        """Raise the weight of an edge."""
        if self.waiting is not None:
            self.waiting[_edge(a, b)] = weight
        elif _edge(a, b) in self.inserted:
            self.inserted[_edge(a, b)] = weight
            self.sub.raise_weight(a, b, weight)
        else:
            self._follow(self.tree.raise_weight(a, b, weight))

    def prepare(self) -> None:
        """Start a phase if none is running, here and below."""
        if self.waiting is not None:
            start = time.perf_counter()
            self.rebuilds += 1
            self._start_phase(self.waiting)
            self.seconds += time.perf_counter() - start
        self.sub.prepare()

    def blocks(self, keys: Sequence[int]) -> list[Block]:
        """Tree paths of vertices up to their anchors in H, and the anchors' blocks below."""
        self.prepare()
        nodes, root = self.tree.nodes(keys), self.scales.count
        columns = nodes.T.tolist()
        depth = [next((i for i, node in enumerate(path) if node in self.degree), root) for path in columns]
        anchors = [path[i] for path, i in zip(columns, depth, strict=True)]
        return [Block(nodes[:-1], np.array(depth, dtype=np.int64), self.scales), *self.sub.blocks(anchors)]

    @property
    def h_edges(self) -> int:
        """Number of edges of H."""
        return len(self._uses) + len(self.inserted)

    @property
    def tree(self) -> ClusterTree:
        """The tree of the running phase."""
        assert self._tree is not None
        return self._tree

    def all_edges(self) -> Edges:
        """The graph."""
        return dict(self.waiting) if self.waiting is not None else self.tree.edges() | self.inserted

    def state(self) -> dict[str, Any]:
        """What `restore` needs: T and H follow from the edges."""
        state: dict[str, Any] = {"rebuilds": self.rebuilds, "affected": self.affected, "sub": self.sub.state()}
        if self.waiting is not None:
            return state | {"waiting": pack(self.waiting)}
        base = pack(self.tree.edges()) | {"keys": self.tree.keys}
        counters = {name: getattr(self, name) for name in ("insertions", "length", "built_edges")}
        return state | {"base": base, "inserted": pack(self.inserted), **counters}

    def restore(self, state: dict[str, Any]) -> None:
        """Return to a state."""
        self.replace({})
        self.rebuilds, self.affected = int(state["rebuilds"]), int(state["affected"])
        if "waiting" in state:
            self.replace(unpack(state["waiting"]))
        else:
            self._start_phase(unpack(state["base"]), np.asarray(state["base"]["keys"], dtype=np.uint64))
            for (a, b), weight in unpack(state["inserted"]).items():
                self.inserted[a, b] = weight
                self._connect(a, b, weight)
            self.insertions, self.length, self.built_edges = (
                int(state[name]) for name in ("insertions", "length", "built_edges")
            )
        self.sub.restore(state["sub"])

    def _start_phase(self, edges: Edges, keys: np.ndarray | None = None) -> None:
        tree = ClusterTree(edges, self.scales, derive(self.salt, self.rebuilds, 0), maintained=True, keys=keys)
        self.waiting, self._tree = None, tree
        self.insertions, self.base_edges, self.built_edges = 0, len(edges), len(edges)
        self.length = self.phase_length or max(1, round(len(edges) ** ((self.q - 1) / self.q)))
        self.sub.salt = derive(self.salt, self.rebuilds, 1)
        self.sub.replace({})

    def _end_phase(self) -> None:
        self.replace(self.all_edges())

    def _end_phase_if_small(self) -> None:
        if 2 * (self.base_edges + len(self.inserted)) < self.built_edges:
            self._end_phase()

    def _connect(self, a: int, b: int, weight: float) -> None:
        """Bring an inserted edge into H, hung up by the paths of its end points."""
        for x in (a, b):
            self._touch(x)
        self._hold(a, b, weight)

    def _touch(self, x: int) -> None:
        """Count an inserted edge at x; the first brings x's path into H (a vertex that T does not know has none)."""
        self._incident[x] = self._incident.get(x, 0) + 1
        if self._incident[x] == 1 and x in self.tree.index:
            self.paths[x] = self.tree.nodes([x])[:, 0].tolist()
            self._use(self.paths[x])

    def _untouch(self, x: int) -> None:
        """Forget an inserted edge at x; the last takes x's path out of H."""
        self._incident[x] -= 1
        if not self._incident[x]:
            del self._incident[x]
            if x in self.paths:
                self._disuse(self.paths.pop(x))

    def _follow(self, changed: list[int]) -> None:
        """Move the paths in H of the vertices whose path in T changed."""
        self.affected += len(changed)
        if not (moved := [x for x in changed if x in self.paths]):
            return
        for x, path in zip(moved, self.tree.nodes(moved).T.tolist(), strict=True):
            self._use(path)  # before the old path goes: what they share stays
            self._disuse(self.paths[x])
            self.paths[x] = path

    def _use(self, path: list[int]) -> None:
        for edge, omega in zip(pairwise(path), self.scales.omegas.tolist(), strict=True):
            self._uses[edge] = self._uses.get(edge, 0) + 1
            if self._uses[edge] == 1:
                self._hold(*edge, omega)

    def _disuse(self, path: list[int]) -> None:
        for edge in pairwise(path):
            self._uses[edge] -= 1
            if not self._uses[edge]:
                del self._uses[edge]
                self._release(*edge)

    def _hold(self, a: int, b: int, weight: float) -> None:
        """Add an edge of H."""
        for x in (a, b):
            self.degree[x] = self.degree.get(x, 0) + 1
        self.sub.insert(a, b, weight)

    def _release(self, a: int, b: int) -> None:
        """Remove an edge of H; a vertex without edges is no anchor any more."""
        for x in (a, b):
            self.degree[x] -= 1
            if not self.degree[x]:
                del self.degree[x]
        self.sub.delete(a, b)
