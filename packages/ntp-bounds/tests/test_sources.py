"""Markov chains against closed forms and their own samples; texts and batches."""

import math

import numpy as np
import pytest

from icml25.ntp_bounds import MarkovChain
from icml25.ntp_bounds.sources import batches, prose, split_text, windows

P = np.array([[0.9, 0.1], [0.4, 0.6]])


def test_two_states_in_closed_form():
    chain = MarkovChain(P)
    assert chain.stationary == pytest.approx([0.8, 0.2])
    h = [-(p * math.log(p) + (1 - p) * math.log(1 - p)) for p in (0.1, 0.4)]
    assert chain.entropy == pytest.approx(0.8 * h[0] + 0.2 * h[1])
    for a in (1, 3, 10):  # P^a - 1 pi shrinks by the second eigenvalue, 0.5
        assert chain.variation(a) == pytest.approx([0.2 * 0.5**a, 0.8 * 0.5**a])
        assert chain.beta(a) == pytest.approx(2 * 0.8 * 0.2 * 0.5**a) and chain.phi(a) == pytest.approx(0.8 * 0.5**a)


def test_coefficients_decay_and_are_ordered():
    chain = MarkovChain(np.random.default_rng(0).dirichlet(np.ones(5), 5))
    beta, phi = ([f(a) for a in range(1, 9)] for f in (chain.beta, chain.phi))
    assert (np.diff(beta) <= 0).all() and (np.diff(phi) <= 0).all() and (np.array(beta) <= phi).all()
    transient = MarkovChain([[1.0, 0.0, 0.0], [0.5, 0.0, 0.5], [0.1, 0.1, 0.8]])
    assert (
        transient.phi(2) == pytest.approx(0, abs=1e-12) and transient.variation(2).max() > 0.2
    )  # states that are never visited don't count
    independent = MarkovChain([[0.3, 0.7], [0.3, 0.7]])
    assert independent.beta(1) == pytest.approx(0, abs=1e-12)


def test_samples():
    chain = MarkovChain(P)
    tokens = chain.sample(4000, 6, np.random.default_rng(0))
    assert tokens.shape == (4000, 6)
    assert (tokens == 0).mean(0) == pytest.approx([0.8] * 6, abs=0.03)
    stays = (tokens[:, 1:] == 0)[tokens[:, :-1] == 0].mean()
    assert stays == pytest.approx(0.9, abs=0.01)
    assert (tokens == chain.sample(4000, 6, np.random.default_rng(0))).all()


def test_enumeration():
    tokens, weight = MarkovChain(P).enumerate(4)
    assert tokens.shape == (16, 4) and len(np.unique(tokens, axis=0)) == 16 and weight.sum() == pytest.approx(1)
    row = tokens.tolist().index([0, 1, 1, 0])
    assert weight[row] == pytest.approx(0.8 * 0.1 * 0.6 * 0.4)
    with pytest.raises(ValueError, match="enumeration of 2\\^21 sequences"):
        MarkovChain(P).enumerate(21)


@pytest.mark.parametrize(
    ("transition", "message"),
    [
        ([[0.5, 0.6], [0.5, 0.5]], "sum to 1"),
        ([[1.5, -0.5], [0.5, 0.5]], "sum to 1"),
        ([[1.0, 0.0]], "square"),
        ([[1.0, 0.0], [0.0, 1.0]], "more than one stationary law"),
        ([[math.nan, 1], [0, 1]], "NaN"),
    ],
)
def test_bad_chains(transition, message):
    with pytest.raises(ValueError, match=message):
        MarkovChain(transition)


@pytest.mark.parametrize(("n", "length"), [(0, 3), (3, 0), (-1, 3)])
def test_bad_samples(n, length):
    with pytest.raises(ValueError, match="must be an integer of at least 1"):
        MarkovChain(P).sample(n, length, np.random.default_rng(0))


def test_prose():
    corpus = prose()
    assert 60 < corpus.vocab < 300 and len(corpus.train) > 8.9 * len(corpus.test) > 1e5
    assert max(corpus.train.max(), corpus.test.max()) == corpus.vocab - 1
    assert corpus.source.startswith("pydoc_data.topics sha256:") and corpus.source == prose().source


def test_split_is_by_position():
    corpus = split_text("abcdefghij" * 2, "letters")
    assert corpus.vocab == 10 and corpus.train.tolist() == [*range(10), *range(8)] and corpus.test.tolist() == [8, 9]
    with pytest.raises(ValueError, match="at least 2 characters"):
        split_text("a", "letter")


def test_windows():
    text = np.arange(50)
    rows = windows(text, 200, 7, np.random.default_rng(0))
    assert rows.shape == (200, 7) and (np.diff(rows) == 1).all() and rows.min() == 0 and rows.max() == 49
    with pytest.raises(ValueError, match="50 tokens, and windows of 51"):
        windows(text, 1, 51, np.random.default_rng(0))


def test_batches_run_through_epochs():
    order = batches(10, 4, np.random.default_rng(0))
    rows = np.concatenate([next(order) for _ in range(5)])
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10)) and rows[:10].tolist() != rows[10:].tolist()
    assert len(next(batches(3, 16, np.random.default_rng(0)))) == 3
