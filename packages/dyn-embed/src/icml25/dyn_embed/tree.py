"""Scales, the nested cluster tree that is never stored, and its signs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt64

from icml25.dyn_embed.clustering import Clusterings, shift_offsets
from icml25.dyn_embed.static import Adjacency, shifted_trees

__all__ = ["Block", "ClusterTree", "Scales", "derive", "mix64", "signs"]

_MASK = 2**64 - 1


def mix64(x: Any, salt: Any) -> Any:
    """Scramble 64-bit words, the same on every machine: SplitMix64's finaliser of x ^ salt, a bijection for each salt.

    Parameters
    ----------
    x, salt : int in [0, 2**64), or uint64 arrays that broadcast.

    Returns
    -------
    int, or a uint64 array.
    """
    z = ((x ^ salt) + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@lru_cache(2**14)
def derive(salt: int, *labels: int) -> int:
    """A salt of its own for every sequence of labels."""
    for label in labels:
        salt = mix64(label, mix64(salt, 0))
    return salt


class Scales:
    """Diameters D_i = cap / 2^(L-i), i = 1..L, with D_1 <= wmin and D_L = cap, and the lengths of the tree's edges.

    The node of level i has height h_1 = 0, h_i = D_i / 2, and the root h_{L+1} = D_L; the edge from level i up has the
    length omega_i = h_{i+1} - h_i, so two vertices that first meet at level i are D_i apart, and 2 D_L at the root.

    Parameters
    ----------
    wmin : no edge is shorter.
    cap : no finite distance is longer.
    """

    def __init__(self, wmin: float, cap: float) -> None:
        self.wmin, self.cap = wmin, cap
        self.count = math.ceil(math.log2(cap / wmin)) + 1
        self.diameters: Float[np.ndarray, " L"] = np.ldexp(cap, np.arange(1 - self.count, 1))
        heights = np.concatenate([[0.0], self.diameters[1:] / 2, [cap]])
        self.omegas: Float[np.ndarray, " L"] = np.diff(heights)

    def inner(self) -> Scales:
        """Scales of the smaller graph H that the bootstrapping hands to the next level: no longer than these.

        Notes
        -----
        The cap C of a level need not bound the distances of H. A level keeps d_F(u, v) >= min(d(u, v), 2C): at level 1 two
        vertices that meet at level j are D_j >= d(u, v) apart, and 2C at the root. Above, d_F(u, v) is the length below the
        anchors and their distance in the tree of H, so by induction at least min(d_{T+I}(u, v), 2C), for the tree T with the
        inserted edges I; a path in T + I is made of edges of I and pieces of T, each at least min(d(x, y), 2C) long.
        """
        return Scales(min(self.wmin, float(self.omegas[0])), self.cap)


@dataclass
class Block:
    """Tree paths of k vertices at one level of the recursion, up to where they leave it.

    Attributes
    ----------
    nodes : (L, k) ids of the path's nodes, from the vertex upwards.
    depth : (k,) number of nodes below the anchor; the rows from there on do not count.
    scales : lengths of the edges.
    """

    nodes: UInt64[np.ndarray, "L k"]
    depth: Int[np.ndarray, " k"]
    scales: Scales

    @property
    def pendant(self) -> np.ndarray:
        """(L, k) whether a node lies below the anchor."""
        return np.arange(self.scales.count)[:, None] < self.depth

    def coordinates(self, salts: UInt64[np.ndarray, " R"]) -> Float[np.ndarray, "k RL"]:
        """omega_i times the sign of the i-th node below the anchor, for each family of signs."""
        values = signs(self.nodes, salts) * np.where(self.pendant, self.scales.omegas[:, None], 0.0)
        return np.vstack(list(values)).T

    def tree_distances(
        self, left: Int[np.ndarray, " pairs"], right: Int[np.ndarray, " pairs"]
    ) -> Float[np.ndarray, " pairs"]:
        """Length of the tree's edges below the anchors between columns `left` and `right`: twice omega_i where both differ."""
        one, other = self.pendant[:, left], self.pendant[:, right]
        apart = self.nodes[:, left] != self.nodes[:, right]
        lengths = self.scales.omegas[:, None] * np.where(one & other, 2.0 * apart, one ^ other)
        return np.cumsum(lengths, axis=0)[-1]  # sums in an order that no other pair changes


def signs(nodes: UInt64[np.ndarray, "L k"], salts: UInt64[np.ndarray, " R"]) -> Float[np.ndarray, "R L k"]:
    """A sign per node and salt: equal nodes get equal signs, and nothing is stored."""
    return 1.0 - 2.0 * (mix64(nodes, salts[:, None, None]) >> 63).astype(np.float64)


class ClusterTree:
    """The tree of nested clusters: the node of v at level i is the intersection of v's clusters at the scales i..L.

    Clusters are those of the whole graph at every scale; only their centers are stored, and the id of a node is a hash of the
    centers from the top down. A vertex that the tree has not seen is alone in its clusters.

    Parameters
    ----------
    edges : (a, b) -> weight, on vertices that are 64-bit keys.
    scales : the scales; level 1 is the vertex itself.
    salt : decides shifts and ids.
    maintained : whether `raise_weight` will be called; else only the centers are kept.
    keys : the vertices, sorted, where they are more than the end points of the edges.
    """

    def __init__(
        self,
        edges: dict[tuple[int, int], float],
        scales: Scales,
        salt: int,
        *,
        maintained: bool = False,
        keys: UInt64[np.ndarray, " n"] | None = None,
    ) -> None:
        self.scales = scales
        self.root = derive(salt, 0)
        ends = np.array(list(edges), dtype=np.uint64).reshape(-1, 2)
        self.keys = np.unique(ends) if keys is None else keys
        positions = np.searchsorted(self.keys, ends)
        self.index = {key: i for i, key in enumerate(self.keys.tolist())}
        levels = range(2, scales.count + 1)
        shift_salts, self._center_salts, self._id_salts = (
            np.array([derive(salt, kind, level) for level in levels], dtype=np.uint64)[:, None] for kind in (1, 2, 3)
        )
        uniform = ((mix64(self.keys, shift_salts) >> 11) + 0.5) * 2.0**-53
        offsets = shift_offsets(uniform, scales.diameters[1:])
        weights = np.fromiter(edges.values(), dtype=np.float64, count=len(edges))
        adjacency = Adjacency(len(self.keys), positions, weights)
        self.clusterings = Clusterings(adjacency, offsets) if maintained else None
        self._center = self.clusterings.center if self.clusterings else shifted_trees(adjacency, offsets)[2]

    def nodes(self, keys: Sequence[int]) -> UInt64[np.ndarray, "levels k"]:
        """Paths of vertices: rows are the vertex, its nodes at levels 2..L and the root.

        The id of level i mixes the sum over j >= i of mixed (center at scale j, j): equal sums mean equal clusters upwards.
        """
        vertices = np.array(keys, dtype=np.uint64)
        where = np.array([self.index.get(key, -1) for key in keys], dtype=np.int64)
        centers = np.broadcast_to(vertices, (self.scales.count - 1, len(vertices)))
        if len(self.keys):
            centers = np.where(where >= 0, self.keys[self._center[:, where]], centers)
        upwards = np.cumsum(mix64(centers, self._center_salts)[::-1], axis=0, dtype=np.uint64)[::-1]
        root = np.full(len(vertices), self.root, dtype=np.uint64)
        return np.vstack([vertices, mix64(upwards, self._id_salts), root])

    def blocks(self, keys: Sequence[int]) -> list[Block]:
        """The whole paths, as the only block."""
        return [Block(self.nodes(keys)[:-1], np.full(len(keys), self.scales.count), self.scales)]

    def raise_weight(self, a: int, b: int, weight: float) -> list[int]:
        """Raise the weight of an edge (to infinity to remove it), and return the vertices whose path changed."""
        assert self.clusterings is not None
        changed = self.clusterings.raise_weight(self.index[a], self.index[b], weight)
        return self.keys[sorted(changed)].tolist()

    def edges(self) -> dict[tuple[int, int], float]:
        """The edges that are left."""
        assert self.clusterings is not None
        ends, weights = self.clusterings.adjacency.edges()
        return {(a, b): w for (a, b), w in zip(self.keys[ends].tolist(), weights.tolist(), strict=True)}
