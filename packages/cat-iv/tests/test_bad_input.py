"""Every refusal names the argument, what came and what was expected."""

import numpy as np
import pandas as pd
import pytest

from icml25.cat_iv import CATSelector, WeakInstrumentError, make_anlce

S = make_anlce(80, covariates=True, seed=0)
ROWS = np.arange(80.0)


def changed(**arguments: object) -> dict[str, object]:
    return {"Z": S.Z, "treatment": S.x, "outcome": S.y, "covariates": S.W} | arguments


def with_value(a: np.ndarray, where: tuple[int, ...] | int, value: float) -> np.ndarray:
    a = a.copy()
    a[where] = value
    return a


FRAME = pd.DataFrame(S.Z, columns=list("abcde"))
CASES = {
    "nan": (
        changed(Z=FRAME.mask(FRAME.index.to_numpy()[:, None] == [0, 0, 1, 1, 999])),
        ValueError,
        r"a \(1\), b \(1\), c \(1\)",
    ),
    "inf": (changed(outcome=with_value(S.y, 3, np.inf)), ValueError, r"outcome \(1\).*nan_policy"),
    "nan covariate": (
        changed(covariates=with_value(np.asarray(S.W), (2, 1), np.nan)),
        ValueError,
        r"covariates\[1\] \(1\)",
    ),
    "masked": (changed(treatment=np.ma.masked_less(S.x, np.median(S.x))), ValueError, r"treatment \(40\)"),
    "one candidate": (changed(Z=S.Z[:, :1]), ValueError, "cross condition needs at least two"),
    "flat candidate": (changed(Z=S.Z[:, 0]), ValueError, "cross condition needs at least two"),
    "no rows": (
        changed(Z=np.empty((0, 2)), treatment=np.empty(0), outcome=np.empty(0), covariates=None),
        ValueError,
        "at least one row",
    ),
    "constant candidate": (changed(Z=np.column_stack([S.Z, np.full(80, 1e9)])), ValueError, r"constant: Z\[5\]"),
    "constant treatment": (changed(treatment=np.zeros(80)), ValueError, "constant: treatment"),
    "constant outcome": (changed(outcome=np.full(80, 3)), ValueError, "constant: outcome"),
    "duplicate": (
        changed(Z=np.column_stack([S.Z, 3 - 2 * S.Z[:, 1]])),
        ValueError,
        r"Z\[1\] and Z\[5\] are perfectly correlated",
    ),
    "collinear candidate": (changed(Z=np.column_stack([S.Z, np.asarray(S.W).sum(1)])), ValueError, r"determine Z\[5\]"),
    "collinear treatment": (changed(treatment=np.asarray(S.W)[:, 0] * 7 + 2), ValueError, "determine treatment"),
    "few rows": ({k: v[:29] for k, v in changed().items()}, ValueError, "29 rows can be used; expected at least 30"),
    "few rows for the columns": (
        {"Z": np.random.default_rng(0).normal(size=(31, 30)), "treatment": ROWS[:31], "outcome": ROWS[:31] ** 2},
        ValueError,
        "31 rows can be used; expected at least 33 for 30 candidates and 0 covariates",
    ),
    "text column": (changed(Z=FRAME.assign(c="x")), TypeError, r"c \("),
    "object column": (changed(Z=FRAME.astype({"b": object})), TypeError, r"b \(object\)"),
    "category": (changed(Z=FRAME.assign(d=pd.Categorical([1, 2] * 40))), TypeError, r"d \(category\)"),
    "dates": (changed(Z=FRAME.assign(d=pd.Timestamp(0))), TypeError, r"d \(datetime"),
    "text": (changed(treatment=["a"] * 80), TypeError, "treatment has dtype"),
    "objects": (changed(outcome=np.array([None] * 80)), TypeError, "outcome has dtype object"),
    "complex": (changed(outcome=S.y + 0j), TypeError, "outcome has dtype complex"),
    "none": (changed(outcome=None), TypeError, "outcome is None"),
    "scalar": (changed(treatment=3.0), TypeError, "treatment is 3.0"),
    "ragged outcome": (changed(outcome=[[1.0, 2.0], [3.0]]), ValueError, "outcome is ragged"),
    "no axis": (changed(outcome=np.array(3.0)), ValueError, r"outcome has shape \(\)"),
    "generator": (changed(outcome=(v for v in S.y)), TypeError, "outcome has dtype object"),
    "ragged": (changed(Z=[[1.0, 2.0], [3.0]]), ValueError, "Z is ragged"),
    "lengths": (changed(outcome=S.y[:79]), ValueError, r"Z \(80, 5\), treatment \(80,\), outcome \(79,\)"),
    "covariate length": (changed(covariates=ROWS[:70]), ValueError, r"covariates \(70, 1\)"),
    "two treatments": (changed(treatment=S.Z[:, :2]), ValueError, r"treatment has shape \(80, 2\)"),
    "three axes": (changed(Z=S.Z[:, :, None]), ValueError, r"Z has shape \(80, 5, 1\)"),
    "repeated names": (changed(Z=FRAME.set_axis(list("abcda"), axis=1)), ValueError, "same name: a"),
}


@pytest.mark.parametrize("case", CASES)
def test_data(case: str) -> None:
    arguments, error, message = CASES[case]
    with pytest.raises(error, match=message):
        CATSelector().fit(**arguments)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("n_valid", v) for v in (1, 0, -2, 2.0, True, "two", None, np.nan)],
        *[("effect", v) for v in ("linear", None, 1)],
        *[("residual", v) for v in ("ridge", None, 3, CATSelector)],
        *[("cross_fit", v) for v in (1, 2.5)],
        *[("min_first_stage_f", v) for v in (-1, np.nan, np.inf, "10", True)],
        *[("alpha", v) for v in (0, 1, -0.1, "a", np.nan)],
        *[("test", v) for v in ("t", False)],
        *[("split", v) for v in (0.0, 1.0, None)],
        *[("n_permutations", v) for v in (0, 1.5)],
        *[("subsample", v) for v in (10, 0.5)],
        *[("nan_policy", v) for v in ("drop", None)],
        *[("on_fail", v) for v in ("ignore", None)],
        *[("max_subsets", v) for v in (0, 1e6)],
        *[("n_jobs", v) for v in (0, 1.5, True)],
    ],
    ids=str,
)
def test_options(name: str, value: object) -> None:
    model = CATSelector().set_params(**{name: value})
    with pytest.raises(ValueError, match=f"{name} is .*expected"):
        model.fit(S.Z, S.x, S.y)


def test_more_instruments_than_candidates() -> None:
    with pytest.raises(ValueError, match=r"n_valid is 6 and there are 5 candidates.*at most 5"):
        CATSelector(6).fit(S.Z, S.x, S.y)


def test_no_linear_first_stage() -> None:
    z = np.tile([-2.0, -1, 0, 1, 2], 16)
    Z = pd.DataFrame({"even": z, "other": S.Z[:, 0]})
    with pytest.raises(WeakInstrumentError, match="even is zero"):
        CATSelector().fit(Z, z**2, S.y)


def test_too_many_sets() -> None:
    rng = np.random.default_rng(0)
    Z, e = rng.normal(size=(60, 20)), rng.normal(size=60)
    with pytest.raises(RuntimeError, match="max_subsets"):
        CATSelector(10, max_subsets=50).fit(Z, Z.sum(1) + e, Z[:, 0] + e)


def test_split_too_thin() -> None:
    with pytest.raises(ValueError, match="at least 10 rows on each side"):
        CATSelector(test="chi2", split=0.95).fit(S.Z, S.x, S.y)


def test_rows_with_gaps_can_be_left_out() -> None:
    Z, x, W = S.Z.copy(), S.x.copy(), np.array(S.W)
    Z[0, 2], x[5], W[9, 0] = np.nan, np.inf, np.nan
    model = CATSelector(nan_policy="omit", min_first_stage_f=0.0)
    keep = np.delete(np.arange(80), [0, 5, 9])
    with pytest.warns(UserWarning, match="first-stage F|differ"):
        model.fit(Z, x, S.y, W)
    assert model.n_used_ == 77
    with pytest.warns(UserWarning, match="first-stage F|differ"):
        other = CATSelector().fit(S.Z[keep], S.x[keep], S.y[keep], np.asarray(S.W)[keep])
    np.testing.assert_array_equal(model.pair_scores_, other.pair_scores_)
    Z[: 80 - 29] = np.nan
    with pytest.raises(ValueError, match="rows can be used"):
        model.fit(Z, S.x, S.y)
