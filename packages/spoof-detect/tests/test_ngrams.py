"""Counts of n-grams against collections.Counter."""

from collections import Counter
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from icml25.spoof_detect import NgramReference, context_only, ngrams, sorted_context, sorted_ngram

settings.register_profile("icml25", deadline=None, max_examples=40)
settings.load_profile("icml25")

documents_of = st.lists(arrays(np.int64, st.integers(0, 30), elements=st.integers(0, 6)), max_size=6)


def counted(documents, order):
    return Counter(tuple(d[i : i + order].tolist()) for d in documents for i in range(len(d) - order + 1))


def all_grams(order, vocab=7):
    return np.stack(np.meshgrid(*[np.arange(vocab)] * order, indexing="ij"), axis=-1).reshape(-1, order)


@given(documents_of, st.integers(1, 4), st.sampled_from([None, 7, 2**17]), st.integers(1, 20))
def test_counts_equal_counter(documents, order, vocab_size, block):
    before, ngrams._BLOCK = ngrams._BLOCK, block
    try:
        reference = NgramReference.from_token_ids(documents, order, vocab_size)
        expected = counted(documents, order)
        asked = all_grams(order)
        assert reference.total == sum(expected.values())
        assert reference.count(asked).tolist() == [expected[tuple(g)] for g in asked.tolist()]
        assert len(reference) == len(expected)
    finally:
        ngrams._BLOCK = before


@given(documents_of, documents_of, st.integers(1, 3))
def test_merge_is_commutative_and_adds(a, b, order):
    first, second = (NgramReference.from_token_ids(d, order, 7) for d in (a, b))
    asked = all_grams(order)
    both = NgramReference.from_token_ids([*a, *b], order, 7).count(asked)
    for merged in (first.merge(second), second.merge(first), reduce(NgramReference.merge, [first, second])):
        np.testing.assert_array_equal(merged.count(asked), both)
        assert merged.total == first.total + second.total
    np.testing.assert_array_equal(first.count(asked), NgramReference.from_token_ids(a, order, 7).count(asked))


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("vocab_size", [None, 50, 50_000])
def test_save_and_load(tmp_path, mmap, vocab_size):
    documents = np.random.default_rng(0).integers(0, 50, (5, 200))
    reference = NgramReference.from_token_ids(documents, 3, vocab_size)
    reference.save(tmp_path / "r.npz")
    loaded = NgramReference.load(tmp_path / "r.npz", mmap=mmap, order=3, vocab_size=vocab_size)
    asked = np.lib.stride_tricks.sliding_window_view(documents[0], 3)
    np.testing.assert_array_equal(loaded.count(asked), reference.count(asked))
    assert (len(loaded), loaded.total, repr(loaded)) == (len(reference), reference.total, repr(reference))
    assert isinstance(loaded._runs[0][0], np.memmap) == mmap
    loaded.update(documents[0])  # what is mapped stays as it is
    assert (
        loaded.count(asked[:1])[0]
        == reference.count(asked[:1])[0] + counted(documents[:1], 3)[tuple(asked[0].tolist())]
    )
    assert NgramReference.load(tmp_path / "r.npz").total == reference.total
    assert [p.name for p in tmp_path.iterdir()] == ["r.npz"]


def test_save_and_load_nothing(tmp_path):
    NgramReference(2).save(tmp_path / "r.npz")
    assert len(NgramReference.load(tmp_path / "r.npz")) == 0


def test_documents_are_not_crossed_and_one_document_may_come_alone():
    two = NgramReference.from_token_ids([np.array([1, 2]), np.array([3, 4])], 2)
    assert two.count([[1, 2], [2, 3], [3, 4]]).tolist() == [1, 0, 1]
    for document in (np.array([1, 2, 3]), [1, 2, 3]):
        assert NgramReference.from_token_ids(document, 2).count([[1, 2], [2, 3], [3, 1]]).tolist() == [1, 1, 0]
    rows = NgramReference.from_token_ids(np.array([[1, 2], [3, 4]]), 2)
    assert rows.count([[1, 2], [2, 3]]).tolist() == [1, 0]
    assert NgramReference.from_token_ids((d for d in [[1, 2], [1, 2]]), 2).count([[1, 2]]).tolist() == [2]


def test_key_functions(tmp_path):
    grams = np.array([[3, 1, 2]])
    assert sorted_context(grams).tolist() == [[1, 3, 2]]
    assert sorted_ngram(grams).tolist() == [[1, 2, 3]]
    assert context_only(grams).tolist() == [[3, 1]]
    documents = [np.array([1, 3, 2, 1, 3, 4])]
    asked = np.array([[3, 1, 2], [1, 3, 2], [2, 3, 1], [3, 1, 9]])
    for key_fn, expected in ((None, [0, 1, 0, 0]), (sorted_context, [1, 1, 1, 0]), (context_only, [0, 2, 0, 0])):
        reference = NgramReference.from_token_ids(documents, 3, 10, key_fn)
        assert reference.count(asked).tolist() == expected
        reference.save(tmp_path / "r.npz")
        assert NgramReference.load(tmp_path / "r.npz").count(asked).tolist() == expected


def test_own_key_function_must_be_given_again(tmp_path):
    def last_two(grams):
        return grams[:, -2:]

    reference = NgramReference.from_token_ids([[1, 2, 3]], 3, 10, last_two)
    assert reference.count([[9, 2, 3]]).tolist() == [1]
    reference.save(tmp_path / "r.npz")
    with pytest.raises(ValueError, match=r"r\.npz counts keys 'last_two'; got key_fn ''"):
        NgramReference.load(tmp_path / "r.npz")
    assert NgramReference.load(tmp_path / "r.npz", key_fn=last_two).count([[9, 2, 3]]).tolist() == [1]


class Words:
    """A tokenizer in the manner of transformers."""

    def __len__(self):
        return 9

    def encode(self, text, add_special_tokens=True):
        return [8] * add_special_tokens + [ord(c) - ord("a") for c in text]


def test_from_texts():
    reference = NgramReference.from_texts(["abc", "ab"], Words(), order=2)
    assert reference.vocab_size == 9 and reference.count([[0, 1], [1, 2], [8, 0]]).tolist() == [2, 1, 0]
    assert NgramReference.from_texts(["ab"], Words(), order=2, vocab_size=16).vocab_size == 16
    by_function = NgramReference.from_texts(["abc"], lambda text: [ord(c) for c in text], order=1)
    assert by_function.vocab_size is None and by_function.count([[97]]).tolist() == [1]
    assert NgramReference.from_texts(["", "a"], Words(), order=2).total == 0
    with pytest.raises(TypeError, match="texts is one string"):
        NgramReference.from_texts("abc", Words(), order=2)


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([0, -1, 2], ValueError, r"ids has id -1 at position 1; expected 0 <= id < 10"),
        ([0, 1, 10], ValueError, r"ids has id 10 at position 2"),
        ([0.0, 1.0], TypeError, r"ids has dtype float64, such as .*0\.0.* at position 0"),
        ([True, False], TypeError, r"ids has dtype bool"),
        (["a"], TypeError, r"ids has dtype <U1"),
        ([[0, 1]], ValueError, r"ids has shape \(1, 2\); expected one text"),
        (3, ValueError, r"ids has shape \(\)"),
        (np.array([2**63], dtype=np.uint64), ValueError, r"at position 0"),
    ],
)
def test_bad_ids(ids, error, message):
    with pytest.raises(error, match=message):
        NgramReference(2, 10).update(ids)


def test_bad_document_is_named():
    with pytest.raises(ValueError, match=r"ids\[1\] has id 11 at position 0"):
        NgramReference.from_token_ids([[1, 2], [11, 2]], 2, 10)


@pytest.mark.parametrize("arguments", [(0,), (2, 0), (1.5,), (True,), (2, "many")])
def test_bad_order_and_vocabulary(arguments):
    with pytest.raises(ValueError, match=r"(order|vocab_size) is .*; expected a whole number"):
        NgramReference(*arguments)


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ([1, 2], ValueError, r"ngrams has shape \(2,\); expected \(M, 2\)"),
        ([[1, 2, 3]], ValueError, r"expected \(M, 2\)"),
        ([[1, 12]], ValueError, r"id 12"),
        ([[0.5, 1]], TypeError, "dtype float64"),
    ],
)
def test_bad_questions(asked, error, message):
    with pytest.raises(error, match=message):
        NgramReference.from_token_ids([[1, 2]], 2, 10).count(asked)


def test_no_questions():
    assert NgramReference.from_token_ids([[1, 2]], 2, 10).count(np.zeros((0, 2), int)).shape == (0,)


def test_merge_refuses_others():
    for other in (NgramReference(3, 10), NgramReference(2, 11), NgramReference(2, 10, sorted_ngram)):
        with pytest.raises(ValueError, match="other has"):
            NgramReference(2, 10).merge(other)


def test_damaged_files(tmp_path):
    path = tmp_path / "r.npz"
    NgramReference.from_token_ids(np.random.default_rng(0).integers(0, 50, (5, 200)), 2, 50).save(path)
    whole = path.read_bytes()
    for order, vocab_size in ((3, None), (None, 51)):
        with pytest.raises(ValueError, match=r"r\.npz has (order|vocab_size)"):
            NgramReference.load(path, order=order, vocab_size=vocab_size)
    for content in (whole[:-100], whole[: len(whole) // 2], b"", b"hello"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"r\.npz is damaged"):
            NgramReference.load(path)
    path.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    with pytest.raises(ValueError, match=r"r\.npz is damaged"):
        NgramReference.load(path, mmap=False)
    np.savez(path, keys=np.arange(3))
    with pytest.raises(ValueError, match=r"r\.npz is damaged or holds no n-gram counts"):
        NgramReference.load(path)
    np.savez(path, keys=np.arange(3), counts=np.arange(3), order=2, vocab_size=5, key="")
    with pytest.raises(ValueError, match="keys int64"):
        NgramReference.load(path)
    np.savez_compressed(path, keys=np.zeros(3, np.uint64), counts=np.ones(3, np.int64), order=2, vocab_size=5, key="")
    with pytest.raises(ValueError, match="mmap=False"):
        NgramReference.load(path)
    assert NgramReference.load(path, mmap=False).total == 3
    with pytest.raises(FileNotFoundError):
        NgramReference.load(tmp_path / "none.npz")


def test_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    reference = NgramReference.from_token_ids([[1, 2]], 2, 10)
    reference.save(tmp_path / "r.npz")

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="disk full"):
        reference.save(tmp_path / "r.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["r.npz"]
    assert NgramReference.load(tmp_path / "r.npz").total == 1
