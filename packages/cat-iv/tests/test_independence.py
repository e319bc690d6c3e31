"""Distance correlation against its definition and a library; tests of independence; Holm."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from icml25.cat_iv import chi2_p_value, distance_correlation, permutation_p_value
from icml25.cat_iv.independence import cross_correlations, holm


def centred(v: np.ndarray) -> np.ndarray:
    a = np.abs(v[:, None] - v)
    return a - a.mean(0) - a.mean(1)[:, None] + a.mean()


def definition(x: np.ndarray, y: np.ndarray) -> float:
    a, b = centred(x), centred(y)
    return float(np.sqrt((a * b).mean() / np.sqrt((a * a).mean() * (b * b).mean())))


def sample(kind: str, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    y = x**2 + rng.normal(size=n)
    if kind == "ties":
        return np.round(x), np.round(y)
    if kind == "binary":
        return (x > 0).astype(float), (y > 1).astype(float)
    if kind == "dosage":
        return rng.integers(0, 3, n).astype(float), y
    if kind == "heavy":
        return rng.standard_t(1.5, n), y
    return x, y


@pytest.mark.parametrize("n", [2, 3, 31, 32, 33, 63, 64, 65, 100, 129, 257, 1000])
@pytest.mark.parametrize("kind", ["smooth", "ties", "binary", "dosage", "heavy"])
def test_against_the_definition(kind: str, n: int) -> None:
    x, y = sample(kind, n)
    if np.ptp(x) and np.ptp(y):
        assert distance_correlation(x, y) == pytest.approx(definition(x, y), abs=1e-10)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=150),
    st.floats(-1e6, 1e6).filter(lambda c: abs(c) > 1e-6),
    st.floats(-1e6, 1e6),
)
def test_range_and_invariance(points: list[tuple[int, int]], scale: float, shift: float) -> None:
    x, y = np.array(points, dtype=float).T
    value = distance_correlation(x, y)
    assert 0 <= value <= 1
    assert distance_correlation(y, x) == pytest.approx(value, abs=1e-7)
    if np.ptp(x) and np.ptp(y):
        assert value == pytest.approx(definition(x, y), abs=1e-7)  # the root of a rounding error of 1e-15 is 3e-8
        if abs(shift) < 1e3 * abs(scale):
            assert distance_correlation(scale * x + shift, y) == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize(("scale", "shift"), [(1e300, 0), (-1e-300, 0), (1.0, 1e9), (-3.0, 1e12), (2.0**30, 2.0**60)])
def test_scale_shift_and_sign(scale: float, shift: float) -> None:
    x, y = np.rint(2**10 * np.array(sample("smooth", 500))) / 2**10  # the sums are exact
    assert distance_correlation(scale * x + shift, y) == pytest.approx(distance_correlation(x, y), abs=1e-12)


def test_an_outlier_costs_no_digits() -> None:
    x, y = sample("smooth", 500)
    x[0] = 1e13
    assert distance_correlation(x, y) == pytest.approx(definition(x, y), abs=1e-10)


def test_timestamps_in_nanoseconds() -> None:
    seconds, y = np.rint(1e5 * np.array(sample("smooth", 300)))
    stamps = (seconds * 10**9).astype(np.int64) + 1_764_547_200 * 10**9
    assert distance_correlation(stamps, y) == pytest.approx(distance_correlation(seconds, y), abs=1e-12)


def test_known_values() -> None:
    x = np.arange(50.0)
    assert distance_correlation(x, -2 * x + 1) == pytest.approx(1, abs=1e-12)
    assert distance_correlation(x, np.ones(50)) == 0
    grid = np.array([(a, b) for a in range(7) for b in range(9)], dtype=float)
    assert distance_correlation(*grid.T) == pytest.approx(0, abs=1e-7)  # independent exactly
    assert distance_correlation([0, 1], [5, 3]) == pytest.approx(1)
    assert distance_correlation([True, False, True], [1, 2, 4]) == pytest.approx(
        definition(np.array([1.0, 0, 1]), np.array([1.0, 2, 4]))
    )


def test_level_of_independent_samples() -> None:
    rng = np.random.default_rng(0)
    for n, level in {200: 0.11, 1000: 0.054, 5000: 0.025}.items():
        values = [distance_correlation(rng.normal(size=n), rng.normal(size=n)) for _ in range(60)]
        assert np.median(values) == pytest.approx(level, rel=0.25)


def test_cross_correlations_leave_the_diagonal_out() -> None:
    rng = np.random.default_rng(0)
    A, Z = rng.normal(size=(80, 3)), rng.normal(size=(80, 3))
    C = cross_correlations(A, Z)
    for i in range(3):
        for j in range(3):
            assert C[i, j] == pytest.approx(0 if i == j else definition(A[:, i], Z[:, j]), abs=1e-10)
    np.testing.assert_array_equal(cross_correlations(A, Z, n_jobs=2), C)


def test_chi2_test_is_conservative_and_consistent() -> None:
    rng = np.random.default_rng(1)
    p = [chi2_p_value(rng.normal(size=100), rng.exponential(size=100)) for _ in range(500)]
    assert 0 <= np.mean(np.array(p) < 0.05) <= 0.07
    x, y = sample("smooth", 300)
    assert chi2_p_value(x, y) < 1e-6
    assert chi2_p_value(x, np.ones(300)) == pytest.approx(chi2.sf(1, 1))


def test_permutation_p_value() -> None:
    x, y = sample("smooth", 200)
    assert permutation_p_value(x, y, 99, 0) == 0.01
    rng = np.random.default_rng(2)
    p = np.array([permutation_p_value(rng.normal(size=30), rng.normal(size=30), 19, rng) for _ in range(200)])
    assert abs(np.mean(p <= 0.25) - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 200)
    assert permutation_p_value(x, y, 49, 5) == permutation_p_value(x, y, 49, 5)
    x, y = np.array([0.0, 1, 2]), np.array([0.0, 1, 2])  # 2 of 6 permutations attain the maximum
    assert permutation_p_value(x, y, 3000, 0) == pytest.approx(1 / 3, abs=0.04)


def test_permuting_prepared_distances_is_permuting_the_data() -> None:
    x, y = sample("ties", 40)
    expected = []
    rng = np.random.default_rng(3)
    observed = (centred(x) * centred(y)).mean()
    for _ in range(25):
        shuffled = y[rng.permutation(40)]
        expected.append((centred(x) * centred(shuffled)).mean() >= observed - 1e-12)
    assert permutation_p_value(x, y, 25, 3) == (1 + sum(expected)) / 26
    independent = np.random.default_rng(9).normal(size=40)
    exceed = []
    rng = np.random.default_rng(3)
    for _ in range(25):
        exceed.append(
            (centred(x) * centred(independent[rng.permutation(40)])).mean()
            >= (centred(x) * centred(independent)).mean()
        )
    assert 0 < sum(exceed) < 25
    assert permutation_p_value(x, independent, 25, 3) == (1 + sum(exceed)) / 26


def test_holm() -> None:
    p = np.array([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(holm(p), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm(np.array([0.6, 0.9])), [1, 1])


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        ([1.0, 2.0], [1.0, 2.0, 3.0], ValueError, "lengths differ"),
        ([1.0, np.nan], [1.0, 2.0], ValueError, "x \\(1\\)"),
        (["a", "b"], [1.0, 2.0], TypeError, "dtype"),
        ([1.0], [1.0], ValueError, "at least 2"),
        ([], [], ValueError, "at least one row"),
        (3.0, [1.0, 2.0], TypeError, "x is 3.0"),
        ([1j, 2.0], [1.0, 2.0], TypeError, "complex"),
    ],
    ids=["lengths", "nan", "text", "one row", "empty", "scalar", "complex"],
)
def test_bad_input(x: object, y: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        distance_correlation(x, y)


@pytest.mark.parametrize("n_permutations", [-1, 0, 1.5, True, None], ids=str)
def test_bad_permutations(n_permutations: object) -> None:
    with pytest.raises(ValueError, match=r"n_permutations is .*whole number of at least 1"):
        permutation_p_value([1.0, 2, 4], [1.0, 5, 2], n_permutations)


def test_bad_seed() -> None:
    with pytest.raises(ValueError, match=r"seed is 1\.5; expected None"):
        permutation_p_value([1.0, 2, 4], [1.0, 5, 2], 9, 1.5)
