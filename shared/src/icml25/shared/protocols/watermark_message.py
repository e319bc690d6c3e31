"""Messages in generated text: do they come back, is their absence recognised, and what does the text lose?

A language model whose next-token logits are a table row, picked by a hash of the last two tokens, writes sequences that
carry given messages. Its logits are Gaussian with a scale drawn per row, so that the entropy of its 50 likeliest tokens
varies as a real model's does: with 4,096 tokens 1.9 nats on average, deciles 0.2 to 3.6 (SmolLM2 on news: 2.2, 0.9 to
3.3). Because the table is known, the log-probability of every token under the model without watermark is computed here,
and compared with what plain sampling would have got in the same places. Null texts are slices, which may overlap, of
Python's reference manual, cut into tokens as people wrote it.

A solver writes first. Everything that is then to be read (prefixes, edits, the same texts under other keys, null texts)
goes to its reader as one shuffled pile that says of each text only with which key and for how many bits to look:
messages, labels, edits and scores are the protocol's.

For a real model (``model = "smollm2"``) prompts are texts, and the log-probabilities are scored by the track's own
``messaging`` module.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

__all__ = ["EDITS", "Cell", "cells", "context_rows", "draw", "edit", "evaluate", "example", "pile", "reference"]

TOP_K = 50
LENGTHS = (25, 50, 100, 200, 300)
EDITS = ("substitution", "deletion", "shuffle")
ALPHA = 0.01
NORMAL_QUANTILE = 2.3263478740408408
BIAS_VOCAB, SMOLLM2_VOCAB = 512, 49152
NULL_LENGTH, NULL_TEXTS_PER_KEY = 200, 100


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
    public : dataset, model, cells, top_k, shuffle (a seed, for the pile); per cell ``messages_b<bits>`` (m, bits) int8 and
        ``keys_b<bits>`` (m,), each carried by as many sequences; other_keys (m,).
        Synthetic: table (rows, vocab) float32 and prompts (sequences, 2). Otherwise prompts (sequences,) of text.
        null_ids (K, 200) and null_keys (K,), each key for 100 texts, if any. bias_logits (6, 512), -inf outside the top 50, and
        bias_contexts (N, 4), which all end on the same token, if any.
    truth : the messages, which a writer has to know but what a reader gets does not hold.
    """
    wanted = cells(settings["cells"])
    sequences, messages = settings["sequences"], settings["messages"]
    if sequences < 1 or messages < 1 or sequences % messages:
        raise ValueError(f"sequences ({sequences}) must be a positive multiple of messages ({messages})")
    streams = [np.random.default_rng(s) for s in np.random.SeedSequence([seed, 7]).spawn(6)]
    public: dict[str, Any] = {
        "dataset": settings["dataset"],
        "model": settings["model"],
        "cells": settings["cells"],
        "top_k": TOP_K,
    }
    for cell in wanted:
        public[f"messages_{cell.name}"] = streams[0].integers(0, 2, (messages, cell.bits), dtype=np.int8)
        public[f"keys_{cell.name}"] = streams[5].integers(0, 2**31, messages)
    public["other_keys"] = streams[5].integers(0, 2**31, messages)
    public["shuffle"] = int(streams[5].integers(0, 2**31))
    if settings["model"] == "synthetic":
        rows, vocab = settings["rows"], settings["vocab"]
        table = streams[1].standard_normal((rows, vocab), dtype=np.float32)
        public["table"] = table * streams[1].uniform(1, 11, (rows, 1)).astype(np.float32)
        public["prompts"] = streams[2].integers(0, vocab, (sequences, 2))
    elif settings["model"] == "smollm2":
        public["prompts"] = _prompt_texts(sequences, streams[2])
        vocab = SMOLLM2_VOCAB
    else:
        raise ValueError(f"model must be 'synthetic' or 'smollm2', got {settings['model']!r}")
    if settings["null"]:
        public["null_ids"], public["null_keys"] = _null_texts(settings["null"], vocab, streams[3])
    if settings["bias"]:
        public["bias_logits"] = _bias_logits(streams[4])
        contexts = streams[4].integers(0, 2**20, (settings["bias"], 4))  # only hashed: more than the vocabulary has
        contexts[:, -1] = contexts[0, -1]
        public["bias_contexts"] = contexts
    return public, {name: value.copy() for name, value in public.items() if name.startswith("messages_")}


def _null_texts(count: int, vocab: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Slices (they may overlap) of Python's reference topics, words and signs numbered by frequency (modulo the vocabulary)."""
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
    top = np.partition(log_probs, -public["top_k"], axis=1)[:, -public["top_k"] :]
    weights = np.exp(top)
    expected = (weights * top).sum(1) / weights.sum(1)
    text = np.concatenate([public["prompts"][: len(tokens)], tokens], axis=1)
    rows = context_rows(text[:, :-2], text[:, 1:-1], len(table))
    return log_probs[rows, tokens], expected[rows]


def pile(public: dict[str, Any], written: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """All that is to be read, shuffled.

    Parameters
    ----------
    public : of ``draw``.
    written : per cell ``tokens_b<bits>`` (n, T), or only of the last cell; optional ``tokens_layers_<d>`` (n, T), the
        messages of the cell of 16 bits written with d layers; optional null_texts: only so many null texts are read.

    Returns
    -------
    texts : arrays texts (N, T) int64, -1 after the end, keys (N,), bits (N,), layers (N,; 0 is the scheme's own number).
    places : name -> places of its texts in the pile, in the order of the sequences. Names are ``b<bits>_<length>``,
        the edits, ``other_key``, ``null`` and ``layers_<d>``.

    Raises
    ------
    ValueError: tokens of another shape, not integers, or outside the vocabulary; null_texts out of range.
    """
    groups: list[tuple[str, np.ndarray, np.ndarray, int, int]] = []
    wanted = cells(public["cells"])
    last = wanted[-1]
    for cell in wanted:
        if f"tokens_{cell.name}" not in written and cell is not last:
            continue
        tokens = _tokens(public, written, f"tokens_{cell.name}", cell.tokens)
        keys = _carried(public[f"keys_{cell.name}"], public, len(tokens))
        groups += [(f"{cell.name}_{length}", tokens[:, :length], keys, cell.bits, 0) for length in cell.lengths]
        if cell is last:
            groups += [
                (kind, edit(tokens, kind, _vocabulary(public), public["shuffle"]), keys, cell.bits, 0) for kind in EDITS
            ]
            groups.append(("other_key", tokens, _carried(public["other_keys"], public, len(tokens)), cell.bits, 0))
    if "null_ids" in public:
        count = written.get("null_texts", len(public["null_ids"]))
        if not 1 <= count <= len(public["null_ids"]):
            raise ValueError(f"null_texts is {count}; expected 1..{len(public['null_ids'])}")
        groups.append(("null", public["null_ids"][:count], public["null_keys"][:count], last.bits, 0))
    for name in sorted(written):
        if match := re.fullmatch(r"tokens_layers_(\d+)", name):
            tokens = _tokens(public, written, name, None)
            keys = _carried(public["keys_b16"], public, len(tokens))
            groups.append((name.removeprefix("tokens_"), tokens, keys, 16, int(match[1])))
    count, width = sum(len(group[1]) for group in groups), max(group[1].shape[1] for group in groups)
    place = np.random.default_rng([public["shuffle"], 1]).permutation(count)
    arrays: dict[str, np.ndarray] = {name: np.zeros(count, dtype=np.int64) for name in ("keys", "bits", "layers")}
    arrays["texts"] = np.full((count, width), -1, dtype=np.int64)
    places, start = {}, 0
    for name, tokens, keys, bits, layers in groups:
        at = places[name] = place[start : start + len(tokens)]
        arrays["texts"][at, : tokens.shape[1]] = tokens
        arrays["keys"][at], arrays["bits"][at], arrays["layers"][at] = keys, bits, layers
        start += len(tokens)
    return arrays, places


def _vocabulary(public: dict[str, Any]) -> int:
    return public["table"].shape[1] if public["model"] == "synthetic" else SMOLLM2_VOCAB


def _tokens(public: dict[str, Any], written: dict[str, Any], name: str, length: int | None) -> np.ndarray:
    """Tokens that a solver returned, checked."""
    if name not in written:
        raise ValueError(f"{name} is missing")
    tokens = np.asarray(written[name])
    if tokens.ndim != 2 or not 1 <= len(tokens) <= len(public["prompts"]) or length not in (None, tokens.shape[1]):
        raise ValueError(f"{name} has shape {tokens.shape}; expected up to ({len(public['prompts'])}, {length or 'T'})")
    if tokens.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {tokens.dtype}; expected integers")
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < _vocabulary(public):
        raise ValueError(f"{name} has ids from {tokens.min()} to {tokens.max()}; expected 0..{_vocabulary(public) - 1}")
    return tokens.astype(np.int64)


def _checked(
    result: dict[str, Any], name: str, shape: tuple[int, ...], low: float | int, high: float | int
) -> np.ndarray:
    """Numbers that a solver returned: exactly this shape, within these bounds."""
    values = np.asarray(result[name])
    if values.shape != shape:
        raise ValueError(f"{name} has shape {values.shape}; expected {shape}")
    if values.dtype.kind not in "iuf" or not ((values >= low) & (values <= high)).all():
        raise ValueError(f"{name} must be numbers from {low:g} to {high:g}")
    return values


def evaluate(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Score what a watermark wrote and read.

    Parameters
    ----------
    public, truth : of ``draw``.
    result : what was written, as for :func:`pile`: a scheme may leave out cells but the last, and the last sequences.
        What was read, for each text of the pile: p_read (N,); optional z_read (N,) and bits_read (N, most bits of a
        cell) with -1 for undecided and after the end. Without any of them nothing was read. Optional: mean_distribution
        (6, 512). For a real model also log_probs and expected_log_probs (n, T) of the last cell.

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

    Raises
    ------
    ValueError: naming the field that is missing, of another shape, or out of its range.
    """
    columns = _quality(public, result)
    if any(name in result for name in ("p_read", "z_read", "bits_read")):
        columns |= _readings(public, truth, result)
    if "mean_distribution" in result:
        logits = public["bias_logits"].astype(np.float64)
        plain = np.exp(logits - logits.max(1, keepdims=True))
        plain /= plain.sum(1, keepdims=True)
        mean = _checked(result, "mean_distribution", plain.shape, -1e-6, 1 + 1e-6).astype(np.float64)
        columns["bias_tv"] = float(np.median(np.abs(mean - plain).sum(1) / 2))
    extra = {k: v for k, v in result.items() if np.ndim(v) == 0}
    return {name: float(value) for name, value in (extra | columns).items()}


def _carried(of_messages: np.ndarray, public: dict[str, Any], n: int) -> np.ndarray:
    """The message (or key) of each of the first n sequences; a message's sequences are spread over all."""
    return of_messages[np.arange(n) % len(of_messages)]


def _readings(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    texts, places = pile(public, result)
    count, columns = len(texts["keys"]), {}
    if "p_read" not in result:
        raise ValueError("p_read is missing")
    p = _checked(result, "p_read", (count,), 0, 1)
    z = _checked(result, "z_read", (count,), -1e300, 1e300) if "z_read" in result else None
    most = max(cell.bits for cell in cells(public["cells"]))
    bits = _checked(result, "bits_read", (count, most), -1, 1) if "bits_read" in result else None
    wanted = {f"{c.name}_{n}": (f"{c.name}_t{n}", c.name) for c in cells(public["cells"]) for n in c.lengths}
    last = cells(public["cells"])[-1]
    wanted |= {kind: (kind, last.name) for kind in EDITS}
    wanted |= {name: (name, "b16") for name in places if name.startswith("layers_")}
    for name, (column, cell) in wanted.items():
        if name not in places:
            continue
        at = places[name]
        columns[f"detected_{column}"] = np.mean(p[at] <= ALPHA)
        if bits is not None:
            carried = _carried(truth[f"messages_{cell}"], public, len(at))
            correct = bits[at, : carried.shape[1]] == carried
            columns |= {f"bit_accuracy_{column}": correct.mean(), f"match_rate_{column}": correct.all(1).mean()}
    whole = [f"bit_accuracy_{cell.name}_t{cell.tokens}" for cell in cells(public["cells"])]
    if all(name in columns for name in whole):
        columns["bit_accuracy"] = np.mean([columns[name] for name in whole])
    columns["false_alarms_other_key"] = np.mean(p[places["other_key"]] <= ALPHA)
    if "null" in places:
        null = np.sort(p[places["null"]])
        columns["false_alarms"] = np.mean(null <= ALPHA)
        columns["excess_alarms"] = max(0.0, float((np.arange(1, len(null) + 1) / len(null) - null).max()))
        if z is not None:
            columns["false_alarms_normal"] = np.mean(z[places["null"]] >= NORMAL_QUANTILE)
    depth = {d: columns[name] for d in (1, 2, 5, 10) if (name := f"bit_accuracy_layers_{d}") in columns}
    if len(depth) == 4:
        columns["layers_gain"] = depth[10] - depth[1]
        columns["layers_smallest_step"] = min(depth[b] - depth[a] for a, b in ((1, 2), (2, 5), (5, 10)))
    return columns


def _quality(public: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    cell = cells(public["cells"])[-1]
    tokens = _tokens(public, result, f"tokens_{cell.name}", cell.tokens)
    if public["model"] == "synthetic":
        log_probs, expected = reference(public, tokens)
    else:
        log_probs = _checked(result, "log_probs", tokens.shape, -1e300, 0)
        expected = _checked(result, "expected_log_probs", tokens.shape, -1e300, 0)
    return {"log_prob": float(np.mean(log_probs)), "log_prob_gap": float(np.mean(log_probs - expected))}


def example(public: dict[str, Any]) -> dict[str, Any]:
    """A result of the right shape: nothing is read."""
    n, wanted = len(public["prompts"]), cells(public["cells"])
    result: dict[str, Any] = {f"tokens_{cell.name}": np.zeros((n, cell.tokens), dtype=np.int64) for cell in wanted}
    count = len(pile(public, result)[0]["keys"])
    result |= {"p_read": np.ones(count), "bits_read": np.full((count, max(c.bits for c in wanted)), -1, dtype=np.int8)}
    if public["model"] != "synthetic":
        result |= dict.fromkeys(("log_probs", "expected_log_probs"), np.zeros((n, wanted[-1].tokens)))
    return result
