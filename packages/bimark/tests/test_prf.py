"""Keyed randomness: fixed values, balance, independence."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from icml25.bimark import context_randomness, partitions
from icml25.bimark.prf import MAX_LAYERS


def test_values_that_must_never_change():
    members = partitions(b"key", 3, 1001)
    assert hashlib.blake2b(np.packbits(members).tobytes(), digest_size=8).hexdigest() == "c92d52c5953f6dd7"
    positions, masks = context_randomness(b"key", np.array([[1, 2], [3, 4], [5, 6]]), 16, 8)
    assert positions.tolist() == [12, 14, 4]
    assert np.packbits(masks, axis=1).ravel().tolist() == [194, 243, 197]


@pytest.mark.parametrize("vocab", [2, 7, 1000])
def test_partitions_are_balanced_fixed_and_read_only(vocab):
    members = partitions(b"k", 5, vocab)
    assert (members.sum(1) == vocab // 2).all()
    np.testing.assert_array_equal(members[:3], partitions(b"k", 3, vocab))
    assert not members.flags.writeable
    assert vocab == 2 or (members != partitions(b"l", 5, vocab)).any()


def test_tokens_and_layers_are_independent():
    members = partitions(b"k", 200, 500).astype(float)
    assert abs(members.mean(0) - 0.5).max() < 0.2  # a token is in V1 of about half of the layers
    between = np.corrcoef(members)[np.triu_indices(200, 1)]
    assert abs(between.mean()) < 0.005 and abs(between).max() < 0.25


def test_positions_are_uniform_and_bits_fair():
    contexts = np.random.default_rng(0).integers(0, 50_000, (20_000, 2))
    positions, masks = context_randomness(b"k", contexts, 12, MAX_LAYERS)
    assert stats.chisquare(np.bincount(positions, minlength=12)).pvalue > 1e-4
    assert abs(masks.mean(0) - 0.5).max() < 0.02
    assert abs(np.corrcoef(positions % 2, masks[:, 0])[0, 1]) < 0.03


def test_contexts_and_keys_do_not_collide():
    """Decimal ids joined without a separator would make one of (1, 23) and (12, 3)."""
    _, masks = context_randomness(b"k", np.array([[1, 23], [12, 3], [23, 1]]), 4, 64)
    assert len(np.unique(masks, axis=0)) == 3
    _, others = context_randomness(b"l", np.array([[1, 23], [12, 3], [23, 1]]), 4, 64)
    assert (masks != others).any(1).all()
    long = [partitions(b"x" * 64 + tail, 1, 100) for tail in (b"", b"a")]
    assert (long[0] != long[1]).any()


@pytest.mark.parametrize(
    ("key", "layers", "vocab", "match"),
    [
        (b"", 1, 5, "key is empty"),
        ("k", 1, 5, "key must be bytes|Type-check"),
        (b"k", 0, 5, "n_layers must be at least 1"),
        (b"k", 1, 1, "vocab_size at least 2"),
        (b"k", 1, -3, "vocab_size at least 2"),
    ],
)
def test_bad_keys_and_sizes(key, layers, vocab, match):
    with pytest.raises(Exception, match=match):
        partitions(key, layers, vocab)
    if "key" in match:
        with pytest.raises(Exception, match=match):
            context_randomness(key, np.zeros((1, 2), dtype=int), 1, 1)


def test_the_import_is_light():
    code = "import sys, icml25.bimark; from icml25.bimark import BiMarkDetector; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_layers_share_a_digest():
    contexts = np.arange(40).reshape(20, 2)
    few, many = (context_randomness(b"k", contexts, 8, d)[1] for d in (3, 9))
    np.testing.assert_array_equal(few, many[:, :3])
