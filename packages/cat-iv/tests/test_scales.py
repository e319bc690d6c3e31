"""Extreme units and offsets, and candidates that have no linear first stage."""

import numpy as np
import pytest

from icml25.cat_iv import CATSelector, make_anlce


@pytest.mark.parametrize("unit", [1e-150, 1e100, 1e200])
def test_standard_error_is_that_of_the_ratio_in_any_unit(unit):
    pytest.importorskip("linearmodels")
    data = make_anlce(500, case=1, seed=3)

    def fit(scale):
        selector = CATSelector(n_valid=2, min_first_stage_f=10, random_state=0)
        return selector.fit(data.Z, treatment=data.x * scale, outcome=data.y * scale).iv2sls()

    plain, scaled = fit(1.0), fit(unit)
    assert scaled.std_errors["treatment"] == pytest.approx(plain.std_errors["treatment"], rel=1e-9)
    assert scaled.params["treatment"] == pytest.approx(plain.params["treatment"], rel=1e-9)


@pytest.mark.parametrize("where", ["candidate", "covariates"])
def test_a_determined_candidate_is_named_under_a_large_offset(where):
    data = make_anlce(400, case=1, seed=0, covariates=True)
    Z, W = data.Z.copy(), np.reshape(data.W, (400, -1)).copy()
    Z[:, 2] = W.sum(1)
    (Z[:, 2:3] if where == "candidate" else W)[...] += 1e9
    with pytest.raises(ValueError, match="the covariates determine"):
        CATSelector(n_valid=2, random_state=0).fit(Z, treatment=data.x, outcome=data.y, covariates=W)


def test_summary_of_a_candidate_without_a_linear_first_stage():
    rng = np.random.default_rng(0)
    even = np.tile(np.repeat([-2.0, -1.0, 0.0, 1.0, 2.0], 4), 20)
    a, b = np.tile([1.0, 1.0, -1.0, -1.0], 100), np.tile([1.0, -1.0, 1.0, -1.0], 100)
    x = even**2 + a + b
    Z = np.column_stack([a + 0.1 * rng.normal(size=400), b + 0.1 * rng.normal(size=400), even])
    selector = CATSelector(n_valid=2, effect="control_function", random_state=0).fit(
        Z, treatment=x, outcome=x + 3 * even
    )
    assert np.isnan(selector.betas_[2])
    assert "left out" in str(selector.summary())
