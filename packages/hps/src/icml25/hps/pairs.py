"""Scored lists of responses as a data set: what is asked of one, and pairs drawn from it for any DPO trainer."""

import warnings
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import torch
from datasets import Dataset, concatenate_datasets

from icml25.hps.sampling import candidates, sample_hard_negative
from icml25.hps.schedule import GammaSchedule

__all__ = ["step_generator", "to_preference_pairs", "usable_rows"]

pc: Any = pyarrow.compute  # its functions are made when it is imported, out of sight of type checkers
COLUMNS = ("prompt", "responses", "scores")
BLOCK = 10_000


def to_preference_pairs(
    dataset: Dataset,
    gamma: float | int | None = None,
    schedule: GammaSchedule | None = None,
    resamples: int = 2,
    seed: int = 0,
    normalize: str | None = None,
) -> Dataset:
    """Draw pairs (preferred, hard negative) once, for an unmodified DPO trainer, as the paper's code does.

    The trainer then leaves out log N (Eq. 10). :class:`~icml25.hps.HPSTrainer` draws anew at each step instead.

    Parameters
    ----------
    dataset : columns ``prompt`` (text or chat messages), ``responses`` (a list of two or more texts) and ``scores`` (as many
        numbers). Rows of fewer, and rows whose scores are all equal, are skipped with a warning.
    gamma : how hard the negatives are; or
    schedule : gamma by the place in the returned data set, of use to a trainer that doesn't shuffle. None of both is the paper's
        schedule, -5 to 5.
    resamples : passes over the data, each with new negatives, one after the other.
    seed : of the draws.
    normalize : as for :func:`~icml25.hps.hard_negative_weights`.

    Returns
    -------
    Dataset of resamples * rows: ``prompt``, ``chosen``, ``rejected`` (texts, or a list of one message of the assistant each after a
    prompt of messages), ``num_negatives``, ``chosen_score`` and ``rejected_score``.

    Raises
    ------
    ValueError: columns are missing; lengths differ; a score isn't finite; a prompt is empty; no row is left; resamples below 1;
    gamma and schedule are both given. TypeError: scores aren't numbers, responses or prompts aren't texts.
    """
    if gamma is not None and schedule is not None:
        raise ValueError("gamma and schedule are both given; expected one of them")
    if resamples < 1:
        raise ValueError(f"resamples is {resamples}; expected 1 or more")
    if schedule is None:
        schedule = GammaSchedule() if gamma is None else GammaSchedule("constant", float(gamma))
    rows = usable_rows(dataset)
    dataset = dataset if len(rows) == len(dataset) else dataset.select(rows)
    settings = {
        "rows": len(dataset),
        "resamples": resamples,
        "schedule": schedule,
        "seed": seed,
        "normalize": normalize,
    }
    passes = [
        dataset.with_format("arrow").map(
            _draw_pairs,
            with_indices=True,
            batched=True,
            batch_size=BLOCK,
            remove_columns=dataset.column_names,
            fn_kwargs={**settings, "resample": resample},
            desc=f"Drawing negatives, {resample + 1} of {resamples}",
        )
        for resample in range(resamples)
    ]
    return concatenate_datasets(passes).with_format(None)


def usable_rows(dataset: Dataset, name: str = "dataset") -> np.ndarray:
    """Places of the rows that have something to prefer; the others are counted in a warning.

    Parameters
    ----------
    dataset : as for :func:`to_preference_pairs`.
    name : how errors call it.

    Raises
    ------
    As :func:`to_preference_pairs`.
    """
    if missing := [column for column in COLUMNS if column not in dataset.column_names]:
        raise ValueError(f"{name} has no {', '.join(missing)}; expected {list(COLUMNS)}, found {dataset.column_names}")
    keep, empty, start = [], 0, 0
    blocks: Any = dataset.select_columns(list(COLUMNS)).with_format("arrow").iter(batch_size=BLOCK)
    for table in blocks:
        _check_types(table.schema, name)
        if len(blank := np.flatnonzero(pc.equal(_length(table["prompt"]), 0).to_numpy())):
            raise ValueError(f"{name}, row {start + blank[0]}: prompt is empty")
        for column in COLUMNS[1:]:
            if len(null := np.flatnonzero(table[column].is_null().to_numpy())):
                raise ValueError(f"{name}, row {start + null[0]}: {column} is missing")
        lengths = pc.list_value_length(table["scores"]).to_numpy()
        responses = pc.list_value_length(table["responses"]).to_numpy()
        if len(other := np.flatnonzero(lengths != responses)):
            row = other[0]
            raise ValueError(f"{name}, row {start + row}: {responses[row]} responses but {lengths[row]} scores")
        texts = pc.list_flatten(table["responses"])
        scores, mask, _ = _padded(table)
        there = np.zeros_like(mask)
        there[mask] = texts.is_valid().to_numpy()
        for what, bad in (("responses", ~there), ("scores", ~np.isfinite(scores))):
            if len(places := np.argwhere(bad & mask)):
                row, response = places[0]
                found = "nothing" if what == "responses" else scores[row, response]
                raise ValueError(f"{name}, row {start + row}, response {response}: {what} has {found}")
        empty += pc.sum(pc.equal(pc.utf8_length(texts), 0)).as_py() or 0
        keep.append(start + np.flatnonzero(_below(scores, mask).any(1)))
        start += len(table)
    kept = np.concatenate(keep) if keep else np.zeros(0, dtype=int)
    if not len(kept):
        raise ValueError(f"{name}: none of {start} rows has two or more responses with different scores")
    if empty:
        warnings.warn(f"{name}: {empty} responses are empty (an end of sequence alone)", stacklevel=3)
    if skipped := start - len(kept):
        warnings.warn(
            f"{name}: {skipped} of {start} rows skipped, with fewer than two scores or all equal", stacklevel=3
        )
    return kept


def step_generator(*key: int | str) -> torch.Generator:
    """A generator on the CPU for one step or block, so that a run that goes on after a stop draws the same."""
    return torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))


def _check_types(schema: pa.Schema, name: str) -> None:
    prompt = schema.field("prompt").type
    if not (_is_text(prompt) or _is_list(prompt)):
        raise TypeError(f"{name}: prompt is {prompt}; expected text or a list of chat messages")
    for column, wanted, fits in (("responses", "texts", _is_text), ("scores", "numbers", _is_number)):
        kind = schema.field(column).type
        if not (_is_list(kind) and (fits(kind.value_type) or pa.types.is_null(kind.value_type))):
            raise TypeError(f"{name}: {column} are {kind}; expected lists of {wanted}")


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _length(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Characters of texts, or messages of chats; 0 where there is none."""
    length = pc.utf8_length(texts) if _is_text(texts.type) else pc.list_value_length(texts)
    return pc.fill_null(length, 0)


def _padded(table: pa.Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores (B, n), whether there is a response (B, n), and where each row begins in the flattened column (B,)."""
    lengths = pc.list_value_length(table["scores"]).to_numpy().astype(np.int64)
    mask = np.arange(max(1, lengths.max())) < lengths[:, None]
    scores = np.zeros(mask.shape)
    scores[mask] = pc.list_flatten(table["scores"]).to_numpy().astype(np.float64)
    return scores, mask, lengths.cumsum() - lengths


def _below(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return candidates(torch.from_numpy(scores), torch.from_numpy(mask)).numpy()


def _draw_pairs(
    table: pa.Table,
    indices: list[int],
    *,
    rows: int,
    resample: int,
    resamples: int,
    schedule: GammaSchedule,
    seed: int,
    normalize: str | None,
) -> pa.Table:
    """A pair from each row of a block."""
    scores, mask, starts = _padded(table)
    progress = (resample + np.asarray(indices) / rows) / resamples
    gamma = torch.tensor([schedule.at(done) for done in progress], dtype=torch.float64)
    generator = step_generator(seed, resample, indices[0])
    drawn = sample_hard_negative(torch.from_numpy(scores), gamma, generator, torch.from_numpy(mask), normalize).numpy()
    best, row = np.where(mask, scores, -np.inf).argmax(1), np.arange(len(scores))
    columns: dict[str, Any] = {"prompt": table["prompt"]}
    texts = pc.list_flatten(table["responses"]).combine_chunks()
    chat = _is_list(table.schema.field("prompt").type)
    for name, place in (("chosen", best), ("rejected", drawn)):
        found = texts.take(pa.array(starts + place))
        columns[name] = _message(found) if chat else found
    columns["num_negatives"] = _below(scores, mask).sum(1)
    return pa.table(columns | {"chosen_score": scores[row, best], "rejected_score": scores[row, drawn]})


def _message(texts: pa.Array) -> pa.Array:
    """Each text as a list of one message of the assistant."""
    role = pa.array(["assistant"]).take(pa.array(np.zeros(len(texts), dtype=np.int64)))
    messages = pa.StructArray.from_arrays([role, texts], ["role", "content"])
    return pa.ListArray.from_arrays(pa.array(np.arange(len(texts) + 1, dtype=np.int32)), messages)
