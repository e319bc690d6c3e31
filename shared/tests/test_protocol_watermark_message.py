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
    assert public["null_ids"].max() < 100 and len(np.unique(public["null_keys"])) == 1
    assert (np.isfinite(public["bias_logits"]).sum(1) == 50).all()
    assert len(np.unique(public["bias_contexts"][:, -1])) == 1 and len(np.unique(public["bias_contexts"][:, -2])) > 60


def test_entropy_is_that_of_a_language_model():
    settings = SETTINGS | {"vocab": 4096, "rows": 512, "null": 0, "bias": 0}
    top = np.sort(protocol.draw(settings, seed=1000, budget="quick")[0]["table"].astype(float), axis=1)[:, -50:]
    p = np.exp(top - top[:, -1:])
    p /= p.sum(1, keepdims=True)
    entropy = -(p * np.log(p.clip(1e-300))).sum(1)
    assert entropy.mean() == pytest.approx(1.9, abs=0.2)
    assert np.quantile(entropy, 0.1) < 0.5 and np.quantile(entropy, 0.9) > 3.2


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


@pytest.fixture(scope="module")
def truth():
    return protocol.draw(SETTINGS, seed=3, budget="smoke")[1]


def test_the_pile_holds_no_message(public, truth):
    written = protocol.example(public)
    texts, places = protocol.pile(public, written)
    assert set(texts) == {"texts", "keys", "bits", "layers"} and set(truth) == {"messages_b4", "messages_b16"}
    assert set(places) == {"b4_10", "b16_25", "b16_30", *protocol.EDITS, "other_key", "null"}
    assert sorted(np.concatenate(list(places.values()))) == list(range(len(texts["keys"])))
    at = places["null"]
    np.testing.assert_array_equal(texts["texts"][at], public["null_ids"])
    assert (texts["keys"][at] == public["null_keys"]).all() and (texts["bits"][at] == 16).all()
    assert (np.diff(at) != 1).any()  # shuffled
    assert (texts["texts"][places["b4_10"], 10:] == -1).all() and (texts["bits"][places["b4_10"]] == 4).all()
    assert texts["keys"][places["b4_10"]].tolist() == public["keys_b4"].tolist() * 3
    assert texts["keys"][places["other_key"]].tolist() == public["other_keys"].tolist() * 3
    again, _ = protocol.pile(public, written)
    for name, values in texts.items():
        np.testing.assert_array_equal(values, again[name])
    few, _ = protocol.pile(public, {"tokens_b16": written["tokens_b16"][:1]})  # one text of the last cell
    assert len(few["keys"]) == 50 + 6
    fewer, places = protocol.pile(public, written | {"null_texts": 20})
    np.testing.assert_array_equal(fewer["texts"][places["null"]], public["null_ids"][:20])


def test_scores(public, truth):
    example = protocol.example(public)
    _, places = protocol.pile(public, example)
    empty = protocol.evaluate(public, truth, example)
    assert empty["bit_accuracy"] == empty["match_rate_b16_t30"] == empty["detected_deletion"] == 0
    carried = np.tile(truth["messages_b16"], (3, 1))
    bits = carried.copy()
    bits[0, :4], bits[1, 0] = -1, 1 - bits[1, 0]
    example["bits_read"][places["b16_30"]] = bits
    example["p_read"][places["b16_30"]] = [0.01, 0.5, 0, 0, 0, 0.02]
    scores = protocol.evaluate(public, truth, example)
    assert scores["bit_accuracy_b16_t30"] == pytest.approx(1 - 5 / 96)
    assert scores["match_rate_b16_t30"] == pytest.approx(4 / 6)
    assert scores["detected_b16_t30"] == pytest.approx(4 / 6)
    assert scores["bit_accuracy"] == pytest.approx((1 - 5 / 96) / 2)
    nothing = {"tokens_b16": example["tokens_b16"]}
    assert set(protocol.evaluate(public, truth, nothing)) == {"log_prob", "log_prob_gap"}


def test_scores_of_null_texts_layers_and_distributions(public, truth):
    example = protocol.example(public) | {f"tokens_layers_{d}": np.zeros((4, 20), dtype=int) for d in (1, 2, 5, 10)}
    texts, places = protocol.pile(public, example)
    count = len(texts["keys"])
    p, z, bits = np.ones(count), np.zeros(count), np.full((count, 16), -1, dtype=np.int8)
    p[places["null"]] = np.concatenate([np.full(10, 0.005), np.full(40, 0.4)])
    z[places["null"][:20]] = 2.4
    p[places["other_key"][:3]] = 0.01
    for depth, wrong in ((1, 8), (2, 4), (5, 0), (10, 1)):
        assert (texts["layers"][places[f"layers_{depth}"]] == depth).all()
        read = np.tile(truth["messages_b16"], (2, 1))
        read[:, :wrong] = -1
        bits[places[f"layers_{depth}"]] = read
    plain = np.exp(public["bias_logits"].astype(float))
    plain /= plain.sum(1, keepdims=True)
    mean = plain.copy()
    mean[np.arange(6), plain.argmax(1)] -= 0.01
    mean[:, 0] += 0.01
    example |= {"p_read": p, "z_read": z, "bits_read": bits, "mean_distribution": mean, "ms_per_token": 5.0}
    scores = protocol.evaluate(public, truth, example | {"bias_tv": 9.0})
    assert scores["false_alarms"] == 0.2 and scores["false_alarms_normal"] == 0.4
    assert scores["false_alarms_other_key"] == 0.5
    assert scores["excess_alarms"] == pytest.approx(0.6)
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
        ({"bits_read": np.zeros((6, 8))}, "bits_read has shape"),
        ({"bits_read": np.full((92, 16), 2)}, "bits_read must be numbers from -1 to 1"),
        ({"tokens_b16": np.zeros((7, 30), dtype=int)}, "tokens_b16 has shape"),
        ({"tokens_b16": np.zeros((6, 29), dtype=int)}, "tokens_b16 has shape"),
        ({"tokens_b16": np.zeros((6, 30))}, "tokens_b16 has dtype float64"),
        ({"tokens_b16": np.full((6, 30), 100)}, r"tokens_b16 has ids from 100 to 100; expected 0\.\.99"),
        ({"tokens_b4": np.full((6, 10), -1)}, "tokens_b4 has ids from -1"),
        ({"null_texts": 51}, r"null_texts is 51; expected 1\.\.50"),
        ({"null_texts": 0}, "null_texts is 0"),
        ({"p_read": np.ones(91)}, "p_read has shape"),
        ({"p_read": np.full(92, 1.5)}, "p_read must be numbers from 0 to 1"),
        ({"p_read": np.full(92, np.nan)}, "p_read must be numbers"),
        ({"z_read": np.full(92, np.inf)}, "z_read must be numbers"),
        ({"mean_distribution": np.zeros((6, 3))}, "mean_distribution has shape"),
        ({"mean_distribution": np.full((6, 512), np.nan)}, "mean_distribution must be numbers"),
    ],
    ids=str,
)
def test_bad_results(public, truth, change, match):
    with pytest.raises(ValueError, match=match):
        protocol.evaluate(public, truth, protocol.example(public) | change)


def test_what_is_missing_is_named(public, truth):
    for name in ("tokens_b16", "p_read"):
        example = protocol.example(public)
        del example[name]
        with pytest.raises(ValueError, match=f"{name} is missing"):
            protocol.evaluate(public, truth, example)


def test_texts_for_a_real_model():
    settings = SETTINGS | {"model": "smollm2", "null": 0, "bias": 0}
    public, truth = protocol.draw(settings, seed=0, budget="smoke")
    assert public["prompts"].dtype.kind == "U" and len(set(public["prompts"].tolist())) == 6
    example = protocol.example(public)
    scores = protocol.evaluate(public, truth, example | {"log_probs": np.full((6, 30), -2.0)})
    assert scores["log_prob"] == -2 and scores["log_prob_gap"] == -2
    with pytest.raises(ValueError, match="log_probs has shape"):
        protocol.evaluate(public, truth, example | {"log_probs": np.zeros((6, 3))})
