"""Keyed pseudo-randomness: fixed partitions of the vocabulary, and per context a message position and one-time-pad bits.

Everything comes from BLAKE2b and from the raw stream of the Philox generator, whose values NumPy guarantees to stay: what
was watermarked with one version is detected with another.
"""

import hashlib
from collections.abc import Collection
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Int, Shaped

__all__ = ["MAX_LAYERS", "context_randomness", "partitions"]

MAX_LAYERS = 448
"""Mask bits in one digest: 64 bytes less the 8 that give the position."""


def _subkey(key: bytes) -> bytes:
    """64 bytes from a key of any length (BLAKE2b takes no more)."""
    if not isinstance(key, bytes):
        raise TypeError(f"key must be bytes, got {type(key).__name__}")
    if not key:
        raise ValueError("key is empty; expected at least one byte")
    return hashlib.blake2b(key, person=b"bimark-key").digest()


@lru_cache(maxsize=16)
def partitions(key: bytes, n_layers: int, vocab_size: int) -> Bool[np.ndarray, "layers vocab"]:
    """Balanced bipartitions of the vocabulary, one per layer, drawn once from the key.

    Parameters
    ----------
    key : the secret, at least one byte.
    n_layers : number of layers d.
    vocab_size : number of token ids |V|.

    Returns
    -------
    (d, |V|) bool, read-only: True on V1 of each layer, which has floor(|V|/2) tokens. Layer i doesn't depend on d.

    Raises
    ------
    ValueError: an empty key, no layer, or fewer than two tokens. TypeError: a key that isn't bytes.

    Source: Section "Keys" of the method; the drawing by BLAKE2b and Philox is this package's.
    """
    secret = _subkey(key)
    if n_layers < 1 or vocab_size < 2:
        raise ValueError(f"n_layers must be at least 1 and vocab_size at least 2, got {n_layers} and {vocab_size}")
    members = np.zeros((n_layers, vocab_size), dtype=bool)
    for layer, row in enumerate(members):
        seed = hashlib.blake2b(layer.to_bytes(8, "little"), digest_size=16, key=secret, person=b"bimark-part").digest()
        order = np.random.Philox(key=int.from_bytes(seed, "little")).random_raw(vocab_size)
        row[np.argsort(order, kind="stable")[: vocab_size // 2]] = True
    members.flags.writeable = False
    return members


class ContextPRF:
    """The two pseudo-random functions of a context under one key.

    Parameters
    ----------
    key : the secret.
    n_positions : message bits b.
    n_layers : mask bits d, at most :data:`MAX_LAYERS`.
    """

    def __init__(self, key: bytes, n_positions: int, n_layers: int) -> None:
        self._secret = _subkey(key)
        self.n_positions = n_positions
        self.n_layers = n_layers

    def __call__(self, contexts: Collection[bytes]) -> tuple[Int[np.ndarray, " n"], Bool[np.ndarray, "n layers"]]:
        """Positions (n,) int64 in 0..b-1 and one-time-pad bits (n, d) of n contexts, each little-endian int64 ids."""
        digests = []
        keyed = hashlib.blake2b(key=self._secret, person=b"bimark-ctx")  # made here: it can't be pickled
        for context in contexts:
            hasher = keyed.copy()
            hasher.update(context)
            digests.append(hasher.digest())
        table = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(len(digests), 64)
        position = np.ascontiguousarray(table[:, :8]).view("<u8")[:, 0] % np.uint64(self.n_positions)
        n_bytes = -(-self.n_layers // 8)
        mask = np.unpackbits(table[:, 8 : 8 + n_bytes], axis=1, count=self.n_layers, bitorder="little")
        return position.astype(np.int64), mask.view(bool)


def context_randomness(
    key: bytes, contexts: Shaped[np.ndarray, "..."], n_positions: int, n_layers: int
) -> tuple[Int[np.ndarray, " n"], Bool[np.ndarray, "n layers"]]:
    """Message position and one-time-pad bits of each context.

    Parameters
    ----------
    key : the secret.
    contexts : (n, h) token ids, the h tokens before the one that is sampled.
    n_positions : message bits b.
    n_layers : layers d, at most 448 (the mask bits of one digest).

    Returns
    -------
    positions : (n,) int64, uniform in 0..b-1.
    masks : (n, d) bool, fair and independent bits c.

    Raises
    ------
    ValueError: an empty key, contexts that aren't integers (n, h), no position, or another number of layers.
    TypeError: a key that isn't bytes.

    Source: the two PRFs of Algorithms 1 and 2; here one keyed BLAKE2b digest of the ids as 8-byte integers.
    """
    if contexts.ndim != 2 or contexts.dtype.kind not in "iu":
        raise ValueError(f"contexts must be integers (n, h), got {contexts.dtype} of shape {contexts.shape}")
    if not 1 <= n_layers <= MAX_LAYERS or n_positions < 1:
        raise ValueError(
            f"n_positions must be at least 1 and n_layers in 1..{MAX_LAYERS}, got {n_positions} and {n_layers}"
        )
    ids = np.ascontiguousarray(contexts, dtype="<i8")
    return ContextPRF(key, n_positions, n_layers)([row.tobytes() for row in ids])
