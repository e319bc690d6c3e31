"""Single-instrument effects, auxiliary variables, adjustment, first-stage F, and two-stage least squares."""

import numpy as np
import pandas as pd
import pytest
from linearmodels.iv import IV2SLS

from icml25.cat_iv import (
    CATSelector,
    WeakInstrumentError,
    auxiliary,
    cat_score,
    distance_correlation,
    first_stage_f,
    make_anlce,
    pair_scores,
    residualise,
    two_stage_least_squares,
)
from icml25.cat_iv.auxiliary import control_function_auxiliary


def test_auxiliary_is_the_ratio_of_covariances() -> None:
    s = make_anlce(200, seed=0)
    A, betas = auxiliary(s.Z, s.x, s.y)
    for j in range(5):
        beta = np.cov(s.y, s.Z[:, j])[0, 1] / np.cov(s.x, s.Z[:, j])[0, 1]
        assert betas[j] == pytest.approx(beta, rel=1e-9)
        np.testing.assert_allclose(A[:, j], s.y - beta * s.x, rtol=1e-8, atol=1e-8 * abs(beta))


CODED = np.array([0, 0, 1, 1, 0, 1])


@pytest.mark.parametrize(
    "z",
    [
        CODED,
        CODED + 1,
        2 * CODED - 1,
        100 * CODED,
        1 - CODED,
        CODED.astype(np.int8),
        CODED.astype(np.uint8),
        CODED.astype(bool),
        pd.DataFrame({"z": CODED.astype(bool)}, index=list("fedcba")),
        pd.DataFrame({"z": pd.array(CODED, dtype="Int64")}),
    ],
    ids=["01", "12", "-11", "0100", "10", "int8", "uint8", "bool", "frame", "nullable"],
)
def test_coding_of_a_binary_instrument(z: object) -> None:
    x, y = [1, 2, 4, 5, 0, 6], [2, 1, 9, 8, 0, 13]
    assert auxiliary(z, x, y)[1][0] == pytest.approx((10 - 1) / (5 - 1), abs=1e-12)


def test_pair_scores_have_cross_terms_only() -> None:
    s = make_anlce(150, seed=1)
    A, _ = auxiliary(s.Z, s.x, s.y)
    D = pair_scores(s.Z, s.x, s.y)
    for i in range(5):
        for j in range(5):
            cross = distance_correlation(A[:, i], s.Z[:, j]) + distance_correlation(A[:, j], s.Z[:, i])
            assert D[i, j] == pytest.approx(0 if i == j else cross, abs=1e-9)
    assert cat_score(s.Z, s.x, s.y, [0, 2, 4]) == pytest.approx(D[0, 2] + D[0, 4] + D[2, 4])


@pytest.mark.parametrize("subset", [[0], [0, 0], [0, 9], [-1, 0], [True, False], [0.0, 1], [None, 0], 2], ids=str)
def test_bad_subsets(subset: object) -> None:
    s = make_anlce(50, seed=1)
    with pytest.raises(ValueError, match="subset"):
        cat_score(s.Z, s.x, s.y, subset)


def test_scores_do_not_depend_on_units_or_effect() -> None:
    s = make_anlce(300, seed=2)
    D, betas = pair_scores(s.Z, s.x, s.y), auxiliary(s.Z, s.x, s.y)[1]
    y = 3 * s.y + 2 * s.x - 7
    np.testing.assert_allclose(pair_scores(s.Z, s.x, y), D, atol=1e-9)
    np.testing.assert_allclose(auxiliary(s.Z, s.x, y)[1], 3 * betas + 2, rtol=1e-9)
    np.testing.assert_allclose(pair_scores(s.Z, -5 * s.x + 1, s.y), D, atol=1e-9)
    np.testing.assert_allclose(pair_scores(s.Z * [1, -2, 3, 1e-150, 1e150] + [0, 1, 5, 0, 0], s.x, s.y), D, atol=1e-9)
    rows = np.random.default_rng(0).permutation(300)
    np.testing.assert_allclose(pair_scores(s.Z[rows], s.x[rows], s.y[rows]), D, atol=1e-9)
    columns = [3, 1, 4, 0, 2]
    np.testing.assert_allclose(pair_scores(s.Z[:, columns], s.x, s.y), D[np.ix_(columns, columns)], atol=1e-9)


def test_an_even_first_stage_is_no_linear_first_stage() -> None:
    z = np.tile([-2.0, -1, 0, 1, 2], 10)
    x = z**2
    Z = np.column_stack([z, np.random.default_rng(0).normal(size=50)])
    with pytest.raises(WeakInstrumentError, match=r"Z\[0\].*Z\*\*2"):
        auxiliary(Z, x, x + 1.0 * Z[:, 1])


def test_control_function_by_two_regressions() -> None:
    s = make_anlce(400, effect="sin", seed=3)
    A = control_function_auxiliary(s.Z, s.x, s.y)
    for j in (0, 4):
        first = np.vander(s.Z[:, j], 4)
        v = s.x - first @ np.linalg.lstsq(first, s.x, rcond=None)[0]
        second = np.column_stack([np.vander(s.x, 5), v])
        coefficients = np.linalg.lstsq(second, s.y, rcond=None)[0]
        expected = s.y - np.vander(s.x, 5)[:, :4] @ coefficients[:4]
        difference = A[:, j] - expected
        assert np.ptp(difference) < 1e-7 * np.ptp(expected)  # equal up to the constant
    rows = np.arange(200)
    np.testing.assert_allclose(
        np.diff(control_function_auxiliary(s.Z, s.x, s.y, rows)[:200], axis=0),
        np.diff(control_function_auxiliary(s.Z[:200], s.x[:200], s.y[:200]), axis=0),
        atol=1e-7,
    )


def test_linear_residuals() -> None:
    rng = np.random.default_rng(4)
    W = rng.normal(size=(60, 2)) * [1, 1e6] + [5, 0]
    V = rng.normal(size=(60, 3))
    residuals = residualise(V, W)
    np.testing.assert_allclose(residuals.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(W.T @ residuals / [[1], [1e6]], 0, atol=1e-10)
    np.testing.assert_allclose(residualise(V, np.column_stack([W, W[:, 0], np.ones(60)])), residuals, atol=1e-10)


def test_a_regressor_never_predicts_the_rows_that_it_saw() -> None:
    from sklearn.neighbors import KNeighborsRegressor

    rng = np.random.default_rng(5)
    W, V = rng.normal(size=(80, 1)), rng.normal(size=(80, 2))
    one_nearest = KNeighborsRegressor(1)  # in sample its residuals are 0
    residuals = residualise(V, W, one_nearest, cross_fit=4, seed=0)
    assert (np.abs(residuals) > 1e-12).all()
    np.testing.assert_array_equal(residualise(V, W, one_nearest, cross_fit=4, seed=0), residuals)
    assert (residualise(V, W, one_nearest, cross_fit=4, seed=1) != residuals).any()  # the folds are drawn


def test_first_stage_f() -> None:
    import statsmodels.api as sm

    s = make_anlce(100, covariates=True, seed=6)
    assert s.W is not None
    columns = residualise(np.column_stack([s.x, s.Z]), s.W)
    F = first_stage_f(columns[:, 1:], columns[:, 0], 2)
    for j in range(5):
        model = sm.OLS(s.x, sm.add_constant(np.column_stack([s.Z[:, j], s.W]))).fit()
        assert F[j] == pytest.approx(model.tvalues[1] ** 2, rel=1e-8)
    assert first_stage_f(s.x[:, None], s.x)[0] == np.inf


@pytest.mark.parametrize("covariates", [False, True])
@pytest.mark.parametrize("columns", [[0], [0, 1], [0, 1, 2, 3, 4]], ids=["one", "two", "all"])
def test_two_stage_least_squares_against_the_library(columns: list[int], covariates: bool) -> None:
    s = make_anlce(250, covariates=covariates, seed=7)
    exogenous = np.ones((250, 1)) if s.W is None else np.column_stack([np.ones(250), s.W])
    expected = IV2SLS(s.y, exogenous, s.x, s.Z[:, columns]).fit().params["endog"]
    assert two_stage_least_squares(s.Z[:, columns], s.x, s.y, s.W) == pytest.approx(expected, rel=1e-8)


def test_one_instrument_is_the_ratio_and_adjustment_commutes() -> None:
    s = make_anlce(250, covariates=True, seed=8)
    assert s.W is not None
    assert two_stage_least_squares(s.Z[:, [1]], s.x, s.y) == pytest.approx(auxiliary(s.Z, s.x, s.y)[1][1], rel=1e-9)
    r = residualise(np.column_stack([s.x, s.y, s.Z]), s.W)
    ratio = auxiliary(r[:, 2:], r[:, 0], r[:, 1])[1][1]
    assert two_stage_least_squares(s.Z[:, [1]], s.x, s.y, s.W) == pytest.approx(ratio, rel=1e-8)


def test_errors_orthogonal_to_the_instruments_give_the_effect_exactly() -> None:
    rng = np.random.default_rng(9)
    grid = np.array([(a, b) for a in range(6) for b in range(6)], dtype=float)
    x = grid[:, 0] ** 3 + grid[:, 1] + rng.normal(size=36)
    e = residualise(rng.normal(size=(36, 1)), grid)[:, 0]
    y = 1.7 * x + e
    np.testing.assert_allclose(auxiliary(grid, x, y)[1], 1.7, rtol=1e-10)
    assert two_stage_least_squares(grid, x, y) == pytest.approx(1.7, rel=1e-10)
    np.testing.assert_array_equal(pair_scores(grid, x, 1.7 * x), 0)  # nothing is left but rounding


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": np.ones(40)}, ValueError, "constant: x"),
        ({"y": np.r_[np.nan, np.ones(39)]}, ValueError, "y \\(1\\)"),
        ({"x": np.arange(39.0)}, ValueError, "lengths differ"),
        ({"x": np.ones((40, 2))}, ValueError, "x has shape \\(40, 2\\)"),
        ({"Z": np.full((40, 2), "a")}, TypeError, "Z has dtype"),
        ({"Z": np.zeros((40, 0))}, ValueError, "Z has shape"),
        ({"Z": np.zeros((40, 2, 2))}, ValueError, "Z has shape"),
        ({"Z": np.column_stack([np.arange(40.0), np.full(40, 3.3)])}, ValueError, r"constant: Z\[1\]"),
    ],
    ids=["constant", "nan", "lengths", "two columns", "text", "no columns", "cube", "constant candidate"],
)
@pytest.mark.parametrize(
    "function", [auxiliary, pair_scores, two_stage_least_squares], ids=["auxiliary", "pair_scores", "tsls"]
)
def test_bad_input(function: object, change: dict[str, np.ndarray], error: type[Exception], message: str) -> None:
    rng = np.random.default_rng(0)
    arguments = {"Z": rng.normal(size=(40, 2)), "x": rng.normal(size=40), "y": rng.normal(size=40)} | change
    with pytest.raises(error, match=message):
        function(**arguments)  # type: ignore[operator]


def test_covariates_of_two_stage_least_squares_are_checked() -> None:
    s = make_anlce(40, seed=0)
    with pytest.raises(ValueError, match="W"):
        two_stage_least_squares(s.Z, s.x, s.y, np.full((40, 1), np.nan))
    with pytest.raises(ValueError, match="lengths differ"):
        two_stage_least_squares(s.Z, s.x, s.y, np.ones((39, 1)))


def test_sets_of_a_frame_by_name() -> None:
    s = make_anlce(60, seed=1)
    Z = pd.DataFrame(s.Z, columns=["a", "b", "c", "d", True])
    assert cat_score(Z, s.x, s.y, ["d", "b"]) == cat_score(s.Z, s.x, s.y, [1, 3])
    assert cat_score(Z, s.x, s.y, ["a", True]) == cat_score(s.Z, s.x, s.y, (np.int64(0), 4))
    with pytest.raises(ValueError, match="distinct candidates of"):
        cat_score(Z, s.x, s.y, [0, 1])


@pytest.mark.parametrize("function", [CATSelector().fit, two_stage_least_squares], ids=["selector", "tsls"])
def test_covariates_that_determine_a_column(function: object) -> None:
    s = make_anlce(80, seed=2)
    rng = np.random.default_rng(0)
    cases = {r"Z\[0\]": s.Z[:, [0]], r"Z\[1\]": s.Z[:, [1]] * 1e9 + 4, "x|treatment": s.x, "y|outcome": s.y}
    for name, W in cases.items():
        with pytest.raises(ValueError, match=f"the covariates determine ({name}):"):
            function(s.Z, s.x, s.y, W)  # type: ignore[operator]
    with pytest.raises(ValueError, match="rows"):
        function(s.Z[:40], s.x[:40], s.y[:40], rng.normal(size=(40, 50)))  # type: ignore[operator]


def test_instruments_without_a_first_stage() -> None:
    grid = np.array([(a, b) for a in (-1.0, 0, 1) for b in (-1.0, 0, 1)] * 2)
    with pytest.raises(WeakInstrumentError, match=r"Z\[0\] is zero"):
        two_stage_least_squares(grid[:, :1], grid[:, 1], np.arange(18.0))


def test_dependent_instruments_count_once() -> None:
    s = make_anlce(100, seed=3)
    Z = np.column_stack([s.Z[:, :2], s.Z[:, 0] - 3 * s.Z[:, 1], s.Z[:, 0]])
    assert two_stage_least_squares(Z, s.x, s.y) == pytest.approx(two_stage_least_squares(s.Z[:, :2], s.x, s.y))


def test_what_the_functions_take() -> None:
    s = make_anlce(60, covariates=True, seed=4)
    assert s.W is not None
    V, W = pd.DataFrame(s.Z, index=np.arange(60)[::-1]), pd.DataFrame(s.W)
    np.testing.assert_array_equal(residualise(V, W), residualise(s.Z, s.W))
    np.testing.assert_array_equal(residualise(s.Z.tolist(), W[0]), residualise(s.Z, s.W[:, :1]))
    np.testing.assert_allclose(residualise(1e200 * s.Z, s.W - 1e9) / 1e200, residualise(s.Z, s.W), atol=1e-6)
    np.testing.assert_array_equal(first_stage_f(V, s.x.tolist()), first_stage_f(s.Z, s.x))


GAP = np.r_[np.nan, np.ones(39)]
LINE = np.arange(40.0)


@pytest.mark.parametrize(
    ("function", "arguments", "error", "message"),
    [
        (residualise, (GAP, LINE), ValueError, r"V\[0\] \(1\)"),
        (residualise, (LINE, GAP), ValueError, r"W\[0\] \(1\)"),
        (residualise, (LINE, LINE[:-1]), ValueError, r"V \(40, 1\), W \(39, 1\)"),
        (residualise, (["a"] * 40, LINE), TypeError, "V has dtype"),
        (residualise, (LINE, np.empty((40, 0))), ValueError, "W has shape"),
        (first_stage_f, (GAP, LINE), ValueError, r"Z\[0\] \(1\)"),
        (first_stage_f, (LINE, GAP), ValueError, r"x \(1\)"),
        (first_stage_f, (LINE, np.ones(40)), ValueError, "constant: x"),
        (first_stage_f, (LINE, LINE[:-1]), ValueError, "lengths differ"),
        (first_stage_f, (LINE, LINE, 38), ValueError, "n_covariates is 38; expected a whole number from 0 to 37"),
    ],
    ids=["V gap", "W gap", "V lengths", "text", "no W", "Z gap", "x gap", "constant", "x lengths", "degrees"],
)
def test_bad_input_of_the_steps(
    function: object, arguments: tuple[object, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        function(*arguments)  # type: ignore[operator]
