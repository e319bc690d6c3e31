"""Conflicting test sets: how many cells change, and into what."""

import numpy as np
import pytest

from icml25.fuml import corrupt_views


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    y = np.arange(200) % 4
    # every value tells its row, view and class apart
    views = [np.repeat(np.arange(200.0)[:, None] + 1000 * v, 2 + v, axis=1) for v in range(3)]
    return views, rng.permutation(y)


def test_shares_of_rows_and_untouched_originals(data):
    views, y = data
    before = [v.copy() for v in views]
    out, touched = corrupt_views(views, y, noise_ratio=0.0, conflict_ratio=0.4, random_state=0)
    assert touched.shape == (200, 3)
    assert touched.sum() == 80
    assert (touched.sum(1) <= 1).all()
    for v in range(3):
        np.testing.assert_array_equal(views[v], before[v])
        changed = (out[v] != views[v]).any(1)
        np.testing.assert_array_equal(changed, touched[:, v])


def test_a_random_donor_is_any_sample_of_another_class(data):
    views, y = data
    out, touched = corrupt_views(views, y, noise_ratio=0.0, conflict_ratio=1.0, random_state=1)
    donors, rows, cells = [], *np.nonzero(touched)
    for i, v in zip(rows, cells, strict=True):
        row = out[v][i]
        assert (row == row[0]).all()  # one donor's whole view
        donor = int(row[0] - 1000 * v)
        assert y[donor] != y[i]
        donors.append(donor)
    assert len(set(donors)) > 50
    assert {(y[d] - y[i]) % 4 for d, i in zip(donors, rows, strict=True)} == {1, 2, 3}


def test_the_first_donor_is_the_first_sample_of_the_next_class(data):
    views, y = data
    out, touched = corrupt_views(views, y, noise_ratio=0.0, conflict_ratio=1.0, random_state=1, donor="first")
    for i, v in zip(*np.nonzero(touched), strict=True):
        assert out[v][i][0] - 1000 * v == np.flatnonzero(y == (y[i] + 1) % 4)[0]


def test_donors_come_from_the_reference(data):
    views, y = data
    reference = [-v - 1 for v in views], y
    out, touched = corrupt_views(views, y, noise_ratio=0.0, conflict_ratio=0.5, random_state=0, reference=reference)
    for v in range(3):
        assert (out[v][touched[:, v]] < 0).all()
        assert (out[v][~touched[:, v]] >= 0).all()


def test_noise_has_its_sigma_and_spares_a_view():
    views, y = [np.zeros((400, 50)) for _ in range(3)], np.arange(400) % 2
    out, touched = corrupt_views(views, y, noise_ratio=0.5, sigma=2.0, conflict_ratio=0.0, random_state=0)
    assert set(touched.sum(1)) == {0, 1, 2}
    assert (touched.any(1).sum()) < 200  # of 200 rows about a third drew 0 views
    noise = np.concatenate([out[v][touched[:, v]].ravel() for v in range(3)])
    assert noise.std() == pytest.approx(2.0, rel=0.03)
    assert all((out[v][~touched[:, v]] == 0).all() for v in range(3))


def test_seeds_mappings_and_dtypes(data):
    views, y = data
    named = {"a": views[0].astype(np.float32), "b": views[1].astype(int)}
    first, mask = corrupt_views(named, y, random_state=5)
    same, _ = corrupt_views(named, y, random_state=np.random.default_rng(5))
    assert list(first) == ["a", "b"]
    assert first["a"].dtype == np.float32
    assert first["b"].dtype == np.float64
    assert all(np.array_equal(first[k], same[k]) for k in named)
    assert not np.array_equal(mask, corrupt_views(named, y, random_state=6)[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_ratio": 1.1}, "noise_ratio must be in"),
        ({"conflict_ratio": -0.1}, "conflict_ratio must be in"),
        ({"sigma": -1.0}, "sigma must be"),
        ({"donor": "last"}, "donor must be"),
        ({"reference": ([np.zeros((2, 9))], np.arange(2))}, "reference must have the same views"),
        ({"y": np.zeros(200)}, "another class"),
        ({"y": np.zeros(3)}, "view 0 must be"),
        ({"X": [np.full((200, 2), "a")]}, "view 0 must be a dense array"),
        ({"X": np.zeros((200, 2))}, "sequence or mapping"),
    ],
)
def test_bad_arguments(data, change, message):
    views, y = data
    arguments = {"X": views, "y": y, "random_state": 0} | change
    with pytest.raises((TypeError, ValueError), match=message):
        corrupt_views(arguments.pop("X"), arguments.pop("y"), **arguments)
