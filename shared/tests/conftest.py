"""A toy method with a track of its own, installed for real: a folder on PYTHONPATH with metadata and entry points."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

OBJECTIVE = """
import numpy as np
from benchopt import BaseObjective

class Objective(BaseObjective):
    name = "Toy"
    parameters = {"budget": ["smoke"], "seed": [0]}
    sampling_strategy = "run_once"

    def set_data(self, x):
        self.x = x

    def get_objective(self):
        return {"x": self.x, "budget": self.budget, "seed": self.seed}

    def evaluate_result(self, score, **rest):
        return {"score": score, **rest}

    def get_one_result(self):
        return {"score": 0.0}
"""
DATASET = """
import numpy as np
from benchopt import BaseDataset

class Dataset(BaseDataset):
    name = "line"
    parameters = {"n": [4]}

    def get_data(self):
        return {"x": np.arange(self.n, dtype=float)}
"""
BROKEN_DATASET = """
from benchopt import BaseDataset

class Dataset(BaseDataset):
    name = "broken"

    def get_data(self):
        raise ValueError("file.npz is damaged: sha256 x, expected y")
"""
SOLVER = '''
"""A solver that counts its computations in a file."""
import os
import pathlib
import time

import numpy as np

from icml25.shared.isolated import BaseSolver, measure


def mean(arrays, params):
    if os.environ.get("TOY_RAISES") == NAME:
        raise ZeroDivisionError("the toy divides by zero")
    time.sleep(float(os.environ.get("TOY_SECONDS", 0)))
    noise = np.random.default_rng(params["seed"]).normal()
    return {"score": SHIFT + arrays["x"].mean() + params["scale"] * noise}


class Solver(BaseSolver):
    name = "@NAME@"
    sampling_strategy = "run_once"
    parameters = {"scale": [0.01, 0.02]}

    def set_objective(self, x, budget, seed):
        self.x, self.seed = x, seed

    def run(self, _):
        self.result = measure(__file__, "mean", {"x": self.x}, {"seed": int(self.seed), "scale": self.scale})
        with pathlib.Path(os.environ["TOY_COUNT"]).open("a") as stream:
            stream.write("@NAME@\\n")

    def get_result(self):
        return self.result


NAME, SHIFT = "@NAME@", @SHIFT@
'''
TRACK = """
title = "Toy track"
description = "The mean of a line."
primary = ["score"]
[metrics.score]
label = "score"
direction = "max"
[metrics.seconds]
label = "time"
direction = "min"
unit = "s"
[metrics.peak_memory_mb]
label = "peak memory"
direction = "min"
unit = "MiB"
[budgets.smoke]
datasets = @DATASETS@
seeds = [0]
[budgets.quick]
datasets = ["line[n=6]"]
seeds = [0, 1, 2]
"""
CLAIMS = """
[paper]
title = "A toy"
authors = "T. Oy"
venue = "ICML 2025"
url = "https://example.org"

[[claim]]
id = "T1"
statement = "is better"
source = "abstract"
track = "toy"
dataset = "line[n=6]"
metric = "score"
method = "Toy[scale=0.01]"
baseline = "Base"
test = "difference >= 0.5"
kind = "quality"
budget = "quick"
"""


@dataclass(frozen=True)
class Toy:
    """An environment in which icml25-toy is installed, and the command run in it."""

    folder: Path

    @property
    def package(self) -> Path:
        return self.folder / "site" / "icml25" / "toy"

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "PYTHONPATH": str(self.folder / "site"),
            "ICML25_CACHE": str(self.folder / "cache"),
            "TOY_COUNT": str(self.folder / "count"),
            "COLUMNS": "200",
            "NO_COLOR": "1",
        }

    @property
    def computed(self) -> int:
        count = self.folder / "count"
        return len(count.read_text().splitlines()) if count.exists() else 0

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "icml25.shared.cli", *arguments]

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def run_json(self, budget: str = "smoke") -> dict:
        return json.loads((self.folder / "icml25-results" / budget / "run.json").read_text())


def install_toy(folder: Path, datasets: str = '["line"]') -> Toy:
    site = folder / "site"
    files = {
        "icml25/toy/__init__.py": "",
        "icml25/toy/bench.py": SOLVER.replace("@NAME@", "Toy").replace("@SHIFT@", "1.0"),
        "icml25/toy/claims.toml": CLAIMS,
        "icml25/toy/track/track.toml": TRACK.replace("@DATASETS@", datasets),
        "icml25/toy/track/objective.py": OBJECTIVE,
        "icml25/toy/track/datasets/line.py": DATASET,
        "icml25/toy/track/datasets/broken.py": BROKEN_DATASET,
        "icml25/toy/track/solvers/base.py": SOLVER.replace("@NAME@", "Base").replace("@SHIFT@", "0.0"),
        "icml25_toy-0.1.dist-info/METADATA": (
            "Metadata-Version: 2.1\nName: icml25-toy\nVersion: 0.1\nSummary: A toy\nRequires-Dist: numpy>=1\n"
        ),
        "icml25_toy-0.1.dist-info/entry_points.txt": (
            "[icml25.solvers]\ntoy = icml25.toy.bench\n\n[icml25.tracks]\ntoy = icml25.toy.track\n"
        ),
    }
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Toy(folder)


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return install_toy(tmp_path)
