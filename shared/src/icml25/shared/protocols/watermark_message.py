"""Messages in generated text: do they come back, is their absence recognised, and what does the text lose?

A language model whose next-token logits are a table row, picked by a hash of the last two tokens, writes sequences that
carry given messages. Its logits are Gaussian with a scale drawn per row, so that the entropy of its 50 likeliest tokens
varies as a real model's does: 1.9 nats on average, deciles 0.3 to 3.6 (SmolLM2 on news: 2.2, 0.9 to 3.3). Because the table is known, the log-probability of every
token under the model without watermark is computed here, and compared with what plain sampling would have got in the
same places. Null texts are Python's reference manual, cut into tokens as people wrote it. Edits of the text, and every
score, are the protocol's; a solver returns tokens, decoded bits and p-values.

For a real model (``model = "smollm2"``) prompts are texts, and the log-probabilities are scored by the track's own
``messaging`` module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["EDITS", "Cell", "cells", "context_rows", "draw", "edit", "evaluate", "example", "reference"]

TOP_K = 50
LENGTHS = (25, 50, 100, 200, 300)
EDITS = ("substitution", "deletion", "shuffle")
ALPHA = 0.01
BIAS_VOCAB = 512
NULL_LENGTH, NULL_TEXTS_PER_KEY = 200, 40


class Cell:
    """Sequences of ``tokens`` tokens that carry ``bits`` bits; written as ``16x200``."""

    def __init__(self, text: str) -> None:
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
            raise ValueError(f"a cell must be BITSxTOKENS such as 16x200, got {text!r}")
        self.bits, self.tokens = map(int, text.split("x"))
        self.name = f"b{self.bits}"

    @property
    def lengths(self) -> tuple[int, ...]:
        """Prefixes that are read, the whole text last."""
        return (*(n for n in LENGTHS if n < self.tokens), self.tokens)


def cells(text: str) -> list[Cell]:
    """Cells of ``8x50+16x200``; the last one is also edited, and judged for quality."""
    found = [Cell(part) for part in text.split("+")]
    if len({cell.bits for cell in found}) < len(found):
        raise ValueError(f"cells must differ in their bits, got {text!r}")
    return found


def context_rows(before: Any, last: Any, n_rows: int) -> Any:
    """Row of the table for the last two tokens; int64 arrays or tensors."""
    return ((before * 30011 + last * 40503 + 12345) * 2654435761 % 4294967296) // 32768 % n_rows


def draw(settings: dict[str, Any], *, seed: int, budget: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw model, prompts, messages and null texts.

    Parameters
    ----------
    settings : dataset (its name), model ("synthetic" or "smollm2"), cells ("8x50+16x200", bits x tokens), sequences (per
        cell), messages (different ones per cell), null (number of null texts), bias (number of contexts
        over which the next-token distribution is averaged) and, for the synthetic model, vocab and rows (of its table).
    seed : of everything; solvers derive their keys from it.
    budget : not used; the settings say it all.

    Returns
    -------
    public : dataset, model, cells, top_k; per cell ``messages_b<bits>`` (m, bits) int8, each carried by as many sequences.
        Synthetic: table (rows, vocab) float32 and prompts (sequences, 2). Otherwise prompts (sequences,) of text.
        null_ids (K, 200) and null_keys (K,), each key for 40 texts, if any. bias_logits (6, 512), -inf outside the top 50, and
        bias_contexts (N, 4), which all end on the same token, if any.
    truth : empty; the messages have to be known to be embedded.
    """
    wanted = cells(settings["cells"])
    sequences, messages = settings["sequences"], settings["messages"]
    if sequences < 1 or messages < 1 or sequences % messages:
        raise ValueError(f"sequences ({sequences}) must be a positive multiple of messages ({messages})")
    streams = [np.random.default_rng(s) for s in np.random.SeedSequence([seed, 7]).spawn(5)]
    public: dict[str, Any] = {
        "dataset": settings["dataset"],
        "model": settings["model"],
        "cells": settings["cells"],
        "top_k": TOP_K,
    }
    for cell in wanted:
        public[f"messages_{cell.name}"] = streams[0].integers(0, 2, (messages, cell.bits), dtype=np.int8)
    if settings["model"] == "synthetic":
        rows, vocab = settings["rows"], settings["vocab"]
        table = streams[1].standard_normal((rows, vocab), dtype=np.float32)
        public["table"] = table * streams[1].uniform(1, 9.5, (rows, 1)).astype(np.float32)
        public["prompts"] = streams[2].integers(0, vocab, (sequences, 2))
    elif settings["model"] == "smollm2":
        public["prompts"] = _prompt_texts(sequences, streams[2])
        vocab = 49152
    else:
        raise ValueError(f"model must be 'synthetic' or 'smollm2', got {settings['model']!r}")
    if settings["null"]:
        public["null_ids"], public["null_keys"] = _null_texts(settings["null"], vocab, streams[3])
    if settings["bias"]:
        public["bias_logits"] = _bias_logits(streams[4])
        contexts = streams[4].integers(
            0, 2**20, (settings["bias"], 4)
        )  # they are only hashed: more than the vocabulary has
        contexts[:, -1] = contexts[0, -1]
        public["bias_contexts"] = contexts
    return public, {}


def _null_texts(count: int, vocab: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Slices of Python's reference topics, words and signs numbered by frequency (modulo the vocabulary)."""
    from icml25.shared.datasets import TextDataset, load

    corpus = load("stdlib")
    assert isinstance(corpus, TextDataset)
    words = np.array(re.findall(r"\w+|[^\w\s]", corpus.text))
    _, inverse, frequency = np.unique(words, return_inverse=True, return_counts=True)
    rank = np.empty(len(frequency), dtype=np.int64)
    rank[np.argsort(-frequency, kind="stable")] = np.arange(len(frequency))
    ids = rank[inverse] % vocab
    starts = rng.integers(0, len(ids) - NULL_LENGTH, count)
    keys = rng.integers(0, 2**31, -(-count // NULL_TEXTS_PER_KEY))
    return ids[starts[:, None] + np.arange(NULL_LENGTH)], np.repeat(keys, NULL_TEXTS_PER_KEY)[:count]


def _bias_logits(rng: np.random.Generator) -> np.ndarray:
    logits = rng.standard_normal((6, BIAS_VOCAB)) * np.linspace(0.5, 6, 6)[:, None]
    return np.where(logits >= np.sort(logits, axis=1)[:, [-TOP_K]], logits, -np.inf).astype(np.float32)


def _prompt_texts(count: int, rng: np.random.Generator) -> np.ndarray:
    """Openings of WikiText-2 paragraphs, where its file is at hand; else of the standard library's topics."""
    from icml25.shared.datasets import DataError, TextDataset, load

    try:
        corpus = load("wikitext2", split="test", min_length=400)
    except DataError:
        corpus = load("stdlib")
    assert isinstance(corpus, TextDataset)
    documents = [text[:300] for text in corpus.documents if len(text) >= 300]
    return np.array([documents[i] for i in rng.permutation(len(documents))[np.arange(count) % len(documents)]])


def edit(tokens: np.ndarray, kind: str, vocab: int, seed: int) -> np.ndarray:
    """Edit texts as a reader might.

    Parameters
    ----------
    tokens : (n, T) int64.
    kind : "substitution" (each token is replaced with probability 0.1), "deletion" (dropped with probability 0.1), or
        "shuffle" (blocks of ten tokens change places, and each token is replaced with probability 0.05).
    vocab : ids of substitutes are below this.
    seed : of the edits.

    Returns
    -------
    (n, T) int64, where fewer are left -1 at the end.
    """
    rng = np.random.default_rng([seed, EDITS.index(kind)])
    n, length = tokens.shape
    if kind == "deletion":
        out = np.full_like(tokens, -1)
        for row, kept, text in zip(out, rng.random(tokens.shape) >= 0.1, tokens, strict=True):
            row[: kept.sum()] = text[kept]
        return out
    out = tokens.copy()
    if kind == "shuffle":
        whole = length // 10 * 10
        blocks = rng.permuted(np.tile(np.arange(whole // 10), (n, 1)), axis=1)
        places = (blocks[:, :, None] * 10 + np.arange(10)).reshape(n, whole)
        out[:, :whole] = np.take_along_axis(tokens, places, 1)
    replaced = rng.random(tokens.shape) < (0.1 if kind == "substitution" else 0.05)
    out[replaced] = rng.integers(0, vocab, int(replaced.sum()))
    return out


def reference(public: dict[str, Any], tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities under the synthetic model without watermark.

    Returns
    -------
    (n, T) log-probability of each token, and (n, T) its mean if that token were sampled from the top 50 there; nats.
    """
    table = public["table"].astype(np.float64)
    log_probs = (
        table - np.log(np.exp(table - table.max(1, keepdims=True)).sum(1, keepdims=True)) - table.max(1, keepdims=True)
    )
    top = np.sort(log_probs, axis=1)[:, -public["top_k"] :]
    weights = np.exp(top - top[:, -1:])
    expected = (weights * top).sum(1) / weights.sum(1)
    text = np.concatenate([public["prompts"][: len(tokens)], tokens], axis=1)
    rows = context_rows(text[:, :-2], text[:, 1:-1], len(table))
    return log_probs[rows, tokens], expected[rows]


def evaluate(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Score what a watermark wrote and read.

    Parameters
    ----------
    public, truth : of ``draw``.
    result : per cell ``tokens_b<bits>`` (n, T), and for each of its lengths ``bits_b<bits>_<length>`` (n, bits) with -1
        for undecided and ``p_b<bits>_<length>`` (n,); the same as ``bits_<edit>`` and ``p_<edit>`` for the edited last
        cell. Optional: p_null and z_null of the null texts (or the first of them), p_other_key of the last cell's texts read
        with another key, mean_distribution (6, 512), ``bits_layers_<d>`` of the first sequences of a cell of 16 bits.
        A scheme may leave out bits, cells, lengths and sequences (the last ones). For a real model also log_probs and
        expected_log_probs (n, T) of the last cell.

    Returns
    -------
    bit_accuracy_b<bits>_t<length> (undecided counts as wrong), match_rate_..., detected_... (share with p <= 0.01), the
    same with the name of an edit; bit_accuracy, the mean over cells at full length; log_prob (mean, of the last cell) and
    log_prob_gap (less what plain sampling would have got in the same places, nats); false_alarms (share of null texts
    with p <= 0.01), excess_alarms (largest excess of the p-values' distribution over the uniform one),
    false_alarms_normal (share of null texts whose z a normal table would call significant), false_alarms_other_key;
    bias_tv (median over six distributions of the total variation between the mean next-token distribution and the
    model's); layers_gain (bit accuracy of ten layers less that of one), layers_smallest_step (over 1, 2, 5, 10).
    Scalars of the solver are passed on, but don't replace these.
    """
    columns: dict[str, float] = {}
    whole = []
    wanted = cells(public["cells"])
    last = wanted[-1]
    for cell in wanted:
        for length in cell.lengths:
            key, column = f"{cell.name}_{length}", f"{cell.name}_t{length}"
            columns |= _reading(public[f"messages_{cell.name}"], public, result, key, column)
        whole += [columns[k] for k in [f"bit_accuracy_{cell.name}_t{cell.tokens}"] if k in columns]
    for kind in EDITS:
        columns |= _reading(public[f"messages_{last.name}"], public, result, kind, kind)
    if whole:
        columns["bit_accuracy"] = float(np.mean(whole))
    columns |= _quality(public, result, last)
    columns |= _nulls(result)
    if "mean_distribution" in result:
        logits = public["bias_logits"].astype(np.float64)
        plain = np.exp(logits - logits.max(1, keepdims=True))
        plain /= plain.sum(1, keepdims=True)
        mean = np.asarray(result["mean_distribution"], dtype=np.float64)
        if mean.shape != plain.shape:
            raise ValueError(f"mean_distribution has shape {mean.shape}; expected {plain.shape}")
        columns["bias_tv"] = float(np.median(np.abs(mean - plain).sum(1) / 2))
    columns |= _layers(public, result)
    extra = {k: v for k, v in result.items() if np.ndim(v) == 0}
    return {name: float(value) for name, value in (extra | columns).items()}


def _carried(messages: np.ndarray, public: dict[str, Any], n: int) -> np.ndarray:
    """The message of each of the first n sequences."""
    return np.repeat(messages, len(public["prompts"]) // len(messages), axis=0)[:n]


def _reading(
    messages: np.ndarray, public: dict[str, Any], result: dict[str, Any], key: str, column: str
) -> dict[str, float]:
    columns = {}
    if f"bits_{key}" in result:
        bits = np.asarray(result[f"bits_{key}"])
        carried = _carried(messages, public, len(bits))
        if bits.shape != carried.shape:
            raise ValueError(f"bits_{key} has shape {bits.shape}; expected {carried.shape}")
        correct = bits == carried
        columns |= {f"bit_accuracy_{column}": correct.mean(), f"match_rate_{column}": correct.all(1).mean()}
    if f"p_{key}" in result:
        columns[f"detected_{column}"] = np.mean(np.asarray(result[f"p_{key}"]) <= ALPHA)
    return columns


def _quality(public: dict[str, Any], result: dict[str, Any], cell: Cell) -> dict[str, float]:
    tokens = np.asarray(result[f"tokens_{cell.name}"])
    if tokens.ndim != 2 or not 1 <= len(tokens) <= len(public["prompts"]) or tokens.shape[1] > cell.tokens:
        raise ValueError(
            f"tokens_{cell.name} has shape {tokens.shape}; expected up to ({len(public['prompts'])}, {cell.tokens})"
        )
    if public["model"] == "synthetic":
        log_probs, expected = reference(public, tokens)
    else:
        log_probs, expected = result["log_probs"], result["expected_log_probs"]
    return {"log_prob": float(np.mean(log_probs)), "log_prob_gap": float(np.mean(log_probs - expected))}


def _nulls(result: dict[str, Any]) -> dict[str, float]:
    columns = {}
    if "p_null" in result:
        p = np.sort(np.asarray(result["p_null"], dtype=np.float64))
        if len(p) == 0 or not ((p >= 0) & (p <= 1)).all():
            raise ValueError("p_null must be probabilities, at least one")
        columns["false_alarms"] = np.mean(p <= ALPHA)
        columns["excess_alarms"] = max(0.0, float((np.arange(1, len(p) + 1) / len(p) - p).max()))
    if "z_null" in result:
        columns["false_alarms_normal"] = np.mean(np.asarray(result["z_null"]) >= 2.3263478740408408)
    if "p_other_key" in result:
        columns["false_alarms_other_key"] = np.mean(np.asarray(result["p_other_key"]) <= ALPHA)
    return columns


def _layers(public: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    depths = sorted(int(key.removeprefix("bits_layers_")) for key in result if key.startswith("bits_layers_"))
    accuracy = {}
    for depth in depths:
        bits = np.asarray(result[f"bits_layers_{depth}"])
        accuracy[depth] = float((bits == _carried(public["messages_b16"], public, len(bits))).mean())
    columns = {f"bit_accuracy_layers_{depth}": value for depth, value in accuracy.items()}
    if {1, 2, 5, 10} <= set(depths):
        columns["layers_gain"] = accuracy[10] - accuracy[1]
        columns["layers_smallest_step"] = min(accuracy[b] - accuracy[a] for a, b in ((1, 2), (2, 5), (5, 10)))
    return columns


def example(public: dict[str, Any]) -> dict[str, Any]:
    """A result of the right shape: nothing is read."""
    n, wanted = len(public["prompts"]), cells(public["cells"])

    def readings() -> Iterator[tuple[str, int]]:
        for cell in wanted:
            yield from ((f"{cell.name}_{length}", cell.bits) for length in cell.lengths)
        yield from ((kind, wanted[-1].bits) for kind in EDITS)

    result: dict[str, Any] = {}
    for cell in wanted:
        result[f"tokens_{cell.name}"] = np.zeros((n, cell.tokens), dtype=np.int64)
    for key, bits in readings():
        result |= {f"bits_{key}": np.full((n, bits), -1, dtype=np.int8), f"p_{key}": np.ones(n)}
    if public["model"] != "synthetic":
        result |= dict.fromkeys(("log_probs", "expected_log_probs"), np.zeros((n, wanted[-1].tokens)))
    return result
