"""The benchmark: each kind of data set in this process, and the smoke run."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.bench
pytest.importorskip("icml25.shared")
PENDULUM = {"env": "pendulum", "steps": 2048 * 20, "num_envs": 16, "replicates": 1}
CARTPOLE = {"env": "cartpole", "steps": 2048, "num_envs": 8, "replicates": 1}
SETTINGS = {
    "changing": {"kind": "changing", "factors": "1+0.5", "period": 4096, "epochs": 1} | PENDULUM | {"replicates": 2},
    "events": {"kind": "events"} | PENDULUM,
    "digits": {"kind": "digits", "tasks": 5, "epochs": 1, "batch": 64},
    "stationary": {"kind": "stationary"} | CARTPOLE,
    "speed": {"kind": "speed", "repeats": 1} | CARTPOLE,
}


def result_of(method, kind):
    from icml25.p3o import bench
    from icml25.shared.protocols import continual_control as protocol

    public, truth = protocol.draw(SETTINGS[kind], seed=0, budget="paper")
    solver = bench.Solver()
    solver.method = method
    problem = {"problem": "continual", "budget": "paper", "seed": 0, **public}
    assert not solver.skip(**problem)[0]
    solver.set_objective(**problem)
    return protocol.evaluate(public, truth, getattr(bench, solver.kind)(solver.arrays, solver.params))


def test_events():
    out = result_of("P3O", "events")
    assert out["events"] == 2 and out["cycles"] == 0 and out["reset_miss"] == 1  # two of ten blocks so far
    assert out["within_threshold"] in (0, 0.5, 1) and np.isfinite(out["drop_ratio"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("P3O", "changing"),
        ("PPO+Cycle", "changing"),
        ("PPO+ReDo", "changing"),
        ("PPO+CBP", "changing"),
        ("PPO+ShrinkPerturb", "changing"),
        ("PPO+Reset", "changing"),
        ("PPO+LayerNorm", "changing"),
        ("PPO+L2Init", "changing"),
        ("P3O", "digits"),
        ("PPO", "digits"),
        ("PPO", "stationary"),
        ("P3O", "speed"),
    ],
)
def test_every_kind(method, kind):
    out = result_of(method, kind)
    column = {"digits": "last_accuracy", "speed": "sbp_over_ppo"}.get(kind, "mean_return")
    assert np.isfinite(out[column])
    if kind == "digits" and method == "P3O":
        assert out["events"] == 2 and out["last_accuracy"] > 0.2


@pytest.mark.slow
def test_plain_ppo_learns():
    import jax

    from icml25.p3o.bench import CARTPOLE, plain_ppo
    from icml25.p3o.envs import CartPole

    _, ended = plain_ppo(CartPole(), CARTPOLE | {"num_envs": 16, "n_epochs": 4}, 30, jax.random.key(1000))()
    assert ended[0] > 5 * ended[-1]


def test_curve_counts_every_episode():
    import pandas as pd

    from icml25.p3o.bench import curve

    log = pd.DataFrame({"return": [np.nan, 2.0, 4.0, 6.0], "episodes": [0, 1, 3, 1]})
    out = curve(log, spans=2)
    assert out["episodes"].tolist() == [[1, 4]] and out["returns"].tolist() == [[2.0, 4.5]]
    both = curve(pd.concat([log.assign(seed=0), log.assign(seed=1)]), spans=4)
    assert both["returns"].shape == (2, 4) and np.isnan(both["returns"][0, 0])


def test_other_problems_are_skipped():
    from icml25.p3o.bench import METHODS, Solver

    solver = Solver()
    for solver.method in METHODS:
        assert solver.skip(problem="networked", budget="quick", seed=0)[0]
    solver.method = "PPO+CBP"
    assert not solver.skip(problem="continual", budget="quick", seed=0, kind="changing")[0]
    assert solver.skip(problem="continual", budget="quick", seed=1, kind="changing")[0]
    assert not solver.skip(problem="continual", budget="paper", seed=1, kind="changing")[0]
    for budget, replicates in (("quick", 1), ("paper", 2)):
        solver.set_objective(problem="continual", budget=budget, kind="changing", replicates=2)
        assert solver.params["replicates"] == replicates


def test_smoke(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "icml25.shared.cli", "run", "p3o", "--budget", "smoke", "--no-baselines"]
    environment = os.environ | {"ICML25_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "icml25-results" / "report.html").is_file()
