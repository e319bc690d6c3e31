"""Votes, message and p-value against brute force; bad input; batches and streams."""

import copy
import dataclasses
import itertools
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from conftest import LiteralBiMark
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from icml25.bimark import BiMarkConfig, BiMarkDetector, detector, message_p_value, partitions

CONFIG = BiMarkConfig("key", "10110011")


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 3), st.integers(1, 5), st.integers(1, 9))
def test_votes_are_those_of_the_algorithm(ids, window, layers, bits):
    config = BiMarkConfig("key", None, layers, window=window, message_bits=bits)
    result = BiMarkDetector(config, 6).detect(np.array(ids, dtype=np.int32))
    literal = LiteralBiMark(b"key", "0" * bits, partitions(b"key", layers, 6), window)
    votes = literal.votes(ids)
    np.testing.assert_array_equal(result.votes, votes)
    contexts = [tuple(ids[t - window : t]) for t in range(window, len(ids))]
    assert (result.n_scored, result.n_skipped) == (len(set(contexts)), len(contexts) - len(set(contexts)))
    n = votes.sum()
    assert result.z_score == (pytest.approx((votes.max(1).sum() - n / 2) / np.sqrt(n / 4)) if n else 0)
    assert result.message == "".join("x" if a == b else str(int(b > a)) for a, b in votes)
    assert result.p_value == message_p_value(votes)


def test_p_value_of_nine_against_one():
    assert message_p_value(np.array([[9, 1]])) == pytest.approx(22 / 1024, rel=1e-12)


def test_known_p_values():
    assert message_p_value(np.zeros((3, 2), dtype=int)) == 1
    assert message_p_value(np.array([[5, 5]])) == 1
    assert message_p_value(np.array([[0, 0], [1, 0]])) == 1
    assert message_p_value(np.array([[700, 0]])) == pytest.approx(2.0**-699, rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 7, 100, 999])
def test_one_bit_is_the_two_sided_binomial_test(n):
    for k in {n // 2, n // 2 + n // 5, n}:
        expected = stats.binomtest(k, n).pvalue
        assert message_p_value(np.array([[k, n - k]])) == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.data())
def test_p_value_by_enumeration(totals, data):
    votes = np.array([[k := data.draw(st.integers(0, n)), n - k] for n in totals])
    counts = Counter(
        sum(max(sum(v), len(v) - sum(v)) for v in outcome)
        for outcome in itertools.product(*(list(itertools.product([0, 1], repeat=n)) for n in totals))
    )
    at_least = sum(count for g, count in counts.items() if g >= votes.max(1).sum())
    assert message_p_value(votes) == pytest.approx(at_least / 2 ** sum(totals), rel=1e-12)


@pytest.mark.parametrize("bits", [1, 16])
@pytest.mark.parametrize("shift", [0.5, 0.51])
def test_coarser_counts_change_little(monkeypatch, bits, shift):
    ones = np.random.default_rng(0).binomial(6000, shift, bits)
    votes = np.stack([6000 - ones, ones], 1)
    exact = message_p_value(votes)
    monkeypatch.setattr(detector, "EXACT_VOTES", 5_900 * bits)
    assert message_p_value(votes) == pytest.approx(exact, rel=0.05)


def test_many_votes():
    assert message_p_value(np.array([[60_000, 60_000]])) == pytest.approx(1)
    assert message_p_value(np.array([[80_000, 40_000]])) == 0
    z = 3.0
    more = int(1_000_000 + z * 1_000_000**0.5 / 2 * 2**0.5)
    votes = np.array([[more, 2_000_000 - more]])
    assert message_p_value(votes) == pytest.approx(2 * stats.norm.sf(z), rel=0.02)


@pytest.mark.parametrize("votes", [[[1, -1]], [[1, 2, 3]], [1, 2], [[1.0, 2.0]], [[10**9, 10**9]]])
def test_bad_votes(votes):
    with pytest.raises(Exception, match="votes"):
        message_p_value(np.array(votes))


@pytest.mark.parametrize("bits", [1, 8, 16])
def test_p_values_of_texts_without_watermark_are_not_too_small(bits):
    rng = np.random.default_rng(bits)
    texts = rng.integers(0, 300, (1500, 60))
    p = []
    for k in range(30):  # a key for 50 texts each
        found = BiMarkDetector(BiMarkConfig(f"{bits} {k}", None, message_bits=bits), 300)
        p += [result.p_value for result in found.detect_batch(texts[50 * k : 50 * k + 50])]
    p = np.sort(p)
    excess = (np.arange(1, 1501) / 1500 - p).max()
    assert excess < 0.05  # one-sided Kolmogorov-Smirnov, level 0.0006
    assert abs(np.mean(p <= 0.05) - 0.05) < 0.02


def test_paper_z_without_watermark_grows_with_the_message():
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 300, (300, 200))
    for bits in (1, 16):
        found = BiMarkDetector(BiMarkConfig("k", None, message_bits=bits), 300).detect_batch(texts)
        assert np.mean([result.z_score for result in found]) == pytest.approx(np.sqrt(2 * bits / np.pi), abs=0.15)


def test_known_message_is_a_binomial_tail():
    ids = np.random.default_rng(0).integers(0, 300, 200)
    found = BiMarkDetector(CONFIG, 300)
    result = found.detect(ids, "10110011")
    right = sum(int(result.votes[p, int(bit)]) for p, bit in enumerate("10110011"))
    n = int(result.votes.sum())
    assert result.p_value == pytest.approx(stats.binom.sf(right - 1, n, 0.5), rel=1e-9)
    assert result.z_score == pytest.approx((right - n / 2) / np.sqrt(n / 4))
    assert result.bit_accuracy == np.mean([a == b for a, b in zip(result.message, "10110011", strict=True)])
    assert result.match == (result.message == "10110011")
    best = found.detect(ids)
    assert best.bit_accuracy is None and best.match is None
    exact = found.detect(ids, best.message.replace("x", "0"))
    assert exact.p_value < best.p_value and exact.match == ("x" not in best.message)


def test_undecided_bits_are_wrong():
    result = BiMarkDetector(CONFIG, 300).detect([1, 2], "10110011")
    assert result.message == "x" * 8 and (result.bits == -1).all()
    assert (result.bit_accuracy, result.match, result.p_value, result.n_scored) == (0, False, 1.0, 0)


@pytest.mark.parametrize("ids", [[], [3], [3, 4], np.zeros(0, dtype=np.int64), torch.zeros(0)], ids=repr)
def test_too_short_to_say(ids):
    result = BiMarkDetector(CONFIG, 300).detect(ids)
    assert (result.p_value, result.z_score, result.n_scored, result.message) == (1.0, 0.0, 0, "x" * 8)
    assert not result


@pytest.mark.parametrize(
    ("ids", "error", "match"),
    [
        ([1, 2, -1, 3], ValueError, r"ids\[2\] is -1"),
        ([1, 2, 3, 50270], ValueError, r"ids\[3\] is 50270; expected 0\.\.50264 \(vocab_size 50265\)"),
        (np.array([1.0, 2.0, 3.0]), TypeError, "dtype float64; expected integers"),
        ([True, False, True], TypeError, "dtype bool; expected integers"),
        (torch.tensor([0.5, 1.0]), TypeError, "dtype float32"),
        ([[1, 2], [3, 4]], ValueError, r"shape \(2, 2\); expected one dimension"),
        ([[1, 2], [3]], ValueError, "ragged"),
        (["a", "b"], TypeError, "expected integers"),
        ("text", TypeError, "ids are str"),
        (5, TypeError, "ids are int"),
        (None, TypeError, "ids are NoneType"),
    ],
    ids=repr,
)
def test_bad_ids(ids, error, match):
    with pytest.raises(error, match=match):
        BiMarkDetector(CONFIG, 50265).detect(ids)


@pytest.mark.parametrize(
    ("message", "error", "match"),
    [
        ("1", ValueError, "expected_message has 1 bits; expected message_bits=8"),
        ("101100110", ValueError, "expected_message has 9 bits; expected message_bits=8"),
        ([1, 0, 1], ValueError, "expected_message has 3 bits; expected message_bits=8"),
        ("1011001x", ValueError, "expected_message must be 1 to 1024 bits, each 0 or 1; got '1011001x'"),
        ("", ValueError, "expected_message must be 1 to 1024 bits"),
        (256, ValueError, "expected_message is 256; expected an integer of at most message_bits=8 bits"),
        (-1, ValueError, "expected_message is -1"),
        (1.5, TypeError, "expected_message must be text of 0s and 1s"),
        (True, TypeError, "expected_message must be text of 0s and 1s"),
    ],
    ids=repr,
)
def test_bad_expected_message(message, error, match):
    found = BiMarkDetector(CONFIG, 300)
    for read in (found.detect, lambda ids, m: found.detect_batch([ids], expected_message=m)):
        with pytest.raises(error, match=match):
            read([1, 2, 3], message)


@pytest.mark.parametrize(
    "message", [[1, 0, 1, 1, 0, 0, 1, 1], 0b10110011, np.array([1, 0, 1, 1, 0, 0, 1, 1])], ids=repr
)
def test_forms_of_an_expected_message(message):
    found, ids = BiMarkDetector(CONFIG, 300), np.random.default_rng(0).integers(0, 300, 200)
    expected = found.detect(ids, "10110011")
    for result in (found.detect(ids, message), *found.detect_batch([ids], expected_message=message)):
        assert same(result, expected) and result.bit_accuracy == expected.bit_accuracy


def test_most_layers_and_bits():
    """All 448 mask bits of a digest, and the longest message."""
    config = BiMarkConfig("key", None, 448, message_bits=1024)
    ids = np.random.default_rng(0).integers(0, 300, 2000)
    result = BiMarkDetector(config, 300).detect(ids)
    votes = LiteralBiMark(b"key", "0" * 1024, partitions(b"key", 448, 300)).votes(ids.tolist())
    np.testing.assert_array_equal(result.votes, votes)
    assert 0 < result.p_value <= 1 and result.votes.sum() == 448 * result.n_scored


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"vocab_size": 1}, "vocab_size must be at least 2"),
        ({"vocab_size": 10, "message_bits": 0}, "message_bits must be in 1..1024, got 0"),
        ({"vocab_size": 10, "alpha": 0}, "alpha must be in"),
        ({"vocab_size": 10, "alpha": 1.5}, "alpha must be in"),
    ],
    ids=repr,
)
def test_bad_detector(arguments, match):
    with pytest.raises(ValueError, match=match):
        BiMarkDetector(CONFIG, **arguments)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"vocab_size": "300"}, "vocab_size must be an integer"),
        ({"vocab_size": 300.0}, "vocab_size must be an integer"),
        ({"vocab_size": None}, "vocab_size must be an integer"),
        ({"vocab_size": 300, "message_bits": 2.5}, "message_bits must be an integer"),
        ({"vocab_size": 300, "message_bits": True}, "message_bits must be an integer"),
        ({"vocab_size": 300, "alpha": "x"}, "alpha must be a number"),
    ],
    ids=repr,
)
def test_detector_of_wrong_types(arguments, match):
    with pytest.raises(TypeError, match=match):
        BiMarkDetector(CONFIG, **arguments)


def test_config_of_wrong_type_or_changed_to_nonsense():
    with pytest.raises(TypeError, match="config must be a BiMarkConfig"):
        BiMarkDetector(CONFIG.to_dict(), 300)
    changed = copy.deepcopy(CONFIG)
    changed.update(n_layers=1000)
    with pytest.raises(ValueError, match=r"n_layers must be in 1\.\.448"):
        BiMarkDetector(changed, 300)


@pytest.mark.parametrize("alpha", [0.25, 0.5])
def test_alpha_decides(alpha):
    found = BiMarkDetector(BiMarkConfig("key"), 300, alpha=alpha)
    results = [found.detect(np.random.default_rng(i).integers(0, 300, 30)) for i in range(60)]
    assert [bool(r) for r in results] == [r.p_value < alpha for r in results]
    assert len({bool(r) for r in results}) == 2
    assert not dataclasses.replace(results[0], alpha=results[0].p_value)


def test_detectors_are_copied_and_pickled():
    ids = np.random.default_rng(0).integers(0, 300, 50)
    found = BiMarkDetector(CONFIG, 300)
    for again in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert same(again.detect(ids), found.detect(ids))


@pytest.mark.parametrize(
    ("ids", "error", "match"),
    [
        ([1, True, 3], TypeError, "bool among integers"),
        ([2**70, 1], ValueError, "beyond 64 bits"),
        (torch.tensor([1, 2], dtype=torch.bfloat16), TypeError, "float32; expected integers"),
    ],
    ids=repr,
)
def test_more_bad_ids(ids, error, match):
    with pytest.raises(error, match=match):
        BiMarkDetector(CONFIG, 300).detect(ids)


def test_bad_batches():
    found, table = BiMarkDetector(CONFIG, 300), np.ones((1, 4), dtype=int)
    with pytest.raises(TypeError, match="texts are int"):
        found.detect_batch(5)
    with pytest.raises(ValueError, match="holes"):
        found.detect_batch(table, np.array([[1, 0, 1, 1]]))
    with pytest.raises(ValueError, match="0 or 1"):
        found.detect_batch(table, np.array([[1, np.nan, 1, 1]]))


def same(a, b):
    return a.message == b.message and a.p_value == b.p_value and (a.votes == b.votes).all()


def test_batches_are_single_texts():
    found = BiMarkDetector(CONFIG, 300)
    texts = [np.random.default_rng(i).integers(0, 300, 20 + i) for i in range(5)]
    singles = [found.detect(text) for text in texts]
    assert all(map(same, found.detect_batch(texts), singles))
    padded, mask = torch.zeros((5, 30), dtype=torch.int64), torch.zeros((5, 30), dtype=torch.int64)
    for row, text in enumerate(texts):
        side = slice(None, len(text)) if row % 2 else slice(30 - len(text), None)
        padded[row, side], mask[row, side] = torch.from_numpy(text), 1
    assert all(map(same, found.detect_batch(padded, mask), singles))
    expected = found.detect_batch(padded, mask, expected_message="1" * 8)
    assert all(result.bit_accuracy is not None for result in expected)
    assert found.detect_batch([]) == []
    with pytest.raises(ValueError, match="attention_mask"):
        found.detect_batch(padded, mask[:, :-1])
    with pytest.raises(ValueError, match=r"text 1: ids\[0\] is 300"):
        found.detect_batch([[1, 2, 3], [300, 1, 2]])


def test_an_iterator_streams():
    found, read = BiMarkDetector(CONFIG, 300), []

    def corpus():
        for i in range(1000):
            read.append(i)
            yield np.random.default_rng(i).integers(0, 300, 50)

    results = found.detect_batch(corpus())
    assert read == []
    first = list(itertools.islice(results, 3))
    assert read == [0, 1, 2]
    assert same(first[2], found.detect(np.random.default_rng(2).integers(0, 300, 50)))


def test_texts():
    class Tokenizer:
        def __call__(self, text, add_special_tokens):
            assert not add_special_tokens
            return {"input_ids": [ord(character) for character in text]}

    found = BiMarkDetector(CONFIG, 300)
    text = "the quick brown fox jumps over the lazy dog"
    assert same(found.detect_text(text, Tokenizer()), found.detect([ord(c) for c in text]))
    for short in ("", "a", "ab"):  # tokenised to less than a context and a token
        nothing = found.detect_text(short, Tokenizer())
        assert (nothing.n_scored, nothing.p_value, nothing.message) == (0, 1.0, "x" * 8)
    with pytest.raises(TypeError, match=r"text must be str|text"):
        found.detect_text(None, Tokenizer())


def test_an_edit_touches_few_votes():
    ids = np.arange(200) % 300
    found = BiMarkDetector(CONFIG, 300)
    before = found.detect(ids)
    ids[100] = 299
    after = found.detect(ids)
    assert before.n_scored == after.n_scored == 198
    assert np.abs(before.votes - after.votes).sum() <= 2 * 3 * 10  # window + 1 contexts or tokens of ten votes


def test_repetition_is_counted_once():
    result = BiMarkDetector(CONFIG, 300).detect([7] * 500)
    assert (result.n_scored, result.n_skipped) == (1, 497)


def test_detection_is_linear_in_memory():
    """A detector holds a byte per token and layer."""
    found = BiMarkDetector(CONFIG, 128_000)
    assert found._members.nbytes == 1_280_000
