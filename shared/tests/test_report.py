"""Cells of a leaderboard, and the commit that a record names."""

import math
import subprocess
from pathlib import Path

import pytest

from icml25.shared.report import Cell, _cell, environment


def test_a_cell_shows_mean_and_half_width() -> None:
    assert str(Cell(12.0, 11.0, 13.0)) == "12.0 ± 1.0"
    assert str(_cell([3.0, 3.0])) == "3.00"


def test_an_infinite_value_is_shown_and_has_no_interval() -> None:
    cell = _cell([0.5, math.inf, 0.7])
    assert cell == Cell(math.inf, math.inf, math.inf)
    assert str(cell) == "inf"
    assert str(_cell([-math.inf])) == "-inf"
    assert str(_cell([math.inf, -math.inf])) == "nan"


def test_a_record_of_results_does_not_make_the_commit_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert environment()["commit"] == "unknown"
    files = ["packages/a/results/quick.json", "packages/a/README.md", "packages/a/src/a.py"]
    for file in map(Path, files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("old")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "a"]):
        subprocess.run(["git", *command], check=True)
    clean = environment()["commit"]
    assert len(clean) == 12
    for file in files[:2]:
        Path(file).write_text("new")
    assert environment()["commit"] == clean
    Path(files[2]).write_text("new")
    assert environment()["commit"] == f"{clean}-dirty"
