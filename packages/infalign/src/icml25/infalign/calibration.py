"""Empirical calibrated reward (Eq. 12): what share of K rollouts of the base policy does a response beat?"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

__all__ = ["Calibrator", "FewRolloutsWarning", "RepeatedPromptWarning", "prompt_key"]

Prompt = str | Sequence[Mapping[str, Any]]


class FewRolloutsWarning(UserWarning):
    """A prompt has fewer than 10 rollouts: its calibrated rewards are coarse."""


class RepeatedPromptWarning(UserWarning):
    """A prompt came more than once; its rollouts were merged."""


def prompt_key(prompt: Prompt) -> str:
    """What identifies a prompt: a text itself, chat messages by the hash of their canonical JSON.

    Raises
    ------
    TypeError: prompt is neither a text nor messages that JSON can hold.
    """
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Sequence) and all(isinstance(message, Mapping) for message in prompt):
        told = [{k: v for k, v in message.items() if v is not None} for message in prompt]  # tables fill gaps with None
        text = json.dumps(told, sort_keys=True, separators=(",", ":"))
        return f"chat:{hashlib.sha256(text.encode()).hexdigest()}"
    raise TypeError(f"a prompt must be a text or a list of chat messages, got {type(prompt).__name__}")


class Calibrator:
    """Sorted rewards of rollouts z_k ~ pi_ref per prompt, and the rank of other rewards among them.

    C^(x, y) = (1/K) sum_k (1[r(y) > r(z_k)] + 1/2 1[r(y) = r(z_k)]), in [0, 1]. It is off from the exact calibrated reward by about
    sqrt(log 2/(2K)) at worst (0.06 for K = 100). Rollouts must come from the base policy, not from the policy in training,
    whose drift would change the objective. Make one by ``fit`` or ``load``.

    Parameters
    ----------
    on_missing : for prompts without rollouts, "error" (KeyError) or "global" (rank among the rollouts of all prompts, which is
        not the calibrated reward).
    """

    def __init__(
        self,
        keys: Sequence[str],
        rewards: Float[np.ndarray, " rollouts"],
        offsets: np.ndarray,
        on_missing: Literal["error", "global"] = "error",
    ) -> None:
        if on_missing not in ("error", "global"):
            raise ValueError(f"on_missing must be 'error' or 'global', got {on_missing!r}")
        self.on_missing = on_missing
        self._set(list(keys), rewards, offsets)

    def _set(self, keys: list[str], rewards: np.ndarray, offsets: np.ndarray) -> None:
        self._rewards, self._offsets = rewards, np.asarray(offsets, dtype=np.int64)
        self._index = {key: i for i, key in enumerate(keys)}
        self._pooled: np.ndarray | None = None

    @classmethod
    def fit(
        cls,
        keys: Sequence[Prompt],
        rewards: Any,
        *,
        ragged_ok: bool = True,
        dtype: Any = np.float64,
        on_missing: Literal["error", "global"] = "error",
    ) -> Calibrator:
        """Sort the rollouts' rewards.

        Parameters
        ----------
        keys : P prompts, texts or chat messages. A prompt that comes again adds rollouts (RepeatedPromptWarning).
        rewards : (P, K) finite numbers, or P sequences of various lengths.
        ragged_ok : whether lengths may differ.
        dtype : float64, or float32 for half of the memory.

        Raises
        ------
        ValueError: NaN or inf, a prompt without rollouts, or lengths that differ; the prompt's index is named.
        Warns FewRolloutsWarning below 10 rollouts.
        """
        table, counts = _rows(keys, rewards, np.dtype(dtype), ragged_ok)
        names = [prompt_key(key) for key in keys]
        if len(set(names)) < len(names):
            warnings.warn(
                f"{len(names) - len(set(names))} of {len(names)} prompts came before; their rollouts were merged",
                RepeatedPromptWarning,
                stacklevel=2,
            )
        calibrator = cls(*_merge(names, table, counts), on_missing=on_missing)
        calibrator._warn_of_few()
        return calibrator

    def update(self, keys: Sequence[Prompt], rewards: Any) -> Calibrator:
        """Add rollouts of old or new prompts, in place; arguments as in ``fit``. Returns self."""
        table, counts = _rows(keys, rewards, self._rewards.dtype, ragged_ok=True)
        names = self.keys + [prompt_key(key) for key in keys]
        counts = np.concatenate([np.diff(self._offsets), counts])
        self._set(*_merge(names, np.concatenate([self._rewards, table]), counts))
        self._warn_of_few()
        return self

    def _warn_of_few(self) -> None:
        counts = np.diff(self._offsets)
        if (few := int((counts < 10).sum())) > 0:
            warnings.warn(
                f"{few} of {len(counts)} prompts have fewer than 10 rollouts (the fewest: {counts.min()}); "
                "100 are advised",
                FewRolloutsWarning,
                stacklevel=3,
            )

    @property
    def keys(self) -> list[str]:
        """The prompts' keys (see ``prompt_key``), in order of appearance."""
        return list(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def __repr__(self) -> str:
        return f"Calibrator({len(self)} prompts, {len(self._rewards)} rollouts, {self._rewards.dtype})"

    def rollouts(self, key: Prompt) -> Float[np.ndarray, " K"]:
        """The sorted rewards of one prompt; KeyError if there are none."""
        if (i := self._index.get(prompt_key(key))) is None:
            raise KeyError(f"no rollouts of the prompt {_short(key)}")
        return self._rewards[self._offsets[i] : self._offsets[i + 1]]

    def calibrate(self, keys: Sequence[Prompt], rewards: Any) -> Float[np.ndarray, " n"]:
        """Calibrated rewards of responses.

        Parameters
        ----------
        keys : n prompts.
        rewards : (n,) finite rewards of one response to each.

        Returns
        -------
        (n,) float64 in [0, 1].

        Raises
        ------
        KeyError: a prompt has no rollouts (unless on_missing is "global"). ValueError: lengths differ, NaN or inf.
        """
        r = np.asarray(rewards, dtype=self._rewards.dtype)
        if r.ndim != 1 or len(r) != len(keys):
            raise ValueError(f"rewards has shape {r.shape}; expected ({len(keys)},), one for each of the keys")
        if not np.isfinite(r).all():
            i = int(np.flatnonzero(~np.isfinite(r))[0])
            raise ValueError(f"rewards[{i}] is {r[i]} (prompt {_short(keys[i])}); expected finite numbers")
        get = self._index.get
        rows = np.fromiter(
            (get(key if type(key) is str else prompt_key(key), -1) for key in keys), dtype=np.int64, count=len(r)
        )
        known = rows >= 0
        if not known.all() and self.on_missing == "error":
            missing = keys[int(np.flatnonzero(~known)[0])]
            raise KeyError(f"no rollouts of the prompt {_short(missing)} ({(~known).sum()} of {len(r)} are unknown)")
        C = np.empty(len(r))
        start, end = self._offsets[rows[known]], self._offsets[rows[known] + 1]
        C[known] = _mid_rank(self._rewards, start, end, r[known])
        if not known.all():
            if self._pooled is None:
                self._pooled = np.sort(self._rewards)
            left, right = (np.searchsorted(self._pooled, r[~known], side) for side in ("left", "right"))
            C[~known] = (left + right) / (2 * len(self._pooled))
        return C

    def transform(self, keys: Sequence[Prompt], rewards: Any) -> Float[np.ndarray, " n"]:
        """The same as ``calibrate``."""
        return self.calibrate(keys, rewards)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an uncompressed npz file (no pickle): keys as UTF-8, rewards, offsets."""
        encoded = [key.encode() for key in self._index]
        with Path(path).open("wb") as file:
            np.savez(
                file,
                rewards=self._rewards,
                offsets=self._offsets,
                keys=np.frombuffer(b"".join(encoded), dtype=np.uint8),
                key_lengths=np.array([len(key) for key in encoded], dtype=np.int64),
                on_missing=np.array(self.on_missing),
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, mmap: bool = False) -> Calibrator:
        """Read what ``save`` wrote; with mmap the rewards stay on disk until they are looked up."""
        with np.load(path, allow_pickle=False) as file:
            ends = np.concatenate([[0], np.cumsum(file["key_lengths"])])
            blob = file["keys"].tobytes()
            keys = [blob[a:b].decode() for a, b in pairwise(ends)]
            rewards = _memory_map(path, "rewards.npy") if mmap else file["rewards"]
            return cls(keys, rewards, file["offsets"], on_missing=str(file["on_missing"]))  # type: ignore[arg-type]


def _rows(keys: Sequence[Prompt], rewards: Any, dtype: np.dtype, ragged_ok: bool) -> tuple[np.ndarray, np.ndarray]:
    """Checked rewards of all prompts in one array, sorted within a prompt, and how many each has."""
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float64 or float32, got {dtype}")
    if len(keys) != len(rewards):
        raise ValueError(f"there are {len(keys)} keys but {len(rewards)} rows of rewards")
    if len(keys) == 0:
        raise ValueError("keys is empty; expected at least one prompt")
    if isinstance(rewards, np.ndarray) and rewards.ndim == 2:
        rows, counts = rewards.astype(dtype), np.full(len(keys), rewards.shape[1])
    else:
        rows = [np.asarray(row, dtype=dtype) for row in rewards]
        if any(row.ndim != 1 for row in rows):
            raise ValueError("rewards must be (P, K), or a sequence of numbers for each prompt")
        counts = np.array([len(row) for row in rows])
    if (counts == 0).any():
        raise ValueError(f"prompt {int(np.argmin(counts))} ({_short(keys[int(np.argmin(counts))])}) has no rollouts")
    if not ragged_ok and (counts != counts[0]).any():
        raise ValueError(f"prompts have {counts.min()} to {counts.max()} rollouts, but ragged_ok is False")
    table = rows.ravel() if isinstance(rows, np.ndarray) else np.concatenate(rows)
    if not np.isfinite(table).all():
        at = int(np.flatnonzero(~np.isfinite(table))[0])
        i = int(np.searchsorted(np.cumsum(counts), at, side="right"))
        raise ValueError(f"rewards of prompt {i} ({_short(keys[i])}) have {table[at]}; expected finite numbers")
    return table, counts


def _merge(names: list[str], table: np.ndarray, counts: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray]:
    """One sorted row for each name, in order of appearance."""
    index = {name: i for i, name in enumerate(dict.fromkeys(names))}
    if len(index) == len(names) and (counts == counts[0]).all():
        return names, np.sort(table.reshape(len(names), -1), axis=1).ravel(), np.arange(len(names) + 1) * counts[0]
    owner = np.repeat([index[name] for name in names], counts)
    table = table[np.lexsort((table, owner))]
    return list(index), table, np.concatenate([[0], np.cumsum(np.bincount(owner))])


def _mid_rank(table: np.ndarray, start: np.ndarray, end: np.ndarray, r: np.ndarray) -> np.ndarray:
    """(left + right)/(2K) of each reward in its own slice of the table: a binary search in all slices at once."""
    out = np.empty(len(r))
    for part in (slice(i, i + 2**15) for i in range(0, len(r), 2**15)):  # small enough for the processor's cache
        low, high, x = start[part], end[part], r[part]
        left = _search(table, low, high, x, np.less)
        right = _search(table, left, high, x, np.less_equal)
        out[part] = (left + right - 2 * low) / (2 * (high - low))
    return out


def _search(table: np.ndarray, low: np.ndarray, high: np.ndarray, r: np.ndarray, below: np.ufunc) -> np.ndarray:
    low, high = low.copy(), high.copy()
    for _ in range(int(np.max(high - low, initial=0)).bit_length()):
        middle = (low + high) >> 1
        right = below(table[np.minimum(middle, len(table) - 1)], r) & (middle < high)
        low = np.where(right, middle + 1, low)
        high = np.where(right, high, middle)
    return low


def _memory_map(path: str | os.PathLike[str], member: str) -> np.ndarray:
    """An array of an uncompressed npz file, read from disk when it is used."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{path} is compressed; mmap needs a file of Calibrator.save")
    with Path(path).open("rb") as file:
        file.seek(info.header_offset + 26)  # local header: 30 bytes, the last four are the lengths of name and extra
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(name + extra, os.SEEK_CUR)
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        return np.memmap(path, dtype, "r", file.tell(), shape)


def _short(prompt: Any) -> str:
    text = repr(prompt)
    return text if len(text) <= 80 else text[:77] + "..."
