"""Models trained at one length and read at longer ones; which frequencies a method drops; what it costs.

A solver returns outputs only: the loss of each next token and the tokens it finds likeliest at a sequence's end. So any
model can join, of any library.
"""

import math
from collections import Counter

import numpy as np

from icml25.shared.datasets import load
from icml25.shared.problems import ProblemObjective

READ_AT = (1, 2, 4, 8)  # times the training length
READINGS = ("interpolation", "yarn")  # other ways to read the same weights beyond it, which a solver may add
SYMBOLS, KEYS = 32, 4
MARKER, QUERY = SYMBOLS + 2 * KEYS, SYMBOLS + 2 * KEYS + 1
SIZES = {  # steps, sequences in a batch, tokens read per length
    "smoke": (3, 4, 1024),
    "quick": (250, 32, 16384),
    "paper": (10000, 64, 2**20),
}


def markov_passkey(n, length, rng):
    """Sequences (n, length) of an order-1 Markov chain that hide a marker and two keys, and ask for them at the end.

    The chain has 32 symbols, next = now + U{1, 2, 3} mod 32; marker and keys (each of 4 symbols of its own)
    interrupt it at a uniform place.
    """
    room = length - 6
    steps = rng.integers(1, 4, (n, room))
    steps[:, 0] = rng.integers(0, SYMBOLS, n)
    keys, place, rows = SYMBOLS + rng.integers(0, KEYS, (n, 2)) + [0, KEYS], rng.integers(0, room + 1, n), np.arange(n)
    columns = np.arange(room + 3)
    source = np.where(columns < place[:, None], columns, columns - 3).clip(0, room - 1)
    body = np.take_along_axis(steps.cumsum(1) % SYMBOLS, source, 1)
    body[rows, place] = MARKER
    body[rows[:, None], place[:, None] + [1, 2]] = keys
    return np.concatenate([body, np.full((n, 1), QUERY), keys], 1).astype(np.uint8)


def characters(corpus, rng):
    """Characters of a text as numbers, (training part, tenth of the documents held out), and their number.

    Characters met less than 20 times are one.
    """
    documents = load(corpus).documents
    order = rng.permutation(len(documents))
    text = "".join(documents)
    common = sorted(c for c, count in Counter(text).items() if count >= 20)
    number = {c: k for k, c in enumerate(common)}
    held_out = len(documents) // 10
    parts = []
    for part in (order[held_out:], order[:held_out]):
        joined = "\n\n".join(documents[i] for i in part)
        parts.append(np.array([number.get(c, len(common)) for c in joined], dtype=np.uint8))
    return (*parts, len(common) + 1)


def windows(text, n, length, rng):
    """Random windows (n, length)."""
    return text[rng.integers(0, len(text) - length + 1, n)[:, None] + np.arange(length)]


class Reading:
    """Train on ``train`` (n, L) in its order; return ``loss_T`` (m, T - 1), and ``answer_T`` (m, 2), per ``test_T`` (m, T).

    ``loss_T_yarn`` and the like are of the same weights, read otherwise.
    """

    @staticmethod
    def draw(settings, *, seed, budget):
        """Training sequences of L tokens, and test sequences of L, 2L, 4L and 8L tokens."""
        steps, batch_size, tokens = SIZES[budget]
        length, corpus = settings["length"], settings["corpus"]
        fit, unseen = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
        size = "narrow" if budget == "quick" and corpus != "markov_passkey" else budget  # two minutes for all
        public = {"length": length, "batch_size": batch_size, "corpus": corpus, "size": size}
        tests = {f"test_{m * length}": (tokens // (m * length), m * length) for m in READ_AT}
        if corpus == "markov_passkey":
            public |= {"vocabulary": QUERY + 1, "train": markov_passkey(steps * batch_size, length, fit)}
            return public | {name: markov_passkey(*shape, unseen) for name, shape in tests.items()}, {}
        train, test, vocabulary = characters(corpus, fit)
        public |= {"vocabulary": vocabulary, "train": windows(train, steps * batch_size, length, fit)}
        return public | {name: windows(test, *shape, unseen) for name, shape in tests.items()}, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Mean loss at each length, its rise over that at L, and how often both keys come back; also for other readings."""
        out = {}
        for m in READ_AT:
            length = m * public["length"]
            tokens = public[f"test_{length}"]
            for end in ("", *(f"_{reading}" for reading in READINGS if f"loss_{length}_{reading}" in result)):
                loss, name = result[f"loss_{length}{end}"], f"loss_{length}{end}"
                if loss.shape != (len(tokens), length - 1) or not np.isfinite(loss).all():
                    raise ValueError(
                        f"{name} must be finite and of shape {(len(tokens), length - 1)}, got {loss.shape}"
                    )
                out[f"loss_{m}{end}"] = float(loss.mean())
                if m > 1:
                    out[f"rise_{m}{end}"] = out[f"loss_{m}{end}"] - out["loss_1"]
                if public["corpus"] == "markov_passkey":
                    out[f"passkey_{m}{end}"] = float((result[f"answer_{length}{end}"] == tokens[:, -2:]).all(1).mean())
        return out

    @staticmethod
    def example(public):
        """Zeros."""
        tests = {name.removeprefix("test_"): array.shape for name, array in public.items() if name.startswith("test_")}
        out = {f"loss_{length}": np.zeros((n, t - 1)) for length, (n, t) in tests.items()}
        return out | {f"answer_{length}": np.zeros((n, 2), dtype=int) for length, (n, _) in tests.items()}


class Floor:
    """Return ``kept_k``: the frequencies that case k of ``dims``, ``lengths``, ``thetas`` keeps."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """Head dimensions, training lengths and bases; the last case has a frequency exactly on the floor."""
        cases = [(d, L, theta) for d in (32, 64, 128) for L in (64, 512, 1000, 2048, 8192) for theta in (1e4, 1e5, 5e5)]
        cases.append((32, 256, (256 / (2 * math.pi)) ** (32 / 16)))  # theta^(-2 * 8 / 32) = 2 pi / 256
        dims, lengths, thetas = zip(*cases, strict=True)
        return {"dims": np.array(dims), "lengths": np.array(lengths), "thetas": np.array(thetas)}, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Cases in which what is kept is not exactly what finishes a period in training."""
        wrong = 0
        for k, (d, length, theta) in enumerate(zip(*(public[n] for n in ("dims", "lengths", "thetas")), strict=True)):
            grid = theta ** (-2 * np.arange(d // 2) / d)
            finished = grid[grid * length / (2 * math.pi) >= 1 - 1e-9]
            kept = result[f"kept_{k}"]
            wrong += kept.shape != finished.shape or not np.allclose(kept, finished, rtol=1e-6)
        return {"floor_errors": float(wrong)}

    @staticmethod
    def example(public):
        """One frequency each."""
        return {f"kept_{k}": np.ones(1) for k in range(len(public["dims"]))}


class Speed:
    """Return CPU seconds of repeats in turns: ``model_seconds``, ``peer_seconds``, ``short_seconds``, ``long_seconds``."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """Tokens of the forward pass, and of the two position tables."""
        repeats = {"smoke": 1, "quick": 7, "paper": 30}[budget]
        return {"tokens": settings["tokens"], "short": 8192, "long": 32768, "repeats": repeats}, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Time of the forward pass against RoPE's, and of long positions against short ones per token: medians over turns."""
        model, peer, short, long = (result[f"{name}_seconds"] for name in ("model", "peer", "short", "long"))
        growth = long / short * public["short"] / public["long"]
        return {"forward_ratio": float(np.median(model / peer)), "growth": float(np.median(growth))}

    @staticmethod
    def example(public):
        """Ones."""
        return {f"{name}_seconds": np.ones(1) for name in ("model", "peer", "short", "long")}


class Objective(ProblemObjective):
    """Loss and retrieval beyond the training length."""

    name = "Length generalization"
    problems = {"reading": Reading, "floor": Floor, "speed": Speed}  # noqa: RUF012
