"""The set of K candidates with the smallest sum of pair scores, exactly (step 5)."""

from __future__ import annotations

import math
from itertools import combinations, islice
from typing import Any

import numpy as np
from jaxtyping import Float

from icml25.cat_iv.checks import as_matrix, require_whole

__all__ = ["best_subsets", "branch_and_bound"]

Scored = tuple[tuple[int, ...], float]


def set_score(D: Float[np.ndarray, "p p"], subset: tuple[int, ...]) -> float:
    """Sum of D_ij over the pairs i < j of a set."""
    return float(sum(D[i, j] for i, j in combinations(subset, 2)))


def best_subsets(D: Any, size: Any, *, keep: Any = 50, max_subsets: Any = 2_000_000) -> list[Scored]:
    """Sets of ``size`` candidates by increasing score; ties in lexicographic order.

    Parameters
    ----------
    D : (p, p) symmetric, nonnegative pair scores.
    size : K, from 2 to p.
    keep : length of the list. Only the best set comes back when there are more than ``max_subsets`` sets.
    max_subsets : sets to enumerate, or beyond these, partial sets that branch and bound may visit.

    Returns
    -------
    list of (indices in increasing order, score), the minimiser first.

    Raises
    ------
    TypeError, ValueError: scores or sizes out of range.
    RuntimeError: branch and bound visited ``max_subsets`` partial sets without an answer.
    """
    D, _ = as_matrix("D", D)
    p = len(D)
    if D.shape != (p, p) or not np.isfinite(D).all() or (D < 0).any() or not np.allclose(D, D.T):
        raise ValueError(f"D has shape {D.shape}; expected a square, symmetric matrix of finite scores of at least 0")
    require_whole("size", size, 2, p)
    require_whole("keep", keep, 1)
    require_whole("max_subsets", max_subsets, 1)
    if math.comb(p, size) > max_subsets:
        return [branch_and_bound(D, size, max_visits=max_subsets)]
    best_sets = np.empty((0, size), dtype=int)
    best_scores = np.empty(0)
    subsets = combinations(range(p), size)
    while chunk := list(islice(subsets, 100_000)):
        sets = np.concatenate([best_sets, np.array(chunk)])
        scores = np.concatenate([best_scores, np.zeros(len(chunk))])
        for i, j in combinations(range(size), 2):
            scores[len(best_sets) :] += D[sets[len(best_sets) :, i], sets[len(best_sets) :, j]]
        order = np.argsort(scores, kind="stable")[:keep]
        best_sets, best_scores = sets[order], scores[order]
    return [(tuple(map(int, s)), float(v)) for s, v in zip(best_sets, best_scores, strict=True)]


def branch_and_bound(D: Float[np.ndarray, "p p"], size: int, *, max_visits: int = 2_000_000) -> Scored:
    """The minimiser without enumeration of all sets.

    Candidates enter in increasing order. A partial set S with r members missing is given up when its score, plus the
    r smallest sums of scores between S and a later candidate, plus r (r - 1) / 2 times the smallest pair score among
    later candidates, exceeds the best set so far: scores are nonnegative, so no completion can be better.

    Parameters
    ----------
    D : (p, p) symmetric, nonnegative pair scores.
    size : K, from 2 to p.
    max_visits : partial sets to visit before giving up.

    Returns
    -------
    (indices in increasing order, score)

    Raises
    ------
    RuntimeError: after ``max_visits`` partial sets.
    """
    p = len(D)
    upper = np.where(np.triu(np.ones((p, p), dtype=bool), 1), D, np.inf)
    smallest_later = np.minimum.accumulate(upper.min(1)[::-1])[::-1]  # of the pairs within candidates k..p-1
    best = min((_greedy(D, size, start) for start in range(p)), key=lambda s: (s[1], s[0]))
    visits = 0

    def extend(chosen: tuple[int, ...], score: float, links: np.ndarray) -> None:
        nonlocal best, visits
        visits += 1
        if visits > max_visits:
            raise RuntimeError(
                f"no proof of the best {size} of {p} candidates after {max_visits} partial sets; expected fewer: lower"
                " n_valid, drop or screen candidates (min_first_stage_f), or raise max_subsets"
            )
        missing = size - len(chosen)
        if missing == 0:
            exact = set_score(D, chosen)
            best = min(best, (chosen, exact), key=lambda s: (s[1], s[0]))
            return
        first = chosen[-1] + 1 if chosen else 0
        if p - first < missing:
            return
        bound = score + np.partition(links[first:], missing - 1)[:missing].sum()
        if missing > 1:
            bound += missing * (missing - 1) / 2 * smallest_later[first]
        if bound > best[1] * (1 + 1e-12):
            return
        for c in range(first, p - missing + 1):
            extend((*chosen, c), score + links[c], links + D[c])

    extend((), 0.0, np.zeros(p))
    return best


def _greedy(D: np.ndarray, size: int, start: int) -> Scored:
    """A good set to begin with: add the candidate with the smallest scores to those chosen."""
    chosen = [start]
    while len(chosen) < size:
        links = D[chosen].sum(0)
        links[chosen] = np.inf
        chosen.append(int(links.argmin()))
    subset = tuple(sorted(chosen))
    return subset, set_score(D, subset)
