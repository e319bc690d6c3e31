"""Where sequences come from: a Markov chain whose entropy and mixing are known, and characters of prose."""

import hashlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from icml25.ntp_bounds.checks import check_integer, check_matrix

ENUMERABLE = 2**20
ROUNDING = 1e-12


class MarkovChain:
    """A stationary Markov chain of order 1.

    Parameters
    ----------
    transition : (v, v), the probability of each next symbol, row by symbol; one stationary law.

    Attributes
    ----------
    stationary : (v,), the law of each token.
    entropy : mean entropy of the next token in nats: no predictor has a smaller risk.

    Raises
    ------
    ValueError: a row is no distribution, or the chain has several stationary laws.
    """

    def __init__(self, transition: Any) -> None:
        P = check_matrix(transition, "transition")
        if P.shape[0] != P.shape[1]:
            raise ValueError(f"transition must be square, got shape {P.shape}")
        if (P < 0).any() or not np.allclose(P.sum(1), 1, atol=1e-9):
            raise ValueError(f"transition must have rows of probabilities that sum to 1, got sums {P.sum(1)}")
        v = len(P)
        system = np.vstack([P.T - np.eye(v), np.ones(v)])
        if np.linalg.matrix_rank(system) < v:
            raise ValueError("transition has more than one stationary law")
        self.transition = P / P.sum(1, keepdims=True)
        self.stationary = np.linalg.lstsq(system, np.append(np.zeros(v), 1.0))[0].clip(0)
        logs = np.log(self.transition, out=np.zeros_like(P), where=self.transition > 0)
        self.entropy = float(-self.stationary @ (self.transition * logs).sum(1))

    def variation(self, a: int) -> Float[np.ndarray, " v"]:
        """Total variation between the law a tokens after each symbol and the stationary law."""
        power = np.linalg.matrix_power(self.transition, check_integer(a, "a"))
        return np.abs(power - self.stationary).sum(1) / 2

    def beta(self, a: int) -> float:
        """beta-mixing coefficient: the variation, averaged over symbols."""
        return float(self.stationary @ self.variation(a))

    def phi(self, a: int) -> float:
        """phi-mixing coefficient: the largest variation."""
        return float(self.variation(a)[self.stationary > ROUNDING].max())

    def sample(self, n: int, length: int, rng: np.random.Generator) -> Int[np.ndarray, "n length"]:
        """n independent sequences."""
        n, length = check_integer(n, "n"), check_integer(length, "length")
        if not isinstance(rng, np.random.Generator):
            raise TypeError(f"rng must be a numpy.random.Generator, got {rng!r}")
        rows = np.vstack([self.transition, self.stationary]).cumsum(1)
        tokens = np.empty((n, length), dtype=np.int64)
        state = np.full(n, len(self.stationary))
        for t in range(length):
            state = (rng.random(n)[:, None] > rows[state, :-1]).sum(1)
            tokens[:, t] = state
        return tokens

    def enumerate(self, length: int) -> tuple[Int[np.ndarray, "s length"], Float[np.ndarray, " s"]]:
        """All v^length sequences with their probabilities, for exact risks (at most 2^20)."""
        v, length = len(self.stationary), check_integer(length, "length")
        if v**length > ENUMERABLE:
            raise ValueError(f"enumeration of {v}^{length} sequences; at most {ENUMERABLE}")
        tokens = np.indices((v,) * length).reshape(length, -1).T
        steps = self.transition[tokens[:, :-1], tokens[:, 1:]]
        return tokens, self.stationary[tokens[:, 0]] * steps.prod(1)


class Corpus(NamedTuple):
    """Characters as numbers: the first 90% and the last 10%, size of the vocabulary, and what the text was."""

    train: Int[np.ndarray, " a"]
    test: Int[np.ndarray, " b"]
    vocab: int
    source: str


def prose() -> Corpus:
    """Python's own reference topics (0.5 MB), which differ between Python versions: ``source`` holds their hash."""
    from pydoc_data.topics import topics

    return split_text("\n".join(text for _, text in sorted(topics.items())), "pydoc_data.topics")


def split_text(text: str, name: str) -> Corpus:
    """The characters of a text, split by position."""
    if len(text) < 2:
        raise ValueError(f"text must have at least 2 characters, got {len(text)}")
    alphabet, tokens = np.unique(np.array(list(text)), return_inverse=True)
    cut = math.ceil(0.9 * len(tokens))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Corpus(tokens[:cut], tokens[cut:], len(alphabet), f"{name} sha256:{digest}")


def windows(
    tokens: Int[np.ndarray, " n"], count: int, length: int, rng: np.random.Generator
) -> Int[np.ndarray, "count length"]:
    """Windows of a text at random places."""
    if len(tokens) < length:
        raise ValueError(f"the text has {len(tokens)} tokens, and windows of {length} were asked for")
    return tokens[rng.integers(0, len(tokens) - length + 1, count)[:, None] + np.arange(length)]


def batches(n: int, size: int, rng: np.random.Generator) -> Iterator[Int[np.ndarray, " b"]]:
    """Rows in batches without end, each epoch in an order of its own."""
    size, left = min(size, n), np.array([], dtype=np.int64)
    while True:
        while len(left) < size:
            left = np.append(left, rng.permutation(n))
        yield left[:size]
        left = left[size:]
