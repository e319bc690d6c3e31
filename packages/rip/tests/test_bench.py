"""The smoke benchmark of this package's solver, and the filter that the problem "alignment" finds."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


@pytest.mark.bench
def test_smoke(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "icml25.shared.cli", "run", "rip", "--budget", "smoke", "--no-baselines"]
    environment = os.environ | {"ICML25_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "icml25-results" / "report.html").is_file()


@pytest.mark.bench
def test_keep() -> None:
    from icml25.rip import RIPFilter
    from icml25.rip.bench import keep
    from icml25.shared.protocols.alignment import filters

    rng = np.random.default_rng(0)
    scores, lengths = rng.normal(size=(200, 4)), rng.integers(1, 90, (200, 4)).astype(float)
    kept = keep(scores, lengths)
    expected = RIPFilter(0.5).fit_arrays(scores, lengths).support_arrays(scores, lengths)
    assert 0 < kept.sum() < 200 and (kept == expected).all()
    assert (filters()["rip"].load()(scores, lengths) == kept).all()
