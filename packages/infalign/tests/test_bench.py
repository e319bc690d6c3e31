"""The smoke benchmark of this package's solver, and every question with every variant."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


@pytest.mark.bench
def test_smoke(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "icml25.shared.cli", "run", "infalign", "--budget", "smoke", "--no-baselines"]
    environment = os.environ | {"ICML25_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "icml25-results" / "report.html").is_file()


def score(variant: str, question: str, **settings) -> dict[str, float]:
    from icml25.infalign import bench
    from icml25.shared.protocols import inference_alignment

    public, truth = inference_alignment.draw({"question": question, **settings}, seed=1000, budget="smoke")
    arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
    params = {key: value for key, value in public.items() if isinstance(value, (int, float, str))}
    result = getattr(bench, bench.FUNCTIONS[question])(arrays, params | {"variant": variant})
    return inference_alignment.evaluate(public, truth, result)


@pytest.mark.bench
def test_transforms() -> None:
    from icml25.infalign import bench

    columns = {v: score(v, "continuum", A=501, N=2, kl=0.5) for v in bench.VARIANTS["continuum"]}
    for procedure, best in zip(("best_of_n", "worst_of_n"), bench.OPTIMA, strict=True):
        gaps = {variant: column[f"gap_{procedure}"] for variant, column in columns.items()}
        assert gaps.pop(best) == pytest.approx(0, abs=2e-5) and min(gaps.values()) > 1e-4
        assert min(gaps, key=gaps.__getitem__) == ("exp(5u)" if procedure == "best_of_n" else "worst power")
    assert max(columns, key=lambda v: columns[v]["win_rate_standard"]) == "u"


@pytest.mark.bench
def test_other_questions() -> None:
    world = {"P": 20, "A": 100, "N": 4, "kl": 0.5}
    u, e = (score(variant, "world", **world) for variant in ("u", "exp(10u)"))
    assert e["win_rate_best_of_n"] > u["win_rate_best_of_n"] + 0.05
    assert score("optimum", "theorem", problems=3)["largest_difference"] < 1e-6
    rollouts = score("exp(10u)", "rollouts", sizes=[10, 300], **world)
    assert rollouts["loss_K10"] > rollouts["loss_K300"] > -0.01
    for variant in ("calibrator", "percentileofscore"):
        assert score(variant, "lookup", P=20, K=15, n=300)["calibration_error"] < 1e-12
