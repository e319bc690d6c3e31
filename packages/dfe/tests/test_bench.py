"""The smoke benchmark of this package's solver."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_only_the_ablation_runs_at_the_short_horizon() -> None:
    def kept(horizon: int) -> set[str]:
        solvers = {variant: Solver.get_instance(variant=variant) for variant in Solver.parameters["variant"]}
        settings = {"problem": "fair matching", "budget": "quick", "kind": "shi2021", "horizons": [horizon]}
        return {variant for variant, solver in solvers.items() if not solver.skip(**settings)[0]}

    pytest.importorskip("benchopt")
    from icml25.dfe.bench import Solver

    assert kept(10**5) == {"free", "no elimination"}
    assert kept(10**6) >= {"free", "collision", "packets", "no elimination"}


@pytest.mark.bench
def test_smoke(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "icml25.shared.cli", "run", "dfe", "--budget", "smoke", "--no-baselines"]
    environment = os.environ | {"ICML25_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "icml25-results" / "report.html").is_file()
