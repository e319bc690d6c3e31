"""Is text that carries a watermark its owner's, or a forgery by someone who learned the watermark from samples?

A spoofer can force green only where the samples told the colour of an n-gram; elsewhere its colours are those of
unwatermarked text. So in forged text colour depends on how common the n-gram is, and in genuine text it (nearly) doesn't.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.special import ndtr

from icml25.spoof_detect.colors import Colors
from icml25.spoof_detect.ngrams import KeyFunction, as_array, as_ids, key_name, pack_keys
from icml25.spoof_detect.power import real

__all__ = ["CorrelationResult", "SpoofResult", "SpoofTest", "correlation_test", "fisher_difference"]

SCORES = ("log_count", "presence", "rank")
POOLS = ("concat", "stratified", "stouffer")
METHODS = ("auto", "asymptotic", "permutation")
_AUTO_PERMUTATION = 50  # fewer n-grams than this are permuted
_PROMPT_REPEATED = 8  # tokens that a continuation doesn't begin with by chance; fewer only if all texts do so
_FISHER_LEAST = 20  # n-grams, on both sides: below, Fisher's z rejects more often than it says
_PERMUTED_VALUES = 1 << 21  # 16 MiB at a time


@dataclass(frozen=True)
class CorrelationResult:
    """What :func:`correlation_test` found.

    Attributes
    ----------
    statistic : S, in [-1, 1]; NaN when x or y is constant.
    z : S over its standard deviation under the null hypothesis.
    p_value : one-sided, against positive dependence; 1 when S is undefined.
    n : pairs.
    precision : 1 / variance of atanh S (n - 3 for one group).
    status : "ok", "degenerate" (x or y is constant) or "too_short" (fewer than 4 pairs; for "stouffer", in every group).
    method : "asymptotic" or "permutation".
    """

    statistic: float
    z: float
    p_value: float
    n: int
    precision: float
    status: str
    method: str


@dataclass(frozen=True)
class SpoofResult:
    """Verdict of a test, with what it rests on. A high p-value is no proof of authenticity: look at n and coverage.

    Attributes
    ----------
    statistic : S of the suspect texts, the correlation of colour and context score; NaN where undefined.
    reference_statistic : S' of the regenerated texts; None in the Standard test.
    z : approximately N(0, 1) for genuine text (or smaller).
    p_value : one-sided; 1 when the test says nothing.
    n : distinct n-grams of the suspect texts that entered.
    n_reference : those of the regenerated texts; 0 in the Standard test.
    coverage : share of the n with a count above 0 in the reference.
    green_rate : mean colour: check by the scheme's own detector first that the text is watermarked at all.
    green_seen, green_unseen : mean colour of n-grams with and without a count; NaN when there are none.
    status : "ok", "degenerate" (a sequence is constant) or "too_short" (fewer than 4 n-grams, in Reprompting 20).
    method : how p was computed, "asymptotic" or "permutation".
    n_texts : suspect texts that entered.
    n_skipped : suspect texts that were too short for two n-grams.
    """

    statistic: float
    reference_statistic: float | None
    z: float
    p_value: float
    n: int
    n_reference: int
    coverage: float
    green_rate: float
    green_seen: float
    green_unseen: float
    status: str
    method: str
    n_texts: int
    n_skipped: int

    def reject(self, alpha: Any = 0.01) -> bool:
        """Whether the texts are declared forged.

        Parameters
        ----------
        alpha : false alarm rate, in (0, 1); default 0.01.

        Raises
        ------
        ValueError: alpha outside (0, 1).
        """
        if not 0 < real("alpha", alpha) < 1:
            raise ValueError(f"alpha is {alpha}; expected a false alarm rate in (0, 1)")
        return bool(self.p_value <= alpha)

    def __str__(self) -> str:
        if self.status != "ok":
            return f"no verdict ({self.status}): {self.n} n-grams of {self.n_texts} texts"
        against = "" if self.reference_statistic is None else f" against {self.reference_statistic:.3f} regenerated"
        return (
            f"p = {self.p_value:.3g}, z = {self.z:.2f}: correlation {self.statistic:.3f}{against}; {self.n} n-grams, "
            f"{self.coverage:.0%} in the reference; green {self.green_rate:.3f} "
            f"(seen {self.green_seen:.3f}, unseen {self.green_unseen:.3f})"
        )


class _Groups:
    """Slices of arrays that are sorted by group."""

    def __init__(self, groups: np.ndarray | None, n: int) -> None:
        self.order: Any = slice(None)
        self.starts, self.lengths = np.zeros(1, dtype=np.int64), np.array([n])
        if groups is not None:
            self.order = np.argsort(groups, kind="stable")
            ordered = groups[self.order]
            self.starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
            self.lengths = np.diff(self.starts, append=n)

    def sum(self, v: np.ndarray) -> np.ndarray:
        return np.add.reduceat(v, self.starts)

    def centre(self, v: np.ndarray) -> np.ndarray:
        """Deviations from the group's mean, exactly 0 where the group is constant, in units that their squares fit."""
        v = _scaled(v[self.order])
        if len(self.starts) == 1:
            return _scaled(v - v.mean() if v.max() > v.min() else np.zeros(len(v)))
        centred = v - np.repeat(self.sum(v) / self.lengths, self.lengths)
        constant = np.maximum.reduceat(v, self.starts) == np.minimum.reduceat(v, self.starts)
        centred[np.repeat(constant, self.lengths)] = 0
        return _scaled(centred)


def _scaled(v: np.ndarray) -> np.ndarray:
    """Values whose squares can be summed: very large or small ones times a power of two, which changes no correlation."""
    largest = float(np.abs(v).max(initial=0))
    return v if largest == 0 or 1e-30 < largest < 1e30 else np.ldexp(v, -math.frexp(largest)[1])


def correlation_test(
    x: Any,
    y: Any,
    groups: Any = None,
    method: str = "auto",
    pool: str = "stratified",
    n_permutations: Any = 9999,
    seed: Any = 0,
) -> CorrelationResult:
    """One-sided test of positive correlation between colours and context scores.

    S is Pearson's correlation. If x is exchangeable given y, its variance over permutations is exactly 1/(n - 1), so
    Z = S sqrt(n - 1) -> N(0, 1) and p = 1 - Phi(Z). With groups (texts), x and y are centred in each of them, and the
    variance is that of permutations within groups.

    Parameters
    ----------
    x : (n,) colours.
    y : (n,) context scores.
    groups : (n,) labels of texts; None: one group.
    method : "asymptotic"; "permutation" (x is permuted within groups, p = (1 + #{S_pi >= S}) / (1 + B)); "auto"
        (default) permutes when n < 50.
    pool : how groups are joined: "stratified" (default), or "stouffer", z = sum (n_i - 3) atanh S_i / sqrt(sum (n_i - 3))
        over groups of at least 4 whose x and y vary (there |S_i| is at most 1 - 1/n_i; by permutation, p is
        stratified's).
    n_permutations : B, default 9999 (smallest p is 1e-4).
    seed : of the permutations, or a numpy Generator.

    Returns
    -------
    CorrelationResult

    Raises
    ------
    ValueError: unequal or non-1-D shapes, NaN or infinity (the position is named), unknown method or pool,
    n_permutations < 1. TypeError: x or y isn't real, groups can't be sorted, seed is none.
    """
    _choice("method", method, METHODS)
    _choice("pool", pool, POOLS[1:])
    n_permutations, seed = _whole("n_permutations", n_permutations), _seed(seed)
    x, y = _finite("x", x), _finite("y", y)
    try:
        labels = (
            groups if groups is None else np.unique(as_array(groups, "groups", "(n,) labels"), return_inverse=True)[1]
        )
    except TypeError as error:
        raise TypeError(f"groups are labels that cannot be sorted ({error}); expected numbers or names") from error
    if x.shape != y.shape or (labels is not None and labels.shape != x.shape):
        shape = "" if labels is None else f", groups {labels.shape}"
        raise ValueError(f"x has shape {x.shape}, y {y.shape}{shape}; expected equal lengths")
    pool = "concat" if labels is None else pool
    return _correlate(x, y, labels, method, pool, n_permutations, seed)


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(repr, choices))}")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} is {value!r}; expected a whole number of at least 1")
    return int(value)


def _seed(seed: Any) -> Any:
    try:
        return seed if type(seed) is int and seed >= 0 else np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise type(error)(f"seed is {seed!r}; expected a whole number >= 0 or a numpy Generator") from error


def _check_cut_off(name: str, texts: list[np.ndarray], prompts: list[np.ndarray], prompt_tokens: int) -> None:
    """Refuse a text that begins with a prompt, itself or after one token; a short prompt may come again by chance."""
    known = {prompt.tobytes() for prompt in prompts}
    begin = [any(text[skipped : skipped + prompt_tokens].tobytes() in known for skipped in (0, 1)) for text in texts]
    enough = prompt_tokens >= _PROMPT_REPEATED or (all(begin) and prompt_tokens * len(begin) >= _PROMPT_REPEATED)
    if any(begin) and enough:
        raise ValueError(
            f"{name}: text {begin.index(True)} begins with a prompt; expected continuations only: cut the prompts off"
        )


def _texts(name: str, texts: Any) -> list[Any]:
    if not isinstance(texts, Iterable) or isinstance(texts, (str, bytes)):
        raise TypeError(f"{name} is {texts!r}; expected a list of texts, each a 1-D array of token ids")
    return list(texts)


def _finite(name: str, values: Any) -> np.ndarray:
    array = as_array(values, name, "(n,) numbers")
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} has dtype {array.dtype}; expected real numbers")
    array = array.astype(np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}; expected (n,)")
    if not np.isfinite(array).all():
        position = int(np.argmin(np.isfinite(array)))
        raise ValueError(f"{name} is {array[position]} at position {position}; expected finite numbers")
    return array


def _correlate(
    x: np.ndarray, y: np.ndarray, texts: np.ndarray | None, method: str, pool: str, n_permutations: int, seed: Any
) -> CorrelationResult:
    n = len(x)
    if method == "auto":
        method = "permutation" if n < _AUTO_PERMUTATION else "asymptotic"
    longest = np.bincount(texts).max(initial=0) if pool == "stouffer" and texts is not None else n
    if longest < 4:
        return CorrelationResult(math.nan, math.nan, 1.0, n, 0.0, "too_short", method)
    statistic, z, precision = _statistic(x, y, texts, pool)
    if math.isnan(statistic):
        return CorrelationResult(math.nan, math.nan, 1.0, n, 0.0, "degenerate", method)
    p_value = _permutation_p(x, y, texts, n_permutations, seed) if method == "permutation" else float(ndtr(-z))
    return CorrelationResult(statistic, z, p_value, n, precision, "ok", method)


def _statistic(x: np.ndarray, y: np.ndarray, texts: np.ndarray | None, pool: str) -> tuple[float, float, float]:
    """S, Z and the precision of atanh S; NaN where x or y is constant."""
    groups = _Groups(None if pool == "concat" else texts, len(x))
    a, b = groups.centre(x), groups.centre(y)
    xx, yy, xy = groups.sum(a * a), groups.sum(b * b), groups.sum(a * b)
    if pool == "stouffer":
        used = (groups.lengths >= 4) & (xx * yy > 0)
        if not used.any():
            return math.nan, math.nan, 0.0
        n = groups.lengths[used]
        weighted = float((n - 3) @ _atanh(xy[used] / np.sqrt(xx[used] * yy[used]), n))
        precision = float((n - 3).sum())
        return math.tanh(weighted / precision), weighted / math.sqrt(precision), precision
    used = xx * yy > 0  # groups of one have no deviations
    variance = float(np.sum(xx[used] * yy[used] / (groups.lengths[used] - 1)))  # of sum(xy) over permutations
    if variance == 0:
        return math.nan, math.nan, 0.0
    total, scale = float(xy.sum()), float(xx.sum()) * float(yy.sum())
    return float(np.clip(total / math.sqrt(scale), -1, 1)), total / math.sqrt(variance), scale / variance - 2


def _atanh(statistic: Any, n: Any) -> Any:
    """Fisher's z, with correlations of n pairs beyond 1 - 1/n taken for it: a perfect one's would be infinite."""
    bound = 1 - 1 / np.asarray(n, dtype=float)
    return np.arctanh(np.clip(np.asarray(statistic, dtype=float), -bound, bound))


def _permutation_p(x: np.ndarray, y: np.ndarray, texts: np.ndarray | None, n_permutations: int, seed: Any) -> float:
    """Monte-Carlo p of sum(x y), the only part of S that changes when x is permuted within texts."""
    rng = np.random.default_rng(seed)
    groups = _Groups(texts, len(x))
    a, b = groups.centre(x), groups.centre(y)
    threshold = a @ b - 1e-12 * math.sqrt((a @ a) * (b @ b))
    rows, hits = max(1, _PERMUTED_VALUES // len(x)), 0
    for done in range(0, n_permutations, rows):
        permuted = np.tile(a, (min(rows, n_permutations - done), 1))
        for start, length in zip(groups.starts, groups.lengths, strict=True):
            part = permuted[:, start : start + length]
            rng.permuted(part, axis=1, out=part)
        hits += int(np.count_nonzero(permuted @ b >= threshold))
    return (1 + hits) / (1 + n_permutations)


def fisher_difference(S: Any, n: Any, S2: Any, n2: Any) -> float:
    """Test statistic for a larger correlation in the first of two samples, Fisher's z.

    Z_R = (atanh S - atanh S2) / sqrt(1/(n - 3) + 1/(n2 - 3)); p = 1 - Phi(Z_R). |S| counts as 1 - 1/n at most.

    Parameters
    ----------
    S, S2 : correlations, in [-1, 1].
    n, n2 : pairs that they rest on, above 3.

    Returns
    -------
    Z_R

    Raises
    ------
    ValueError: a value outside its range.
    """
    for name, value, size in (("S", S, n), ("S2", S2, n2)):
        if not -1 <= real(name, value) <= 1:
            raise ValueError(f"{name} is {value}; expected a correlation in [-1, 1]")
        if not 3 < real(name.replace("S", "n"), size) < math.inf:
            raise ValueError(f"{name.replace('S', 'n')} is {size}; expected more than 3 pairs")
    difference = _atanh(S, n) - _atanh(S2, n2)
    return float(difference / math.sqrt(1 / (n - 3) + 1 / (n2 - 3)))


def _ignores_order(key_fn: KeyFunction | None, h: int) -> bool:
    gram = np.arange(h + 1)[None]
    turned = np.concatenate([gram[:, :-1][:, ::-1], gram[:, -1:]], axis=1)
    return key_fn is not None and np.array_equal(key_fn(gram), key_fn(turned))


@dataclass(frozen=True)
class _Sequences:
    x: np.ndarray
    y: np.ndarray
    doc: np.ndarray
    colors: np.ndarray
    seen: np.ndarray
    n_texts: int
    n_skipped: int


class SpoofTest:
    """Tests of H0 "the watermarked texts were written by the watermark's owner" against forgery by a learned watermark.

    Only the first occurrence of every distinct n-gram of the tested texts enters: repeats have the same colour.

    Parameters
    ----------
    colors : the scheme with its key (:class:`Colors`).
    reference : n-gram counts of ordinary, *unwatermarked* text of the same language and tokenizer, order h + 1:
        :class:`NgramReference` or anything with ``order`` and ``count(ngrams)``. Never the owner's own outputs: green
        n-grams are over-represented there, and genuine text is rejected.
    score : context score of a count n: "log_count" (default), log(1 + n); "presence", 1[n > 0]; "rank", mid-ranks of n
        and of the colours (then S is Spearman's).
    key_fn : None takes the reference's; given, it must be the same (see :func:`sorted_context`).
    pool : texts are concatenated ("concat", default), centred one by one ("stratified": guards against texts that differ
        in both colour and topic) or tested one by one and combined ("stouffer").

    Raises
    ------
    ValueError: order != h + 1; an empty reference; different vocabularies; different key functions; one that heeds the
    order of the context where colours (``ignores_order``) do not; unknown score, pool.
    TypeError: colors or reference lacks what is needed.
    """

    def __init__(
        self,
        colors: Any,
        reference: Any,
        score: str = "log_count",
        key_fn: Any = None,
        pool: str = "concat",
    ) -> None:
        if not isinstance(colors, Colors):
            raise TypeError(f"colors is a {type(colors).__name__}; expected context_width and colors(ids)")
        if not hasattr(reference, "order") or not hasattr(reference, "count"):
            raise TypeError(f"reference is a {type(reference).__name__}; expected order and count(ngrams)")
        _choice("score", score, SCORES)
        _choice("pool", pool, POOLS)
        if reference.order != colors.context_width + 1:
            raise ValueError(
                f"reference has order {reference.order} and colors context_width {colors.context_width}; expected "
                f"order = context_width + 1 = {colors.context_width + 1}"
            )
        if getattr(reference, "total", 1) == 0:
            raise ValueError("reference is empty; expected the counts of a corpus (update it with documents first)")
        sizes = getattr(colors, "vocab_size", None), getattr(reference, "vocab_size", None)
        if None not in sizes and sizes[0] != sizes[1]:
            raise ValueError(
                f"colors has vocab_size {sizes[0]} and reference {sizes[1]}; expected one tokenizer and, where logits are "
                "padded, model.config.vocab_size for both"
            )
        own = getattr(reference, "key_fn", None)
        if key_fn is not None and key_fn != own:
            other = "another function called " * (key_name(key_fn) == key_name(own))
            raise ValueError(
                f"key_fn is {key_name(key_fn)!r}, but the reference counts by {other}{key_name(own)!r}; expected "
                "NgramReference(..., key_fn=) of the same function"
            )
        if getattr(colors, "ignores_order", False) and not _ignores_order(own, colors.context_width):
            raise ValueError(
                f"the reference counts by key_fn {key_name(own)!r}, which tells orders of the context apart, but the colours "
                "do not depend on it; expected NgramReference(..., key_fn=sorted_context)"
            )
        self.colors, self.reference, self.score, self.pool = colors, reference, score, pool
        self.key_fn: KeyFunction | None = own
        self._vocab_size = sizes[1] if sizes[0] is None else sizes[0]

    def sequences(
        self, texts: Any
    ) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """What enters the test: colour, context score and text of every distinct n-gram, in order of appearance.

        Parameters
        ----------
        texts : 1-D arrays of token ids.

        Returns
        -------
        x (n,), y (n,), doc (n,): index of the text

        Raises
        ------
        TypeError, ValueError: ids that are not 1-D integers of the vocabulary; colours that are not finite.
        """
        s = self._sequences(_texts("texts", texts), "texts")
        return s.x, s.y, s.doc

    def standard(self, texts: Any, method: str = "auto", n_permutations: Any = 9999, seed: Any = 0) -> SpoofResult:
        """Standard test: are colour and context score of the suspect texts positively correlated?

        Valid (conservative) for genuine text when they are independent or negatively dependent. The latter is the rule in
        low-entropy text, where common n-grams leave the watermark no choice: then power is lost, most when h = 1, and
        :meth:`reprompting` restores it.

        Parameters
        ----------
        texts : 1-D arrays of token ids of one source; all are tested together.
        method, n_permutations, seed : of :func:`correlation_test`; permutations are within texts.

        Returns
        -------
        SpoofResult; a RuntimeWarning tells of a status other than "ok".

        Raises
        ------
        TypeError, ValueError: as of :meth:`sequences`; unknown method.
        """
        _choice("method", method, METHODS)
        n_permutations, seed = _whole("n_permutations", n_permutations), _seed(seed)
        s = self._sequences(_texts("texts", texts), "texts")
        return self._result(s, _correlate(s.x, s.y, s.doc, method, self.pool, n_permutations, seed))

    def reprompting(
        self,
        texts: Any,
        generate: Any = None,
        reprompted: Any = None,
        prompt_tokens: Any = 32,
        n_reprompts: Any = 1,
    ) -> SpoofResult:
        """Reprompting test: is the correlation larger than in text on the same topics that surely is genuine?

        The first tokens of every suspect text are the prompt from which the owner's watermarked model writes again. S' of
        its continuations carries the dependence that genuine text has; p = 1 - Phi(Z_R) of :func:`fisher_difference`.
        Prompts, which are the suspect's, never enter S'. Fewer than 20 n-grams of either give no verdict.

        Parameters
        ----------
        texts : 1-D arrays of token ids of one source; all are tested together.
        generate : ``generate(prompts, n_new)`` with lists of 1-D arrays and of numbers of tokens, returning the
            continuations (without prompts) of the watermarked model.
        reprompted : continuations made before, 1-D arrays of ids, from these or prompts of your own.
        prompt_tokens : length of prompts, default 32; with reprompted it only serves to see that they were cut off.
        n_reprompts : calls of generate; atanh S' is averaged with weights n' - 3.

        Returns
        -------
        SpoofResult; a RuntimeWarning tells of a status other than "ok".

        Raises
        ------
        TypeError, ValueError: as of :meth:`sequences`; both or neither of generate and reprompted; a text of no more than
        prompt_tokens; generate returned another number of texts, an empty one, or the same texts at every call; a
        regenerated text that begins with a prompt (after one more token at most, such as a begin of text).
        """
        texts, prompt_tokens = _texts("texts", texts), _whole("prompt_tokens", prompt_tokens)
        if reprompted is not None and generate is None:
            batches = [
                [
                    as_ids(t, f"reprompted[{i}]", self._vocab_size)
                    for i, t in enumerate(_texts("reprompted", reprompted))
                ]
            ]
            suspects = [as_ids(text, f"texts[{index}]", self._vocab_size) for index, text in enumerate(texts)]
            prompts = [ids[:prompt_tokens] for ids in suspects if len(ids) > prompt_tokens]
            _check_cut_off("reprompted", batches[0], prompts, prompt_tokens)
        elif generate is None or reprompted is not None:
            raise ValueError("expected exactly one of generate and reprompted")
        elif not callable(generate):
            raise TypeError(f"generate is {generate!r}; expected a function generate(prompts, n_new)")
        else:
            batches = self._regenerate(texts, generate, prompt_tokens, _whole("n_reprompts", n_reprompts))
        s = self._sequences(texts, "texts")
        of_suspect = _correlate(s.x, s.y, s.doc, "asymptotic", self.pool, 1, 0)
        weighted = precision = 0.0
        n_reference = 0
        status = of_suspect.status
        if status == "ok" and of_suspect.n < _FISHER_LEAST:
            status = "too_short"
        for batch in batches:
            t = self._sequences(batch, "reprompted")
            again = _correlate(t.x, t.y, t.doc, "asymptotic", self.pool, 1, 0)
            n_reference += again.n
            if status == "ok":
                status = again.status
            few = again.n < _FISHER_LEAST or min(of_suspect.precision, again.precision) <= 0  # as many texts as n-grams
            if status == "ok" and few:
                status = "too_short"
            if status != "ok":
                continue
            weighted += again.precision * float(_atanh(again.statistic, again.precision + 3))
            precision += again.precision
        reference_statistic = math.tanh(weighted / precision) if precision else math.nan
        z, p_value = math.nan, 1.0
        if status == "ok":
            z = fisher_difference(of_suspect.statistic, of_suspect.precision + 3, reference_statistic, precision + 3)
            p_value = float(ndtr(-z))
        found = CorrelationResult(of_suspect.statistic, z, p_value, of_suspect.n, 0.0, status, "asymptotic")
        return self._result(s, found, reference_statistic, n_reference)

    def _regenerate(self, texts: list[Any], generate: Any, prompt_tokens: int, n_reprompts: int) -> list[list[Any]]:
        prompts, n_new = [], []
        for index, text in enumerate(texts):
            ids = as_ids(text, f"texts[{index}]", self._vocab_size)
            if len(ids) <= prompt_tokens:
                raise ValueError(
                    f"prompt_tokens is {prompt_tokens}; expected fewer than texts[{index}] has, {len(ids)}"
                )
            prompts.append(ids[:prompt_tokens].copy())
            n_new.append(len(ids) - prompt_tokens)
        batches: list[list[Any]] = []
        for _ in range(n_reprompts if prompts else 0):
            made = _texts("what generate returned", generate(list(prompts), list(n_new)))
            if len(made) != len(prompts):
                raise ValueError(f"generate returned {len(made)} texts; expected {len(prompts)}, one per prompt")
            batch = [as_ids(text, f"reprompted[{index}]", self._vocab_size) for index, text in enumerate(made)]
            for index, text in enumerate(batch):
                if len(text) == 0:
                    raise ValueError(
                        f"generate returned an empty text at position {index}; expected {n_new[index]} tokens"
                    )
            _check_cut_off("generate returned", batch, prompts, prompt_tokens)
            if any(all(map(np.array_equal, batch, earlier)) for earlier in batches):
                raise ValueError(
                    "generate returned the same texts twice; expected independent samples for n_reprompts > 1: sample, "
                    "with another seed at each call"
                )
            batches.append(batch)
        return batches or [[]]

    def _sequences(self, texts: list[Any], name: str) -> _Sequences:
        h = self.colors.context_width
        ngrams, colors, doc = [np.zeros((0, h + 1), np.int64)], [np.zeros(0)], [np.zeros(0, np.int64)]
        skipped = 0
        for index, text in enumerate(texts):
            ids = as_ids(text, f"{name}[{index}]", self._vocab_size)
            if len(ids) < h + 2:
                skipped += 1
                continue
            x, valid = self._colors_of(ids, f"{name}[{index}]")
            scored = np.flatnonzero(valid)
            ngrams.append(np.lib.stride_tricks.sliding_window_view(ids, h + 1)[scored - h])
            colors.append(x[scored])
            doc.append(np.full(len(scored), index))
        grams = np.concatenate(ngrams)
        keys = pack_keys(grams.T, self._vocab_size, self.key_fn)
        first = np.sort(np.unique(keys, return_index=True)[1])
        color = np.concatenate(colors)[first]
        count = self._counts_of(grams[first])
        x = color
        if self.score == "log_count":
            y = np.log1p(count)
        elif self.score == "presence":
            y = (count > 0).astype(np.float64)
        else:
            x, y = _mid_ranks(color), _mid_ranks(count)
        return _Sequences(x, y, np.concatenate(doc)[first], color, count > 0, len(texts) - skipped, skipped)

    def _counts_of(self, grams: np.ndarray) -> np.ndarray:
        count = np.asarray(self.reference.count(grams))
        if count.shape != (len(grams),) or count.dtype.kind not in "iuf":
            raise ValueError(f"reference.count returned {count.dtype} {count.shape}; expected ({len(grams)},) numbers")
        bad = ~(np.isfinite(count) & (count >= 0))
        if bad.any():
            raise ValueError(f"reference.count returned {count[bad][0]}; expected finite counts >= 0")
        return count

    def _colors_of(self, ids: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
        pair = self.colors.colors(ids)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"colors of {name} are a {type(pair).__name__}; expected two arrays, x and valid")
        x, valid = (as_array(value, f"colors of {name}", f"{ids.shape} numbers") for value in pair)
        if x.dtype.kind not in "biuf":
            raise TypeError(f"colors of {name} have dtype {x.dtype}; expected real numbers")
        x = x.astype(np.float64)
        if x.shape != ids.shape or valid.shape != ids.shape or valid.dtype != bool:
            raise ValueError(
                f"colors of {name} have shape {x.shape}, valid {valid.shape} {valid.dtype}; expected {ids.shape} both, bool"
            )
        if valid[: self.colors.context_width].any():
            position = int(np.argmax(valid))
            raise ValueError(f"colors of {name} are valid at position {position}; expected context_width tokens before")
        if not np.isfinite(x[valid]).all():
            position = int(np.argmax(valid & ~np.isfinite(x)))
            raise ValueError(f"colors of {name} are {x[position]} at position {position}; expected finite numbers")
        return x, valid

    def _result(
        self,
        s: _Sequences,
        found: CorrelationResult,
        reference_statistic: float | None = None,
        n_reference: int = 0,
    ) -> SpoofResult:
        if found.status == "too_short":
            of = "" if reference_statistic is None else f" and {n_reference} regenerated ones"
            least = 4 if reference_statistic is None else f"{_FISHER_LEAST} of both"
            least = f"{least}, in one text" if self.pool == "stouffer" and reference_statistic is None else least
            message = f"{found.n} distinct n-grams{of} are too few to test; expected at least {least}"
            warnings.warn(message, RuntimeWarning, stacklevel=3)
        elif found.status == "degenerate":
            if np.isnan(found.statistic):
                constant = "colour" if np.ptp(s.x) == 0 else "context score" if np.ptp(s.y) == 0 else "colour or score"
            else:
                constant = "colour or context score of the regenerated texts"
            message = f"the {constant} is constant, so no correlation is defined and the test says nothing"
            warnings.warn(message, RuntimeWarning, stacklevel=3)

        def mean(values: np.ndarray) -> float:
            return float(values.mean()) if len(values) else math.nan

        return SpoofResult(
            statistic=found.statistic,
            reference_statistic=reference_statistic,
            z=found.z,
            p_value=found.p_value,
            n=found.n,
            n_reference=n_reference,
            coverage=mean(s.seen),
            green_rate=mean(s.colors),
            green_seen=mean(s.colors[s.seen]),
            green_unseen=mean(s.colors[~s.seen]),
            status=found.status,
            method=found.method,
            n_texts=s.n_texts,
            n_skipped=s.n_skipped,
        )


def _mid_ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[inverse]
