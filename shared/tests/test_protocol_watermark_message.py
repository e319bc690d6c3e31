"""The protocol "message": draws, edits and scores, against hand counts."""

import numpy as np
import pytest

from icml25.shared.protocols import watermark_message as protocol

SETTINGS = {
    "dataset": "message",
    "model": "synthetic",
    "cells": "4x10+16x30",
    "sequences": 6,
    "messages": 2,
    "null": 50,
    "bias": 64,
    "vocab": 100,
    "rows": 32,
}


@pytest.fixture(scope="module")
def public():
    return protocol.draw(SETTINGS, seed=3, budget="smoke")[0]


def sampled(public, cell, seed=0):
    """Plain sampling from the top 50, token by token."""
    rng, ids = np.random.default_rng(seed), public["prompts"].copy()
    table = public["table"].astype(float)
    top = np.where(table >= np.sort(table, 1)[:, [-50]], table, -np.inf)
    probs = np.exp(top - top.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    for _ in range(cell.tokens):
        rows = protocol.context_rows(ids[:, -2], ids[:, -1], len(table))
        ids = np.column_stack([ids, [rng.choice(100, p=probs[row]) for row in rows]])
    return ids[:, 2:]


def test_draw_is_reproducible(public):
    again, _ = protocol.draw(SETTINGS, seed=3, budget="smoke")
    other, _ = protocol.draw(SETTINGS, seed=4, budget="smoke")
    for name, value in public.items():
        np.testing.assert_array_equal(value, again[name])
    assert (public["table"] != other["table"]).all()
    assert public["messages_b16"].shape == (2, 16) and public["null_ids"].shape == (50, 200)
    assert public["null_ids"].max() < 100 and len(np.unique(public["null_keys"])) == 2
    assert (np.isfinite(public["bias_logits"]).sum(1) == 50).all()
    assert len(np.unique(public["bias_contexts"][:, -1])) == 1 and len(np.unique(public["bias_contexts"][:, -2])) > 60


def test_context_rows_are_spread():
    before, last = np.divmod(np.arange(100 * 100), 100)
    counts = np.bincount(protocol.context_rows(before, last, 32), minlength=32)
    assert counts.min() > 200 and counts.max() < 450


def test_plain_sampling_has_no_gap(public):
    tokens = sampled(public, protocol.cells(SETTINGS["cells"])[1])
    log_probs, expected = protocol.reference(public, tokens)
    assert log_probs.shape == expected.shape == (6, 30)
    table = public["table"].astype(float)
    row = table[protocol.context_rows(public["prompts"][0, 0], public["prompts"][0, 1], 32)]
    assert log_probs[0, 0] == pytest.approx(row[tokens[0, 0]] - np.log(np.exp(row).sum()))
    gap = log_probs - expected
    assert abs(gap.mean()) < 4 * gap.std() / np.sqrt(gap.size)
    _, best = protocol.reference(public, np.zeros((1, 1), dtype=int))
    top = np.sort(row)[-50:]
    p = np.exp(top) / np.exp(top).sum()
    assert best[0, 0] == pytest.approx(p @ top - np.log(np.exp(row).sum()))


def test_edits():
    tokens = np.random.default_rng(0).integers(0, 50, (40, 95))
    changed = protocol.edit(tokens, "substitution", 10**9, 1)
    assert 0.07 < (changed != tokens).mean() < 0.13
    shorter = protocol.edit(tokens, "deletion", 10**9, 1)
    assert 0.07 < (shorter < 0).mean() < 0.13
    for row, text in zip(shorter, tokens, strict=True):
        kept = row[row >= 0]
        assert (row[len(kept) :] == -1).all()
        rest = iter(text.tolist())
        assert all(token in rest for token in kept.tolist())  # in the old order
    mixed = protocol.edit(tokens, "shuffle", 10**9, 1)
    old = mixed < 50
    assert old.mean() > 0.9 and (mixed[:, 90:][old[:, 90:]] == tokens[:, 90:][old[:, 90:]]).all()
    blocks = {tuple(block) for text in tokens for block in text[:90].reshape(9, 10)}
    assert np.mean([tuple(block) in blocks for text in mixed for block in text[:90].reshape(9, 10)]) > 0.4
    assert (mixed != tokens).mean() > 0.5
    for kind in protocol.EDITS:
        np.testing.assert_array_equal(protocol.edit(tokens, kind, 9, 5), protocol.edit(tokens, kind, 9, 5))


def test_scores(public):
    example = protocol.example(public)
    empty = protocol.evaluate(public, {}, example)
    assert empty["bit_accuracy"] == empty["match_rate_b16_t30"] == empty["detected_deletion"] == 0
    carried = np.repeat(public["messages_b16"], 3, axis=0)
    bits = carried.copy()
    bits[0, :4], bits[1, 0] = -1, 1 - bits[1, 0]
    example |= {"bits_b16_30": bits, "p_b16_30": np.array([0.01, 0.5, 0, 0, 0, 0.02])}
    scores = protocol.evaluate(public, {}, example)
    assert scores["bit_accuracy_b16_t30"] == pytest.approx(1 - 5 / 96)
    assert scores["match_rate_b16_t30"] == pytest.approx(4 / 6)
    assert scores["detected_b16_t30"] == pytest.approx(4 / 6)
    assert scores["bit_accuracy"] == pytest.approx((1 - 5 / 96) / 2)
    example |= {"bits_b16_30": carried[:2], "p_b16_30": np.zeros(2)}  # only the first sequences
    assert protocol.evaluate(public, {}, example)["match_rate_b16_t30"] == 1


def test_scores_of_null_texts_and_distributions(public):
    example = protocol.example(public)
    example |= {
        "p_null": np.array([0.005, 0.2, 0.9, 1.0]),
        "z_null": np.array([3.0, 2.0, 0.0, 2.4]),
        "ms_per_token": 5.0,
    }
    plain = np.exp(public["bias_logits"].astype(float))
    plain /= plain.sum(1, keepdims=True)
    mean = plain.copy()
    best = plain.argmax(1)
    mean[np.arange(6), best] -= 0.01
    mean[:, 0] += 0.01
    example["mean_distribution"] = mean
    for depth, wrong in ((1, 8), (2, 4), (5, 0), (10, 1)):
        bits = np.repeat(public["messages_b16"], 3, axis=0)
        bits[:, :wrong] = -1
        example[f"bits_layers_{depth}"] = bits
    scores = protocol.evaluate(public, {}, example | {"bias_tv": 9.0})
    assert scores["false_alarms"] == 0.25 and scores["false_alarms_normal"] == 0.5
    assert scores["excess_alarms"] == pytest.approx(0.3)
    assert scores["bias_tv"] == pytest.approx(0.01)  # and the solver's own number is not taken
    assert scores["layers_gain"] == pytest.approx(7 / 16)
    assert scores["layers_smallest_step"] == pytest.approx(-1 / 16)
    assert scores["ms_per_token"] == 5


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"cells": "16"}, "BITSxTOKENS"),
        ({"cells": "8x10+8x20"}, "differ in their bits"),
        ({"sequences": 5}, "multiple of messages"),
        ({"sequences": 0}, "multiple of messages"),
        ({"model": "gpt"}, "model must be"),
    ],
    ids=str,
)
def test_bad_settings(change, match):
    with pytest.raises(ValueError, match=match):
        protocol.draw(SETTINGS | change, seed=0, budget="smoke")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"bits_b16_30": np.zeros((6, 8))}, "bits_b16_30 has shape"),
        ({"tokens_b16": np.zeros((7, 30), dtype=int)}, "tokens_b16 has shape"),
        ({"p_null": np.array([1.5])}, "p_null"),
        ({"p_null": np.array([np.nan])}, "p_null"),
        ({"mean_distribution": np.zeros((6, 3))}, "mean_distribution has shape"),
    ],
    ids=str,
)
def test_bad_results(public, change, match):
    with pytest.raises(ValueError, match=match):
        protocol.evaluate(public, {}, protocol.example(public) | change)


def test_texts_for_a_real_model():
    settings = SETTINGS | {"model": "smollm2", "null": 0, "bias": 0}
    public, _ = protocol.draw(settings, seed=0, budget="smoke")
    assert public["prompts"].dtype.kind == "U" and len(set(public["prompts"].tolist())) == 6
    scores = protocol.evaluate(public, {}, protocol.example(public) | {"log_probs": np.full((6, 30), -2.0)})
    assert scores["log_prob"] == -2 and scores["log_prob_gap"] == -2
