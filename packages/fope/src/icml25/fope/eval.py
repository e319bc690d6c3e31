"""Reading beyond the training length: perplexity against length, and retrieval of a passkey."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import cross_entropy

_TASK = "One sentence in the long text below states a secret number. Find that sentence and remember the number.\n"
_FILLER = " The river runs past the mill. The wind turns over the hill. We walk to the town and back before dark."
_NEEDLE = " The secret number is {key}. Remember it: {key} is the secret number."
_QUESTION = "\nWhat is the secret number? The secret number is"


def passkey_prompts(
    tokenizer: Callable[..., Any], length: int, n: int, *, seed: int = 0
) -> tuple[Int[Tensor, "n length"], list[str]]:
    """Prompts of exactly ``length`` tokens that hide a five-digit number at a uniform depth (the passkey task).

    Parameters
    ----------
    tokenizer : a transformers tokenizer.
    length : tokens of a prompt.
    n : number of prompts.
    seed : of numbers and depths.

    Returns
    -------
    ids : (n, length) int64.
    keys : the n numbers as text.

    Raises
    ------
    ValueError: n < 1, or ``length`` leaves no place for task, number and question.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    generator = torch.Generator().manual_seed(seed)
    keys = [str(10000 + int(torch.randint(90000, (), generator=generator))) for _ in range(n)]
    start, filler, question = list(tokenizer("")["input_ids"]) + ids(_TASK), ids(_FILLER), ids(_QUESTION)
    rows = []
    for key in keys:
        needle = ids(_NEEDLE.format(key=key))
        room = length - len(start) - len(needle) - len(question)
        if room < 0:
            raise ValueError(f"length must be at least {length - room} tokens to hold the passkey task, got {length}")
        text = (filler * (room // len(filler) + 1))[:room]
        depth = int(torch.randint(room + 1, (), generator=generator))
        rows.append(start + text[:depth] + needle + text[depth:] + question)
    return torch.tensor(rows), keys


@torch.no_grad()
def passkey_accuracy(
    model: Any,
    tokenizer: Any,
    lengths: Any,
    n: int = 1000,
    *,
    batch_size: int = 8,
    seed: int = 0,
) -> dict[int, float]:
    """Share of prompts whose hidden number the model writes (greedily), for each length.

    Parameters
    ----------
    model : a transformers model with ``generate``.
    tokenizer : its tokenizer.
    lengths : several whole numbers, tokens of a prompt.
    n : prompts per length; the paper takes 1000.
    batch_size : prompts at once.
    seed : of numbers and depths.

    Returns
    -------
    dict: length -> accuracy in [0, 1].

    Raises
    ------
    ValueError: as ``passkey_prompts``, or batch_size < 1.
    """
    _check_batch_size(batch_size)
    device, found = next(model.parameters()).device, {}
    with _EvalMode(model):
        for length in _checked_lengths(lengths):
            ids, keys = passkey_prompts(tokenizer, length, n, seed=seed)
            right = 0
            new = max(len(tokenizer(f" {key}", add_special_tokens=False)["input_ids"]) for key in keys) + 1
            for start in range(0, n, batch_size):
                batch = ids[start : start + batch_size].to(device)
                mask, pad = torch.ones_like(batch), model.generation_config.pad_token_id
                if pad is None:
                    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
                out = model.generate(batch, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=pad)
                for row, key in zip(out[:, length:], keys[start : start + batch_size], strict=True):
                    right += tokenizer.decode(row).lstrip().startswith(key)
            found[length] = right / n
    return found


@torch.no_grad()
def perplexity_by_length(
    model: Any, ids: Tensor, lengths: Any, *, batch_size: int = 8, last: int | None = None
) -> dict[int, float]:
    """Perplexity on windows of each length, exp of the mean next-token loss.

    Parameters
    ----------
    model : called on (b, length) int64; gives logits, or an object with ``logits``, of shape (b, length, vocabulary).
    ids : (tokens,) the text; it is cut into windows that do not overlap, and what is left over is not used.
    lengths : several whole numbers, tokens of a window, at least 2.
    batch_size : windows at once.
    last : score only the last so many tokens of a window; None scores all but the first.

    Returns
    -------
    dict: length -> perplexity.

    Raises
    ------
    ValueError: the text is shorter than a length, or a length, ``last`` or ``batch_size`` is too small.
    TypeError: ids is not a vector of whole numbers.
    """
    _check_batch_size(batch_size)
    if not isinstance(ids, Tensor) or ids.ndim != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise TypeError("ids must be a 1-D tensor of whole numbers")
    if last is not None and last < 1:
        raise ValueError(f"last must be at least 1, got {last}")
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    if ids.numel() and (ids.min() < 0 or (vocabulary is not None and ids.max() >= vocabulary)):
        bound = "" if vocabulary is None else f" and below the vocabulary's {vocabulary}"
        raise ValueError(f"ids must be at least 0{bound}, got {int(ids.min())} to {int(ids.max())}")
    device, found = next(model.parameters()).device, {}
    with _EvalMode(model):
        for length in _checked_lengths(lengths):
            if length < 2:
                raise ValueError(f"lengths must be at least 2, got {length}")
            if len(ids) < length:
                raise ValueError(f"ids holds {len(ids)} tokens, fewer than the length {length}")
            windows = ids[: len(ids) // length * length].view(-1, length)
            total, count = 0.0, 0
            for batch in windows.split(batch_size):
                out = model(batch.to(device))
                logits = getattr(out, "logits", out)[:, :-1]
                losses = cross_entropy(logits.float().mT, batch[:, 1:].to(logits.device), reduction="none")
                losses = losses if last is None else losses[:, -last:]
                total, count = total + float(losses.double().sum()), count + losses.numel()
            mean = total / count
            found[length] = math.exp(mean) if mean < 709 else math.inf
    return found


class _EvalMode:
    """Evaluation mode inside a ``with`` block."""

    def __init__(self, model: Any) -> None:
        self.model, self.training = model, model.training

    def __enter__(self) -> None:
        self.model.eval()

    def __exit__(self, *_: object) -> None:
        self.model.train(self.training)


def _checked_lengths(lengths: Any) -> list[int]:
    values = list(lengths) if isinstance(lengths, Iterable) and not isinstance(lengths, (str, bytes)) else None
    if values is None or not all(hasattr(value, "__index__") and not isinstance(value, bool) for value in values):
        raise TypeError(f"lengths must be several whole numbers, got {lengths!r}")
    return [int(value) for value in values]


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
