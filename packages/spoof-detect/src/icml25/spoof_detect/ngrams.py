"""How often every n-gram occurs in a reference corpus: sorted 64-bit keys and counts, built block by block.

The spoofer's training data is unknown; the n-gram counts of ordinary, unwatermarked text stand in for it.
"""

from __future__ import annotations

import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer, UInt64

__all__ = ["KeyFunction", "NgramReference", "context_only", "sorted_context", "sorted_ngram"]

KeyFunction = Callable[[np.ndarray], np.ndarray]
"""Maps n-grams (M, order) to what of them a spoofer can learn, (M, k) integers >= 0.

It must be the same function wherever one reference is used; files keep its name, so it needs one to be saved.
"""

_LARGEST_ID = 2**32 - 1
_LARGEST_COUNT = 2**32 - 1  # up to this total, counts are kept in 32 bits
_BLOCK = 1 << 20  # n-grams sorted at a time: 8 MiB of keys
_SLICE = 1 << 16  # keys merged at a time
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS_AND_FACTORS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
    (np.uint64(31), None),
)


def sorted_context(ngrams: Integer[np.ndarray, "m order"]) -> Integer[np.ndarray, "m order"]:
    """Key of schemes whose hash ignores the context's order (sum, product or minimum over it): sorted context, token.

    Parameters
    ----------
    ngrams : (M, order) ids; the last column is the token.

    Returns
    -------
    (M, order) ids, all columns but the last in increasing order.
    """
    return np.concatenate([np.sort(ngrams[:, :-1], axis=1), ngrams[:, -1:]], axis=1)


def sorted_ngram(ngrams: Integer[np.ndarray, "m order"]) -> Integer[np.ndarray, "m order"]:
    """Key of schemes whose hash ignores the order of the whole n-gram, the token included.

    Parameters
    ----------
    ngrams : (M, order) ids.

    Returns
    -------
    (M, order) ids in increasing order.
    """
    return np.sort(ngrams, axis=1)


def context_only(ngrams: Integer[np.ndarray, "m order"]) -> Integer[np.ndarray, "m context"]:
    """Key of schemes whose secret lies in the context alone (a pad per context, partitions that never change).

    Parameters
    ----------
    ngrams : (M, order) ids, order >= 2; the last column is the token.

    Returns
    -------
    (M, order - 1) ids.
    """
    return ngrams[:, :-1]


_SHIPPED_KEYS: dict[str, KeyFunction] = {f.__name__: f for f in (sorted_context, sorted_ngram, context_only)}


def key_name(key_fn: Any) -> str:
    """What a key function is called in messages; "" for none."""
    return "" if key_fn is None else getattr(key_fn, "__name__", repr(key_fn))


def _stored_name(key_fn: KeyFunction | None) -> str:
    """Name under which a key function is stored: one that tells it from others."""
    name = key_name(key_fn)
    if key_fn is not None and (not name.isidentifier() or _SHIPPED_KEYS.get(name, key_fn) != key_fn):
        raise ValueError(f"key_fn is {name}; expected a function with a name of its own (def) to store counts under")
    return name


def mix(state: UInt64[np.ndarray, "*shape"]) -> UInt64[np.ndarray, "*shape"]:
    """Scramble 64-bit words, in place: the finaliser of splitmix64, a bijection."""
    for shift, factor in _SHIFTS_AND_FACTORS:
        state ^= state >> shift
        if factor is not None:
            state *= factor
    return state


def hash_ngrams(columns: Sequence[np.ndarray] | np.ndarray, key: int = 0) -> UInt64[np.ndarray, " m"]:
    """Keyed 64-bit hash of n-grams given as columns of ids: ``state = mix(state + (id + 1) * golden ratio)`` in turn."""
    start = mix(np.array([key % 2**64], dtype=np.uint64))
    state = np.broadcast_to(start, len(columns[0])).copy()
    for column in columns:
        state += (column.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        mix(state)
    return state


def pack(columns: Sequence[np.ndarray] | np.ndarray, vocab_size: int | None) -> UInt64[np.ndarray, " m"]:
    """One 64-bit word per n-gram, given as columns: the ids side by side where they fit, else their hash.

    Two given n-grams share a hash with probability 2^-64; among a billion distinct ones 0.03 pairs are expected to.
    """
    bits = (_LARGEST_ID if vocab_size is None else max(vocab_size - 1, 1)).bit_length()
    if bits * len(columns) > 64:
        return hash_ngrams(columns)
    packed = columns[0].astype(np.uint64)
    for column in columns[1:]:
        packed <<= np.uint64(bits)
        packed |= column.view(np.uint64) if column.dtype == np.int64 else column.astype(np.uint64)
    return packed


def pack_keys(columns: Any, vocab_size: int | None, key_fn: KeyFunction | None) -> UInt64[np.ndarray, " m"]:
    """One word per key of an n-gram; what a function of the user's returns need not be ids, so it is hashed."""
    if key_fn is None:
        return pack(columns, vocab_size)
    grams = np.stack(list(columns), axis=1)
    keys = np.asarray(key_fn(grams))
    shaped = keys.ndim == 2 and len(keys) == len(grams) and keys.shape[1] > 0
    if not shaped or keys.dtype.kind not in "iu" or (keys.size and keys.min() < 0):
        smallest = f", {keys.min()} among them" if keys.dtype.kind in "iu" and keys.size else ""
        raise ValueError(
            f"key_fn {key_name(key_fn)!r} returned {keys.dtype} {keys.shape}{smallest}; expected integers >= 0 of shape "
            f"({len(grams)}, k), k >= 1"
        )
    return pack(keys.T, vocab_size) if key_fn in _SHIPPED_KEYS.values() else hash_ngrams(keys.T)


def windows(ids: np.ndarray, order: int) -> list[np.ndarray]:
    """Columns of the n-grams of a text of at least ``order`` tokens."""
    n = len(ids) - order + 1
    return [ids[i : i + n] for i in range(order)]


def as_array(values: Any, name: str, expected: str) -> np.ndarray:
    """As an array, unless it is ragged."""
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} is no array ({error}); expected {expected}") from error


def as_ids(ids: Any, name: str, vocab_size: int | None) -> Integer[np.ndarray, " t"]:
    """Validate one text: 1-D, integers, 0 <= id < vocab_size (or 2^32)."""
    array = as_array(ids, name, "one text, a 1-D array of token ids")
    if array.ndim == 1 and array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array.ndim != 1:
        hint = "; one text alone goes in a list" if array.ndim == 0 else ""
        raise ValueError(f"{name} has shape {array.shape}; expected one text, a 1-D array of token ids{hint}")
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name} has dtype {array.dtype}, such as {array[0]!r} at position 0; expected integer token ids"
        )
    limit = _LARGEST_ID + 1 if vocab_size is None else vocab_size
    if array.min() < 0 or array.max() >= limit:
        position = int(np.argmax((array < 0) | (array >= limit)))
        raise ValueError(f"{name} has id {array[position]} at position {position}; expected 0 <= id < {limit}")
    return array.astype(np.int64, copy=False)


class NgramReference:
    """Counts of the n-grams of a reference corpus R, which must be *unwatermarked* text like the suspect's.

    Keys are sorted in blocks and merged in place like the levels of a log-structured merge tree: 12 bytes per distinct
    n-gram (16 in a corpus of 2^32 n-grams or more), and up to twice that while two levels merge. Ids are packed side by side into 64 bits where they fit
    (order * ceil(log2 vocab_size) <= 64); otherwise n-grams, and keys by a function of yours, are known by a 64-bit hash.

    Parameters
    ----------
    order : tokens per n-gram, h + 1 for a scheme whose colour depends on h tokens of context.
    vocab_size : ids are below it; None: below 2^32, and n-grams of more than 2 tokens are hashed.
    key_fn : what of an n-gram is counted, such as :func:`sorted_context`; None: the n-gram.

    Raises
    ------
    ValueError: order < 1, vocab_size < 1. TypeError: key_fn is not callable.

    Source: the paper's idea, a corpus in place of the spoofer's unknown data.
    """

    def __init__(self, order: Any, vocab_size: Any = None, key_fn: Any = None) -> None:
        for name, value in (("order", order), ("vocab_size", vocab_size)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1):
                raise ValueError(f"{name} is {value!r}; expected a whole number of at least 1")
        if key_fn is not None and callable(key_fn) is False:
            raise TypeError(f"key_fn is {key_fn!r}; expected a function from n-grams (M, order) to keys (M, k)")
        self.order, self.vocab_size = int(order), None if vocab_size is None else int(vocab_size)
        self.key_fn: Any = key_fn
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []
        self._buffer: np.ndarray | None = None
        self._buffered = 0

    @classmethod
    def from_token_ids(
        cls,
        ids: Any,
        order: Any,
        vocab_size: Any = None,
        key_fn: Any = None,
    ) -> NgramReference:
        """Count the n-grams of one document (1-D ids) or of several (an iterable of 1-D ids).

        Parameters
        ----------
        ids : (T,) integers, or an iterable of such documents (a generator is fine); none is crossed by an n-gram.
        order, vocab_size, key_fn : as of the class.

        Raises
        ------
        ValueError, TypeError: as of :meth:`update`.
        """
        reference = cls(order, vocab_size, key_fn)
        if not isinstance(ids, Iterable):
            raise TypeError(f"ids is {ids!r}; expected one document or an iterable of documents")
        array = getattr(ids, "ndim", 0) == 1 and str(getattr(ids, "dtype", "")) != "object"
        numbers = isinstance(ids, (list, tuple)) and ids and all(isinstance(i, (int, np.integer)) for i in ids)
        if array or numbers:
            reference.update(ids)
        else:
            for index, document in enumerate(ids):
                reference._update(document, f"ids[{index}]")
        return reference

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        tokenizer: Any,
        order: Any,
        vocab_size: Any = None,
        key_fn: Any = None,
    ) -> NgramReference:
        """Tokenise and count.

        Parameters
        ----------
        texts : documents.
        tokenizer : that of the suspect texts: a transformers tokenizer (``encode(text, add_special_tokens=False)``), or
            a function from text to ids.
        order, key_fn : as of the class.
        vocab_size : None takes ``len(tokenizer)`` where it has a length. Models pad their logits: give
            ``model.config.vocab_size`` to match colours that were built with it.

        Raises
        ------
        ValueError, TypeError: as of :meth:`update`; texts is one string.
        """
        if isinstance(texts, str):
            raise TypeError("texts is one string; expected an iterable of documents")
        if vocab_size is None and hasattr(tokenizer, "__len__"):
            vocab_size = len(tokenizer)

        def encode(text: str) -> Any:
            return tokenizer.encode(text, add_special_tokens=False) if hasattr(tokenizer, "encode") else tokenizer(text)

        return cls.from_token_ids((encode(text) for text in texts), order, vocab_size, key_fn)

    def update(self, ids: Any) -> NgramReference:
        """Add one document; call it as often as there are documents.

        Parameters
        ----------
        ids : (T,) integer token ids; fewer than ``order`` add nothing.

        Returns
        -------
        self

        Raises
        ------
        TypeError: ids are not integers. ValueError: not 1-D, or an id outside the vocabulary (its position is named).
        """
        return self._update(ids, "ids")

    def _update(self, ids: Any, name: str) -> NgramReference:
        document = as_ids(ids, name, self.vocab_size)
        for start in range(0, len(document) - self.order + 1, _BLOCK):
            part = document[start : start + _BLOCK + self.order - 1]
            keys = self._keys(windows(part, self.order))
            if self._buffered + len(keys) > _BLOCK:
                self._flush()
            if self._buffer is None:
                self._buffer = np.empty(_BLOCK, dtype=np.uint64)
            self._buffer[self._buffered : self._buffered + len(keys)] = keys
            self._buffered += len(keys)
        return self

    def _keys(self, columns: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        return pack_keys(columns, self.vocab_size, self.key_fn)

    def _flush(self) -> None:
        """Sort the buffered keys into a run, and merge runs until each is more than twice as long as the next."""
        if self._buffer is None or not self._buffered:
            return
        keys, self._buffer = self._buffer, None
        keys.resize(self._buffered, refcheck=False)
        keys.sort()
        new = np.ones(len(keys), dtype=bool)
        np.not_equal(keys[1:], keys[:-1], out=new[1:])
        counts = np.flatnonzero(new).astype(np.uint32)  # where a key begins, and then
        np.subtract(counts[1:], counts[:-1], out=counts[:-1])
        counts[-1] = len(keys) - counts[-1]
        write = 0
        for start in range(0, len(keys), _SLICE):
            kept = keys[start : start + _SLICE][new[start : start + _SLICE]]
            keys[write : write + len(kept)] = kept
            write += len(kept)
        keys.resize(write, refcheck=False)
        self._buffered = 0
        del new  # nothing but runs is held while they merge
        self._runs.append((keys, counts))
        while len(self._runs) > 1 and len(self._runs[-2][0]) <= 2 * len(self._runs[-1][0]):
            self._merge_last()

    def _merge_last(self) -> None:
        """Merge the last two runs in place, slice by slice from their ends.

        The longer one grows by the length of the shorter, and what is written from its end never reaches what is unread.
        """
        self._runs[-2:] = sorted(self._runs[-2:], key=lambda run: -len(run[0]))
        short, short_counts = self._runs.pop()
        keys, counts = self._runs.pop()
        fits = counts.dtype == np.uint32 and _total(counts) + _total(short_counts) <= _LARGEST_COUNT
        keys, counts = _own(keys, np.uint64), _own(counts, np.uint32 if fits else np.int64)
        read, start = len(keys), len(short)
        write = read + start
        for array in (keys, counts):
            array.resize(write, refcheck=False)
        while start:
            low, begin = max(read - _SLICE, 0), max(start - _SLICE, 0)
            if low:
                begin += int(np.searchsorted(short[begin:start], keys[low], side="left"))
            if begin:
                low += int(np.searchsorted(keys[low:read], short[begin - 1], side="right"))
            old, new, more = keys[low:read], short[begin:start], short_counts[begin:start]
            at = np.searchsorted(old, new)
            known = np.zeros(len(new), dtype=bool)
            inside = at < len(old)
            known[inside] = old[at[inside]] == new[inside]
            counts[low + at[known]] += more[known].astype(counts.dtype)
            added = at[~known] + np.arange(len(new) - np.count_nonzero(known))
            kept = np.ones(len(old) + len(added), dtype=bool)
            kept[added] = False
            for array, ours in ((keys, new), (counts, more)):
                merged = np.empty(len(kept), array.dtype)
                merged[kept], merged[added] = array[low:read], ours[~known]
                array[write - len(kept) : write] = merged
            read, start, write = low, begin, write - len(kept)
        merged_length = len(keys) - (write - read)  # n-grams of both left a gap
        for array in (keys, counts):
            array[read:merged_length] = array[write:]
            array.resize(merged_length, refcheck=False)
        self._runs.append((keys, counts))

    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """All counts as one run."""
        self._flush()
        self._buffer = None
        while len(self._runs) > 1:
            self._merge_last()
        return self._runs[0] if self._runs else (np.zeros(0, np.uint64), np.zeros(0, np.uint32))

    def count(self, ngrams: Any) -> Int64[np.ndarray, " m"]:
        """How often each n-gram occurs in the corpus.

        Parameters
        ----------
        ngrams : (M, order) integer ids; the key function is applied here.

        Returns
        -------
        (M,) int64

        Raises
        ------
        TypeError: not integers. ValueError: wrong shape, or an id outside the vocabulary.
        """
        ngrams = as_array(ngrams, "ngrams", f"(M, {self.order}) ids")
        if ngrams.ndim != 2 or ngrams.shape[1] != self.order:
            raise ValueError(f"ngrams has shape {ngrams.shape}; expected (M, {self.order})")
        as_ids(ngrams.ravel(), "ngrams", self.vocab_size)
        keys, counts = self._table()
        if len(keys) == 0:
            return np.zeros(len(ngrams), dtype=np.int64)
        wanted = self._keys(ngrams.T)
        order = np.argsort(wanted)  # neighbours are looked for one after the other: few misses of the cache
        wanted = wanted[order]
        position = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        found = np.empty(len(wanted), dtype=np.int64)
        found[order] = np.where(keys[position] == wanted, counts[position], 0)
        return found

    def merge(self, other: Any) -> NgramReference:
        """Counts of both corpora together, as a new reference (``functools.reduce`` over parts counted elsewhere).

        Parameters
        ----------
        other : of the same order, vocabulary and key function.

        Raises
        ------
        ValueError: they differ (key functions are compared by identity). TypeError: other is no reference.
        """
        if not isinstance(other, NgramReference):
            raise TypeError(f"other is {other!r}; expected an NgramReference")
        mine, theirs = ((r.order, r.vocab_size, key_name(r.key_fn)) for r in (self, other))
        if mine != theirs:
            raise ValueError(f"other has (order, vocab_size, key) {theirs}; expected {mine}")
        if self.key_fn != other.key_fn:
            raise ValueError(f"other counts by another function called {key_name(other.key_fn)!r}; expected the same")
        merged = NgramReference(self.order, self.vocab_size, self.key_fn)
        merged._runs = [(run[0].copy(), run[1].copy()) for run in (self._table(), other._table()) if len(run[0])]
        merged._table()
        return merged

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an uncompressed .npz (keys, counts, order, vocab_size, key), in one step.

        Parameters
        ----------
        path : file to write, replaced when it is there.

        Raises
        ------
        ValueError: key_fn has no name of its own (a lambda, a partial). FileNotFoundError: there is no such folder.
        """
        key, path = _stored_name(self.key_fn), Path(path)
        if not path.parent.is_dir():
            raise FileNotFoundError(f"path is {path}, but there is no folder {path.parent}")
        keys, counts = self._table()
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as stream:
            try:
                size = self.vocab_size or 0
                np.savez(stream, keys=keys, counts=counts, order=self.order, vocab_size=size, key=key)
                stream.close()
                Path(stream.name).chmod(0o644)
                Path(stream.name).replace(path)
            except BaseException:
                Path(stream.name).unlink(missing_ok=True)
                raise

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        mmap: bool = True,
        order: int | None = None,
        vocab_size: int | None = None,
        key_fn: Any = None,
    ) -> NgramReference:
        """Read what :meth:`save` wrote.

        Parameters
        ----------
        path : the file.
        mmap : map keys and counts instead of reading them (no checksum then): pages are read when asked for.
        order, vocab_size : refuse a file of other values; None takes what it says.
        key_fn : the key function of the file, when it is not one of this package's.

        Raises
        ------
        FileNotFoundError. ValueError naming the path: damaged, truncated, not such a file; another order, vocabulary or
        key function.
        """
        path = Path(path)
        names = ("keys", "counts", "order", "vocab_size", "key")
        try:
            with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as stored:
                about = {name: stored[name].item() for name in names[2:]}
                read = (lambda name: _map_member(path, archive, name)) if mmap else stored.__getitem__
                keys, counts = read("keys"), read("counts")
        except FileNotFoundError:
            raise
        except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError) as error:
            raise ValueError(f"{path} is damaged or holds no n-gram counts: {error}") from error
        if (
            keys.dtype != np.uint64
            or counts.dtype not in (np.uint32, np.int64)
            or keys.shape != counts.shape
            or keys.ndim != 1
        ):
            raise ValueError(f"{path} holds no n-gram counts: keys {keys.dtype} {keys.shape}, counts {counts.dtype}")
        for name, wanted in (("order", order), ("vocab_size", vocab_size)):
            if wanted is not None and about[name] != wanted:
                raise ValueError(f"{path} has {name} {about[name] or None}; expected {wanted}")
        key_fn = key_fn or _SHIPPED_KEYS.get(about["key"])
        if _stored_name(key_fn) != about["key"]:
            raise ValueError(f"{path} counts keys {about['key']!r}; got key_fn {key_name(key_fn)!r}")
        try:
            reference = cls(about["order"], about["vocab_size"] or None, key_fn)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        some = keys[:: len(keys) // _SLICE + 1] if mmap else keys  # not every page of a large file
        if np.any(some[1:] <= some[:-1]):
            raise ValueError(f"{path} is damaged: its keys are not in order")
        if np.any(counts[:: len(counts) // _SLICE + 1 if mmap else 1] < 1):
            raise ValueError(f"{path} is damaged: it has counts below 1")
        if len(keys):
            reference._runs = [(keys, counts)]
        return reference

    def __len__(self) -> int:
        return len(self._table()[0])

    @property
    def total(self) -> int:
        """All n-grams counted, repeats included."""
        return sum(_total(counts) for _, counts in self._runs) + self._buffered

    def __repr__(self) -> str:
        return f"NgramReference(order={self.order}, vocab_size={self.vocab_size}, total={self.total})"


def _total(counts: np.ndarray) -> int:
    return int(counts.sum(dtype=np.int64))


def _own(array: np.ndarray, dtype: Any) -> np.ndarray:
    """The array itself where it can grow, else a copy (mapped files, counts that need more bits)."""
    own = type(array) is np.ndarray and array.flags.owndata and array.flags.writeable and array.dtype == dtype
    return array if own else np.array(array, dtype=dtype)


def _map_member(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Map an array of an uncompressed .npz."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed, so it cannot be mapped; load with mmap=False")
    with path.open("rb") as stream:
        stream.seek(info.header_offset + 26)
        stream.seek(sum(int.from_bytes(stream.read(2), "little") for _ in range(2)), os.SEEK_CUR)
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(stream)
        offset = stream.tell()
    if math.prod(shape) == 0:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)
