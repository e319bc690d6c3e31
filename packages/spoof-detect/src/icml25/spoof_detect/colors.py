"""Colours: what the key of a watermark says of every token of a text."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float64, Integer

from icml25.spoof_detect.ngrams import as_ids, hash_ngrams, windows
from icml25.spoof_detect.power import real

__all__ = ["CallableColors", "Colors", "GumbelColors", "HashColors", "KGWColors", "SynthIDColors"]

ColorSequence = tuple[Float64[np.ndarray, " t"], Bool[np.ndarray, " t"]]


@runtime_checkable
class Colors(Protocol):
    """A scheme with its key: colour x_t of token t is a function of the n-gram w_{t-h:t} of h + 1 tokens.

    Attributes
    ----------
    context_width : h.
    vocab_size : ids are below it, or None where the scheme doesn't care.
    ignores_order : (optional) True where the colour doesn't depend on the order of the context.
    """

    context_width: int

    def colors(self, ids: Integer[np.ndarray, " t"]) -> ColorSequence:
        """Colours of one text.

        Parameters
        ----------
        ids : (T,) int64.

        Returns
        -------
        x (T,) float64: 1 green, 0 red, or a real score that grows with the watermark.
        valid (T,) bool: positions that the scheme scores; never one of the first h.
        """
        ...


def _width(h: Any) -> int:
    if isinstance(h, bool) or not isinstance(h, (int, np.integer)) or h < 1:
        raise ValueError(f"h is {h!r}; expected a context width of at least 1")
    return int(h)


def _key(key: Any) -> int:
    if isinstance(key, bool) or not isinstance(key, (int, np.integer)):
        raise TypeError(f"key is {key!r}; expected an integer")
    return int(key)


def _size(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} is {value!r}; expected a whole number of at least 1")
    return int(value)


class HashColors:
    """Red/green colours by a keyed 64-bit hash of the n-gram, with no tables: green where hash / 2^64 < gamma.

    Parameters
    ----------
    key : the secret, an integer (used modulo 2^64).
    h : context width.
    gamma : green share, in (0, 1).

    Raises
    ------
    TypeError, ValueError: a value outside its range.

    Source: the red/green partition per context of Kirchenbauer et al. (2023), its permutation replaced by a hash.
    """

    vocab_size = None

    def __init__(self, key: Any, h: Any, gamma: Any = 0.5) -> None:
        if not 0 < real("gamma", gamma) < 1:
            raise ValueError(f"gamma is {gamma}; expected a share in (0, 1)")
        self.key, self.context_width, self.gamma = _key(key), _width(h), float(gamma)

    def colors(self, ids: Any) -> ColorSequence:
        """Colours of one text; all but the first h positions are valid.

        Parameters
        ----------
        ids : (T,) integers.

        Returns
        -------
        x (T,) float64 in {0, 1}, valid (T,) bool

        Raises
        ------
        TypeError, ValueError: ids are no 1-D integers >= 0.
        """
        return _scored(ids, self.context_width, lambda columns: self._green(hash_ngrams(columns, self.key)))

    def _green(self, hashed: np.ndarray) -> np.ndarray:
        return hashed < np.uint64(int(self.gamma * 2**64))


class GumbelColors:
    """Scores -log(1 - u) of the Gumbel scheme (Aaronson), u in [0, 1) from a keyed 64-bit hash of the n-gram.

    Text is sampled as the token of the largest u^(1/p), so chosen tokens have large u.

    Parameters
    ----------
    key : the secret, an integer (used modulo 2^64).
    h : context width.

    Raises
    ------
    TypeError, ValueError: a value outside its range.
    """

    vocab_size = None

    def __init__(self, key: Any, h: Any) -> None:
        self.key, self.context_width = _key(key), _width(h)

    def uniforms(self, ngrams: Integer[np.ndarray, "m order"]) -> Float64[np.ndarray, " m"]:
        """The scheme's uniform numbers u.

        Parameters
        ----------
        ngrams : (M, h + 1) ids; the last column is the token.

        Returns
        -------
        (M,) in [0, 1)
        """
        return self._uniforms(ngrams.T)

    def _uniforms(self, columns: Any) -> np.ndarray:
        return (hash_ngrams(columns, self.key) >> np.uint64(11)) * 2.0**-53

    def colors(self, ids: Any) -> ColorSequence:
        """Scores of one text; all but the first h positions are valid.

        Parameters
        ----------
        ids : (T,) integers.

        Returns
        -------
        x (T,) float64 >= 0, valid (T,) bool

        Raises
        ------
        TypeError, ValueError: ids are no 1-D integers >= 0.
        """
        return _scored(ids, self.context_width, lambda columns: -np.log1p(-self._uniforms(columns)))


def _scored(ids: Any, h: int, score: Callable[[list[np.ndarray]], np.ndarray]) -> ColorSequence:
    ids = as_ids(ids, "ids", None)
    x, valid = np.zeros(len(ids)), np.arange(len(ids)) >= h
    if len(ids) > h:
        x[h:] = score(windows(ids, h + 1))
    return x, valid


class CallableColors:
    """Colours by a function of yours.

    Parameters
    ----------
    fn : from ids (T,) int64 to x (T,), or to x and valid (T,); without valid all but the first h positions are.
    context_width : h.
    vocab_size : ids are below it; None: not checked.

    Raises
    ------
    TypeError: fn is not callable. ValueError: context_width or vocab_size < 1.
    """

    def __init__(self, fn: Any, context_width: Any, vocab_size: Any = None) -> None:
        if not callable(fn):
            raise TypeError(f"fn is {fn!r}; expected a function from ids to colours")
        self.fn, self.context_width = fn, _width(context_width)
        self.vocab_size = None if vocab_size is None else _size("vocab_size", vocab_size)

    def colors(self, ids: Any) -> Any:
        """What the function says.

        Parameters
        ----------
        ids : (T,) integers.

        Returns
        -------
        x (T,), valid (T,) bool
        """
        out = self.fn(ids)
        return out if isinstance(out, tuple) else (out, np.arange(len(ids)) >= self.context_width)


class KGWColors:
    """Green lists of transformers' ``WatermarkingConfig`` (Kirchenbauer et al.), as its detector sees them, bit for bit.

    "lefthash" seeds with the last token of the context only, whatever its width: h = 1 for counting. "selfhash" at width
    c takes the candidate itself for one of the c tokens: h = c - 1 (0 at c = 1), and the colour ignores the order of the
    context, so that ``key_fn=sorted_context`` is what a spoofer can learn, and what SpoofTest asks for. Scored are the positions that transformers'
    ``WatermarkDetector`` scores. A green list is drawn once per seed and kept as bits (|V| / 8 bytes), the least
    recently used ones forgotten.

    Parameters
    ----------
    config : ``transformers.WatermarkingConfig`` or a mapping of its fields.
    vocab_size : width of the logits that were watermarked (``model.config.vocab_size``).
    device : that of the generation: green lists differ between kinds of device.
    cache_size : green lists kept.

    Raises
    ------
    ImportError: transformers is missing. TypeError: another kind of config. ValueError: vocab_size or cache_size < 1.
    """

    def __init__(
        self,
        config: Any,
        vocab_size: Any,
        device: Any = "cpu",
        cache_size: Any = 4096,
    ) -> None:
        transformers = _transformers()
        if isinstance(config, Mapping):
            config = transformers.WatermarkingConfig(**config)
        if not isinstance(config, transformers.WatermarkingConfig):
            raise TypeError(f"config is a {type(config).__name__}; expected a WatermarkingConfig or its fields")
        self.vocab_size, self.cache_size = _size("vocab_size", vocab_size), _size("cache_size", cache_size)
        self._processor: Any = config.construct_processor(self.vocab_size, device)
        self._selfhash = config.seeding_scheme == "selfhash"
        self._first = config.context_width - self._selfhash  # the first position that the detector scores
        self.context_width = self._first if self._selfhash else 1
        self.ignores_order = self._selfhash and self.context_width > 1
        self._green: OrderedDict[int, np.ndarray] = OrderedDict()

    def colors(self, ids: Any) -> ColorSequence:
        """Colours of one text.

        Parameters
        ----------
        ids : (T,) integers below vocab_size.

        Returns
        -------
        x (T,) float64 in {0, 1}, valid (T,) bool

        Raises
        ------
        TypeError, ValueError: ids are no 1-D integers, or outside the vocabulary.
        """
        ids = as_ids(ids, "ids", self.vocab_size)
        first = self._first
        x, valid = np.zeros(len(ids)), np.arange(len(ids)) >= first
        if not valid.any():
            return x, valid
        seeds, tokens = self._seeds(ids), ids[first:]
        order = np.argsort(seeds, kind="stable")
        starts = np.flatnonzero(np.diff(seeds[order], prepend=seeds[order[0]] - 1))
        for group in np.split(order, starts[1:]):
            token = tokens[group]
            bits = self._green_list(int(seeds[group[0]]))
            x[first + group] = (bits[token >> 3] >> (7 - (token & 7))) & 1
        return x, valid

    def _seeds(self, ids: np.ndarray) -> np.ndarray:
        """Seed of every scored position; products wrap around in int64 as torch's do."""
        hash_key = np.int64(self._processor.hash_key)
        if not self._selfhash:
            return hash_key * ids[self._first - 1 : -1]
        table = self._processor.fixed_table.cpu().numpy()
        values = table[ids % self._processor.table_size] + 1
        context = np.lib.stride_tricks.sliding_window_view(values, self._first + 1)
        return (hash_key * context * context[:, -1:]).min(axis=1)

    def _green_list(self, seed: int) -> np.ndarray:
        import torch

        if seed in self._green:
            self._green.move_to_end(seed)
            return self._green[seed]
        generator = self._processor.rng
        generator.manual_seed(seed % (2**64 - 1))
        permutation = torch.randperm(self.vocab_size, generator=generator, device=generator.device)
        green = np.zeros(self.vocab_size, dtype=bool)
        green[permutation[: self._processor.greenlist_size].cpu().numpy()] = True
        self._green[seed] = bits = np.packbits(green)
        if len(self._green) > self.cache_size:
            self._green.popitem(last=False)
        return bits


class SynthIDColors:
    """Mean g-value over the tournament's depth, of transformers' ``SynthIDTextWatermarkingConfig`` (h = ngram_len - 1).

    Positions with a repeated context are not valid: the scheme doesn't watermark them.

    Parameters
    ----------
    config : ``transformers.SynthIDTextWatermarkingConfig`` or a mapping of its fields.
    vocab_size : width of the logits, to check ids; None: not checked.
    device : where g-values are computed; they are the same everywhere.

    Raises
    ------
    ImportError: transformers is missing. TypeError: another kind of config. ValueError: vocab_size < 1.
    """

    def __init__(
        self,
        config: Any,
        vocab_size: Any = None,
        device: Any = "cpu",
    ) -> None:
        transformers = _transformers()
        if isinstance(config, Mapping):
            config = transformers.SynthIDTextWatermarkingConfig(**config)
        if not isinstance(config, transformers.SynthIDTextWatermarkingConfig):
            raise TypeError(
                f"config is a {type(config).__name__}; expected a SynthIDTextWatermarkingConfig or its fields"
            )
        self.vocab_size = None if vocab_size is None else _size("vocab_size", vocab_size)
        self._device = device
        self._processor: Any = config.construct_processor(vocab_size or 1, device)
        self.context_width = _width(config.ngram_len - 1)

    def colors(self, ids: Any) -> ColorSequence:
        """Mean g-values of one text.

        Parameters
        ----------
        ids : (T,) integers.

        Returns
        -------
        x (T,) float64 in [0, 1], valid (T,) bool

        Raises
        ------
        TypeError, ValueError: ids are no 1-D integers, or outside the vocabulary.
        """
        import torch

        ids, h = as_ids(ids, "ids", self.vocab_size), self.context_width
        x, valid = np.zeros(len(ids)), np.zeros(len(ids), dtype=bool)
        if len(ids) > h:
            batch = torch.tensor(ids, device=self._device)[None]
            x[h:] = self._processor.compute_g_values(batch)[0].double().mean(dim=-1).cpu().numpy()
            valid[h:] = self._processor.compute_context_repetition_mask(batch)[0].bool().cpu().numpy()
        return x, valid


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ImportError("transformers is missing: pip install 'icml25-spoof-detect[transformers]'") from error
    return transformers
