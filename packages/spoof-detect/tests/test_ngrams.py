"""Counts of n-grams against collections.Counter."""

import os
import subprocess
import sys
from collections import Counter
from functools import partial, reduce
from pathlib import Path

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


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=200),
    st.lists(st.integers(0, 400), min_size=1, max_size=200),
    st.integers(1, 40),
)
def test_slices_of_two_runs_merge(a, b, size):
    before, ngrams._SLICE = ngrams._SLICE, size
    try:
        first, second = (NgramReference.from_token_ids(np.array(ids), 1) for ids in (a, b))
        merged = first.merge(second)
        expected = Counter(a) + Counter(b)
        keys, counts = merged._table()
        assert keys.tolist() == sorted(expected) and counts.tolist() == [expected[k] for k in sorted(expected)]
        assert first._table()[1].sum() == len(a) and second._table()[1].sum() == len(b)  # they stay as they were
    finally:
        ngrams._SLICE = before


MEASURE = """
import numpy as np, sys
from pathlib import Path
from icml25.spoof_detect import NgramReference
rng = np.random.default_rng(0)
documents = [rng.integers(0, 2**17, 1 << 18) for _ in range(24)]  # 6.3 million pairs, almost all distinct
def status(name):
    return int(next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(name)).split()[1])
NgramReference.from_token_ids(documents[0][:10], 2, 2**17).count([[1, 2]])
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
reference = NgramReference.from_token_ids(documents, 2, 2**17)
n = len(reference)
print((status("VmHWM") - before) / 1024, 16 * n / 2**20)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's peak of resident memory")
def test_memory_is_that_of_the_counts_and_half_as_much():
    # Large arrays are mapped, so that what glibc keeps of freed ones does not count.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True, check=True)
    peak, kept = map(float, done.stdout.split())
    assert 90 < kept < 100 and peak < 1.5 * kept + 30


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


def sum_of_context(grams):
    return np.stack([grams[:, -1], grams[:, :-1].sum(axis=1)], axis=1)


def test_keys_outside_the_vocabulary_are_told_apart():
    documents = np.random.default_rng(0).integers(0, 16, (4, 300))
    reference = NgramReference.from_token_ids(documents, 4, 16, sum_of_context)  # sums up to 45
    windows = np.lib.stride_tricks.sliding_window_view(documents, 4, axis=1).reshape(-1, 4)
    expected = Counter(map(tuple, sum_of_context(windows).tolist()))
    asked = np.random.default_rng(1).integers(0, 16, (500, 4))
    assert reference.count(asked).tolist() == [expected[tuple(k)] for k in sum_of_context(asked).tolist()]


@pytest.mark.parametrize(
    ("key_fn", "message"),
    [
        (lambda g: g - 2, r"returned int64 \(2, 2\), -1 among them; expected integers >= 0 of shape \(2, k\)"),
        (lambda g: g / 2, r"returned float64 \(2, 2\)"),
        (lambda g: g[:, 0], r"returned int64 \(2,\), 1 among them"),
        (lambda g: g[:1], r"returned int64 \(1, 2\)"),
        (lambda g: None, r"returned object \(\)"),
        (lambda g: g[:, :0], r"returned int64 \(2, 0\); expected integers >= 0 of shape \(2, k\), k >= 1"),
    ],
    ids=range(6),
)
def test_bad_keys(key_fn, message):
    with pytest.raises(ValueError, match=f"key_fn '<lambda>' {message}"):
        NgramReference.from_token_ids([[1, 2, 3]], 2, 10, key_fn)


def test_a_unigram_has_no_context():
    with pytest.raises(ValueError, match=r"key_fn 'context_only' returned int64 \(3, 0\)"):
        NgramReference.from_token_ids([[1, 2, 3]], 1, 10, context_only)


def test_key_functions_are_compared_by_identity(tmp_path):
    def last(grams):
        return grams[:, -1:]

    first, second = (NgramReference.from_token_ids([[1, 2, 3]], 2, 10, f) for f in (lambda g: g[:, :1], lambda g: g))
    with pytest.raises(ValueError, match="another function called '<lambda>'"):
        first.merge(second)
    assert first.merge(first).total == 4

    def sorted_ngram(grams):
        return grams

    for nameless in (lambda g: g, partial(last), sorted_ngram):
        reference = NgramReference.from_token_ids([[1, 2, 3]], 2, 10, nameless)
        with pytest.raises(ValueError, match=r"key_fn is .*; expected a function with a name of its own"):
            reference.save(tmp_path / "r.npz")
    NgramReference.from_token_ids([[1, 2, 3]], 2, 10, last).save(tmp_path / "r.npz")
    with pytest.raises(ValueError, match="key_fn is <lambda>"):
        NgramReference.load(tmp_path / "r.npz", key_fn=lambda g: g[:, -1:])


def test_packing_is_exact_up_to_64_bits():
    """Ids near 2^17: 4 of them are 68 bits, so they are hashed; shifted out, 2^17 - 1 and -1 would be one."""
    grams = np.array([[a, 1, 2, 3] for a in (0, 1 << 13, 1 << 14, 1 << 16, (1 << 17) - 1)])
    assert len(set(ngrams.pack(grams.T, 2**17).tolist())) == 5
    fits = np.array([[a, 1, 2, (1 << 16) - 1] for a in (0, 1, 1 << 15, (1 << 16) - 1)])
    packed = ngrams.pack(fits.T, 2**16).tolist()
    assert packed == [sum(int(v) << 16 * (3 - i) for i, v in enumerate(row)) for row in fits]


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
        ([[0, 1], [2]], ValueError, r"ids is no array .*; expected one text"),
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
        ([[1, 2], [3]], ValueError, r"ngrams is no array .*; expected \(M, 2\) ids"),
    ],
)
def test_bad_questions(asked, error, message):
    with pytest.raises(error, match=message):
        NgramReference.from_token_ids([[1, 2]], 2, 10).count(asked)


def test_many_questions_are_answered_in_their_order():
    ids = np.random.default_rng(0).integers(0, 30, 5000)
    asked = np.random.default_rng(1).integers(0, 30, (3000, 2))
    expected = counted([ids], 2)
    assert NgramReference.from_token_ids(ids, 2, 30).count(asked).tolist() == [
        expected[tuple(g)] for g in asked.tolist()
    ]


def test_no_questions():
    assert NgramReference.from_token_ids([[1, 2]], 2, 10).count(np.zeros((0, 2), int)).shape == (0,)


def test_bad_types():
    for make, message in (
        (lambda: NgramReference(2, 10, "sorted"), "key_fn is 'sorted'; expected a function"),
        (lambda: NgramReference.from_token_ids(None, 2), "ids is None"),
        (lambda: NgramReference(2).merge(3), "other is 3; expected an NgramReference"),
        (lambda: NgramReference.from_texts(["a"], lambda text: [0.5, 1.0], 1), r"ids\[0\] has dtype float64"),
    ):
        with pytest.raises(TypeError, match=message):
            make()


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
    np.savez_compressed(
        path, keys=np.arange(3, dtype=np.uint64), counts=np.ones(3, np.int64), order=2, vocab_size=5, key=""
    )
    with pytest.raises(ValueError, match="mmap=False"):
        NgramReference.load(path)
    assert NgramReference.load(path, mmap=False).total == 3
    good = {
        "keys": np.arange(3, dtype=np.uint64),
        "counts": np.ones(3, np.int64),
        "order": 2,
        "vocab_size": 5,
        "key": "",
    }
    for change in (
        {"order": 0},
        {"vocab_size": -4},
        {"keys": good["keys"][::-1]},
        {"keys": good["keys"] * 0},
        {"counts": -good["counts"]},
        {"counts": np.array([1, 0, 1])},
    ):
        np.savez(path, **good | change)
        for mmap in (True, False):
            with pytest.raises(ValueError, match=r"r\.npz is damaged"):
                NgramReference.load(path, mmap=mmap)
    with pytest.raises(FileNotFoundError):
        NgramReference.load(tmp_path / "none.npz")


def test_save_into_a_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"path is .*none/r\.npz, but there is no folder"):
        NgramReference.from_token_ids([[1, 2]], 2, 10).save(tmp_path / "none" / "r.npz")


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


@pytest.mark.parametrize("mmap", [True, False])
def test_merging_in_place_leaves_what_others_hold(tmp_path, mmap):
    rng = np.random.default_rng(1000)
    first, second = (rng.integers(0, 40, n) for n in (900, 500))
    path = tmp_path / "r.npz"
    NgramReference.from_token_ids(first, 2, 40).save(path)
    stored, loaded = path.read_bytes(), NgramReference.load(path, mmap=mmap)
    asked = np.stack(np.divmod(np.arange(1600), 40), axis=1)
    alone = loaded.count(asked)
    other = NgramReference.from_token_ids(second, 2, 40)
    expected = counted([first, second], 2)
    both = [expected[tuple(g)] for g in asked.tolist()]
    assert loaded.merge(other).count(asked).tolist() == other.merge(loaded).count(asked).tolist() == both
    np.testing.assert_array_equal(loaded.count(asked), alone)
    loaded.update(second)
    assert loaded.count(asked).tolist() == both and loaded.total == sum(both)
    assert path.read_bytes() == stored


def test_counts_get_more_bits_before_they_overflow():
    full = NgramReference.from_token_ids([[1] * 10, [2]], 1, 4)
    full._table()[1][0] = 2**32 - 3
    assert full.total == 2**32 - 2
    more = full.merge(NgramReference.from_token_ids([[1, 1, 1]], 1, 4))
    assert more.count([[1], [2], [3]]).tolist() == [2**32, 1, 0] and more.total == 2**32 + 1
    again = NgramReference.from_token_ids([[3]], 1, 4).merge(more)
    assert again.count([[1], [3]]).tolist() == [2**32, 1]
    one_less = NgramReference.from_token_ids([[1, 2]], 1, 4)
    assert full.merge(NgramReference.from_token_ids([[3]], 1, 4))._runs[0][1].dtype == np.uint32
    assert full.merge(one_less)._runs[0][1].dtype == np.int64


def test_finished_table_has_12_bytes_per_ngram():
    keys, counts = NgramReference.from_token_ids(np.arange(1000), 1, 1000)._table()
    assert keys.nbytes + counts.nbytes == 12 * 1000


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_slices_end_between_equal_keys(monkeypatch, size):
    """A dense short run in a sparse long one: slices of the short run end at keys that the long one has too."""
    monkeypatch.setattr(ngrams, "_SLICE", size)
    sparse, dense = [*range(0, 30, 3), *range(100, 130)], list(range(28))
    merged = NgramReference.from_token_ids([[i] for i in sparse], 1, 200).merge(
        NgramReference.from_token_ids([[i] for i in dense], 1, 200)
    )
    expected = counted([np.array(sparse), np.array(dense)], 1)
    assert len(merged) == len(expected)
    assert merged.count([[i] for i in range(130)]).tolist() == [expected[i,] for i in range(130)]
