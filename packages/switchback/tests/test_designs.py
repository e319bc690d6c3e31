"""Assignment tables: structure, probabilities, reproducibility."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.switchback import Design, alternating_day, alternating_time, bojinov, regular_blocks, uniform_random


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 10), st.integers(1, 12), st.integers(1, 15), st.integers(0, 99))
def test_alternating_time(half, T, span, seed):
    A = alternating_time(2 * half, T, span, seed=seed)
    assert A.shape == (2 * half, T) and A.dtype == np.int8
    assert (A[0::2] == A[0]).all() and (A[1::2] == 1 - A[0]).all()
    assert np.array_equal(A[0] ^ A[0, 0], [t // span % 2 for t in range(T)])
    assert np.array_equal(A, alternating_time(2 * half, T, span, seed=seed))


def test_alternating_time_with_one_long_span_is_alternating_day():
    for seed in range(6):
        A = alternating_day(4, 7, seed=seed)
        for span in (7, 9):
            assert np.array_equal(A, alternating_time(4, 7, span, seed=seed))
    assert (A.std(axis=1) == 0).all()


def test_last_block_is_short_and_span_one_alternates():
    A = alternating_time(2, 8, 3, seed=0)
    assert np.array_equal(A[0] ^ A[0, 0], [0, 0, 0, 1, 1, 1, 0, 0])
    assert (np.diff(alternating_time(2, 8, 1, seed=0)[0].astype(int)) != 0).all()


def test_uniform_random_uses_one_row_unless_fresh():
    A = uniform_random(200, 48, seed=0)
    assert len(np.unique(A, axis=0)) == 2 and (A[0] == 1 - A[1]).all()
    assert 0.2 < A[0].mean() < 0.8
    fresh = uniform_random(200, 48, fresh=True, seed=0)
    assert len(np.unique(fresh, axis=0)) == 200
    assert abs(fresh.mean() - 0.5) < 4 * 0.5 / np.sqrt(fresh.size)


def test_regular_blocks():
    A = regular_blocks(6, 10, 4, seed=1)
    for block in (slice(0, 4), slice(4, 8), slice(8, 10)):
        assert (A[:, block] == A[:, block][:, :1]).all()
    assert (A[0::2] == A[0]).all() and (A[1::2] == 1 - A[0]).all()
    assert len({tuple(regular_blocks(2, 10, 4, seed=s)[0]) for s in range(60)}) == 8


def test_bojinov_points():
    coin, flip = Design("bojinov", 2).coins(12)  # T/m = 6: coins at 1, 2m + 1, 3m + 1, 4m + 1
    assert np.array_equal(coin, [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 3]) and not flip.any()
    assert not Design("bojinov", 4).coins(12)[0].any()  # T/m < 4: one coin
    A = bojinov(400, 12, 2, seed=0)
    assert len(np.unique(A, axis=0)) == 2 and np.array_equal(A[0] + 1 - A[0], np.ones(12))
    share = (A[0] == A).all(1).mean()
    assert abs(share - 0.5) < 4 * 0.5 / 20 and share != 0.5


@pytest.mark.parametrize(
    "design", [Design("AD"), Design("AT", 3), Design("UR"), Design("blocks", 2), Design("bojinov", 1)], ids=str
)
def test_rows_and_probs_describe_the_draws(design):
    T = 5
    rows, probs = design.rows_and_probs(T)
    assert probs.sum() == pytest.approx(1) and len(np.unique(rows, axis=0)) == len(rows)
    drawn = np.concatenate([design.draw(2, T, seed) for seed in range(3000)])
    frequency = np.array([(drawn == row).all(1).mean() for row in rows])
    assert np.abs(frequency - probs).max() < 5 * np.sqrt(0.25 / 3000)
    assert frequency.sum() == pytest.approx(1)
    sign = 2.0 * rows - 1
    assert np.allclose(design.correlation(T), np.einsum("k,kt,ks->ts", probs, sign, sign))
    assert design.switches(T) == pytest.approx((np.abs(np.diff(rows.astype(int))).sum(1) * probs).sum())


def test_seeds_and_generators():
    a = uniform_random(4, 20, seed=np.random.default_rng(5))
    assert np.array_equal(a, uniform_random(4, 20, seed=5))
    assert not np.array_equal(a, uniform_random(4, 20, seed=6))
    assert alternating_time(np.int64(4), np.int32(6), np.int16(2), seed=0).shape == (4, 6)


def test_odd_number_of_days_warns():
    with pytest.warns(UserWarning, match="odd"):
        A = alternating_day(5, 3, seed=0)
    assert abs(int(A[:, 0].sum()) - 2.5) == 0.5


@pytest.mark.parametrize("span", [0, -1, 1.5, True, None, np.nan])
def test_bad_spans(span):
    with pytest.raises(ValueError, match="span"):
        Design("AT", span)


@pytest.mark.parametrize(
    ("n_days", "n_times", "name"), [(1, 4, "n_days"), (2.0, 4, "n_days"), (4, 0, "n_times"), (4, 2.5, "n_times")]
)
def test_bad_sizes(n_days, n_times, name):
    with pytest.raises(ValueError, match=name):
        alternating_day(n_days, n_times, seed=0)


def test_bad_designs():
    with pytest.raises(ValueError, match=r"kind must be one of AD, AT.*'ABAB'"):
        Design("ABAB")
    with pytest.raises(ValueError, match="span must be None"):
        Design("AD", 3)
    with pytest.raises(ValueError, match="fresh"):
        Design("AT", 3, fresh=True)
    with pytest.raises(ValueError, match="2\\^48 rows"):
        Design("UR").rows_and_probs(48)
    assert str(Design("AT", 3)) == "AT(3)" and str(Design("UR", fresh=True)) == "UR fresh"
