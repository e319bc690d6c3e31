"""The track's own computations against closed forms, and its checks against false claims."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_mamba2

import icml25.quamba2
from icml25.quamba2 import QuambaConfig, fast_scan, quantize

pytest.importorskip("benchopt")
pytestmark = pytest.mark.bench
TRACK = Path(icml25.quamba2.__file__).parent / "track"


@pytest.fixture(scope="module")
def track():
    sys.path.insert(0, str(TRACK))
    try:
        spec = importlib.util.spec_from_file_location("lm_efficiency_objective", TRACK / "objective.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(TRACK))


@pytest.fixture
def objective(track):
    rng = np.random.default_rng(0)
    made = track.Objective()
    made.budget, made.seed, made.problem = "smoke", 0, "bytes"
    made.arrays = {"held_out": rng.integers(0, 5, (2, 140))}
    made.truth = {"held_out": rng.normal(size=(1, 2, 140, 5)).astype(np.float32), "parameters": np.array(50)}
    made.truth["validation"] = made.truth["held_out"]
    return made


def test_closed_forms(track):
    uniform, ids = np.zeros((1, 2, 6, 7)), np.ones((2, 6), dtype=int)
    assert track.perplexity(uniform, ids) == pytest.approx(7)
    sure = np.zeros((1, 2, 6, 7))
    sure[..., 1] = 50
    assert track.perplexity(sure, ids) == pytest.approx(1) and track.perplexity(sure, ids * 2) > 1e9
    p, q = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    assert track.divergence(p, q) == pytest.approx(0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1))
    assert track.divergence(p, p + 3) == pytest.approx(0, abs=1e-12)
    assert track.divergence(p, q * np.nan) == float("inf")


def test_the_float_model_is_perfect(objective):
    truth = objective.truth["held_out"]
    row = objective.evaluate_result(
        seconds=1.0,
        peak_memory_mb=1.0,
        logits=truth,
        reloaded=truth,
        decoded=truth[0][:, 128:134],
        group_errors=np.array([0.5, 0.1]),
        model_bytes=100,
        state_bytes=5,
        float_state_bytes=20,
    )
    assert row["kl"] == pytest.approx(0, abs=1e-12) and row["agreement"] == 1 and row["perplexity_ratio"] == 1
    assert row["decode_kl"] == pytest.approx(0, abs=1e-12) and row["reload_error"] == 0
    assert row["bytes_ratio"] == 1 and row["state_ratio"] == 0.5 and row["group_error"] == pytest.approx(0.3)


def test_false_claims_show(objective):
    truth = objective.truth["held_out"]
    row = objective.evaluate_result(
        seconds=1.0, peak_memory_mb=1.0, logits=truth[..., ::-1], reloaded=truth, decoded=truth[0][:, 127:133]
    )
    assert row["kl"] > 0.5 and row["decode_kl"] > 0.5 and row["reload_error"] > 1 and row["agreement"] < 1
    before = np.zeros((3, 1, 4, 5))
    after = before.copy()
    after[1, 0, 0, 0] = 1e-9
    new = np.array([[1, 2], [1, 2], [1, 5]])
    found = objective.evaluate_result(1.0, 1.0, before=before, after=after, generated=new)
    assert found["modes_passed"] == 1


def test_stages_and_choices(objective):
    truth = objective.truth["held_out"]
    noise = np.random.default_rng(1).normal(size=truth.shape)
    stages = np.stack([truth + s * noise for s in (1.0, 0.5, 0.6)])
    choices = np.stack([truth + s * noise for s in (0.5, 0.4, 0.6, 1.0)])  # own, first, last, none
    row = objective.evaluate_result(
        1.0,
        1.0,
        stages=stages,
        without_gptq=stages[0],
        choices_validation=choices[[1, 0, 2, 3]],
        choices_held_out=choices,
    )
    assert 1.2 < row["step_worst"] < 1.7 and row["step_total"] < 0.6
    assert row["without_gptq"] == row["step_total"]
    assert row["choice_gap"] < 0 < row["choice_gap_test"]
    assert 0.1 < row["choice_ratio"] < 0.5


def test_schemes_share_a_process_per_problem_and_seed(monkeypatch):
    from icml25.quamba2 import bench

    calls = []

    def measured(file, function, arrays, params):
        calls.append(params["schemes"])
        return {f"{name}/kl": float(len(name)) for name in params["schemes"]} | {"peak_memory_mb": 3.0, "seconds": 9.0}

    monkeypatch.setattr(bench, "measure", measured)
    bench._DONE.clear()
    public = {"problem": "drawn", "budget": "quick", "models": {"wide": ["x"]}, "held_out": np.zeros((1, 1))}
    for seed in (0, 1):
        for name in bench._asked("drawn", "quick", seed):
            solver = bench.Solver.get_instance(scheme=name)
            assert not solver.skip("drawn", "quick", seed)[0]
            solver.set_objective(seed=seed, **public)
            solver.run(None)
            assert solver.get_result() == {"peak_memory_mb": 3.0, "kl": float(len(name))}
    assert len(calls) == 2 and "modes" in calls[0] and "modes" not in calls[1]


def test_uneven_models_have_the_papers_profile():
    """Fig. 3: sizes after the convolution differ widely and persist over tokens, while the weights are ordinary."""
    from scipy.stats import spearmanr

    from icml25.quamba2.track.benchmark_utils.models import VOCABULARY, profiled_mamba2

    model, seen = profiled_mamba2(1000), {}
    with torch.inference_mode(), fast_scan(model, lambda layer, name, v: seen.setdefault((layer, name), v.abs())):
        model(torch.randint(0, VOCABULARY, (8, 64)), use_cache=False)
    for i, block in enumerate(model.backbone.layers):
        weight, bound = block.mixer.conv1d.weight.abs(), block.mixer.conv_kernel_size**-0.5
        assert weight.max() <= bound and weight.median() > 0.4 * bound
        x = seen[i, "conv_x"]
        largest = x[:4].amax((0, 1))  # of calibration, as it were
        assert largest.log().std() > 0.7
        assert np.mean([spearmanr(largest, token).statistic for token in x[4:, ::16].flatten(0, 1)]) > 0.8
        for name, small, large in (("conv_B", 1, 2), ("conv_C", 2, 1)):
            groups = seen[i, name].unflatten(-1, (4, -1)).amax((0, 1, 3))
            assert groups.argmin() == small and groups.argmax() == large and groups[large] > 20 * groups[small]


@pytest.mark.parametrize("size", [1e-4, 0.01, 0.19, 0.21, 1.0, 30.0])
def test_before_silu(size):
    from icml25.quamba2.track.benchmark_utils.models import before_silu

    b = before_silu(torch.tensor([size]))
    torch.testing.assert_close(torch.nn.functional.silu(b), torch.tensor([size if size > 0.2 else -size]))


def test_errors_of_state_groups():
    """One scale for all hides the small group entirely; one per group keeps it."""
    from icml25.quamba2.bench import group_errors

    model = make_mamba2(n_groups=2)
    with torch.no_grad():
        for block in model.backbone.layers:
            conv, inner = block.mixer.conv1d, block.mixer.intermediate_size
            conv.weight[inner + 8 : inner + 16] *= 1e-3
            conv.bias[inner + 8 : inner + 16] *= 1e-3
    ids = torch.randint(0, 97, (2, 40))
    found = {}
    for flag in (True, False):
        small = quantize(model, [ids], QuambaConfig(per_state_group=flag))
        found[flag] = group_errors(model, small, ids.numpy())
    assert len(found[True]) == 8 and 0 < max(found[True]) < 0.02  # two layers, B and C, two groups
    assert max(found[False]) == 1


def test_tensor_bytes(track):
    from benchmark_utils.evaluation import tensor_bytes

    shared = torch.zeros(3)
    assert tensor_bytes({"a": [shared, shared], "b": torch.zeros(2, dtype=torch.int8)}) == 14
