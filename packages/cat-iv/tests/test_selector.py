"""The estimator: the algorithm, its invariances, its options, and its diagnostics."""

import pickle
import warnings
from itertools import combinations, permutations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression

from icml25.cat_iv import (
    CATSelector,
    NoValidSetError,
    WeakInstrumentError,
    WeakInstrumentWarning,
    auxiliary,
    first_stage_f,
    make_anlce,
    pair_scores,
    residualise,
    two_stage_least_squares,
)
from icml25.cat_iv.independence import chi2_p_value, holm
from icml25.cat_iv.simulate import Simulation

NAMES = ["IV1", "IV2", "IV3", "IV4", "IV5"]


@pytest.fixture(scope="module")
def plain() -> Simulation:
    return make_anlce(600, seed=11)


@pytest.fixture(scope="module")
def adjusted() -> Simulation:
    return make_anlce(600, covariates=True, seed=12)


def fit(s: Simulation, frame: bool = False, **options: object) -> CATSelector:
    Z = pd.DataFrame(s.Z, columns=NAMES) if frame else s.Z
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakInstrumentWarning)
        return CATSelector(**options).fit(Z, s.x, s.y, s.W)  # type: ignore[arg-type]


def test_selects_the_valid_pair_and_estimates_its_effect(plain: Simulation) -> None:
    model = fit(plain, frame=True)
    assert model.selected_ == ["IV1", "IV2"]
    np.testing.assert_array_equal(model.support_, plain.valid)
    assert model.effect_ == pytest.approx(plain.beta, abs=0.25)
    assert model.effect_ == pytest.approx(two_stage_least_squares(plain.Z[:, :2], plain.x, plain.y), rel=1e-9)
    assert fit(plain).selected_ == [0, 1]
    assert model.n_used_ == 600 and model.weak_ == [] and model.p_values_ is None and model.passes_ is None


def test_scores_are_those_of_the_functions(plain: Simulation) -> None:
    model = fit(plain)
    np.testing.assert_allclose(model.pair_scores_, pair_scores(plain.Z, plain.x, plain.y), atol=1e-10)
    np.testing.assert_allclose(model.betas_, auxiliary(plain.Z, plain.x, plain.y)[1], rtol=1e-9)
    np.testing.assert_array_equal(model.directed_scores_ + model.directed_scores_.T, model.pair_scores_)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_the_set_is_the_minimiser(plain: Simulation, size: int) -> None:
    model = fit(plain, n_valid=size)
    D = model.pair_scores_
    by_hand = {s: sum(D[i, j] for i, j in combinations(s, 2)) for s in combinations(range(5), size)}
    best = min(by_hand, key=by_hand.__getitem__)
    assert tuple(model.selected_) == best and model.score_ == pytest.approx(by_hand[best])
    listed = {tuple(s): v for s, v in model.subset_scores_}
    assert listed.keys() == by_hand.keys() and list(listed.values()) == sorted(listed.values())
    for subset, value in by_hand.items():
        assert listed[subset] == pytest.approx(value)
        assert model.set_score(subset[::-1]) == pytest.approx(value)


def test_two_candidates_and_two_wanted() -> None:
    s = make_anlce(100, seed=1)
    assert CATSelector().fit(s.Z[:, [0, 2]], s.x, s.y).selected_ == [0, 1]


def test_covariates_are_partialled_out(adjusted: Simulation) -> None:
    assert adjusted.W is not None
    model = fit(adjusted)
    r = residualise(np.column_stack([adjusted.x, adjusted.y, adjusted.Z]), adjusted.W)
    np.testing.assert_allclose(model.pair_scores_, pair_scores(r[:, 2:], r[:, 0], r[:, 1]), atol=1e-7)
    np.testing.assert_allclose(model.betas_, auxiliary(r[:, 2:], r[:, 0], r[:, 1])[1], rtol=1e-6)
    np.testing.assert_allclose(model.first_stage_f_, first_stage_f(r[:, 2:], r[:, 0], 2), rtol=1e-6)
    assert model.selected_ == [0, 1]
    assert model.effect_ == pytest.approx(
        two_stage_least_squares(adjusted.Z[:, :2], adjusted.x, adjusted.y, adjusted.W), rel=1e-6
    )


def test_invariances(plain: Simulation) -> None:
    Z, x, y = plain.Z, plain.x, plain.y
    base = CATSelector(test="chi2", random_state=0).fit(Z, x, y)
    for other in (
        CATSelector(test="chi2", random_state=0).fit(Z, x, 1e-250 * y),
        CATSelector(test="chi2", random_state=0).fit(Z, x, 2 * y + 3 * x + 1),
        CATSelector(test="chi2", random_state=0).fit(Z * [2, -1, 1e200, 1e-200, 7] + [1, 2, 0, 0, 4], -4e200 * x, y),
    ):
        np.testing.assert_allclose(other.pair_scores_, base.pair_scores_, atol=1e-9)
        np.testing.assert_allclose(other.p_values_, base.p_values_, atol=1e-7)
        np.testing.assert_allclose(other.first_stage_f_, base.first_stage_f_, rtol=1e-7)
        assert other.selected_ == base.selected_
    shifted = CATSelector().fit(Z, x, 2 * y + 3 * x + 1)
    np.testing.assert_allclose(shifted.betas_, 2 * base.betas_ + 3, rtol=1e-8)
    assert shifted.effect_ == pytest.approx(2 * base.effect_ + 3, rel=1e-8)
    for scale in (10, 1e200, 1e-200):
        assert CATSelector().fit(Z, scale * x, y).effect_ * scale == pytest.approx(base.effect_, rel=1e-8)
        assert CATSelector().fit(Z, x, scale * y).effect_ / scale == pytest.approx(base.effect_, rel=1e-8)
    columns = [4, 1, 3, 0, 2]
    moved = CATSelector().fit(Z[:, columns], x, y)
    assert moved.selected_ == [1, 3]
    np.testing.assert_allclose(moved.pair_scores_, base.pair_scores_[np.ix_(columns, columns)], atol=1e-9)


def test_threads_and_seeds_change_nothing(plain: Simulation) -> None:
    options = {"test": "permutation", "n_permutations": 49, "subsample": 200}
    one, same = fit(plain, random_state=3, **options), fit(plain, random_state=3, n_jobs=2, **options)
    np.testing.assert_array_equal(one.pair_scores_, same.pair_scores_)
    np.testing.assert_array_equal(one.p_values_, same.p_values_)
    other = fit(plain, random_state=4, **options)
    assert (one.pair_scores_ != other.pair_scores_).any()


def test_subsample_caps_the_rows_of_the_scores_only(plain: Simulation) -> None:
    model, full = fit(plain, subsample=150, random_state=0), fit(plain)
    np.testing.assert_array_equal(model.betas_, full.betas_)
    rows = np.random.default_rng(0).choice(600, 150, replace=False)
    A, _ = auxiliary(plain.Z, plain.x, plain.y)
    from icml25.cat_iv.independence import cross_correlations

    np.testing.assert_allclose(model.directed_scores_, cross_correlations(A[rows], plain.Z[rows]), atol=1e-9)
    np.testing.assert_array_equal(fit(plain, subsample=600).pair_scores_, full.pair_scores_)


def test_p_values_use_rows_that_did_not_estimate(plain: Simulation) -> None:
    model = fit(plain, test="chi2", split=0.6, random_state=5)
    order = np.random.default_rng(5).permutation(600)
    _, betas = auxiliary(plain.Z[order[:360]], plain.x[order[:360]], plain.y[order[:360]])
    held_out = order[360:]
    for i, j in permutations(range(5), 2):
        A_i = plain.y[held_out] - betas[i] * plain.x[held_out]
        assert model.p_values_[i, j] == pytest.approx(chi2_p_value(A_i, plain.Z[held_out, j]), rel=1e-6, abs=1e-300)
    assert np.isnan(np.diag(model.p_values_)).all()
    assert model.passes_ == (holm(np.array([model.p_values_[0, 1], model.p_values_[1, 0]])).min() >= 0.05)


def test_automatic_size() -> None:
    s = make_anlce(1500, seed=2)
    model = CATSelector("auto", random_state=0).fit(s.Z, s.x, s.y)
    assert model.selected_ == [0, 1] and model.passes_ is True
    assert "pass at level" in model.summary()
    rng = np.random.default_rng(0)
    Z = rng.uniform(-1, 1, (1500, 4))
    u = rng.normal(size=1500)
    x = (Z**3).sum(1) + u + 0.1 * rng.normal(size=1500)
    y = 0.7 * x + u + 2 * Z[:, 3] ** 2 + Z[:, 3]
    three = CATSelector("auto", random_state=0).fit(Z, x, y)
    assert three.selected_ == [0, 1, 2] and three.effect_ == pytest.approx(0.7, abs=0.3)


def test_no_set_passes() -> None:
    rng = np.random.default_rng(1)
    Z = rng.uniform(-1, 1, (800, 2))
    x = Z.sum(1) + 0.3 * rng.normal(size=800)
    y = x + 3 * Z[:, 0] ** 2 - 3 * Z[:, 1] ** 2 + Z[:, 0]
    with pytest.raises(NoValidSetError, match="no set of two"):
        CATSelector("auto").fit(Z, x, y)
    with pytest.warns(UserWarning, match="no set of two"):
        model = CATSelector("auto", on_fail="warn", random_state=0).fit(Z, x, y)
    assert model.selected_ == [0, 1] and model.passes_ is False
    assert "do NOT pass" in model.summary()
    with pytest.warns(UserWarning, match="does not pass its cross tests"):
        assert CATSelector(test="chi2", random_state=0).fit(Z, x, y).passes_ is False


def test_the_screen_leaves_weak_candidates_out(plain: Simulation) -> None:
    rng = np.random.default_rng(2)
    Z = pd.DataFrame(plain.Z, columns=NAMES).assign(noise=rng.normal(size=600))
    bare = fit(plain)
    model = CATSelector(min_first_stage_f=10, test="chi2").fit(Z, plain.x, plain.y)
    assert "noise" in model.weak_ and "IV1" not in model.weak_
    k = NAMES.index("IV3")
    assert np.isnan(model.pair_scores_[5]).all() and np.isnan(model.pair_scores_[:, 5]).all()
    assert np.isnan(model.betas_[5]) and np.isnan(model.p_values_[5]).all()
    assert model.pair_scores_[0, k] == pytest.approx(bare.pair_scores_[0, k], abs=1e-12)
    assert model.betas_[1] == pytest.approx(bare.betas_[1])
    assert model.selected_ == ["IV1", "IV2"]
    assert "not scored" in model.summary()
    with pytest.raises(ValueError, match="expected at least two distinct"):
        model.set_score(["IV1", "noise"])
    with pytest.raises(ValueError, match=r"n_valid is 6 and there are 6.*noise"):
        CATSelector(6, min_first_stage_f=10).fit(Z, plain.x, plain.y)
    with pytest.raises(ValueError, match="at least 2 candidates"):
        CATSelector("auto", min_first_stage_f=1e9).fit(Z, plain.x, plain.y)


def test_the_screen_is_at_its_threshold(plain: Simulation) -> None:
    F = fit(plain).first_stage_f_
    third = np.sort(F)[2]
    assert fit(plain, min_first_stage_f=float(third)).weak_ == np.flatnonzero(third > F).tolist()
    assert len(fit(plain, min_first_stage_f=float(third) * 1.001).weak_) == 3


def test_selected_weak_instruments_are_reported() -> None:
    rng = np.random.default_rng(3)
    z = rng.uniform(-1, 1, (400, 2))
    x = z[:, 0] ** 2 + z[:, 1] ** 2 + 0.1 * rng.normal(size=400)
    with pytest.warns(WeakInstrumentWarning, match=r"no linear first stage.*Z\*\*2"):
        CATSelector().fit(z, x, x + rng.normal(size=400))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CATSelector().fit(z**2, x, x + 0.1 * rng.normal(size=400))


def test_selected_instruments_that_disagree_are_reported() -> None:
    rng = np.random.default_rng(4)
    z = rng.normal(size=(400, 2))
    x = z.sum(1) + 0.1 * rng.normal(size=400)
    with pytest.warns(WeakInstrumentWarning, match="more than 10 times"):
        CATSelector().fit(z, x, x + 30 * z[:, 0] + 0.1 * rng.normal(size=400))


def test_control_function_effect() -> None:
    s = make_anlce(1000, effect="sin", seed=5)
    model = CATSelector(effect="control_function", test="chi2", random_state=0).fit(s.Z, s.x, s.y)
    assert model.selected_ == [0, 1]
    constant = fit(s)
    assert model.score_ < constant.set_score([0, 1])
    np.testing.assert_array_equal(model.betas_, constant.betas_)


def test_forest_residuals(adjusted: Simulation) -> None:
    assert adjusted.W is not None
    small = Simulation(
        adjusted.Z[:80, :2], adjusted.x[:80], adjusted.y[:80], adjusted.W[:80], adjusted.beta, adjusted.valid[:2]
    )
    forest, same = (fit(small, residual="forest", cross_fit=2, random_state=0) for _ in range(2))
    np.testing.assert_array_equal(forest.pair_scores_, same.pair_scores_)
    assert (forest.pair_scores_ != fit(small).pair_scores_).any()


def test_residual_regressors(adjusted: Simulation) -> None:
    linear = fit(adjusted, residual=LinearRegression(), random_state=0)
    np.testing.assert_allclose(linear.pair_scores_, fit(adjusted).pair_scores_, atol=0.1)
    assert (linear.pair_scores_ != fit(adjusted).pair_scores_).any()
    result = linear.iv2sls()
    assert result.params["treatment"] == pytest.approx(linear.effect_, rel=1e-8)


@pytest.mark.parametrize("covariates", [False, True])
def test_iv2sls_agrees_with_the_effect(plain: Simulation, adjusted: Simulation, covariates: bool) -> None:
    model = fit(adjusted if covariates else plain, frame=True)
    result = model.iv2sls()
    assert result.params["treatment"] == pytest.approx(model.effect_, rel=1e-7)
    assert "IV1" in str(result.summary) and 0 <= result.sargan.pval <= 1


def test_frames_arrays_and_orders_agree(plain: Simulation) -> None:
    base = fit(plain)
    Z = pd.DataFrame(plain.Z, columns=NAMES, index=np.arange(600)[::-1])
    series = pd.Series(plain.x, index=Z.index), pd.Series(plain.y, name="y")
    frame = CATSelector().fit(Z, *series)
    np.testing.assert_array_equal(frame.pair_scores_, base.pair_scores_)
    for other in (np.asfortranarray(plain.Z), plain.Z[:, ::-1][:, ::-1], plain.Z.tolist()):
        np.testing.assert_array_equal(
            CATSelector().fit(other, plain.x[:, None], plain.y).pair_scores_, base.pair_scores_
        )
    single = CATSelector().fit(plain.Z.astype(np.float32), plain.x.astype(np.float32), plain.y)
    assert single.pair_scores_.dtype == np.float64
    np.testing.assert_allclose(single.pair_scores_, base.pair_scores_, atol=1e-5)
    assert frame.feature_names_in_.tolist() == NAMES and not hasattr(base, "feature_names_in_")


def test_inputs_are_not_modified(adjusted: Simulation) -> None:
    arrays = [np.array(a) for a in (adjusted.Z, adjusted.x, adjusted.y, adjusted.W)]
    for a in arrays:
        a.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakInstrumentWarning)
        CATSelector(test="chi2").fit(*arrays)


def test_transform(plain: Simulation) -> None:
    model = fit(plain, frame=True)
    Z = pd.DataFrame(plain.Z, columns=NAMES)[NAMES[::-1]]
    pd.testing.assert_frame_equal(model.transform(Z), Z[["IV1", "IV2"]])
    np.testing.assert_array_equal(model.transform(plain.Z), plain.Z[:, :2])
    assert model.get_feature_names_out().tolist() == ["IV1", "IV2"]
    unnamed = fit(plain)
    assert unnamed.get_feature_names_out().tolist() == ["x0", "x1"]
    assert unnamed.get_feature_names_out(NAMES).tolist() == ["IV1", "IV2"]
    assert unnamed.transform(pd.DataFrame(plain.Z, columns=NAMES)).columns.tolist() == ["IV1", "IV2"]
    with pytest.raises(ValueError, match="lacks the selected columns"):
        model.transform(Z[["IV2", "IV3"]])
    with pytest.raises(ValueError, match="3 columns"):
        unnamed.transform(plain.Z[:, :3])
    with pytest.raises(ValueError, match="2 names"):
        unnamed.get_feature_names_out(["a", "b"])


def test_integer_column_names() -> None:
    s = make_anlce(300, seed=6)
    model = CATSelector().fit(pd.DataFrame(s.Z, columns=[10, 20, 30, 40, 50]), s.x, s.y)
    assert set(model.selected_) <= {10, 20, 30, 40, 50}
    assert model.set_score(model.selected_) == pytest.approx(model.score_)
    assert model.transform(pd.DataFrame(s.Z, columns=[10, 20, 30, 40, 50])).shape == (300, 2)


def test_scikit_learn_conventions(plain: Simulation) -> None:
    from sklearn.exceptions import NotFittedError

    model = CATSelector(3, min_first_stage_f=2.5, random_state=1)
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(n_valid=2).n_valid == 2
    assert "n_valid=3" in repr(CATSelector(3))
    with pytest.raises(NotFittedError):
        model.transform(plain.Z)
    with pytest.raises(NotFittedError):
        model.summary()
    fitted = fit(plain, frame=True)
    restored = pickle.loads(pickle.dumps(fitted))
    assert restored.summary() == fitted.summary()
    assert restored.iv2sls().params["treatment"] == fitted.iv2sls().params["treatment"]
    again = fitted.fit(plain.Z, plain.x, plain.y)
    assert again is fitted and not hasattr(again, "feature_names_in_")


def test_summary_says_why(plain: Simulation) -> None:
    model = fit(plain, frame=True, test="chi2", random_state=0)
    lines = {line.split()[0]: line for line in model.summary().splitlines()}
    assert "selected" in lines["IV1"] and "selected" in lines["IV2"]
    C, D = model.directed_scores_, model.pair_scores_
    worst = max(C[0, 2], C[1, 2], C[2, 0], C[2, 1])
    swapped = min(D[0, 2], D[1, 2])
    assert f"= {worst:.3f} (p" in lines["IV3"] and f"score is {swapped:.4f}" in lines["IV3"]
    assert "proportional" in model.summary()


def test_plot_scores(plain: Simulation) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    model = fit(plain, frame=True)
    ax = model.plot_scores()
    assert [t.get_text() for t in ax.get_xticklabels()] == NAMES
    assert f"{model.pair_scores_[0, 1]:.2f}" in {t.get_text() for t in ax.texts}
    assert len(ax.patches) == 2  # the pair, in both orders
    assert model.plot_scores(ax) is ax
    plt.close("all")


def test_extras_are_named_when_missing(plain: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    model = fit(plain)
    monkeypatch.setitem(sys.modules, "linearmodels.iv", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"icml25-cat-iv\[iv\]"):
        model.iv2sls()
    with pytest.raises(ImportError, match=r"icml25-cat-iv\[plot\]"):
        model.plot_scores()


def test_proportional_violations_pass() -> None:
    """The limit of the method: no data tell such a pair from a valid one."""
    rng = np.random.default_rng(7)
    Z = rng.uniform(-1, 1, (2000, 4))
    g = Z**3
    u = rng.uniform(-1, 1, 2000) ** 3
    x = g.sum(1) + u + 0.3 * rng.uniform(-1, 1, 2000)
    y = 0.5 * x + u + g[:, 2] + g[:, 3] + 0.3 * rng.uniform(-1, 1, 2000)
    D = CATSelector().fit(Z, x, y).pair_scores_
    assert max(D[0, 1], D[2, 3]) < 0.5 * min(D[0, 2], D[0, 3], D[1, 2], D[1, 3])
    assert CATSelector().fit(Z[:, 2:], x, y).effect_ == pytest.approx(1.5, abs=0.2)


def test_opposite_effects_are_reported_only_when_they_are_clear() -> None:
    rng = np.random.default_rng(4)
    z = rng.normal(size=(400, 2))
    x, e = z.sum(1) + 0.1 * rng.normal(size=400), 0.1 * rng.normal(size=400)
    with pytest.warns(WeakInstrumentWarning, match="differ in sign"):
        model = CATSelector().fit(z, x, 3.4 * (z[:, 0] - z[:, 1]) + e)
    assert model.betas_ == pytest.approx([3.4, -3.4], rel=0.2)
    y = residualise(rng.normal(size=(400, 1)), np.column_stack([z, x]))[:, 0]  # no effect but for noise
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opposite = CATSelector().fit(z, x, y + 1e-3 * (z[:, 0] - z[:, 1]))
    assert opposite.betas_[0] * opposite.betas_[1] < 0


def quadratic(n: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eight candidates, of which six have direct effects as plain as can be."""
    rng = np.random.default_rng(0)
    Z, e = rng.uniform(-1, 1, (n, 8)), rng.normal(size=n)
    x = Z.sum(1) + 0.2 * e
    return Z, x, x + 50 * (Z**2) @ np.array([0, 0, 1, -1, 1, -1, 2, -2])


def test_too_few_permutations_to_reject_anything_are_refused() -> None:
    Z, x, y = quadratic()
    for size in ("auto", 8):
        with pytest.raises(ValueError, match=r"n_permutations is 999; expected at least 1120.*56 cross tests of 8"):
            CATSelector(size, test="permutation").fit(Z, x, y)
    with pytest.raises(ValueError, match="n_permutations is 39; expected at least 40"):
        CATSelector(test="permutation", n_permutations=39).fit(Z, x, y)
    assert CATSelector(test="permutation", n_permutations=40, random_state=0).fit(Z[:, :3], x, y).passes_
    y = x + 3 * Z[:, 0] ** 2 - 3 * Z[:, 1] ** 2
    with pytest.raises(NoValidSetError):  # the fewest permutations that can reject do
        CATSelector("auto", test="permutation", n_permutations=40, random_state=0).fit(Z[:, :2], x, y)


@pytest.mark.parametrize("seed", [1.5, -1, "a"], ids=str)
def test_bad_random_state(plain: Simulation, seed: object) -> None:
    with pytest.raises(ValueError, match=r"random_state is .*expected None, a whole number"):
        CATSelector(random_state=seed).fit(plain.Z, plain.x, plain.y)


def test_more_folds_than_rows(adjusted: Simulation) -> None:
    with pytest.raises(ValueError, match="cross_fit is 601; expected a whole number from 2 to 600"):
        CATSelector(residual=LinearRegression(), cross_fit=601).fit(adjusted.Z, adjusted.x, adjusted.y, adjusted.W)


def test_the_control_function_needs_no_linear_first_stage() -> None:
    z = np.array([(a, b) for a in (-2.0, -1, 0, 1, 2) for b in (-2.0, -1, 0, 1, 2)] * 4)
    rng = np.random.default_rng(0)
    x = z[:, 0] ** 2 + z[:, 1] ** 2
    with pytest.warns(WeakInstrumentWarning, match="no linear first stage"):
        model = CATSelector(effect="control_function").fit(z, x, x + 0.1 * rng.normal(size=100))
    assert np.isnan(model.betas_).all() and np.isnan(model.effect_) and np.isfinite(model.pair_scores_).all()
    with pytest.raises(WeakInstrumentError, match=r"Z\[0\], Z\[1\] is zero"):
        model.iv2sls()


HOSTILE = {
    "treatment far off": lambda s: (s.Z, s.x + 1e6, s.y, s.W),
    "candidates far off": lambda s: (s.Z + 1e9, s.x, s.y, s.W),
    "outcome far off": lambda s: (s.Z, s.x, s.y + 1e9, s.W),
    "covariates far off": lambda s: (s.Z, s.x, s.y, s.W + 1e9),
    "constant covariate": lambda s: (s.Z, s.x, s.y, np.column_stack([s.W, np.full(len(s.x), 0.1)])),
    "twice a covariate": lambda s: (s.Z, s.x, s.y, np.column_stack([s.W, s.W[:, :1] * 3 + 1])),
    "large treatment": lambda s: (s.Z, 1e9 * s.x, s.y, s.W),
    "large covariates": lambda s: (s.Z * 1e-9, s.x, s.y, 1e9 * s.W),
    "dependent": lambda s: (np.column_stack([s.Z[:, :2], s.Z[:, 0] + s.Z[:, 1]]), s.x, s.y, s.W),
    "dependent given covariates": lambda s: (
        np.column_stack([s.Z[:, :2], s.W - s.Z[:, :1] - s.Z[:, 1:2]])[:, :3],
        s.x,
        s.y,
        s.W,
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_iv2sls_and_the_functions_agree_with_the_effect_whatever_the_columns(adjusted: Simulation, case: str) -> None:
    Z, x, y, W = HOSTILE[case](adjusted)
    model = CATSelector(3 if "dependent" in case else 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakInstrumentWarning)
        model.fit(Z, x, y, W)
    result = model.iv2sls()
    assert result.params["treatment"] == pytest.approx(model.effect_, rel=1e-9)
    assert two_stage_least_squares(Z[:, model.support_], x, y, W) == pytest.approx(model.effect_, rel=1e-9)
    assert result.sargan.df == 1
    base = fit(adjusted)
    if "depend" not in case:
        scale = 1e-9 if case == "large treatment" else 1
        assert model.effect_ == pytest.approx(base.effect_ * scale, rel=1e-5)
        np.testing.assert_allclose(model.first_stage_f_, base.first_stage_f_, rtol=1e-5)  # of the rank of W


def test_standard_errors_of_iv2sls_are_those_of_the_plain_columns(adjusted: Simulation) -> None:
    from linearmodels.iv import IV2SLS

    assert adjusted.W is not None
    model = fit(adjusted)
    exogenous = np.column_stack([np.ones(600), adjusted.W])
    plain = IV2SLS(adjusted.y, exogenous, adjusted.x, adjusted.Z[:, model.support_]).fit(cov_type="robust")
    result = model.iv2sls()
    assert result.std_errors["treatment"] == pytest.approx(plain.std_errors["endog"], rel=1e-7)
    assert result.sargan.stat == pytest.approx(plain.sargan.stat, rel=1e-6)
    assert result.rsquared == pytest.approx(plain.rsquared, rel=1e-7)


def test_integers_far_from_zero() -> None:
    rng = np.random.default_rng(0)
    Z = rng.integers(0, 3, (500, 3))
    u = rng.integers(-3, 4, 500)
    x, y = 10 * Z.sum(1) + u, 25 * Z.sum(1) + 5 * u
    near, far = auxiliary(Z, x, y)[1], auxiliary(Z + 10**9, x + 10**12, y - 10**12)[1]
    np.testing.assert_allclose(far, near, rtol=1e-12)
    W = rng.integers(0, 9, (500, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakInstrumentWarning)
        models = [CATSelector().fit(Z, x + s, y - s, W + s) for s in (0, 10**12)]
    np.testing.assert_allclose(models[1].pair_scores_, models[0].pair_scores_, atol=1e-10)
    assert models[1].effect_ == pytest.approx(models[0].effect_, rel=1e-11)


def test_candidates_that_are_called_like_the_treatment(plain: Simulation) -> None:
    Z = pd.DataFrame(plain.Z, columns=["treatment", "outcome", "c", 1, "1"])
    np.testing.assert_array_equal(fit(plain).pair_scores_, CATSelector().fit(Z, plain.x, plain.y).pair_scores_)
    Z.loc[3, "treatment"] = np.nan
    with pytest.raises(ValueError, match=r"treatment \(1\)"):
        CATSelector().fit(Z, plain.x, plain.y)


@pytest.mark.parametrize("subset", [[True, False], [0.0, 1], [0], [0, 0], [0, "a"], 3, "ab", [[0], [1]]], ids=str)
def test_bad_sets(plain: Simulation, subset: object) -> None:
    with pytest.raises(ValueError, match=r"subset is .*at least two distinct"):
        fit(plain).set_score(subset)


def test_p_values_of_valid_pairs_are_not_exact() -> None:
    """What the docstring says of split: about a tenth of single tests of valid pairs reject at 5%."""
    p = []
    for seed in range(60):
        s = make_anlce(1000, seed=4000 + seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            values = CATSelector(test="chi2", random_state=seed).fit(s.Z[:, :2], s.x, s.y).p_values_
        p += [values[0, 1], values[1, 0]]
    assert 0.02 < np.mean(np.array(p) < 0.05) < 0.2
