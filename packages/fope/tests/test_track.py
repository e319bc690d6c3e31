"""The track's own corpus, metrics and baselines against values worked out otherwise."""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import icml25.fope

pytest.importorskip("benchopt")
pytestmark = pytest.mark.bench
TRACK = Path(icml25.fope.__file__).parent / "track"


def load(name):
    spec = importlib.util.spec_from_file_location(f"length_generalization_{Path(name).stem}", TRACK / name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def track():
    return load("objective.py")


@pytest.fixture(scope="module")
def positions():
    return load("benchmark_utils/positions.py")


@pytest.fixture(scope="module")
def decoder():
    return load("benchmark_utils/decoder.py")


@pytest.fixture
def reading(track):
    public, _ = track.Reading.draw({"corpus": "markov_passkey", "length": 16}, seed=0, budget="smoke")
    return public


def test_corpus(track):
    tokens = track.markov_passkey(500, 24, np.random.default_rng(0)).astype(int)
    assert tokens.shape == (500, 24)
    places = []
    for row in tokens:
        [place] = np.flatnonzero(row == track.MARKER)
        assert row[21] == track.QUERY and (row[22:] == row[place + 1 : place + 3]).all()
        assert (row[place + 1 : place + 3] >= track.SYMBOLS).all() and (row[place + 1 : place + 3] < track.MARKER).all()
        chain = np.delete(row[:21], [place, place + 1, place + 2])
        assert (chain < track.SYMBOLS).all() and set(np.diff(chain) % 32) <= {1, 2, 3}
        places.append(place)
    assert set(places) == set(range(19))
    again = track.markov_passkey(500, 24, np.random.default_rng(0))
    assert (again == tokens).all()


def test_text(track):
    train, test, vocabulary = track.characters("stdlib", np.random.default_rng(0))
    assert 50 < vocabulary < 256 and train.max() < vocabulary and len(test) > 8 * 64
    assert len(train) > 4 * len(test)
    rows = track.windows(test, 5, 30, np.random.default_rng(0))
    whole = test.tobytes()
    assert rows.shape == (5, 30) and all(row.tobytes() in whole for row in rows)
    public, _ = track.Reading.draw({"corpus": "stdlib", "length": 64}, seed=0, budget="smoke")
    assert {name for name in public if name.startswith("test_")} == {"test_64", "test_128", "test_256", "test_512"}


def test_loss_and_passkeys(track, reading):
    result = track.Reading.example(reading)
    for m in track.READ_AT:
        tokens = reading[f"test_{16 * m}"]
        result[f"loss_{16 * m}"][:] = m
        answers = tokens[:, -2:].astype(int)
        answers[: len(answers) // 2, 1] += 1  # one of two keys is not enough
        result[f"answer_{16 * m}"] = answers
    row = track.Reading.evaluate(reading, {}, result)
    assert row["loss_1"] == 1 and row["rise_4"] == 3 and row["rise_8"] == 7
    assert row["passkey_8"] == pytest.approx(0.5, abs=0.1)
    result["loss_64"] = result["loss_64"][:, :-1]
    with pytest.raises(ValueError, match="loss_64 must be finite and of shape"):
        track.Reading.evaluate(reading, {}, result)
    result["loss_64"] = np.full((len(reading["test_64"]), 63), np.nan)
    with pytest.raises(ValueError, match="loss_64"):
        track.Reading.evaluate(reading, {}, result)


def test_floor(track):
    from icml25.fope.bench import kept

    public, _ = track.Floor.draw({}, seed=0, budget="smoke")
    found = kept(public, {})
    assert len(found) == len(public["dims"]) == 46
    assert track.Floor.evaluate(public, {}, found) == {"floor_errors": 0.0}
    found["kept_45"], found["kept_3"] = found["kept_45"][:-1], found["kept_3"] * 1.01
    assert track.Floor.evaluate(public, {}, found) == {"floor_errors": 2.0}


def test_speed(track):
    public, _ = track.Speed.draw({"tokens": 64}, seed=0, budget="smoke")
    times = {"model_seconds": [1, 1.1, 18], "peer_seconds": [1, 1, 9], "short_seconds": [1.0], "long_seconds": [5.0]}
    row = track.Speed.evaluate(public, {}, {name: np.array(value) for name, value in times.items()})
    assert row == {"forward_ratio": 1.1, "growth": 1.25}


def test_forward_times_are_of_equal_models():
    from icml25.fope.bench import forward_times

    params = {"tokens": 32, "short": 64, "long": 128, "repeats": 2, "seed": 0}
    found = forward_times({}, params)
    assert set(found) == {"model_seconds", "peer_seconds", "short_seconds", "long_seconds"}
    assert all(value.shape == (2,) and (value > 0).all() for value in found.values())


def test_rope_of_the_baseline_is_that_of_transformers(positions):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    x = torch.randn(1, 2, 30, 32, generator=torch.Generator().manual_seed(0))
    index = torch.arange(30)[None]
    for reading, rope in (
        ("plain", {"rope_type": "default"}),
        ("interpolation", {"rope_type": "linear", "factor": 31 / 16}),
        ("yarn", {"rope_type": "yarn", "factor": 31 / 16, "original_max_position_embeddings": 16}),
    ):
        settings = {"rope_theta": 10000.0, **rope}
        model = LlamaConfig(hidden_size=64, num_attention_heads=2, max_position_embeddings=31, rope_parameters=settings)
        expected, _ = apply_rotary_pos_emb(x, x, *LlamaRotaryEmbedding(model)(x, index))
        rotate, bias = positions.RoPE(32, 16, reading)(30)
        assert bias is None
        torch.testing.assert_close(rotate(x), expected, atol=2e-5, rtol=0)


def test_positions_read_as_trained_within_the_length(positions):
    x = torch.randn(1, 2, 15, 32, generator=torch.Generator().manual_seed(0))
    plain = positions.RoPE(32, 16)(15)[0](x)
    for reading in ("interpolation", "yarn"):
        assert torch.equal(positions.RoPE(32, 16, reading)(15)[0](x), plain)


def test_aligned_rope_finishes_its_cycles(positions):
    turns = positions.AlignedRoPE(32, 64).frequencies * 64 / (2 * math.pi)
    torch.testing.assert_close(turns, turns.round(), atol=1e-5, rtol=0)
    assert turns.min() == 1 and turns.max() == 10


@pytest.mark.parametrize("name", ["ALiBi", "Kerple", "Fire"])
def test_biases(positions, name):
    module = positions.Fire(2, 16) if name == "Fire" else getattr(positions, name)(2)
    rotate, bias = module(6)
    assert rotate is None and bias.shape == (2, 6, 6)
    assert (bias.isinf() == torch.ones(6, 6).triu(1).bool()).all()
    if name == "ALiBi":  # slopes 2^-4 and 2^-8 with two heads
        assert bias[0, 5, 1] == -4 / 16 and bias[1, 5, 0] == -5 / 256
    if name == "Kerple":
        assert bias[0, 5, 1].item() == pytest.approx(-math.log(5)) and bias[0, 3, 3] == 0
    if name == "Fire":
        c, threshold = 0.1, 8.0
        progress = torch.tensor([math.log1p(c * 4) / math.log1p(c * threshold)])
        torch.testing.assert_close(bias[:, 5, 1], module.mlp(progress))


def test_decoder_is_causal_and_reads_what_it_learned(decoder, positions):
    arrays = {"train": np.tile(np.arange(20, dtype=np.uint8) % 5, (400, 1))}
    arrays |= {"test_20": arrays["train"][:3], "test_40": np.tile(np.arange(40, dtype=np.uint8) % 5, (2, 1))}
    params = {"size": "smoke", "seed": 0, "vocabulary": 6, "batch_size": 4}
    for position in (positions.RoPE(32, 20), positions.ALiBi(1), positions.NoPE()):
        found = decoder.train_and_read(position, arrays, params)
        assert found["loss_20"].shape == (3, 19) and found["answer_40"].shape == (2, 2)
        assert found["loss_20"][:, 1:].mean() < 0.3 and (found["answer_20"] == [3, 4]).all()
    model = decoder.train(positions.RoPE(32, 20), {"train": arrays["train"][:4]}, params)
    tokens = torch.arange(20)[None] % 6
    changed = tokens.clone()
    changed[0, 12] = (tokens[0, 12] + 1) % 6
    difference = (model(tokens) - model(changed)).abs().sum(-1)[0]
    assert (difference[:12] == 0).all() and (difference[12:] > 0).all()


def test_linear_layer_is_that_of_torch(decoder):
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)
    layer = decoder.Linear(16, 24, bias=False)
    torch.testing.assert_close(layer(x), x @ layer.weight.T, atol=1e-5, rtol=0)
    for ours, theirs in zip(
        torch.autograd.grad(layer(x).square().sum(), (x, layer.weight)),
        torch.autograd.grad((x @ layer.weight.T).square().sum(), (x, layer.weight)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_same_seed_same_result(decoder, positions):
    arrays = {"train": np.arange(64, dtype=np.uint8).reshape(4, 16) % 7, "test_16": np.zeros((1, 16), dtype=np.uint8)}
    params = {"size": "smoke", "seed": 3, "vocabulary": 7, "batch_size": 2}
    state = torch.random.get_rng_state()
    one, two = (decoder.train_and_read(positions.RoPE(32, 16), arrays, params) for _ in range(2))
    assert (one["loss_16"] == two["loss_16"]).all()
    other = decoder.train_and_read(positions.RoPE(32, 16), arrays, params | {"seed": 4})
    assert (one["loss_16"] != other["loss_16"]).any()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_fope_in_the_decoder():
    from icml25.fope.bench import train_and_read, warm_up

    warm_up()
    arrays = {"train": np.arange(64, dtype=np.uint8).reshape(4, 16) % 7, "test_32": np.zeros((2, 32), dtype=np.uint8)}
    params = {"size": "smoke", "seed": 0, "vocabulary": 7, "batch_size": 2, "length": 16}
    losses = [train_and_read(arrays, params | {"variant": v})["loss_32"] for v in ("fope", "clip", "series")]
    assert all(np.isfinite(loss).all() for loss in losses)
    assert (losses[0] != losses[1]).any() and (losses[0] != losses[2]).any()


def test_readings_of_the_same_weights(track, reading, monkeypatch):
    monkeypatch.syspath_prepend(TRACK)
    baselines = load("benchmark_utils/baselines.py")
    arrays = {name: value for name, value in reading.items() if isinstance(value, np.ndarray)}
    params = {name: value for name, value in reading.items() if name not in arrays} | {"seed": 0, "position": "rope"}
    found = baselines.fit(arrays, params | {"readings": ["interpolation", "yarn"]})
    assert (found["loss_64"] == baselines.fit(arrays, params | {"readings": []})["loss_64"]).all()
    assert (found["loss_64"] != found["loss_64_yarn"]).any() and (
        found["loss_64_yarn"] != found["loss_64_interpolation"]
    ).any()
    row = track.Reading.evaluate(reading, {}, found)
    assert row["rise_4_yarn"] == pytest.approx(found["loss_64_yarn"].mean() - found["loss_16"].mean())
    assert 0 <= row["passkey_8_yarn"] <= 1 and "rise_1_yarn" not in row
