"""The rivals: closed forms, a library, and the linear models that they are made for."""

import numpy as np
import pytest
from linearmodels.iv import IV2SLS

from icml25.cat_iv import permutation_p_value
from icml25.cat_iv.baselines import Selection, ait_each, oracle, sargan, sargan_min, sisvive, tsht, tsls_all


def linear(n: int = 2000, seed: int = 0, invalid: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Seven candidates of equal strength, some with a direct effect; effect 0.5, confounded."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, 7)) + 0.5 * rng.normal(size=(n, 1)) + 3
    u = rng.normal(size=n)
    direct = np.r_[np.zeros(7 - invalid), np.linspace(1, 2, invalid)]
    x = 0.6 * Z.sum(1) + u + rng.normal(size=n)
    return Z, x, 0.5 * x + Z @ direct + u + rng.normal(size=n), direct == 0


def test_all_and_oracle() -> None:
    Z, x, y, valid = linear()
    exact = IV2SLS(y, np.ones((2000, 1)), x, Z[:, valid]).fit().params["endog"]
    assert oracle(Z, x, y, valid).effect == pytest.approx(exact, rel=1e-8)
    assert tsls_all(Z, x, y).effect == pytest.approx(
        IV2SLS(y, np.ones((2000, 1)), x, Z).fit().params["endog"], rel=1e-8
    )
    assert tsls_all(Z, x, y).support.all() and abs(tsls_all(Z, x, y).effect - 0.5) > 0.2


@pytest.mark.parametrize("controls", [False, True])
def test_sargan_against_the_library(controls: bool) -> None:
    Z, x, y, valid = linear()
    exogenous = np.column_stack([np.ones(2000), Z[:, ~valid]]) if controls else np.ones((2000, 1))
    result = IV2SLS(y, exogenous, x, Z[:, valid]).fit()
    J, freedom = sargan(Z[:, valid], x, y, Z[:, ~valid] if controls else None)
    np.testing.assert_allclose(J, result.sargan.stat, rtol=1e-6)
    assert freedom == result.sargan.df == 4


def test_sargan_min() -> None:
    Z, x, y, valid = linear(invalid=3)
    found = sargan_min(Z, x, y, 4)
    np.testing.assert_array_equal(found.support, valid)
    assert found.effect == pytest.approx(oracle(Z, x, y, valid).effect)


@pytest.mark.parametrize("method", [sisvive, tsht], ids=["sisVIVE", "TSHT"])
@pytest.mark.parametrize("invalid", [0, 1, 2, 3])
def test_linear_models_are_solved(method: object, invalid: int) -> None:
    Z, x, y, valid = linear(invalid=invalid, n=4000)
    found: Selection = method(Z, x, y)  # type: ignore[operator]
    np.testing.assert_array_equal(found.support, valid)
    design = np.column_stack([np.ones(4000), Z[:, ~valid]])
    expected = IV2SLS(y, design, x, Z[:, valid]).fit().params["endog"]
    assert found.effect == pytest.approx(expected, rel=1e-6)


def test_tsht_leaves_irrelevant_candidates_out() -> None:
    Z, x, y, valid = linear(n=4000)
    noise = np.random.default_rng(1).normal(size=(4000, 1))
    np.testing.assert_array_equal(tsht(np.column_stack([Z, noise]), x, y).support, np.r_[valid, False])
    rng = np.random.default_rng(2)
    nothing = tsht(rng.normal(size=(4000, 3)), rng.normal(size=4000), rng.normal(size=4000))
    assert not nothing.support.any() and np.isnan(nothing.effect)


def test_sisvive_gives_up_when_two_candidates_are_not_enough() -> None:
    rng = np.random.default_rng(3)
    Z, u = rng.normal(size=(2000, 3)), rng.normal(size=2000)
    x = Z.sum(1) + u
    found = sisvive(Z, x, x + Z @ [0, 3, -3] + u)
    assert not found.support.any() and np.isnan(found.effect)


def test_single_tests_keep_what_cross_tests_reject() -> None:
    rng = np.random.default_rng(4)
    Z, u = rng.uniform(-1, 1, (1500, 3)), rng.uniform(-1, 1, 1500)
    x = (Z**3).sum(1) + u
    y = x + u + np.array([0, 0, 1]) @ (Z**3).T  # direct effect proportional to its own first stage
    assert ait_each(Z, x, y, alpha=0.02, seed=0).support.all()
    assert ait_each(Z, x, y + 2 * Z[:, 2] ** 2, alpha=0.02, seed=0).support.tolist() == [True, True, False]


def test_ait_tests_the_other_rows() -> None:
    Z, x, y, _ = linear(n=200)
    rng = np.random.default_rng(0)
    fit_rows, test_rows = np.split(rng.permutation(200), [140])
    keep = []
    for z in Z.T:
        beta = np.cov(y[fit_rows], z[fit_rows])[0, 1] / np.cov(x[fit_rows], z[fit_rows])[0, 1]
        keep.append(permutation_p_value((y - beta * x)[test_rows], z[test_rows], 99, rng) >= 0.5)
    found = ait_each(Z, x, y, alpha=0.5, seed=0)
    np.testing.assert_array_equal(found.support, keep)
    assert 0 < sum(keep) < 7
