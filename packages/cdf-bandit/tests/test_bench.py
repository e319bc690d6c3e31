"""The smoke benchmark of this package's solver, and every kind of data set that it leaves out."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


@pytest.mark.bench
def test_smoke(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "icml25.shared.cli", "run", "cdf-bandit", "--budget", "smoke", "--no-baselines"]
    environment = os.environ | {"ICML25_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "icml25-results" / "report.html").is_file()


def score(settings: dict, variant: str) -> dict[str, float]:
    from icml25.cdf_bandit import bench
    from icml25.shared.protocols import risk_bandit

    public, truth = risk_bandit.draw(settings, seed=1000, budget="smoke")
    arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
    params = {key: value for key, value in public.items() if isinstance(value, (int, float, str))}
    function = getattr(bench, bench.FUNCTIONS[settings["kind"]])
    return risk_bandit.evaluate(public, truth, function(arrays, params | {"variant": variant, "seed": 0}))


@pytest.mark.bench
def test_policies() -> None:
    from icml25.cdf_bandit import bench

    columns = {
        variant: score({"kind": "regret", "environment": "equal"}, variant) for variant in bench.VARIANTS["regret"]
    }
    for variant, column in columns.items():
        assert column["oracle_call_excess"] == (-2 if variant == "uniform" else 0), variant
    assert abs(columns["uniform"]["relative_regret"] - 1) < 0.2
    assert (
        columns["greedy"]["relative_regret"]
        < columns["IGW 20"]["relative_regret"]
        < columns["IGW 1"]["relative_regret"]
    )
    assert columns["finite CDF"]["relative_regret"] < 0.7 > columns["mean FALCON"]["relative_regret"]
    assert abs(columns["ECDF"]["relative_regret"] - 1) < 0.2  # the best action depends on the context alone


@pytest.mark.bench
def test_other_kinds() -> None:
    logistic = score({"kind": "regression", "family": "logistic"}, "regression")
    assert logistic["error"] < 1e-3 and logistic["bound_ratio"] < 1 and logistic["rank_deviation"] == 0
    spectra = score({"kind": "eigenvalues"}, "regression")
    assert spectra["eigenvalue_error"] < 2e-3 and spectra["galerkin_gap"] < 1e-6 and spectra["spectrum_error"] < 1e-9
    model, mean = (score({"kind": "utilities"}, variant) for variant in ("regression", "mean only"))
    assert mean["advantage_cvar_varied"] < 0.7 < 0.9 < model["advantage_min"]
    for variant in ("regression", "loop", "scaling"):
        for contexts in (0, 20):
            assert score({"kind": "assembly", "n": 400, "contexts": contexts}, variant)["operator_error"] < 1e-10
