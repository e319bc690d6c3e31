"""Returns to schooling: the selection runs on real data. There is no truth to compare with."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from linearmodels.datasets import card, mroz
from linearmodels.iv import IV2SLS

from icml25.cat_iv import CATSelector, WeakInstrumentWarning

CANDIDATES = ["nearc4", "nearc2", "fatheduc", "motheduc", "libcrd14"]
COVARIATES = ["exper", "expersq", "black", "smsa", "south"]


def check_card(data: pd.DataFrame) -> None:
    model = CATSelector(min_first_stage_f=10, nan_policy="omit", test="chi2", random_state=0)
    model.fit(data[CANDIDATES], data["educ"], data["lwage"], data[COVARIATES])
    assert model.n_used_ == 2216 and model.weak_ == ["nearc4", "nearc2"]
    complete = data.dropna(subset=[*CANDIDATES, *COVARIATES, "educ", "lwage"])
    exogenous = complete[COVARIATES].assign(intercept=1.0)
    expected = IV2SLS(complete["lwage"], exogenous, complete["educ"], complete[model.selected_]).fit().params["educ"]
    assert model.effect_ == pytest.approx(expected, rel=1e-7)
    assert model.iv2sls().params["treatment"] == pytest.approx(expected, rel=1e-7)
    for name, beta in zip(CANDIDATES, model.betas_, strict=True):
        if name not in model.weak_:
            alone = IV2SLS(complete["lwage"], exogenous, complete["educ"], complete[[name]]).fit().params["educ"]
            assert beta == pytest.approx(alone, rel=1e-6)
    assert model.set_score(model.selected_) == pytest.approx(min(score for _, score in model.subset_scores_))
    assert all(name in model.summary() for name in CANDIDATES)


def test_card() -> None:
    check_card(card.load())


def test_card_bare_warns_of_the_weak_candidate() -> None:
    data = card.load()
    with pytest.warns(WeakInstrumentWarning, match="nearc4"):
        model = CATSelector(nan_policy="omit").fit(data[CANDIDATES], data["educ"], data["lwage"], data[COVARIATES])
    assert model.weak_ == [] and np.isfinite(model.pair_scores_).all()


def check_mroz(data: pd.DataFrame) -> None:
    working = data[data["inlf"] == 1]
    Z = working[["motheduc", "fatheduc", "huseduc"]]
    model = CATSelector("auto", random_state=0).fit(Z, working["educ"], working["lwage"], working[["exper", "expersq"]])
    assert model.n_used_ == 428 and model.passes_ is True
    assert (model.first_stage_f_ > 70).all() and 0.02 < model.effect_ < 0.13


def test_mroz() -> None:
    check_mroz(mroz.load())


@pytest.mark.realdata
@pytest.mark.parametrize(("name", "check"), [("card", check_card), ("mroz", check_mroz)], ids=["card", "mroz"])
def test_files(name: str, check: object) -> None:
    folder = os.environ.get("ICML25_DATA")
    if not folder or not (file := Path(folder) / "iv" / f"{name}.csv.gz").is_file():
        pytest.skip("ICML25_DATA has no iv folder")
    check(pd.read_csv(file))  # type: ignore[operator]
