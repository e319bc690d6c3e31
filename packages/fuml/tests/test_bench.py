"""The solver of the multi-view track."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.bench
bench = pytest.importorskip("icml25.fuml.bench", reason="needs the bench extra", exc_type=ImportError)


def test_literal_loss_is_the_same_loss():
    import torch

    from icml25.fuml import FUML, fuml_loss

    class Identity(torch.nn.Module):
        def forward(self, x):
            return x

    logits = list(torch.randn(4, 20, 5, generator=torch.Generator().manual_seed(0)))
    y = torch.arange(20) % 5
    model = FUML([Identity() for _ in logits], 5)
    torch.testing.assert_close(fuml_loss(model(logits, labels=y), y), bench.literal_loss(logits, y))


def test_ecml_averages_the_losses_and_adds_the_dissonance():
    import torch

    from icml25.shared.tracks.multiview.benchmark_utils import networks

    logits = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(0))
    y, evidence = torch.arange(8) % 4, torch.nn.functional.softplus(logits)
    losses = [networks.evidential_loss(e, y, 5) for e in (networks.conflictive_mean(evidence), *evidence)]
    loss, _ = networks.METHODS["ecml"]()
    torch.testing.assert_close(loss(logits, y, 5), sum(losses) / 4 + networks.dissonance(evidence))


def test_drf_on_synthetic_views():
    shares = bench.fusion_of_synthetic_views(0)
    assert shares["misaligned_least_weight"] >= 0.99
    assert shares["misaligned_label_kept"] == shares["misaligned_more_uncertain"] == shares["noise_least_weight"] == 1


@pytest.mark.parametrize(("fusion", "necessity"), [("drf", True), ("average", True), ("drf", False)])
def test_solver(fusion, necessity):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    parts = ("train", "normal", "conflict")
    views = {f"{p}_{v}": (np.eye(3)[y] + 0.1 * rng.random((60, 3))).astype(np.float32) for p in parts for v in range(2)}
    params = {"fusion": fusion, "necessity": necessity, "budget": "smoke", "seed": 0}
    out = bench.fit_predict({"y_train": y, **views}, params)
    assert out["label_normal"].shape == out["uncertainty_conflict"].shape == (60,)
    assert out["label_orders"].shape == (bench.ORDERS, 60)
    assert (out["label_orders"] == out["label_conflict"]).all()


def test_smoke_benchmark(tmp_path):
    command = [sys.executable, "-m", "icml25.shared.cli", "run", "fuml", "--budget", "smoke", "--no-baselines"]
    environment = os.environ | {"ICML25_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = pd.read_parquet(tmp_path / "icml25-results" / "smoke" / "multiview" / "fuml.parquet")
    assert table["solver_name"].tolist() == ["FUML[fusion=drf,necessity=True]"]
    assert (table["seconds"] > 0).all() and table["accuracy_normal"].between(0.5, 1).all()
