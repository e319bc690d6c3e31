"""Subset search against brute force."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.cat_iv import best_subsets
from icml25.cat_iv.search import _greedy, branch_and_bound


def scores(p: int, seed: int) -> np.ndarray:
    D = np.random.default_rng(seed).random((p, p))
    return np.triu(D, 1) + np.triu(D, 1).T


def brute_force(D: np.ndarray, size: int) -> list[tuple[tuple[int, ...], float]]:
    sets = [(s, sum(D[i, j] for i, j in combinations(s, 2))) for s in combinations(range(len(D)), size)]
    return sorted(sets, key=lambda s: (s[1], s[0]))


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 9), st.integers(0, 10**6), st.booleans(), st.data())
def test_enumeration_and_branch_and_bound(p: int, seed: int, ties: bool, data: st.DataObject) -> None:
    size = data.draw(st.integers(2, p))
    D = np.round(5 * scores(p, seed)) if ties else scores(p, seed)
    expected = brute_force(D, size)
    found = best_subsets(D, size)
    assert [s for s, _ in found] == [s for s, _ in expected[:50]]
    np.testing.assert_allclose([v for _, v in found], [v for _, v in expected[:50]])
    assert branch_and_bound(D, size)[0] == expected[0][0]


def test_ties_go_to_the_first() -> None:
    D = np.ones((6, 6)) - np.eye(6)
    assert best_subsets(D, 3)[0] == ((0, 1, 2), 3.0)
    assert branch_and_bound(D, 3) == ((0, 1, 2), 3.0)


def test_large_problems_take_branch_and_bound() -> None:
    rng = np.random.default_rng(0)
    D = scores(30, 1) + 1
    valid = sorted(rng.choice(30, 10, replace=False).tolist())
    D[np.ix_(valid, valid)] *= 0.05
    np.fill_diagonal(D, 0)
    [(subset, score)] = best_subsets(D, 10)
    assert list(subset) == valid
    assert score == pytest.approx(np.triu(D[np.ix_(valid, valid)]).sum())


def test_the_budget_is_kept() -> None:
    with pytest.raises(RuntimeError, match="max_subsets"):
        best_subsets(scores(40, 2), 20, max_subsets=500)


def test_keep() -> None:
    assert len(best_subsets(scores(8, 0), 4, keep=7)) == 7
    assert len(best_subsets(scores(4, 0), 4)) == 1


def test_branch_and_bound_where_greedy_search_fails() -> None:
    failures = 0
    for seed in range(250):
        D = [scores(12, seed), scores(12, seed) ** 4, scores(12, seed) + 1 - np.eye(12)][seed % 3]
        for size in (3, 6):
            exact = best_subsets(D, size, keep=1)[0][0]
            assert branch_and_bound(D, size)[0] == exact
            failures += min((_greedy(D, size, start) for start in range(12)), key=lambda s: s[1])[0] != exact
    assert failures >= 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 7}, "size is 7; expected a whole number from 2 to 6"),
        ({"size": 1}, "size is 1"),
        ({"size": 2.0}, r"size is 2\.0"),
        ({"keep": 0}, "keep is 0"),
        ({"max_subsets": -1}, "max_subsets is -1"),
        ({"D": np.full((6, 6), np.nan)}, "finite scores"),
        ({"D": -np.ones((6, 6))}, "of at least 0"),
        ({"D": np.triu(np.ones((6, 6)))}, "symmetric"),
        ({"D": np.ones((6, 5))}, r"shape \(6, 5\)"),
    ],
    ids=["large", "small", "float", "keep", "budget", "nan", "negative", "asymmetric", "not square"],
)
def test_bad_input(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        best_subsets(**({"D": scores(6, 0), "size": 3} | change))  # type: ignore[arg-type]
