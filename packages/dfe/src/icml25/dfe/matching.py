"""Matchings of players to arms: the bottleneck matching, the pairs that matter, and lists that cover them."""

import numpy as np
from jaxtyping import Bool, Int
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from icml25.dfe.checks import check_graph, check_matching, check_matrix

FORBIDDEN = -1e6  # weight of an inactive pair; the others are 0 and 1


def bottleneck_matching(weights: ArrayLike, active: ArrayLike | None = None) -> tuple[float, Int[np.ndarray, " N"]]:
    """Give every player an arm of its own such that the least weight is as large as possible.

    Parameters
    ----------
    weights : (N, K) real, infinities allowed.
    active : (N, K) bool, the pairs that may be used; default all.

    Returns
    -------
    value, matching : the largest min_i weights[i, m_i] and an m (N,) int64 that attains it; the same m for the same input.

    Raises
    ------
    ValueError: a NaN, K < N, shapes that differ, or active pairs that allow no matching of all players.
    TypeError: weights that are no numbers, active that is not boolean.

    Source: max-min value (Section 2); binary search over the sorted weights.
    """
    w = check_matrix(weights, "weights")
    if np.isnan(w).any():
        raise ValueError(f"weights has a NaN at (player, arm) {tuple(np.argwhere(np.isnan(w))[0].tolist())}")
    graph = np.ones(w.shape, dtype=bool) if active is None else check_graph(active, "active")
    if graph.shape != w.shape:
        raise ValueError(f"active must have the shape of weights {w.shape}, got {graph.shape}")
    best = _require_matching(graph)
    values = np.unique(w[graph])
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high + 1) // 2
        matching = _maximum_matching(graph & (w >= values[middle]))
        if matching is None:
            high = middle - 1
        else:
            low, best = middle, matching
    return float(values[low]), best


def saturating_support(active: ArrayLike) -> Bool[np.ndarray, "N K"]:
    """Keep the pairs that lie in some matching of all players inside ``active``.

    Parameters
    ----------
    active : (N, K) bool.

    Returns
    -------
    (N, K) bool.

    Raises
    ------
    ValueError: active allows no matching of all players.

    Source: from one matching m, (i, m_j) lies in another iff its players can move along a path i -> j -> .. (each takes
    the arm of the next) that closes a cycle or ends at a free arm.
    """
    graph = check_graph(active, "active")
    return _support(graph, _require_matching(graph))


def covering_matchings(active: ArrayLike, base: ArrayLike | None = None) -> list[Int[np.ndarray, " N"]]:
    """List at most N^2 + K matchings inside ``active`` that together use every active pair.

    Parameters
    ----------
    active : (N, K) bool; every active pair lies in a matching of all players (see `saturating_support`).
    base : (N,) int, the matching on which players stay while others visit free arms; default any.

    Returns
    -------
    list of (N,) int64 arrays. All K cyclic shifts when every pair is active; equal input gives the equal list, so that
    players can build it each on their own.

    Raises
    ------
    ValueError: no matching of all players, an active pair in none, or a base that is no matching inside active.

    Source: exploration by constructed matchings; the count N^2 + K of the regret bound.
    """
    graph = check_graph(active, "active")
    n, k = graph.shape
    start = _require_matching(graph)
    useless = graph & ~_support(graph, start)
    if useless.any():
        raise ValueError(
            f"active pair {tuple(np.argwhere(useless)[0].tolist())} lies in no matching of all players; "
            "drop such pairs by saturating_support"
        )
    home = start if base is None else check_matching(base, "base", graph)
    if graph.all():
        return [(np.arange(n) + shift) % k for shift in range(k)]
    greedy = _greedy_cover(graph, home)
    shortest = max(graph.sum(0).max(), graph.sum(1).max())  # a matching uses each player and each arm at most once
    return greedy if len(greedy) == shortest else min(greedy, _base_cover(graph, home), key=len)


def _maximum_matching(graph: np.ndarray) -> np.ndarray | None:
    """A matching of all players inside the graph, or None."""
    columns = np.nonzero(graph)[1]
    offsets = np.r_[0, np.cumsum(graph.sum(1))]
    sparse = csr_array((np.ones(len(columns), np.int8), columns, offsets), shape=graph.shape)
    matching = maximum_bipartite_matching(sparse, perm_type="column").astype(np.int64)
    return None if (matching < 0).any() else matching


def _require_matching(graph: np.ndarray) -> np.ndarray:
    matching = _maximum_matching(graph)
    if matching is None:
        raise ValueError("active allows no matching of all players to distinct arms")
    return matching


def _support(graph: np.ndarray, matching: np.ndarray) -> np.ndarray:
    """Pairs of some matching of all players, given one of them."""
    n, k = graph.shape
    free = np.ones(k, dtype=bool)
    free[matching] = False
    reach = graph[:, matching]  # i -> j: i may take the arm of j; i -> i holds
    for _ in range(int(np.ceil(np.log2(n))) if n > 1 else 0):
        reach = reach @ reach
    escapes = (reach & graph[:, free].any(1)).any(1)  # can pass its arm on along a path that ends at a free arm
    kept = graph.copy()
    kept[:, matching] &= reach.T | escapes
    return kept


def _greedy_cover(graph: np.ndarray, base: np.ndarray) -> list[np.ndarray]:
    uncovered, cover = graph.copy(), []
    while uncovered.any():
        cover.append(_most_uncovered(graph, uncovered, base))
    return cover


def _base_cover(graph: np.ndarray, base: np.ndarray) -> list[np.ndarray]:
    """Pairs outside the base's arms by edge colouring (Konig), those inside by one forced pair at a time."""
    uncovered, cover = graph.copy(), []
    outside = np.setdiff1d(np.arange(graph.shape[1]), base)
    while (left := uncovered[:, outside]).any():
        degrees = left.sum(1)[:, None], left.sum(0)[None, :]
        largest = max(degrees[0].max(), degrees[1].max())
        full = sum((degree == largest).astype(int) for degree in degrees)
        players, arms = linear_sum_assignment(left * (1 + 1000 * full), maximize=True)
        moved = left[players, arms]  # covers every vertex of the largest degree, so the degree falls by one
        matching = base.copy()
        matching[players[moved]] = outside[arms[moved]]
        uncovered[np.arange(len(base)), matching] = False
        cover.append(matching)
    while uncovered.any():
        player, arm = np.argwhere(uncovered)[0]
        allowed = graph.copy()
        allowed[player] = False
        allowed[player, arm] = True
        cover.append(_most_uncovered(allowed, uncovered, base))
    return cover


def _most_uncovered(allowed: np.ndarray, uncovered: np.ndarray, base: np.ndarray) -> np.ndarray:
    """The matching of all players with most uncovered pairs, which are marked as covered; then with most of the base."""
    players = np.arange(len(base))
    weights = np.where(allowed, uncovered.astype(float), FORBIDDEN)
    weights[players, base] += 1 / (len(base) + 1)
    _, matching = linear_sum_assignment(weights, maximize=True)
    uncovered[players, matching] = False
    return matching
