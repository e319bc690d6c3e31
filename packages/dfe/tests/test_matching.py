"""Bottleneck, support and covers against enumeration of all matchings."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.dfe import bottleneck_matching, covering_matchings, saturating_support


def all_matchings(active: np.ndarray) -> list[tuple[int, ...]]:
    n, k = active.shape
    return [m for m in permutations(range(k), n) if all(active[i, m[i]] for i in range(n))]


def brute_support(active: np.ndarray) -> np.ndarray:
    kept = np.zeros_like(active)
    for m in all_matchings(active):
        kept[np.arange(len(m)), m] = True
    return kept


def random_graph(rng: np.random.Generator, n: int, k: int, density: float) -> np.ndarray:
    graph = rng.random((n, k)) < density
    graph[np.arange(n), rng.permutation(k)[:n]] = True
    return graph


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 4), extra=st.integers(0, 2), ties=st.booleans())
def test_bottleneck_against_all_permutations(seed: int, n: int, extra: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    k = n + extra
    weights = rng.integers(0, 4, (n, k)).astype(float) if ties else rng.normal(size=(n, k))
    active = random_graph(rng, n, k, 0.7)
    value, matching = bottleneck_matching(weights, active)
    best = max(min(weights[i, m[i]] for i in range(n)) for m in all_matchings(active))
    assert value == best == weights[np.arange(n), matching].min()
    assert tuple(matching.tolist()) in all_matchings(active)
    assert (bottleneck_matching(weights, active)[1] == matching).all()


def test_bottleneck_on_large_weights_against_every_threshold() -> None:
    from scipy.optimize import linear_sum_assignment

    for seed in range(5):
        weights = np.random.default_rng(seed).uniform(size=(12, 30))
        feasible = []
        for level in np.unique(weights):
            rows, columns = linear_sum_assignment(weights < level)
            if not (weights < level)[rows, columns].any():
                feasible.append(level)
        assert bottleneck_matching(weights)[0] == feasible[-1]


def test_bottleneck_with_infinities() -> None:
    value, matching = bottleneck_matching([[-np.inf, np.inf], [0.5, -np.inf]])
    assert value == 0.5 and matching.tolist() == [1, 0]
    assert bottleneck_matching([[-np.inf, -np.inf]])[0] == -np.inf


def test_bottleneck_is_neither_sum_nor_product() -> None:
    weights = [[0.9, 0.45], [0.4, 0.05]]  # the diagonal has sum .95 and product .045; the other .85 and .18
    assert bottleneck_matching(weights)[0] == 0.4
    weights = [[1.0, 0.5], [0.6, 0.45]]  # both larger on the diagonal (1.45 and .45), but its minimum is .45
    value, matching = bottleneck_matching(weights)
    assert value == 0.5 and matching.tolist() == [1, 0]


def test_support_against_enumeration() -> None:
    rng = np.random.default_rng(0)
    dropped = 0
    for _ in range(300):
        n = int(rng.integers(1, 5))
        k = n + int(rng.integers(0, 3))
        graph = random_graph(rng, n, k, rng.uniform(0.1, 0.7))
        expected = brute_support(graph)
        assert (saturating_support(graph) == expected).all()
        dropped += int((graph & ~expected).any())
    assert dropped > 30


def test_support_of_a_long_chain() -> None:
    chain = np.eye(9, 10, dtype=bool) | np.eye(
        9, 10, k=1, dtype=bool
    )  # each player may move right, the last to a free arm
    assert (saturating_support(chain) == chain).all()
    assert (saturating_support(chain[:, :9]) == np.eye(9, dtype=bool)).all()
    ring = np.eye(9, dtype=bool) | np.roll(np.eye(9, dtype=bool), 1, axis=1)
    assert (saturating_support(ring) == ring).all()


def check_cover(graph: np.ndarray, cover: list[np.ndarray]) -> None:
    n, k = graph.shape
    used = np.zeros_like(graph)
    for matching in cover:
        assert len(set(matching.tolist())) == n
        assert graph[np.arange(n), matching].all()
        used[np.arange(n), matching] = True
    assert (used == graph).all()
    assert len(cover) <= n**2 + k


def test_cover_is_exact_and_short() -> None:
    from icml25.dfe.matching import _base_cover

    rng = np.random.default_rng(1)
    for _ in range(80):
        n = int(rng.integers(1, 7))
        k = n + int(rng.integers(0, 8))
        graph = saturating_support(random_graph(rng, n, k, rng.uniform(0.2, 0.9)))
        _, base = bottleneck_matching(rng.random((n, k)), graph)
        check_cover(graph, covering_matchings(graph, base))
        built = _base_cover(graph, base)
        check_cover(graph, built)
        outside = graph.copy()
        outside[:, base] = False
        degree = max(outside.sum(0).max(), outside.sum(1).max())
        moved = [m for m in built if not np.isin(m, base).all()]
        assert len(moved) >= degree
        if degree:  # the edge colouring: as many classes as the largest degree
            assert all(np.isin(m, base).all() or (m != base).any() for m in built)
            classes = built[:degree]
            covered = np.zeros_like(graph)
            for m in classes:
                covered[np.arange(n), m] = True
            assert covered[outside].all()


def test_cover_stays_on_the_base_where_nothing_is_left_to_try() -> None:
    graph = np.eye(3, 6, dtype=bool)
    graph[0] = True
    cover = covering_matchings(saturating_support(graph), np.array([0, 1, 2]))
    assert sorted(m[0] for m in cover) == [0, 3, 4, 5]
    assert all(m[1:].tolist() == [1, 2] for m in cover)


def test_each_step_takes_most_new_pairs_and_then_most_of_the_base() -> None:
    from icml25.dfe.matching import _most_uncovered

    rng = np.random.default_rng(4)
    for _ in range(60):
        n = int(rng.integers(2, 5))
        graph = random_graph(rng, n, n + 2, 0.7)
        _, base = bottleneck_matching(rng.random(graph.shape), graph)
        uncovered = graph & (rng.random(graph.shape) < 0.3)
        players = np.arange(n)
        score = max((uncovered[players, m].sum(), (np.array(m) == base).sum()) for m in all_matchings(graph))
        left = uncovered.copy()
        matching = _most_uncovered(graph, left, base)
        assert graph[players, matching].all()
        assert (uncovered[players, matching].sum(), (matching == base).sum()) == score
        assert not left[players, matching].any() and left.sum() == uncovered.sum() - score[0]


def test_complete_graph_takes_k_shifts() -> None:
    cover = covering_matchings(np.ones((3, 7), dtype=bool))
    assert len(cover) == 7
    check_cover(np.ones((3, 7), dtype=bool), cover)
    assert covering_matchings([[1]])[0].tolist() == [0]


def test_cover_is_the_same_for_every_player() -> None:
    graph = saturating_support(random_graph(np.random.default_rng(3), 5, 8, 0.5))
    one, two = covering_matchings(graph), covering_matchings(np.asfortranarray(graph.copy()))
    assert all((a == b).all() for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("bad", [[[True, False], [True, False]], [[1, 1, 0], [1, 1, 0], [0, 1, 0]]])
def test_graphs_without_matching_are_refused(bad: list) -> None:
    for function in (covering_matchings, saturating_support):
        with pytest.raises(ValueError, match="no matching of all players"):
            function(bad)
    with pytest.raises(ValueError, match="no matching of all players"):
        bottleneck_matching(np.ones(np.shape(bad)), bad)


def test_other_bad_graphs() -> None:
    with pytest.raises(ValueError, match=r"\(1, 0\) lies in no matching"):
        covering_matchings([[1, 0], [1, 1]])
    with pytest.raises(ValueError, match="base must give each player"):
        covering_matchings(np.ones((2, 2), bool), [0, 0])
    with pytest.raises(ValueError, match="base must be 2 integers"):
        covering_matchings(np.ones((2, 2), bool), [0.0, 1.0])
    with pytest.raises(TypeError, match="active must hold booleans"):
        covering_matchings([[0.5, 1.0]])
    with pytest.raises(ValueError, match="fewer arms than players"):
        saturating_support(np.ones((3, 2), bool))
    with pytest.raises(ValueError, match=r"NaN at \(player, arm\) \(0, 1\)"):
        bottleneck_matching([[0.0, np.nan]])
    with pytest.raises(ValueError, match="shape of weights"):
        bottleneck_matching([[0.0, 1.0]], [[True]])
    with pytest.raises(TypeError, match="weights must hold real numbers"):
        bottleneck_matching([["a", "b"]])
