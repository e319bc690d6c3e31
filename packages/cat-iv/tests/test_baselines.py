"""The rivals: closed forms, a library, and the linear models that they are made for."""

from itertools import combinations

import numpy as np
import pytest
from linearmodels.iv import IV2SLS
from scipy.stats import chi2

from icml25.cat_iv import permutation_p_value
from icml25.cat_iv.baselines import (
    Selection,
    ait_each,
    direct_effects,
    oracle,
    sargan,
    sargan_min,
    sisvive,
    tsht,
    tsls_all,
)


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


def test_direct_effects_and_their_errors_against_the_library() -> None:
    Z, x, y, _ = linear(n=300, seed=5)
    Z, x, y = Z * np.linspace(0.5, 3, 7) - Z.mean(0), x - x.mean(), y - y.mean()
    Z -= Z.mean(0)
    relevant, direct, errors = direct_effects(Z, x, y)
    for j in range(7):
        others = np.delete(np.arange(7), j)
        design = np.column_stack([np.ones(300), Z[:, others]])
        fit = IV2SLS(y, design, x, Z[:, [j]]).fit(cov_type="unadjusted", debiased=True)
        np.testing.assert_allclose(direct[j, others], fit.params.iloc[1:-1], rtol=1e-7)
        np.testing.assert_allclose(errors[j, others], fit.std_errors.iloc[1:-1], rtol=1e-7)
        first = IV2SLS(x, np.column_stack([np.ones(300), Z]), None, None).fit(cov_type="unadjusted", debiased=True)
        assert relevant[j] == (abs(first.tstats.iloc[1 + j]) >= np.sqrt(np.log(300)))


def test_the_clique_of_tsht_by_hand() -> None:
    """Votes at sqrt(2.01 log n) standard errors, and both ways."""
    between = one_way = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        Z, u = rng.normal(size=(300, 4)), rng.normal(size=300)
        x = Z @ np.array([1, 0.9, 0.7, 0.5]) + u
        y = x + Z @ np.array([0, 0, 0.5, 2]) * rng.uniform(0, 1) + 2 * u + rng.normal(size=300)
        centred = Z - Z.mean(0)
        relevant, direct, errors = direct_effects(centred, x - x.mean(), y - y.mean())
        assert relevant.all()
        t = np.abs(direct) / np.where(np.eye(4), 1, errors) * (1 - np.eye(4))
        votes = t <= np.sqrt(2.01 * np.log(300))
        cliques = {
            s: votes[:, s].sum()
            for size in range(1, 5)
            for s in combinations(range(4), size)
            if votes[np.ix_(s, s)].all()
        }
        best = max(cliques, key=lambda s: (len(s), cliques[s]))
        assert np.flatnonzero(tsht(Z, x, y).support).tolist() == list(best)
        between += bool((votes & (t > np.sqrt(0.5 * np.log(300)))).any())
        one_way += bool((votes != votes.T).any())
    assert between >= 10 and one_way >= 3


def test_the_level_of_sisvive() -> None:
    between = 0
    for seed in range(60):
        Z, x, y, _ = linear(n=400, seed=seed, invalid=0)
        J, freedom = sargan(Z, x, y)
        p = chi2.sf(J, freedom)
        assert sisvive(Z, x, y).support.all() == (p >= 0.1 / np.log(400))
        between += 0.1 / np.log(400) <= p < 0.1
    assert between >= 2
