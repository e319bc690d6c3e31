"""Algorithm 2: read the message from token ids, and how likely such agreement is without a watermark."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int, Int8

from icml25.bimark.prf import ContextPRF, partitions

__all__ = ["BiMarkDetector", "DetectionResult", "message_p_value"]

EXACT_VOTES = 1_000_000
MAX_MESSAGE_BITS = 1024
MOST_VOTES = 100_000_000


@dataclass(frozen=True, eq=False)
class DetectionResult:
    """What a text says; true in a condition when its p-value is below ``alpha``.

    Attributes
    ----------
    message : b characters 0, 1, or x where votes are tied or missing.
    bits : (b,) int8, the same with -1 for undecided.
    votes : (b, 2) int64, votes for 0 and for 1 at each position.
    z_score : the paper's (G - n/2)/sqrt(n/4) with G the agreeing votes of n; not normal without a watermark, because G
        takes the larger count at each position. 0 without votes.
    p_value : probability of at least so much agreement in a text that is independent of the key; exact.
    n_scored : contexts that voted.
    n_skipped : repeated contexts that didn't.
    bit_accuracy : share of bits that equal the expected message, undecided ones counted as wrong; None without one.
    match : whether all bits do; None without an expected message.
    alpha : significance level of ``bool(result)``.
    """

    message: str
    bits: Int8[np.ndarray, " b"]
    votes: Int[np.ndarray, "b 2"]
    z_score: float
    p_value: float
    n_scored: int
    n_skipped: int
    bit_accuracy: float | None = None
    match: bool | None = None
    alpha: float = 0.01

    def __bool__(self) -> bool:
        return self.p_value < self.alpha


class BiMarkDetector:
    """Decodes message and p-value from token ids, without model or prompt.

    Parameters
    ----------
    config : BiMarkConfig, with or without message; the message is not used.
    vocab_size : width of the logits that the text was sampled from, ``model.config.vocab_size``.
    message_bits : length of the message to look for; None takes the configuration's.
    alpha : significance level of ``bool(result)``, in (0, 1).

    Raises
    ------
    ValueError: naming the argument.

    Source: Algorithm 2.
    """

    def __init__(self, config: Any, vocab_size: Any, message_bits: Any = None, alpha: Any = 0.01) -> None:
        if not hasattr(type(config), "key_bytes"):
            raise TypeError(
                f"config must be a BiMarkConfig, got {type(config).__name__} (BiMarkConfig.from_dict reads one)"
            )
        config.validate()
        check_integer("vocab_size", vocab_size, 2, None)
        self.message_bits = config.message_bits if message_bits is None else message_bits
        check_integer("message_bits", self.message_bits, 1, MAX_MESSAGE_BITS)
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float, np.floating)):
            raise TypeError(f"alpha must be a number, got {alpha!r}")
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must be in (0, 1), got {alpha}")
        self.vocab_size = vocab_size
        self.window = config.window
        self.n_layers = config.n_layers
        self.alpha = float(alpha)
        self._prf = ContextPRF(config.key_bytes, self.message_bits, self.n_layers)
        self._members = np.ascontiguousarray(partitions(config.key_bytes, self.n_layers, vocab_size).T)  # (|V|, d)

    def detect(self, ids: Any, expected_message: Any = None) -> DetectionResult:
        """Read one text.

        Parameters
        ----------
        ids : (T,) integer token ids, sequence, array or tensor. Tokens of a prompt may be among them; they only add noise.
        expected_message : b bits, in any form that BiMarkConfig takes, when the message is known and only its presence is
            in question: then z_score and p_value are of the votes for it (a binomial tail, much stronger), and
            ``bit_accuracy`` and ``match`` are set.

        Returns
        -------
        DetectionResult. Fewer than ``window`` + 1 tokens: nothing scored, p_value 1, all bits undecided.

        Raises
        ------
        TypeError: ids that aren't integers, or a message that isn't bits. ValueError: not one-dimensional; an id outside
        0..vocab_size-1; expected message of another length.
        """
        expected = self._expected(expected_message)
        return self._detect(self._checked(ids), expected)

    def detect_batch(
        self, texts: Any, attention_mask: Any = None, expected_message: Any = None
    ) -> list[DetectionResult] | Iterator[DetectionResult]:
        """Read many texts.

        Parameters
        ----------
        texts : sequence of texts as for :meth:`detect`; or a padded (B, T) array or tensor; or an iterator over texts.
        attention_mask : (B, T), non-zero on the tokens of a padded array.
        expected_message : as for :meth:`detect`, the same for all.

        Returns
        -------
        A list, or for an iterator an iterator that reads one text at a time: a corpus streams through in bounded memory.

        Raises
        ------
        TypeError, ValueError: as :meth:`detect`, naming the text; a mask of another shape.
        """
        expected = self._expected(expected_message)
        if attention_mask is not None:
            table, mask = _to_numpy(texts), _to_numpy(attention_mask)
            if table.ndim != 2 or mask.shape != table.shape:
                raise ValueError(
                    f"texts have shape {table.shape} and attention_mask {mask.shape}; expected two of (batch, length)"
                )
            if not np.isin(mask, (0, 1)).all():
                raise ValueError("attention_mask must be 0 or 1")
            if (
                mask.shape[1]
                and (np.diff(mask.astype(np.int8), axis=1, prepend=0, append=0) > 0).sum(1).max(initial=0) > 1
            ):
                raise ValueError("attention_mask has holes: the tokens of a text must be contiguous")
            texts = [row[kept] for row, kept in zip(table, mask.astype(bool), strict=True)]
        if not isinstance(texts, Iterable) or isinstance(texts, (str, bytes)):
            raise TypeError(f"texts are {type(texts).__name__}; expected a sequence, an array or an iterator of texts")
        results = self._stream(texts, expected)
        return results if isinstance(texts, Iterator) else list(results)

    def detect_text(self, text: str, tokenizer: Any, expected_message: Any = None) -> DetectionResult:
        """Tokenise and read one text.

        Parameters
        ----------
        text : may be empty.
        tokenizer : a transformers tokenizer, the one of the model.
        expected_message : as for :meth:`detect`.
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be str, got {type(text).__name__}")
        ids = tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        return self.detect(ids, expected_message)

    def _stream(self, texts: Iterable[Any], expected: np.ndarray | None) -> Iterator[DetectionResult]:
        for number, text in enumerate(texts):
            try:
                ids = self._checked(text)
            except (TypeError, ValueError) as error:
                raise type(error)(f"text {number}: {error}") from None
            yield self._detect(ids, expected)

    def _expected(self, message: Any) -> np.ndarray | None:
        text = message_text("expected_message", message, self.message_bits)
        if text is None:
            return None
        if len(text) != self.message_bits:
            raise ValueError(f"expected_message has {len(text)} bits; expected message_bits={self.message_bits}")
        return np.array([int(bit) for bit in text], dtype=np.int8)

    def _checked(self, ids: Any) -> np.ndarray:
        array = _to_numpy(ids)
        if array.ndim != 1:
            raise ValueError(f"ids have shape {array.shape}; expected one dimension (detect_batch takes many texts)")
        if array.size == 0:
            return array.astype(np.int64)
        if array.dtype == object and all(isinstance(i, int) for i in array.tolist()):
            raise ValueError(f"ids hold an integer beyond 64 bits; expected 0..{self.vocab_size - 1}")
        if array.dtype.kind not in "iu" or (not hasattr(ids, "dtype") and any(isinstance(i, bool) for i in ids)):
            found = array.dtype if array.dtype.kind not in "iu" else "bool among integers"
            raise TypeError(f"ids have dtype {found}; expected integers")
        bad = (array < 0) | (array >= self.vocab_size)
        if bad.any():
            where = int(bad.argmax())
            raise ValueError(
                f"ids[{where}] is {array[where]}; expected 0..{self.vocab_size - 1} (vocab_size {self.vocab_size}): "
                "is it another tokenizer's?"
            )
        return array.astype(np.int64)

    def _detect(self, ids: np.ndarray, expected: np.ndarray | None) -> DetectionResult:
        votes, n_scored = self._votes(ids)
        n = int(votes.sum())
        difference = votes[:, 1] - votes[:, 0]
        bits = np.where(difference == 0, -1, difference > 0).astype(np.int8)
        if expected is None:
            agreeing = int(votes.max(1).sum())
            p_value = message_p_value(votes)
        else:
            from scipy.special import bdtrc

            agreeing = int(votes[np.arange(self.message_bits), expected].sum())
            p_value = float(bdtrc(agreeing - 1, n, 0.5)) if agreeing else 1.0
        return DetectionResult(
            message="".join("x01"[bit + 1] for bit in bits),
            bits=bits,
            votes=votes,
            z_score=(agreeing - n / 2) / (n / 4) ** 0.5 if n else 0.0,
            p_value=p_value,
            n_scored=n_scored,
            n_skipped=max(len(ids) - self.window, 0) - n_scored,
            bit_accuracy=None if expected is None else float((bits == expected).mean()),
            match=None if expected is None else bool((bits == expected).all()),
            alpha=self.alpha,
        )

    def _votes(self, ids: np.ndarray) -> tuple[np.ndarray, int]:
        """Votes (b, 2) of the contexts that appear for the first time, and how many those are."""
        n = len(ids) - self.window
        if n <= 0:
            return np.zeros((self.message_bits, 2), dtype=np.int64), 0
        windows = np.lib.stride_tricks.sliding_window_view(ids[:-1], self.window)
        packed, size = windows.astype("<i8").tobytes(), 8 * self.window
        first: dict[bytes, int] = {}
        for i in range(n):
            first.setdefault(packed[i * size : (i + 1) * size], i)
        targets = ids[np.fromiter(first.values(), np.int64, len(first)) + self.window]
        position, mask = self._prf(first)
        for_one = (self._members[targets] ^ mask).sum(1)  # e XOR c is the message bit
        ones = np.bincount(position, weights=for_one, minlength=self.message_bits).astype(np.int64)
        totals = np.bincount(position, minlength=self.message_bits) * self.n_layers
        return np.stack([totals - ones, ones], 1), len(first)


def message_p_value(votes: Any) -> float:
    """Probability that a text without the watermark agrees with its best message at least as much as these votes.

    Without the watermark the n votes are independent fair bits, so G, the sum over positions of the larger count, is a
    sum of independent max(B, n_p - B) with B binomial(n_p, 1/2). Their distributions are convolved.

    Parameters
    ----------
    votes : (b, 2) non-negative integers, votes for 0 and for 1.

    Returns
    -------
    float in [0, 1], 1 without votes. Exact up to a million votes; beyond, counts are rounded to multiples of
    about n/500,000, which changes it by a few percent. Below 1e-300 it may be 0.

    Raises
    ------
    ValueError: another shape, not integers, negative votes, or more than a hundred million.

    Source: this package; the paper compares z with a normal quantile, which is wrong for more than one bit.
    """
    votes = np.asarray(votes)
    if votes.ndim != 2 or votes.shape[1] != 2 or votes.dtype.kind not in "iu" or (votes < 0).any():
        raise ValueError(f"votes must be integers (b, 2), not negative, got {votes.dtype} of shape {votes.shape}")
    if float(votes.sum(dtype=np.float64)) > MOST_VOTES:
        raise ValueError(f"votes are more than {MOST_VOTES:,}: more than the distribution is computed for")
    votes = votes.astype(np.int64)
    totals = votes.sum(1)
    unit = 1 + 2 * (int(totals.sum()) // EXACT_VOTES)  # odd, so that rounding is even-handed
    sizes, repeats = np.unique(totals[totals > 0], return_counts=True)
    excess = int(votes.max(1).sum()) - int(repeats @ ((sizes + 1) // 2))
    distribution = np.ones(1)
    for size, times in zip(sizes.tolist(), repeats.tolist(), strict=True):
        distribution = np.convolve(distribution, _folded_power(size, times, unit))
    return min(1.0, float(distribution[(excess + unit // 2) // unit :][::-1].sum()))


@lru_cache(maxsize=1024)
def _folded(n: int, unit: int) -> np.ndarray:
    """P(max(B, n - B) = ceil(n/2) + k) for k = 0, 1, ..., B binomial(n, 1/2), until it underflows; k in units."""
    from scipy.special import gammaln

    k = np.arange((n + 1) // 2, n + 1)
    log_ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    pmf = np.where(2 * k == n, 1, 2) * np.exp(log_ways - n * np.log(2))
    pmf = np.bincount((np.arange(len(pmf)) + unit // 2) // unit, weights=pmf)
    return np.trim_zeros(pmf, "b")


@lru_cache(maxsize=1024)
def _folded_power(n: int, times: int, unit: int) -> np.ndarray:
    """Distribution of the sum of ``times`` such counts."""
    if times == 1:
        return _folded(n, unit)
    half = _folded_power(n, times // 2, unit)
    whole = np.convolve(half, half)
    return np.trim_zeros(np.convolve(whole, _folded(n, unit)) if times % 2 else whole, "b")


def check_integer(name: str, value: Any, low: int, high: int | None) -> None:
    """Raise TypeError or ValueError, naming the argument, unless it is an integer from low to high."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < low or (high is not None and value > high):
        raise ValueError(f"{name} must be {f'in {low}..{high}' if high else f'at least {low}'}, got {value}")


def message_text(name: str, message: Any, message_bits: Any) -> str | None:
    """A message as text of 0s and 1s; it may be such a text, a sequence of bits, or an integer with its length in bits."""
    forms = "text of 0s and 1s, a sequence of them, or an integer"
    if message is None:
        return None
    if isinstance(message, (int, np.integer)) and not isinstance(message, bool):
        if message_bits is None:
            raise ValueError(f"{name} is the integer {message}, so message_bits is needed: its length in bits")
        check_integer("message_bits", message_bits, 1, MAX_MESSAGE_BITS)
        if message < 0 or int(message).bit_length() > message_bits:
            raise ValueError(f"{name} is {message}; expected an integer of at most message_bits={message_bits} bits")
        return format(int(message), f"0{message_bits}b")
    if isinstance(message, str):
        text = message
    elif isinstance(message, (bool, Mapping, Set, bytes, bytearray)):
        raise TypeError(f"{name} must be {forms}; got {message!r}")
    else:
        try:
            text = "".join(str(int(bit)) if bit in (0, 1) else "?" for bit in message)
        except (TypeError, ValueError):
            raise TypeError(f"{name} must be {forms}; got {message!r}") from None
    if not 1 <= len(text) <= MAX_MESSAGE_BITS or set(text) - {"0", "1"}:
        shown = text if len(text) <= 40 else f"{text[:40]}... of {len(text)} characters"
        raise ValueError(f"{name} must be 1 to {MAX_MESSAGE_BITS} bits, each 0 or 1; got {shown!r}")
    return text


def _to_numpy(ids: Any) -> np.ndarray:
    """Arrays and tensors of any device, series, and sequences of integers."""
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu()
        ids = (ids.float() if ids.is_floating_point() else ids).numpy()  # bfloat16 has no array type
    elif hasattr(ids, "to_numpy"):
        ids = ids.to_numpy()
    if isinstance(ids, (str, bytes)) or not isinstance(ids, (np.ndarray, Sequence)):
        raise TypeError(f"ids are {type(ids).__name__}; expected a sequence, an array or a tensor of integers")
    try:
        return np.asarray(ids)
    except ValueError:
        raise ValueError("ids are ragged; expected one dimension (detect_batch takes many texts)") from None
