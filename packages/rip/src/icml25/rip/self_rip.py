"""Self-RIP: write new prompts after the survivors' example, clean them, and filter again with the same thresholds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone as clone_filter

from icml25.rip.filter import RIPFilter

__all__ = ["BEGIN", "END", "SelfRIPResult", "few_shot_text", "parse_prompts", "rouge_l", "self_rip", "unfit"]

BEGIN, END = "<prompt>", "</prompt>"
ROUGE_LIMIT = 0.7
PATIENCE = 1000
KEYWORDS = re.compile(r"\b(images?|graphs?|pictures?|files?|maps?|draw|plot|go to)\b", re.IGNORECASE)


@dataclass(frozen=True)
class SelfRIPResult:
    """What `self_rip` made.

    Attributes
    ----------
    prompts : the written prompts, cleaned, before the second filter.
    frame : DataFrame with these prompts, their responses and rewards.
    kept : its rows that the second filter keeps.
    stats : ``n_pool``, ``n_prompts``, ``n_kept``, ``n_calls`` (few-shot texts), ``rejected`` (written prompts by the reason
        why they were left out), ``thresholds`` of the second filter, ``first`` and ``second`` (the filters' reports).
    """

    prompts: list[str]
    frame: pd.DataFrame
    kept: pd.DataFrame
    stats: dict[str, Any]


def few_shot_text(shots: Sequence[str]) -> str:
    """Numbered prompts between marks, and the opening of the next one."""
    items = [f"{i}. {BEGIN}{shot}{END}" for i, shot in enumerate(shots, 1)]
    return "\n".join([*items, f"{len(shots) + 1}. {BEGIN}"])


def parse_prompts(continuation: str) -> list[str]:
    """Prompts in the continuation of a few-shot text: up to the first end mark, then between pairs of marks.

    An item without its end mark is unfinished and left out; a continuation without any mark is one prompt.
    """
    if END not in continuation:
        text = continuation.split(BEGIN)[-1] if continuation.lstrip().startswith(BEGIN) else continuation
        return [text.strip()] if BEGIN not in text and text.strip() else []
    first, _, rest = continuation.partition(END)
    items = [first.split(BEGIN)[-1], *re.findall(f"{BEGIN}(.*?){END}", rest, flags=re.DOTALL)]
    return [item.strip() for item in items if item.strip()]


def unfit(prompt: str) -> str:
    """Why Self-Instruct's cleaning drops a prompt: "short", "long", "keyword", "start", or "" where it does not."""
    words = prompt.split()
    if len(words) <= 3:
        return "short"
    if len(words) > 150:
        return "long"
    if KEYWORDS.search(prompt):
        return "keyword"
    if prompt.startswith("Write a program") or not prompt[0].isascii() or not prompt[0].isalnum():
        return "start"
    return ""


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def rouge_l(a: str, b: str) -> float:
    """ROUGE-L F1 of two texts, 2 LCS / (m + n) over lower-cased alphanumeric words."""
    from rapidfuzz.distance import Indel

    return float(Indel.normalized_similarity(_words(a), _words(b)))


class _Seen:
    """Texts met so far; tells whether one is as good as among them."""

    def __init__(self, texts: Sequence[str], dedup: bool) -> None:
        self.exact, self.dedup = set(texts), dedup
        self.words = [_words(text) for text in texts]

    def add(self, text: str) -> bool:
        """Note a text; False where it is a duplicate and was not noted."""
        from rapidfuzz import process
        from rapidfuzz.distance import Indel

        if text in self.exact:
            return False
        words = _words(text)
        cutoff = ROUGE_LIMIT - 1e-9
        if self.dedup and process.extractOne(
            words, self.words, scorer=Indel.normalized_similarity, score_cutoff=cutoff
        ):
            return False
        self.exact.add(text)
        self.words.append(words)
        return True


def _sampled(
    prompts: list[str], sample_fn: Callable[..., Any], reward_fn: Callable[..., Any], n: int, names: Sequence[str]
) -> pd.DataFrame:
    """Sample and score n responses a prompt.

    Raises
    ------
    ValueError: a function returns another shape.
    """
    responses = [list(row) for row in sample_fn(prompts, n)]
    if [len(row) for row in responses] != [n] * len(prompts):
        raise ValueError(
            f"sample_fn returned lists of {sorted({len(row) for row in responses})} responses for {len(responses)} prompts; "
            f"expected {n} for each of {len(prompts)}"
        )
    rewards = [list(row) for row in reward_fn(prompts, responses)]
    if [len(row) for row in rewards] != [n] * len(prompts):
        raise ValueError(
            f"reward_fn returned lists of {sorted({len(row) for row in rewards})} rewards for {len(rewards)} prompts; "
            f"expected {n} for each of {len(prompts)}"
        )
    return pd.DataFrame(dict(zip(names, (prompts, responses, rewards), strict=True)))


def self_rip(
    seed_prompts: Sequence[str] | pd.DataFrame,
    write_fn: Callable[[list[str]], list[str]],
    sample_fn: Callable[[list[str], int], list[list[str]]],
    reward_fn: Callable[[list[str], list[list[str]]], list[list[float]]],
    n_prompts: int,
    n_responses: int = 64,
    shots: int = 8,
    filter: RIPFilter | None = None,
    seed: int = 0,
    dedup: bool = True,
    clean: bool = True,
    refit: bool = False,
    batch_size: int = 16,
) -> SelfRIPResult:
    """Write prompts after those that survive the filter, and filter these by the same thresholds.

    Parameters
    ----------
    seed_prompts : human prompts, or a DataFrame with their responses and rewards too, which are not sampled then.
    write_fn : few-shot texts -> continuations, as many.
    sample_fn : prompts, n -> n responses to each.
    reward_fn : prompts, responses -> a reward of each response.
    n_prompts : how many to write.
    n_responses : responses a prompt.
    shots : distinct survivors shown in a few-shot text.
    filter : None takes `RIPFilter()`; it is cloned and fitted on the seed prompts. ``RIPFilter(quantile=0)`` makes
        Self-Instruct of it.
    seed : of the choice of shots.
    dedup : drop a prompt whose ROUGE-L with an earlier one is 0.7 or more; equal ones are always dropped.
    clean : drop prompts that are too short, too long or contain what a text model cannot do.
    refit : fit the second filter anew (the paper does not).
    batch_size : few-shot texts in a call of write_fn.

    Raises
    ------
    ValueError: fewer survivors than shots; a function returns another shape.
    RuntimeError: 1,000 written prompts in a row were not acceptable; with the counts by reason.
    """
    if n_prompts < 1 or shots < 1 or batch_size < 1:
        raise ValueError(f"n_prompts, shots and batch_size must be at least 1, got {n_prompts}, {shots}, {batch_size}")
    first: Any = clone_filter(RIPFilter() if filter is None else filter)
    names = (first.prompt_col, first.responses_col, first.rewards_col)
    if isinstance(seed_prompts, pd.DataFrame):
        human = seed_prompts
    else:
        human = _sampled(list(seed_prompts), sample_fn, reward_fn, n_responses, names)
    pool = first.fit(human).transform(human)[first.prompt_col].drop_duplicates().tolist()
    first_report = first.report_
    if len(pool) < shots:
        raise ValueError(f"{len(pool)} distinct prompts survive the first filter; {shots} are needed as shots")
    written, stats = _write(pool, write_fn, n_prompts, shots, np.random.default_rng(seed), dedup, clean, batch_size)
    frame = _sampled(written, sample_fn, reward_fn, n_responses, names)
    second: Any = clone_filter(first) if refit else first
    if refit:
        second.fit(frame)
    kept = second.transform(frame)
    stats |= {"n_pool": len(pool), "n_prompts": len(written), "n_kept": len(kept)}
    stats |= {"thresholds": dict(second.thresholds_), "first": first_report, "second": second.report_}
    return SelfRIPResult(written, frame, kept, stats)


def _write(
    pool: list[str],
    write_fn: Callable[[list[str]], list[str]],
    n_prompts: int,
    shots: int,
    rng: np.random.Generator,
    dedup: bool,
    clean: bool,
    batch_size: int,
) -> tuple[list[str], dict[str, Any]]:
    """Prompts that pass the cleaning, and the counts of the others."""
    seen, rejected, written = _Seen(pool, dedup), Counter[str](), list[str]()
    calls = in_vain = 0
    while len(written) < n_prompts:
        size = min(batch_size, n_prompts - len(written))
        texts = [few_shot_text([pool[i] for i in rng.choice(len(pool), shots, replace=False)]) for _ in range(size)]
        calls += size
        continuations = write_fn(texts)
        if len(continuations) != size:
            raise ValueError(f"write_fn returned {len(continuations)} texts for {size}")
        for continuation in continuations:
            for prompt in parse_prompts(continuation) or [""]:
                why = (
                    "unfinished"
                    if not prompt
                    else (clean and unfit(prompt)) or ("" if seen.add(prompt) else "duplicate")
                )
                if why:
                    rejected[why] += 1
                    in_vain += 1
                elif len(written) < n_prompts:
                    written.append(prompt)
                    in_vain = 0
            if in_vain >= PATIENCE:
                raise RuntimeError(f"write_fn gave no acceptable prompt {in_vain} times in a row: {dict(rejected)}")
    return written, {"n_calls": calls, "rejected": dict(rejected)}
