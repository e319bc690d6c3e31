"""The track's own metrics and baselines against values worked out otherwise."""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import icml25.ntp_bounds
from icml25.ntp_bounds import bound, hoeffding

pytest.importorskip("benchopt")
pytestmark = pytest.mark.bench
TRACK = Path(icml25.ntp_bounds.__file__).parent / "track"


def load(name):
    spec = importlib.util.spec_from_file_location(f"generalization_bounds_{Path(name).stem}", TRACK / name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def track():
    return load("objective.py")


def arrays_and_params(public, **more):
    arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
    return arrays, {key: value for key, value in public.items() if key not in arrays} | {"seed": 0} | more


def test_gaps_in_the_direction_foretold(track):
    public, _ = track.Gap.draw({"axis": "sequences", "corpus": "stdlib"}, seed=0, budget="quick")
    public["replicates"] = 2
    assert public["n_sequences"].tolist() == [32, 128, 512] and set(public["seq_len"]) == set(public["dim"]) == {32}
    result = {"gap": np.array([[7.0, 9.0], [3.0, 3.0], [1.0, 1.0]]), "foretold": np.array([4.0, 2.0, 1.0])}
    row = track.Gap.evaluate(public, {}, result)
    assert (row["gap_1"], row["step_1"], row["step_2"], row["end_ratio"]) == (8, 5, 2, 1 / 8)
    assert row["foretold_ratio"] == 0.25 and row["middle_ratio"] == 3 / 8
    public, _ = track.Gap.draw({"axis": "parameters", "corpus": "stdlib"}, seed=0, budget="quick")
    public["replicates"] = 2
    row = track.Gap.evaluate(
        public, {}, {"gap": np.array([[1.0, 1], [2, 2], [8, 8]]), "foretold": np.array([1.0, 2, 4])}
    )
    assert (row["step_1"], row["step_2"], row["end_ratio"], row["middle_ratio"]) == (1, 6, 1 / 8, 1 / 4)
    row = track.Gap.evaluate(public, {}, {"gap": np.array([[0.1], [0.2], [-0.1]]).repeat(2, 1), "foretold": np.ones(3)})
    assert row["end_ratio"] == row["middle_ratio"] == math.inf  # not -1, which would pass for small
    with pytest.raises(ValueError, match="gap must be finite, a row for each of 3 sizes"):
        track.Gap.evaluate(public, {}, {"gap": np.ones((2, 2)), "foretold": np.ones(3)})


def test_lengths_also_at_equal_tokens(track):
    public, _ = track.Gap.draw({"axis": "length", "corpus": "stdlib"}, seed=0, budget="quick")
    public["replicates"] = 2
    tokens = public["steps"] * public["seq_len"]
    assert public["seq_len"].tolist() == [8, 32, 128, 8, 128] and tokens[3] == tokens[4] == tokens[1] != tokens[0]
    gap = np.array([4.0, 3, 2, 8, 2])[:, None].repeat(2, 1)
    row = track.Gap.evaluate(public, {}, {"gap": gap, "foretold": np.ones(5)})
    assert row["end_ratio"] == 0.5 and row["end_ratio_tokens"] == 0.25 and row["step_1"] == row["step_2"] == 1


def test_measured_gaps(track):
    from icml25.ntp_bounds.bench import measured_gaps

    public, _ = track.Gap.draw({"axis": "length", "corpus": "stdlib"}, seed=0, budget="smoke")
    arrays, params = arrays_and_params(public)
    assert arrays["train_text"].max() < params["vocab"] and len(arrays["train_text"]) > 8 * len(arrays["test_text"])
    arrays |= {name: np.minimum(arrays[name], 16) for name in ("n_sequences", "seq_len", "dim", "steps")}
    found = measured_gaps(arrays, params | {"replicates": 2})
    assert (
        found["gap"].shape == (5, 2)
        and found["foretold"].shape == (5,)
        and (found["gap"][:, 0] != found["gap"][:, 1]).all()
    )


def test_cover(track):
    from icml25.ntp_bounds.bench import covering_numbers

    public, _ = track.Cover.draw({}, seed=0, budget="smoke")
    found = covering_numbers(*arrays_and_params(public))
    row = track.Cover.evaluate(public, {}, found)
    assert row["full_less_causal"] > 0 < row["causal_less_window"] and row["joint_over_sum"] <= 1
    assert 0 < row["mask_gain"] < 0.1
    found["log_cover"] = found["log_cover"][[1, 0, 2]]
    assert track.Cover.evaluate(public, {}, found)["full_less_causal"] < 0
    found["joint"] = 1.1 * found["parts"]
    assert track.Cover.evaluate(public, {}, found)["joint_over_sum"] == pytest.approx(1.1)


def test_bounds(track, monkeypatch):
    from icml25.ntp_bounds.bench import bounds

    monkeypatch.syspath_prepend(TRACK)
    baselines = load("benchmark_utils/baselines.py")
    public, _ = track.Bounds.draw({}, seed=0, budget="smoke")
    arrays, params = arrays_and_params(public)
    rows = {
        v: track.Bounds.evaluate(public, {}, bounds(arrays, params | {"variant": v})) for v in ("frobenius", "token")
    }
    rows |= {
        k: track.Bounds.evaluate(public, {}, baselines.bounds(arrays, params | {"kind": k})) for k in baselines.KINDS
    }
    assert rows["token"]["gap_12"] < rows["frobenius"]["gap_12"]
    assert rows["held-out"]["first_log10"] < rows["Massart"]["first_log10"] < rows["token"]["first_log10"] < 20
    spec = baselines.bounded_class(params)
    assert rows["frobenius"]["gap_12"] == pytest.approx(bound(spec, 10**12).gap)
    assert rows["held-out"]["gap_12"] == pytest.approx(hoeffding(10**12, spec.loss_range))
    B = spec.loss_range
    massart = 2 * B / 2 * math.sqrt(2 * math.log(100) / 1e12) + hoeffding(10**12, B)
    assert rows["Massart"]["gap_12"] == pytest.approx(massart)
    nothing = track.Bounds.evaluate(public, {}, {"bound": np.full(len(public["n_sequences"]), 9.0)})
    assert nothing["first_log10"] == 99


def test_markov(track):
    from icml25.ntp_bounds.bench import exact_gaps

    public, _ = track.Markov.draw({}, seed=0, budget="smoke")
    assert public["transition"].sum(-1) == pytest.approx(1) and public["counts"].shape == (2, 128)
    assert (public["counts"].sum(1) == public["n_sequences"]).all()
    found = exact_gaps(*arrays_and_params(public))
    row = track.Markov.evaluate(public, {}, found)
    assert row["valid_share"] == 1 and row["gap_largest"] == found["gap"].max() > 0
    assert row["bound_ratio"] == found["gap"].max() / found["bound"][0] < 1
    for value in (math.log(2), found["gap"][0] * 0.9):  # empty, or wrong
        changed = found["bound"].copy()
        changed[0] = value
        assert track.Markov.evaluate(public, {}, found | {"bound": changed})["valid_share"] == 0.5
    few = public | {"n_sequences": 16, "counts": np.random.default_rng(0).multinomial(16, np.full(128, 1 / 128), 2)}
    assert track.Markov.evaluate(few, {}, exact_gaps(*arrays_and_params(few)))["valid_share"] == 0
    with pytest.raises(ValueError, match="gap and bound must be finite"):
        track.Markov.evaluate(public, {}, found | {"gap": np.full(2, np.nan)})


def test_speed(track):
    public, _ = track.Speed.draw({}, seed=0, budget="quick")
    times = {name: np.array([1.0, 2.0, 9.0]) for name in ("bound", "sweep", "finite", "model")} | {
        "peer": np.array([1.0, 1, 3])
    }
    row = track.Speed.evaluate(public, {}, {f"{name}_seconds": value for name, value in times.items()})
    assert row == {"bound_ms": 2000, "sweep_s": 2, "finite_s": 2, "training_ratio": 2}
    assert public["points"] == 100_000 and public["classes"] == 1000


def test_training_steps_are_of_equal_models():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from icml25.ntp_bounds.bench import TRAINED, _training_steps
    from icml25.ntp_bounds.models import Decoder

    d = TRAINED["width"]
    llama = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=d, intermediate_size=8 * d // 3, num_attention_heads=4, num_hidden_layers=1, vocab_size=9
        )
    )
    ours = Decoder(9, d, 4, 4 * d, 1, 8)
    theirs, own = (sum(p.numel() for p in m.parameters()) for m in (llama.model.layers, ours.blocks))
    assert theirs == pytest.approx(own, rel=0.01)
    state = torch.random.get_rng_state()
    for step in _training_steps(0):
        step()
    torch.random.set_rng_state(state)
