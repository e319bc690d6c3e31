"""The benchmark: each kind of variant measured in a process of its own, and the smoke run."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.bench
pytest.importorskip("icml25.shared")
SMALL = {"n": 16, "T": 12, "p": 2, "delta": 0.8, "rho": 0.5, "replicates": 6, "worlds": 1, "pilots": 0}


def result_of(estimator, design, **changes):
    from icml25.shared.protocols import switchback_experiment as protocol
    from icml25.switchback import bench

    public, truth = protocol.draw(SMALL | changes, seed=0, budget="quick")
    solver = bench.Solver()
    solver.estimator, solver.design = estimator, design
    problem = {"problem": "switchback", "budget": "quick", "seed": 0, **public}
    assert not solver.skip(**problem)[0]
    solver.set_objective(**problem)
    return protocol.evaluate(public, truth, getattr(bench, solver.function)(solver.arrays, solver.params))


@pytest.mark.parametrize(
    ("estimator", "design", "changes"),
    [
        ("OLS", "AD", {"designs": "AD+AT1"}),
        ("all three", "every", {"designs": "AD+AT1"}),
        ("DIM", "AT3", {"designs": "AT3", "worlds": 2}),
        ("DIM after 1", "AT3", {"designs": "AT3", "worlds": 2}),
        ("all three", "every", {"designs": "AT1+AT6+AD"}),
        ("OLS", "predicted", {"designs": "AD+UR", "p": 0, "replicates": 4000}),
        ("OLS", "recommended", {"designs": "AD+AT6+AT1", "pilots": 2}),
    ],
    ids=str,
)
def test_every_kind_of_variant(estimator, design, changes):
    out = result_of(estimator, design, **changes)
    column = {"every": "AT1_over_AD_DRL", "predicted": "mse_error", "recommended": "good_advice"}.get(
        design, "relative_rmse"
    )
    assert np.isfinite(out[column])
    if design == "every":
        assert ("rank_agreement" in out) == ("AT6" in changes["designs"])
        assert out["AT1_over_AD_OLS"] == pytest.approx(out["rmse_OLS_AT1"] / out["rmse_OLS_AD"])
    if design == "predicted":
        assert out["mse_error"] < 0.12
    if (estimator, design) == ("OLS", "AD"):
        assert 0 <= out["coverage"] <= 1


def test_the_loop_is_the_same_estimator():
    batch, loop = (result_of(estimator, "AT6", designs="AT6") for estimator in ("OLS", "OLS in a loop"))
    assert batch["rmse"] == pytest.approx(loop["rmse"], rel=1e-9)


def test_other_problems_are_skipped():
    from icml25.switchback.bench import Solver

    solver = Solver()
    solver.estimator, solver.design = "OLS", "AD"
    assert solver.skip(problem="instruments", budget="quick", seed=0, n=3)[0]
    assert solver.skip(problem="switchback", budget="quick", designs=["AT3"], n=4, p=1)[0]


def test_smoke(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "icml25.shared.cli", "run", "switchback", "--budget", "smoke", "--no-baselines"]
    environment = os.environ | {"ICML25_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "icml25-results" / "report.html").is_file()
