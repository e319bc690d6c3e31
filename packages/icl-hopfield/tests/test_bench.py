"""The smoke benchmark of this package, with the track's baselines in a slow test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def smoke(folder: Path, *options: str) -> None:
    command = [sys.executable, "-m", "icml25.shared.cli", "run", "icl-hopfield", "--budget", "smoke", *options]
    environment = os.environ | {"ICML25_CACHE": str(folder / "cache")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "icml25-results" / "report.html").is_file()


@pytest.mark.bench
def test_smoke_of_the_method(tmp_path: Path) -> None:
    smoke(tmp_path, "--no-baselines", "--solvers", "icl-hopfield[attention=softmax]")


@pytest.mark.bench
@pytest.mark.slow
def test_smoke(tmp_path: Path) -> None:
    smoke(tmp_path)
