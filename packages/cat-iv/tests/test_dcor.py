"""Distance correlation against the library dcor; in a file of its own, as the import compiles for many seconds."""

import dcor
import numpy as np
import pytest
from scipy.stats import chi2

from icml25.cat_iv import chi2_p_value, distance_correlation


def sample(kind: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_t(1.5, n) if kind == "heavy" else rng.normal(size=n)
    y = np.abs(x) ** 0.5 + rng.normal(size=n)
    if kind == "ties":
        return np.round(x), np.round(y)
    if kind == "binary":
        return (x > 0).astype(float), (y > 1).astype(float)
    if kind == "dosage":
        return rng.integers(0, 3, n).astype(float), y
    return x, y


@pytest.mark.parametrize("kind", ["smooth", "ties", "binary", "dosage", "heavy"])
def test_distance_correlation(kind: str) -> None:
    x, y = sample(kind, 5000)
    assert distance_correlation(x, y) == pytest.approx(dcor.distance_correlation(x, y, method="mergesort"), abs=1e-10)


@pytest.mark.parametrize("kind", ["smooth", "ties"])
def test_chi2_p_value_is_that_of_the_bias_corrected_statistic(kind: str) -> None:
    for n in (20, 150):
        x, y = sample(kind, n)
        expected = chi2.sf(n * dcor.u_distance_correlation_sqr(x, y) + 1, 1)
        assert chi2_p_value(x, y) == pytest.approx(expected, rel=1e-8)
