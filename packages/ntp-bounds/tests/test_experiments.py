"""Measured gaps: losses, padding, seeds; complexity from below."""

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from icml25.ntp_bounds import DecoderSpec, MarkovChain, dudley, log_cover, measure_gap, rademacher_lower
from icml25.ntp_bounds.experiments import _project, ascend, mean_loss, sequence_losses, train
from icml25.ntp_bounds.models import Decoder
from icml25.ntp_bounds.sources import split_text

CHAIN = MarkovChain([[0.9, 0.1, 0.0], [0.0, 0.9, 0.1], [0.1, 0.0, 0.9]])
SHORT = {"n_sequences": 8, "seq_len": 6, "dim": 8, "steps": 20, "n_test": 16, "vocab": 3}


def sequences(n=40, length=7, seed=0):
    return CHAIN.sample(n, length, np.random.default_rng(seed))


def test_record():
    data = sequences(), sequences(seed=1)
    steps = []
    record = measure_gap(**SHORT, data=data, callback=lambda step, loss: steps.append(loss))
    assert record.gap == record.test - record.train and record.tokens == 20 * 8 * 6 and record.data == "given"
    assert record.n_params == 2 * 3 * 8 + 6 * 8 + 4 * 64 + 2 * 8 * 32
    assert len(steps) == 20 and steps[-1] < steps[0]
    assert measure_gap(**SHORT, data=data) == record != measure_gap(**SHORT, data=data, seed=1)
    state = torch.random.get_rng_state()
    measure_gap(**SHORT, data=data)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_losses_are_those_of_the_final_weights():
    """The same steps by hand, the loss from log-softmax."""
    data = sequences(8), sequences(16, seed=1)
    record = measure_gap(**SHORT, data=data)
    model = Decoder(3, 8, 2, 32, 1, 6, norm="rmsnorm", pre_norm=True)
    train(model, torch.tensor(data[0]), steps=20)
    for part, expected in zip(data, (record.train, record.test), strict=True):
        logits = model(torch.tensor(part)[:, :-1]).detach().numpy().astype(float)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        chosen = np.take_along_axis(log_p, part[:, 1:, None], -1)
        assert -chosen.mean() == pytest.approx(expected, abs=1e-6)
    assert model.training
    sequence_losses(model.eval(), torch.tensor(data[0]))
    assert not model.training


def test_losses_are_measured_in_evaluation_mode():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    tokens = torch.tensor(sequences(4))
    logits = model[2](model[0](tokens[:, :-1]))
    expected = torch.nn.functional.cross_entropy(logits.mT, tokens[:, 1:])
    assert mean_loss(model, tokens) == pytest.approx(float(expected.detach()), abs=1e-6)
    assert model.training


def test_small_training_sets_are_learned_by_heart():
    text = np.random.default_rng(0).integers(0, 5, 400)
    few, many = (
        measure_gap(n, 16, 16, data=(text, np.roll(text[::-1], 3)), vocab=5, steps=300, n_test=64).gap for n in (4, 64)
    )
    assert few > 1.5 * many > 0


def test_exact_risk_of_the_chain():
    tokens, weight = CHAIN.enumerate(7)
    model = Decoder(3, 8, 2, 16, 1, 6)
    train(model, torch.tensor(sequences(256)), steps=150)
    risk = float(sequence_losses(model, torch.tensor(tokens)).mean(1) @ weight)
    sampled = mean_loss(model, torch.tensor(sequences(3000, seed=5)))
    assert risk == pytest.approx(sampled, abs=0.03) and risk > CHAIN.entropy
    assert risk < math.log(3) - 0.2


def test_padding_is_no_target():
    data = sequences(8), sequences(16, seed=1)
    padded = tuple(np.concatenate([part, np.full((len(part), 3), 3)], 1) for part in data)
    settings = SHORT | {"seq_len": 9, "vocab": 4}
    record = measure_gap(**settings, data=padded, pad=3)
    for part in padded:
        part[0, 4:] = 3
    shorter = measure_gap(**settings, data=padded, pad=3)
    assert shorter != record
    model = Decoder(4, 8, 2, 32, 1, 9)
    losses = sequence_losses(model, torch.tensor(padded[0]), pad=3)
    assert (losses[:, 6:] == 0).all() and (losses[0, 3:] == 0).all() and (losses[1:, :6] > 0).all()
    assert mean_loss(model, torch.tensor(padded[0]), pad=3) == pytest.approx(losses.sum() / (losses > 0).sum())
    whole = mean_loss(model, torch.tensor(padded[0][1:, :7]))
    assert mean_loss(model, torch.tensor(padded[0][1:]), pad=3) == pytest.approx(whole, abs=1e-6)
    padded[0][2, 1:] = 3
    with pytest.raises(ValueError, match="train has nothing but padding to predict in row 2"):
        measure_gap(**settings, data=padded, pad=3)


def test_padding_takes_no_part_in_training():
    tokens = torch.tensor(np.concatenate([sequences(8), np.full((8, 2), 3)], 1))
    models = [Decoder(4, 8, 2, 16, 1, 8) for _ in range(2)]
    train(models[0], tokens, steps=5, pad=3)
    train(models[1], tokens[:, :7], steps=5)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "tokens", [torch.zeros(0, 7, dtype=torch.int64), torch.zeros(3, 7), torch.zeros(7, dtype=torch.int64)]
)
def test_training_needs_sequences(tokens):
    with pytest.raises(ValueError, match="sequences must be an int64 tensor"):
        train(Decoder(3, 8, 2, 16, 1, 6), tokens, steps=1)


def test_training_stops_when_told():
    model, seen = Decoder(3, 8, 2, 16, 1, 6), []
    taken = train(
        model, torch.tensor(sequences()), steps=50, callback=lambda step, loss: seen.append(step) or step == 2
    )
    assert seen == [0, 1, 2] and taken == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_goes_on_from_a_checkpoint(tmp_path, dtype):
    """Stopped twice, once on the way between checkpoints: the same weights as without a stop."""
    file, tokens = tmp_path / "run.npz", torch.tensor(sequences())
    whole, *parts = (Decoder(3, 8, 2, 16, 1, 6, seed=0).to(dtype) for _ in range(4))
    train(whole, tokens, steps=130, batch_size=7)
    stops, runs = (17, 104, None), []
    for part, stop in zip(parts, stops, strict=True):
        seen = []
        callback = lambda step, loss, seen=seen, stop=stop: seen.append(step) or step == stop  # noqa: E731
        taken = train(part, tokens, steps=130, batch_size=7, checkpoint=file, callback=callback)
        runs.append((seen[0], taken))
    assert runs == [(0, 18), (18, 105), (105, 130)]
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts[-1].parameters(), strict=True))
    other = Decoder(3, 8, 2, 16, 1, 6, seed=5).to(dtype)
    assert train(other, tokens, steps=130, batch_size=7, checkpoint=file) == 130  # nothing left to do
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), other.parameters(), strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["run.npz"]


def test_a_killed_run_goes_on_from_the_last_hundred(tmp_path):
    def killed(step, loss):
        if step == 115:
            raise KeyboardInterrupt

    data, settings = (sequences(), sequences(seed=1)), SHORT | {"steps": 120, "checkpoint": tmp_path / "run.npz"}
    with pytest.raises(KeyboardInterrupt):
        measure_gap(**settings, data=data, callback=killed)
    seen = []
    record = measure_gap(**settings, data=data, callback=lambda step, loss: seen.append(step))
    assert seen == list(range(100, 120))
    assert record == measure_gap(**SHORT | {"steps": 120}, data=data) and record.tokens == 120 * 8 * 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "another run: seed was 0, not 1"),
        ({"lr": 0.01}, "another run: lr was 0.003, not 0.01"),
        ({"batch_size": 4}, "another run: batch_size was 16, not 4"),
        ({"heads": 4}, "another run: model was Decoder"),
        ({"data": (sequences(seed=2), sequences())}, "another run: sequences was"),
        ({"steps": 3}, "5 steps, more than steps=3"),
    ],
)
def test_checkpoints_of_other_runs_are_refused(tmp_path, changes, message):
    settings = SHORT | {"steps": 5, "data": (sequences(), sequences()), "checkpoint": tmp_path / "run.npz"}
    measure_gap(**settings)
    with pytest.raises(ValueError, match=rf"checkpoint .*run\.npz is of {message}"):
        measure_gap(**settings | changes)


def test_broken_checkpoints_are_named(tmp_path):
    file, settings = tmp_path / "run.npz", SHORT | {"steps": 5, "data": (sequences(), sequences())}
    measure_gap(**settings, checkpoint=file)
    whole = file.read_bytes()
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    for content in (b"", b"abc", whole[:100], whole[:-30], (tmp_path / "other.npz").read_bytes()):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"checkpoint .*run\.npz can't be read"):
            measure_gap(**settings, checkpoint=file)


def test_prose_by_default():
    record = measure_gap(4, 8, 8, steps=2, n_test=4)
    assert record.data.startswith("pydoc_data.topics sha256:") and 3 < record.test < 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_sequences": 0}, "n_sequences must be an integer of at least 1, got 0"),
        ({"seq_len": 0}, "seq_len"),
        ({"vocab": None}, "vocab must be given"),
        ({"vocab": 2}, r"train must be in 0\.\.1"),
        ({"n_sequences": 41}, "train must be a text, or 41 sequences"),
        ({"seq_len": 5}, "sequences of 6 tokens"),
        ({"steps": -1}, "steps"),
        ({"lr": 0.0}, "lr must be in"),
        ({"heads": 3}, "heads must divide dim"),
        ({"data": (np.zeros((8, 7)), np.zeros((16, 7)))}, "train must be integers"),
        ({"data": sequences()}, "data"),
        ({"data": (sequences(),) * 3}, "data"),
        ({"vocab": 1}, "vocab must be an integer of at least 2, got 1"),
        ({"pad": 3}, "pad must be below vocab=3, got 3"),
        ({"pad": -1}, "pad must be an integer of at least 0, got -1"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"lr": 1e30, "norm": "project", "pre_norm": False}, r"training diverged with lr=1e\+30: losses are \(nan"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        measure_gap(**{**SHORT, "data": (sequences(), sequences(seed=1)), **changes})


def test_complexity_from_below():
    model = Decoder(3, 8, 2, 16, 1, 6, b_x=1.0)
    tokens = sequences(12)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    spec = DecoderSpec.from_torch(model)
    for changes, message in (({"lr": -1.0}, "lr must be in"), ({"seed": -1}, "seed must be"), ({"steps": -1}, "steps")):
        with pytest.raises(ValueError, match=message):
            rademacher_lower(model, tokens, **changes)
    low = rademacher_lower(model, tokens, n_signs=3, steps=25)
    assert low == rademacher_lower(model, tokens, n_signs=3, steps=25, spec=spec)
    above = dudley(lambda eps: log_cover(spec, eps * math.sqrt(3)), spec.loss_range / 2, 12).value
    assert 0 < low.value <= above and low.se > 0
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    untouched = rademacher_lower(model, tokens, n_signs=3, steps=0, restarts=1)
    assert untouched.value < low.value
    small = replace(spec, norms=dict.fromkeys(spec.shapes, (1e-6, 1e-6)))
    tiny = rademacher_lower(model, tokens, n_signs=3, steps=5, spec=small)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (3, 12))
    assert tiny.value == pytest.approx(math.log(3) * signs.mean(), abs=1e-3)  # all losses are log v


def test_searches_stay_in_the_class():
    model = Decoder(3, 8, 2, 16, 1, 6)
    matrices = {name: model.get_parameter(f"{path}.weight") for name, path in model.paths.items()}
    before = {name: W.detach().clone() for name, W in matrices.items()}
    inside = DecoderSpec.from_torch(model)
    _project(matrices, inside)
    for name, W in matrices.items():
        torch.testing.assert_close(W, before[name], atol=1e-5, rtol=1e-5)
    for op, fro in ((0.5, 0.8), (0.3, 0.4)):  # the spectral ball alone, and both
        _project(matrices, replace(inside, norms=dict.fromkeys(inside.shapes, (op, fro))))
        for W in matrices.values():
            found = np.linalg.norm(W.detach().numpy(), 2), np.linalg.norm(W.detach().numpy())
            assert found[0] <= op * 1.00001 and 0.3 < found[1] <= fro * 1.00001


@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_searches_add_up_weighted_losses(size):
    model, tokens = Decoder(3, 8, 2, 16, 1, 6), torch.tensor(sequences(12))
    weights = size * torch.tensor(np.random.default_rng(0).standard_normal(12))
    spec = DecoderSpec.from_torch(model)
    start = ascend(model, tokens, weights, spec, steps=0)
    expected = float(sequence_losses(model, tokens).mean(1) @ weights.numpy())
    assert start == pytest.approx(expected, rel=1e-4)
    assert ascend(model, tokens, weights, spec, steps=15) > start + 0.01 * size


def test_complexity_from_below_meets_a_linear_class():
    """For a small W_out the loss is nearly linear: the search finds the closed-form supremum, or more."""
    model = Decoder(2, 4, 1, 4, 1, 1)
    for name, path in model.paths.items():
        if name not in ("embedding", "W_out"):
            model.get_parameter(f"{path}.weight").data.zero_()
    norms = {name: tuple(pair) for name, pair in DecoderSpec.from_torch(model).norms.items()} | {"W_out": (0.02, 0.02)}
    spec = replace(DecoderSpec.from_torch(model), norms=norms)
    tokens = np.random.default_rng(1).integers(0, 2, (10, 2))
    with torch.no_grad():
        z = model.normalise(model.embedding(torch.tensor(tokens[:, :1])))[:, 0].double().numpy()
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (2, 10))
    p_minus_y = np.where(np.arange(2) == tokens[:, 1:], -0.5, 0.5)
    expected = [math.log(2) * s.mean() + 0.02 * np.linalg.norm((s[:, None] * p_minus_y).T @ z / 10) for s in signs]
    low = rademacher_lower(model, tokens, spec=spec, n_signs=2, restarts=1, steps=150, lr=0.003)
    assert low.value >= np.mean(expected) - 1e-4  # the embedding may move, too
    assert low.value <= math.log(2) * signs.mean() + 0.02 * math.sqrt(0.5) + 1e-4
    with pytest.raises(ValueError, match="of the model's sizes"):
        rademacher_lower(model, tokens[:, :2].repeat(2, 1))


@pytest.mark.realdata
def test_gap_falls_with_sequences_on_shakespeare():
    folder = os.environ.get("ICML25_DATA")
    file = Path(folder or ".") / "text" / "tinyshakespeare.txt"
    if not file.is_file():
        pytest.skip(f"{file} is not there; set ICML25_DATA")
    corpus = split_text(file.read_text(), "tinyshakespeare")
    assert corpus.vocab == 65
    data = corpus.train, corpus.test
    few, many = (measure_gap(n, 16, 16, data=data, vocab=65, steps=200, n_test=128).gap for n in (8, 128))
    assert few > 2 * many
