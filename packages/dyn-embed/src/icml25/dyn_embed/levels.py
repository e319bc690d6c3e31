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

    def restart(self, salt: int, most_edges: int) -> None:
        """Start again without edges, with randomness of its own; `most_edges` does not matter here."""
        self.salt = salt
        self.replace({})

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
    After m^((q-1)/q) insertions, or m weight increases (the phase length if that is more), or when half of the edges are gone, a new phase starts. Its tree is built
    at the next query, which then replays the changes since: queries decide when trees are built, but not which.

    Parameters
    ----------
    q : level, at least 2.
    scales : they bound every finite distance from above and every weight from below.
    salt : decides the trees of all phases.
    phase_length : insertions in a phase instead of m^((q-1)/q).
    """

    _COUNTERS = ("phase", "rebuilds", "affected", "insertions", "raises", "size", "built_edges", "length")

    def __init__(self, q: int, scales: Scales, salt: int, phase_length: int | None = None) -> None:
        self.q, self.scales, self.salt, self.phase_length = q, scales, salt, phase_length
        self.rebuilds, self.seconds, self.affected = 0, 0.0, 0
        self.sub = make_level(q - 1, scales.inner(), 0)
        self.restart(salt, 0)

    @property
    def below(self) -> list[StaticLevel | BootstrappedLevel]:
        """This level and those below it."""
        return [self, *self.sub.below]

    def replace(self, edges: Edges) -> None:
        """Start a phase with other edges."""
        self.phase += 1
        self.insertions, self.raises, self.size, self.built_edges = 0, 0, len(edges), len(edges)
        m = max(len(edges), self.most_edges)
        self.length = self.phase_length or max(1, round(m ** ((self.q - 1) / self.q)))
        self._start(edges)

    def restart(self, salt: int, most_edges: int) -> None:
        """Start again without edges, with randomness of its own; phases are as long as if there were `most_edges` edges."""
        self.salt, self.most_edges, self.phase = salt, most_edges, 0
        self.replace({})

    def rescale(self, scales: Scales) -> None:
        """Take other scales, in a new phase."""
        edges = self.all_edges()
        self.scales = scales
        self.sub.rescale(scales.inner())
        self.replace(edges)

    def insert(self, a: int, b: int, weight: float) -> None:
        """Add an edge that is not there."""
        self.insertions += 1
        self.size += 1
        self._change(_edge(a, b), weight, new=True)

    def delete(self, a: int, b: int) -> None:
        """Remove an edge."""
        self.size -= 1
        self._change(_edge(a, b), math.inf)

    def raise_weight(self, a: int, b: int, weight: float) -> None:
        """Raise the weight of an edge."""
        self.raises += 1
        self._change(_edge(a, b), weight)

    def prepare(self) -> None:
        """Build the tree of the phase if it is missing, here and below."""
        if self._tree is None:
            start = time.perf_counter()
            self.rebuilds += 1
            self._build()
            for change in self.changes:
                self._apply(*change)
            self.base, self.changes = {}, []
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
        if self._tree is not None:
            return self.tree.edges() | self.inserted
        edges = dict(self.base)
        for edge, weight, _ in self.changes:
            edges[edge] = weight
            if weight == math.inf:
                del edges[edge]
        return edges

    def state(self) -> dict[str, Any]:
        """What `restore` needs: T and H follow from the edges."""
        self.prepare()
        counters = {name: getattr(self, name) for name in self._COUNTERS}
        base = pack(self.tree.edges()) | {"keys": self.tree.keys}
        return counters | {"base": base, "inserted": pack(self.inserted), "sub": self.sub.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Return to a state."""
        for name in self._COUNTERS:
            setattr(self, name, int(state[name]))
        self._start(unpack(state["base"]))
        self._build(np.asarray(state["base"]["keys"], dtype=np.uint64))
        self.base = {}
        for edge, weight in unpack(state["inserted"]).items():
            self._apply(edge, weight, new=True)
        self.sub.restore(state["sub"])

    def _start(self, edges: Edges) -> None:
        """Take edges, with an empty H and without a tree."""
        self.base, self._tree = edges, None
        self.changes: list[tuple[Edge, float, bool]] = []
        """What happened to the base since, as long as there is no tree: edge, weight (infinity: gone), whether it is new."""
        self.inserted: Edges = {}
        self.paths: dict[int, list[int]] = {}
        """Vertices of T with an inserted edge, and their paths in T as they stand in H."""
        self.degree: dict[int, int] = {}
        """Vertices of H but the root, and the number of their edges there."""
        self._incident: dict[int, int] = {}  # inserted edges at a vertex
        self._uses: dict[Edge, int] = {}  # paths through an edge of T
        self.sub.restart(derive(self.salt, self.phase, 1), self.length * (2 * self.scales.count + 1))

    def _build(self, keys: np.ndarray | None = None) -> None:
        self._tree: ClusterTree | None = ClusterTree(
            self.base, self.scales, derive(self.salt, self.phase, 0), maintained=True, keys=keys
        )

    def _change(self, edge: Edge, weight: float, *, new: bool = False) -> None:
        """Note a change, or apply it; then see whether the phase is over."""
        if self._tree is None:
            self.changes.append((edge, weight, new))
        else:
            self._apply(edge, weight, new)
        many_raises = self.raises > max(self.built_edges, self.length)
        if self.insertions > self.length or 2 * self.size < self.built_edges or many_raises:
            self.replace(self.all_edges())

    def _apply(self, edge: Edge, weight: float, new: bool) -> None:
        if new:
            self.inserted[edge] = weight
            for x in edge:
                self._touch(x)
            self._hold(*edge, weight)
        elif edge not in self.inserted:
            self._follow(self.tree.raise_weight(*edge, weight))
        elif weight < math.inf:
            self.inserted[edge] = weight
            self.sub.raise_weight(*edge, weight)
        else:
            del self.inserted[edge]
            self._release(*edge)
            for x in edge:
                self._untouch(x)

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
