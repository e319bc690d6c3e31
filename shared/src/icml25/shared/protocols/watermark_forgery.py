"""Forgery of watermarks: which texts of an offline world did the watermark's owner write, and which a spoofer?

The owner's model is a Markov chain over 4000 tokens: after each token 150 others can follow, drawn by Zipf's law, with
logits N(0, 1) * scale + 0.5 log zipf and a scale U(0.5, 2.5) of their own. It writes under a watermark; two spoofers learn
from 400 x 500 watermarked tokens and write with the unwatermarked chain as their own model:

- Distillation-lite: p = lam p_D(. | context) + (1 - lam) p_base, lam = n_context / (n_context + 10);
- Stealing-lite: p_base exp(3 min(ratio, 2) / 2), ratio = count_D(context, token) / (n_context p_base + 1), after the
  clipped-ratio score of the Stealing attack.

A world has several keys, each with genuine texts and spoofers of its own: how a test fares depends on the key as much as
on the texts. A *test* is a batch of texts of one writer under one key, with a total length of its own. Solvers see texts,
keys, unwatermarked reference text, continuations of the texts' prompts by the watermarked owner's model, and held-out genuine text; they
answer with one p-value per test (small: forged). Who wrote what stays here.

A second question has no forgeries: texts that know nothing of the key (people's, or watermarked under another key).
There p-values must be uniform.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np

__all__ = ["RedGreen", "Watermark", "bimark_hashes", "draw", "evaluate", "example", "watermark_z"]

VOCAB, SUPPORT = 4000, 150
PROMPT = 32
ALPHA = 0.01
_PER_KEY = 4  # texts that are tested under one key
DETECTED = 3.0902  # z of one-sided p = 0.001
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@runtime_checkable
class Watermark(Protocol):
    """A scheme with its key, for the chain that writes.

    Attributes
    ----------
    h : context width.
    once : only the first occurrence of a context in a text is watermarked.
    null_mean, null_variance : of the colour of a token that knows nothing of the key.
    about : numbers and texts that solvers need, beside the key, to compute colours.
    """

    h: int
    once: bool
    null_mean: float
    null_variance: float
    about: dict[str, Any]

    def weights(self, contexts: np.ndarray, candidates: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Watermarked probabilities (N, k), up to a factor per row, after contexts (N, h) with candidates (N, k)."""
        ...

    def colors(self, text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Colour (T,) and which positions are scored (T,)."""
        ...


def bimark_hashes() -> ModuleType:
    """The keyed hashes of icml25-bimark, without the rest of the package, which loads torch for some seconds.

    Raises
    ------
    ImportError: it is not installed.
    """
    package = find_spec("icml25.bimark")
    if package is None or package.origin is None:
        raise ImportError("no module named icml25.bimark")
    spec = spec_from_file_location("_icml25_bimark_prf", Path(package.origin).with_name("prf.py"))
    if spec is None or spec.loader is None:
        raise ImportError("icml25.bimark has no module prf")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _mix(state: np.ndarray) -> np.ndarray:
    """Finaliser of splitmix64 on uint64, in place."""
    shifted = np.right_shift(state, np.uint64(30))
    state ^= shifted
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= np.right_shift(state, np.uint64(27), out=shifted)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= np.right_shift(state, np.uint64(31), out=shifted)
    return state


class RedGreen:
    """Red/green watermark by a 64-bit hash: state = mix(state + (id + 1) golden ratio) over the h + 1 tokens.

    Green is a hash below gamma 2^64; green logits get delta.
    """

    once = False

    def __init__(self, key: int, h: int, gamma: float | int = 0.5, delta: float | int = 2.0) -> None:
        self.h, self.null_mean, self.null_variance = h, gamma, gamma * (1 - gamma)
        self.about = {"scheme": "kgw", "h": h, "gamma": gamma}
        self._start = _mix(np.array([key], dtype=np.uint64))[0]
        self._steps = (np.arange(VOCAB, dtype=np.uint64) + np.uint64(1)) * _GOLDEN
        self._threshold, self._gain = np.uint64(int(gamma * 2**64)), np.float32(np.expm1(delta))

    def _state(self, contexts: np.ndarray) -> np.ndarray:
        state = np.full(len(contexts), self._start)
        for column in contexts.T:
            state = _mix(state + self._steps[column])
        return state

    def weights(self, contexts: np.ndarray, candidates: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Probabilities, times e^delta on green."""
        green = _mix(self._state(contexts)[:, None] + self._steps[candidates]) < self._threshold
        factor = self._gain * green
        factor += 1
        factor *= p
        return factor

    def colors(self, text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """1 on green; all but the first h positions are scored."""
        x, valid = np.zeros(len(text)), np.arange(len(text)) >= self.h
        x[self.h :] = self._state(np.lib.stride_tricks.sliding_window_view(text, self.h + 1)) < self._threshold
        return x, valid


class _Table:
    """Sampling from the rows of a matrix of weights by one search."""

    def __init__(self, weights: np.ndarray) -> None:
        cumulative = np.cumsum(weights, axis=1, dtype=np.float64)
        cumulative /= cumulative[:, -1:]
        self._width = weights.shape[1]
        self._flat = (cumulative + np.arange(len(weights))[:, None]).ravel()

    def sample(self, rows: np.ndarray, u: np.ndarray) -> np.ndarray:
        return np.minimum(np.searchsorted(self._flat, rows + u, side="right") - rows * self._width, self._width - 1)


class _Chain:
    """The owner's model without watermark."""

    def __init__(self, rng: np.random.Generator) -> None:
        zipf = (1 / np.arange(1, VOCAB + 1)).astype(np.float32)
        race = rng.standard_exponential((VOCAB, VOCAB), dtype=np.float32)
        race /= zipf
        self.support = np.sort(np.argpartition(race, SUPPORT, axis=1)[:, :SUPPORT], axis=1)
        scale = rng.uniform(0.5, 2.5, (VOCAB, 1))
        self.logits = rng.standard_normal((VOCAB, SUPPORT)) * scale + 0.5 * np.log(zipf[self.support])
        self.use(self.logits)
        self.start = zipf.astype(np.float64)

    def use(self, logits: np.ndarray) -> None:
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        self.p = (p / p.sum(axis=1, keepdims=True)).astype(np.float32)
        self.table = _Table(self.p)
        self._flat_support = (self.support + VOCAB * np.arange(VOCAB)[:, None]).ravel()

    def starts(self, n: int, width: int, rng: np.random.Generator) -> np.ndarray:
        """First tokens of n texts."""
        return rng.choice(VOCAB, size=(n, width), p=self.start / self.start.sum())

    def blurred(self, noise: float | int, rng: np.random.Generator) -> _Chain:
        """The same chain with noise on its logits: what somebody else's model is."""
        other = object.__new__(_Chain)
        other.support, other.start = self.support, self.start
        other.use(self.logits + noise * rng.standard_normal(self.logits.shape))
        return other

    def log_probs(self, texts: np.ndarray) -> np.ndarray:
        """Log-probability of every token but the first: (N, T - 1)."""
        rows = texts[:, :-1]
        place = np.searchsorted(self._flat_support, rows * VOCAB + texts[:, 1:])
        known = self._flat_support[np.minimum(place, self._flat_support.size - 1)] == rows * VOCAB + texts[:, 1:]
        return np.log(np.where(known, self.p.ravel()[np.minimum(place, self.p.size - 1)], 1e-9)).astype(np.float32)


Choose = Callable[[np.ndarray, int], np.ndarray]


def _write(start: np.ndarray, length: int, choose: Choose) -> np.ndarray:
    """Texts (N, length) that begin with start (N, s); ``choose(texts, t)`` gives the tokens at t."""
    texts = np.empty((len(start), length), dtype=np.int64)
    texts[:, : start.shape[1]] = start
    for t in range(start.shape[1], length):
        texts[:, t] = choose(texts, t)
    return texts


def _plain(chain: _Chain, rng: np.random.Generator) -> Choose:
    def choose(texts: np.ndarray, t: int) -> np.ndarray:
        row = texts[:, t - 1]
        return chain.support[row, chain.table.sample(row, rng.random(len(texts)))]

    return choose


def _pick(candidates: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    cumulative = np.cumsum(weights, axis=1)
    u = rng.random((len(weights), 1), dtype=np.float32) * cumulative[:, -1:]
    index = np.minimum((cumulative <= u).sum(axis=1), weights.shape[1] - 1)
    return candidates[np.arange(len(candidates)), index]


def _watermarked(chain: _Chain, watermark: Watermark, prompt: int, rng: np.random.Generator) -> Choose:
    """The owner's model; with ``once`` a context that came at an earlier written position is left alone."""
    h = watermark.h
    if h == 1 and not watermark.once:
        table = _Table(watermark.weights(np.arange(VOCAB)[:, None], chain.support, chain.p))

        def choose_from_table(texts: np.ndarray, t: int) -> np.ndarray:
            row = texts[:, t - 1]
            return chain.support[row, table.sample(row, rng.random(len(texts)))]

        return choose_from_table

    def choose(texts: np.ndarray, t: int) -> np.ndarray:
        context = texts[:, t - h : t]
        candidates, p = chain.support[context[:, -1]], chain.p[context[:, -1]]
        if not watermark.once:
            return _pick(candidates, watermark.weights(context, candidates, p), rng)
        used = np.ones((len(texts), max(t - prompt, 0)), dtype=bool)
        for back in range(h, 0, -1):
            used &= texts[:, prompt - back : t - back] == context[:, h - back, None]
        new = ~used.any(axis=1)
        if new.any():
            p[new] = watermark.weights(context[new], candidates[new], p[new])
        return _pick(candidates, p, rng)

    return choose


class _Learned:
    """What a spoofer knows: n-grams of h tokens and the next, in watermarked texts D."""

    def __init__(self, texts: np.ndarray, h: int) -> None:
        self.h = h
        windows = np.lib.stride_tricks.sliding_window_view(texts, h + 1, axis=1).reshape(-1, h + 1)
        packed = _pack(windows)
        packed.sort()
        self.next = packed % VOCAB
        self.contexts = packed // VOCAB
        first = np.flatnonzero(np.diff(packed, prepend=-1))
        self.grams, self.counts = packed[first], np.diff(first, append=len(packed))

    def occurrences(self, context: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where a context begins among the sorted n-grams, and how often it occurs."""
        packed = _pack(context)
        low = np.searchsorted(self.contexts, packed)
        return low, np.searchsorted(self.contexts, packed, side="right") - low

    def count(self, context: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """How often each candidate (N, k) follows its context (N, h)."""
        packed = _pack(context)[:, None] * VOCAB + candidates
        place = np.minimum(np.searchsorted(self.grams, packed), len(self.grams) - 1)
        return np.where(self.grams[place] == packed, self.counts[place], 0)


def _pack(ids: np.ndarray) -> np.ndarray:
    packed = ids[:, 0].astype(np.int64)
    for column in ids.T[1:]:
        packed = packed * VOCAB + column
    return packed


def _distillation(chain: _Chain, learned: _Learned, rng: np.random.Generator, kappa: float | int = 10.0) -> Choose:
    base = _plain(chain, rng)

    def choose(texts: np.ndarray, t: int) -> np.ndarray:
        low, n = learned.occurrences(texts[:, t - learned.h : t])
        imitate = rng.random(len(texts)) < n / (n + kappa)
        recalled = learned.next[np.minimum(low + (rng.random(len(texts)) * n).astype(int), len(learned.next) - 1)]
        return np.where(imitate, recalled, base(texts, t))

    return choose


def _stealing(chain: _Chain, learned: _Learned, rng: np.random.Generator, attention: float | int = 3.0) -> Choose:
    def choose(texts: np.ndarray, t: int) -> np.ndarray:
        context = texts[:, t - learned.h : t]
        candidates, p = chain.support[context[:, -1]], chain.p[context[:, -1]]
        _, n = learned.occurrences(context)
        ratio = learned.count(context, candidates) / (n[:, None] * p + 1)
        return _pick(candidates, p * np.exp(attention * np.minimum(ratio, 2) / 2).astype(np.float32), rng)

    return choose


SPOOFERS = {"distillation": _distillation, "stealing": _stealing}


def draw(settings: dict[str, Any], *, seed: int, budget: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the texts.

    Parameters
    ----------
    settings : question ("forgery", "null" or "counts") and

        forgery: h, gamma and delta of :class:`RedGreen`, or watermark, a function of a key that returns another
        :class:`Watermark` (or a text, the reason why there is none); keys (their number, 1), and for each of them genuine
        and forged (numbers of texts; forged of each spoofer), held_out (genuine texts to calibrate on, 200) and learned
        (texts that spoofers have seen, 400); length (of a text), lengths (of tests: shorter than a text or a multiple of
        it), attacker_noise (of the spoofers' model); reference (number of texts, 800).

        null: source ("stdlib", "wikitext2", "tinyshakespeare": people's words; or "other_key": watermarked), h, length,
        tests.

        counts: tokens and order, for the clock.
    seed : of everything.
    budget : not used; the settings say it all.

    Returns
    -------
    public, truth : see ``_draw_forgery``, ``_draw_null`` and ``_draw_counts``.
    """
    question = settings["question"]
    if question not in _DRAW:
        raise ValueError(f"question is {question!r}; expected one of {', '.join(_DRAW)}")
    watermark = settings.get("watermark")
    named = watermark and f"{watermark.__module__}.{watermark.__qualname__}"
    asked = json.dumps({**settings, "watermark": named, "seed": seed}, sort_keys=True)
    if _last.get("asked") != asked:  # every solver of a process asks for the same world again
        _last.clear()
        public, truth = _DRAW[question](settings, seed)
        for value in (*public.values(), *truth.values()):
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        _last.update(asked=asked, drawn=({"question": question, **public}, truth))
    public, truth = _last["drawn"]
    return dict(public), dict(truth)


_last: dict[str, Any] = {}


def _key(rng: np.random.Generator) -> int:
    return int(rng.integers(2**62))


def _draw_forgery(settings: dict[str, Any], seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Genuine and forged texts.

    public: suspects (N, T) and keys (N,) of their watermark; reprompted (N, T - 32): the owner's continuations of their
    first 32 tokens; reference (800, 500) unwatermarked; held_out (M, T) genuine, and held_out_keys (M,); suspect_colors,
    held_out_colors (., T), NaN where not scored; suspect_log_probs, held_out_log_probs (., T - 1) under the owner's model
    without watermark; lengths; for each of them tests_<length> (n, m): m texts of one writer under one key; null_mean and
    null_variance of a colour; prompt; what the watermark says about itself. Or only unavailable, the reason.
    truth: writer (N,), "genuine" or a spoofer.
    """
    rng = np.random.default_rng(seed)
    keys = [_key(rng) for _ in range(settings.get("keys", 1))]
    if "watermark" in settings:
        watermarks = [settings["watermark"](key) for key in keys]
    else:
        watermarks = [
            RedGreen(key, settings["h"], settings.get("gamma", 0.5), settings.get("delta", 2.0)) for key in keys
        ]
    if isinstance(watermarks[0], str):
        return {"unavailable": watermarks[0]}, {}
    chain = _Chain(rng)
    own = chain.blurred(settings["attacker_noise"], rng) if settings.get("attacker_noise") else chain
    worlds = [_written(chain, own, watermark, settings, rng) for watermark in watermarks]
    of = {name: np.concatenate([world[name] for world in worlds]) for name in worlds[0]}
    writer = of.pop("writer")
    key_of, held_out_keys = (np.repeat(keys, len(texts) // len(keys)) for texts in (of["suspects"], of["held_out"]))
    public: dict[str, Any] = {
        **of,
        "keys": key_of,
        "held_out_keys": held_out_keys,
        "reference": _write(chain.starts(settings.get("reference", 800), 1, rng), 500, _plain(chain, rng)),
        "suspect_log_probs": chain.log_probs(of["suspects"]),
        "held_out_log_probs": chain.log_probs(of["held_out"]),
        "lengths": np.array(settings["lengths"]),
        "null_mean": watermarks[0].null_mean,
        "null_variance": watermarks[0].null_variance,
        "vocab_size": VOCAB,
        "prompt": PROMPT,
        **watermarks[0].about,
    }
    for total in settings["lengths"]:
        m = max(1, total // settings["length"])
        groups = [np.flatnonzero((key_of == key) & (writer == name)) for key in keys for name in ("genuine", *SPOOFERS)]
        tests = np.concatenate([g[: len(g) // m * m].reshape(-1, m) for g in groups])
        public[f"tests_{total}"] = rng.permutation(tests)
    return public, {"writer": writer}


def _written(
    chain: _Chain, own: _Chain, watermark: Watermark, settings: dict[str, Any], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """All texts under one key: suspects in random order with their writers, continuations, held-out texts, colours."""
    h, length, forged = watermark.h, settings["length"], settings["forged"]

    def genuine(n: int, words: int) -> np.ndarray:
        return _write(chain.starts(n, h, rng), words, _watermarked(chain, watermark, h, rng))

    learned = _Learned(genuine(settings.get("learned", 400), 500), h)
    held_out, mine = np.split(
        genuine(settings.get("held_out", 200) + settings["genuine"], length), [-settings["genuine"]]
    )
    writer = np.repeat(["genuine", *SPOOFERS], [settings["genuine"]] + [forged] * len(SPOOFERS))
    theirs = [_write(chain.starts(forged, h, rng), length, spoofer(own, learned, rng)) for spoofer in SPOOFERS.values()]
    order = rng.permutation(len(writer))
    suspects = np.concatenate([mine, *theirs])[order]
    again = _write(suspects[:, :PROMPT], length, _watermarked(chain, watermark, PROMPT, rng))
    return {
        "suspects": suspects,
        "writer": writer[order],
        "reprompted": again[:, PROMPT:],
        "held_out": held_out,
        "suspect_colors": _colors(watermark, suspects),
        "held_out_colors": _colors(watermark, held_out),
    }


def _colors(watermark: Watermark, texts: np.ndarray) -> np.ndarray:
    return np.stack([np.where(valid, x, np.nan) for x, valid in map(watermark.colors, texts)]).astype(np.float32)


def _draw_null(settings: dict[str, Any], seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Texts that know nothing of the keys that they are tested with.

    public: texts (m, T), none of which crosses the border of two documents; for each of n tests a key, keys (n,), and two
    different texts, suspects (n,) and reprompted (n,), indices: four texts in turn share a key, and every text is tested
    under many. reference (R,) words of other documents and reference_lengths of those documents, h, vocab_size. truth: nothing.
    """
    rng = np.random.default_rng(seed)
    h, length, tests = settings["h"], settings["length"], settings["tests"]
    if settings["source"] == "other_key":
        chain, vocab_size = _Chain(rng), VOCAB
        start = rng.integers(VOCAB, size=(400, h))
        pool = _write(start, length, _watermarked(chain, RedGreen(_key(rng), h), h, rng))
        documents = list(_write(rng.integers(VOCAB, size=(400, 1)), 500, _plain(chain, rng)))
    else:
        from icml25.shared.datasets import TextDataset, load

        people = load(settings["source"])
        if not isinstance(people, TextDataset):
            raise ValueError(f"source is {settings['source']!r}; expected a data set of texts")
        found = [re.findall(r"\w+|[^\w\s]", text.lower()) for text in people.documents]
        words = {word: index for index, word in enumerate(sorted({word for text in found for word in text}))}
        vocab_size = len(words)
        encoded = [np.array([words[word] for word in text], dtype=np.int64) for text in found if text]
        encoded = [encoded[i] for i in rng.permutation(len(encoded))]
        half = np.searchsorted(np.cumsum([len(e) for e in encoded]), sum(len(e) for e in encoded) // 2)
        documents = encoded[half:]
        pool = np.concatenate([e[: len(e) // length * length].reshape(-1, length) for e in encoded[:half]])
    if len(pool) < _PER_KEY:
        raise ValueError(f"length is {length}; expected at most what {_PER_KEY} texts of {settings['source']} have")
    groups: list[np.ndarray] = []  # of different texts
    while sum(map(len, groups)) * _PER_KEY < tests:
        groups.append(rng.permutation(len(pool))[: len(pool) // _PER_KEY * _PER_KEY].reshape(-1, _PER_KEY))
    chosen = np.concatenate(groups)
    other = np.roll(chosen, -1, axis=1)  # another text of the group in the place of the regenerated one
    keys = np.repeat(rng.integers(2**62, size=len(chosen)), _PER_KEY)
    public = {
        "texts": pool,
        "suspects": chosen.ravel()[:tests],
        "reprompted": other.ravel()[:tests],
        "keys": keys[:tests],
        "reference": np.concatenate(documents),
        "reference_lengths": np.array([len(d) for d in documents]),
        "scheme": "kgw",
        "h": h,
        "gamma": 0.5,
        "vocab_size": vocab_size,
    }
    return public, {}


def _draw_counts(settings: dict[str, Any], seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A corpus to count: reference (n, 2000), asked (m, order) n-grams, order; truth: their counts."""
    rng = np.random.default_rng(seed)
    chain, width, order = _Chain(rng), 2000, settings["order"]
    reference = _write(rng.integers(VOCAB, size=(settings["tokens"] // width, 1)), width, _plain(chain, rng))
    asked = np.concatenate([reference[:, :order], rng.integers(VOCAB, size=(len(reference), order))])
    grams = np.sort(_pack(np.lib.stride_tricks.sliding_window_view(reference, order, axis=1).reshape(-1, order)))
    wanted = _pack(asked)
    counts = np.searchsorted(grams, wanted, side="right") - np.searchsorted(grams, wanted)
    return {"reference": reference, "asked": asked, "order": order, "vocab_size": VOCAB}, {"counts": counts}


_DRAW = {"forgery": _draw_forgery, "null": _draw_null, "counts": _draw_counts}


def evaluate(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Compare verdicts with the truth, at a false alarm rate of 1%.

    Parameters
    ----------
    public, truth : of ``draw``.
    result : forgery: p_values_<length> (n,) for every length, and z_<length> (n,) where the solver has them; null:
        p_values (n,); counts: counts (m,). Scalars are passed on.

    Returns
    -------
    forgery, at the first length (of a text) and with _<length> at the others: power (smaller of the two spoofers'),
    power_distillation, power_stealing, false_alarm_rate; with z the means z_genuine, z_distillation, z_stealing, and
    smallest_growth, largest_growth of the spoofers' mean z from one length to the next. Of the texts alone, whatever the
    solver: genuine_flagged and forged_flagged (smaller of the two), the shares that the watermark's own detector (z-test
    of the mean colour at 0.001) takes for watermarked.
    null: rejected_1pct, rejected_5pct, and ks_distance, the largest excess of the p-values' distribution over uniform.
    counts: count_errors, the share of wrong counts.
    """
    extra = {k: v for k, v in result.items() if np.ndim(v) == 0}
    if public["question"] == "counts":
        counts = _checked(result, "counts", truth["counts"].shape)
        return _floats(extra | {"count_errors": np.mean(counts != truth["counts"])})
    if public["question"] == "null":
        p = _checked(result, "p_values", public["keys"].shape)
        grid = np.arange(1, len(p) + 1) / len(p)
        excess = np.max(grid - np.sort(p))
        return _floats(
            extra
            | {"rejected_1pct": np.mean(p <= 0.01), "rejected_5pct": np.mean(p <= 0.05), "ks_distance": max(excess, 0)}
        )
    columns: dict[str, float] = {}
    means: list[dict[str, float]] = []
    lengths = [int(v) for v in public["lengths"]]
    for total in lengths:
        tests = public[f"tests_{total}"]
        writer = truth["writer"][tests[:, 0]]
        ending = "" if total == lengths[0] else f"_{total}"
        rejected = _checked(result, f"p_values_{total}", writer.shape) <= ALPHA
        share = {name: float(rejected[writer == name].mean()) for name in ("genuine", *SPOOFERS)}
        columns[f"power{ending}"] = min(share[name] for name in SPOOFERS)
        columns |= {f"power_{name}{ending}": share[name] for name in SPOOFERS}
        columns[f"false_alarm_rate{ending}"] = share["genuine"]
        if f"z_{total}" in result:
            z = _checked(result, f"z_{total}", writer.shape)
            mean = {name: float(z[writer == name].mean()) for name in ("genuine", *SPOOFERS)}
            means.append(mean | {"length": total})
            columns |= {f"z_{name}{ending}": mean[name] for name in mean}
    if len(means) > 1 and len(means) == len(lengths):
        means.sort(key=lambda mean: mean["length"])
        steps = [b[name] / a[name] for a, b in itertools.pairwise(means) for name in SPOOFERS if a[name] > 0]
        if len(steps) == len(SPOOFERS) * (len(means) - 1):
            columns |= {"smallest_growth": min(steps), "largest_growth": max(steps)}
    flagged = watermark_z(public["suspect_colors"], public["null_mean"], public["null_variance"]) >= DETECTED
    columns["genuine_flagged"] = float(flagged[truth["writer"] == "genuine"].mean())
    columns["forged_flagged"] = min(float(flagged[truth["writer"] == name].mean()) for name in SPOOFERS)
    return _floats(extra | columns)


def watermark_z(colors: np.ndarray, null_mean: float | int, null_variance: float | int) -> np.ndarray:
    """The plain detector: z of the mean colour of each text, (N,) for colours (N, T) with NaN where not scored."""
    scored = np.isfinite(colors)
    n = scored.sum(axis=-1)
    return (np.where(scored, colors, 0).sum(axis=-1) - n * null_mean) / np.sqrt(np.maximum(n, 1) * null_variance)


def _checked(result: dict[str, Any], name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name not in result:
        raise ValueError(f"the result has no {name}; expected an array of shape {shape}")
    values = np.asarray(result[name], dtype=float)
    if values.shape != shape or np.isnan(values).any():
        raise ValueError(f"{name} has shape {values.shape} and {np.isnan(values).sum()} NaN; expected {shape}, no NaN")
    if name.startswith("p_values") and not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"{name} spans [{values.min():g}, {values.max():g}]; expected p-values in [0, 1]")
    return values


def _floats(columns: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in columns.items()}


def example(public: dict[str, Any]) -> dict[str, Any]:
    """A result of the right shape: nothing is declared forged."""
    if public["question"] == "counts":
        return {"counts": np.zeros(len(public["asked"]), dtype=np.int64)}
    if public["question"] == "null":
        return {"p_values": np.ones(len(public["keys"]))}
    return {f"p_values_{total}": np.ones(len(public[f"tests_{total}"])) for total in public.get("lengths", [])}
