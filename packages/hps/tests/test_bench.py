"""The solver's losses, its timed steps, and the smoke benchmark."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from icml25.hps import hps_full_loss

pytestmark = pytest.mark.bench
bench = pytest.importorskip("icml25.hps.bench", reason="needs the bench extra", exc_type=ImportError)
protocol = pytest.importorskip("icml25.shared.protocols.preference_ranking")


def test_variants_are_the_losses_they_name():
    rewards, scores = torch.randn(2000, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([[3, 2, -1, 0.5]])
    rewards, scores = rewards[:1].expand(20_000, 4), scores.expand(20_000, 4)
    generator = torch.Generator().manual_seed(1)
    means = {name: bench.hps(**v)(rewards, scores, generator).mean().item() for name, v in bench.VARIANTS.items()}
    full = {
        name: hps_full_loss(rewards, scores, v["gamma"], log_num_negatives=v.get("log_n", True)).item()
        for name, v in bench.VARIANTS.items()
    }
    assert means["full"] == pytest.approx(full["full"], abs=1e-4)
    assert all(mean <= full[name] + 0.02 for name, mean in means.items())  # a lower bound, but for the draw
    assert means["hard"] == pytest.approx(full["hard"], abs=0.05)
    assert means["hard"] > means["no_log_n"] + 0.3


def test_timed_steps_see_two_and_all_sequences():
    settings = {"world": "cost", "prompts": 2, "answers": 5, "tokens": 4, "vocabulary": 30, "repeats": 1}
    public, _ = protocol.draw(settings, seed=0, budget="quick")
    tokens = {name: torch.from_numpy(public[name]) for name in ("prompt_ids", "answer_ids")}
    scores = torch.from_numpy(public["answer_scores"])
    kept = [
        bench._kept_bytes(*make(**tokens, scores=scores, params=public)[1:])
        for make in (bench._pair_step, bench._list_step)
    ]
    assert 0.3 < kept[0] / kept[1] < 0.6  # two of five
    times = bench._in_turns({"a": lambda: None, "b": lambda: sum(range(1000))}, 3)
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}
    assert np.all(times["b"] >= 0)


def test_smoke(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "icml25.shared.cli", "run", "hps", "--budget", "smoke", "--no-baselines"]
    command += ["--solvers", "hps[variant=hard]"]
    environment = os.environ | {"ICML25_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "icml25-results" / "report.html").is_file()
