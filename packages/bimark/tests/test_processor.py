"""The logits processor against Algorithm 1 as it is written, and its rules on contexts, padding and bad scores."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from conftest import LiteralBiMark
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.bimark import BiMarkConfig, BiMarkLogitsProcessor, partitions, processor

MESSAGE = "10110"


def random_scores(rng, rows, vocab, candidates=None):
    scores = torch.from_numpy(rng.standard_normal((rows, vocab)).astype(np.float32) * 2)
    if candidates:
        scores[scores < scores.topk(candidates).values[:, -1:]] = -torch.inf
    return scores


def literal(config, vocab):
    return LiteralBiMark(
        config.key_bytes,
        config.message,
        partitions(config.key_bytes, config.n_layers, vocab),
        config.window,
        config.base_scale,
    )


@settings(max_examples=30)
@given(
    st.sampled_from([16, 17, 120]),
    st.sampled_from([None, 3, 5]),
    st.integers(1, 4),
    st.integers(1, 12),
    st.sampled_from([1.0, 0.3]),
    st.integers(0, 2**32),
)
def test_every_step_is_the_algorithm(vocab, candidates, window, layers, base_scale, seed):
    """Few tokens, so that contexts come back; with and without gathering of the candidates."""
    rng = np.random.default_rng(seed)
    config = BiMarkConfig(f"key {seed}", MESSAGE, layers, base_scale, window)
    processor = BiMarkLogitsProcessor(config, vocab)
    start, rows = rng.integers(1, 6), 3
    texts = rng.integers(0, 3, (rows, 20))
    references = [literal(config, vocab) for _ in range(rows)]
    for length in range(start, 20):
        scores = random_scores(rng, rows, vocab, candidates)
        probs = processor(torch.from_numpy(texts[:, :length]), scores).softmax(-1)
        for row, reference in enumerate(references):
            p = scores[row].double().softmax(-1).numpy()
            expected = reference.step(texts[row, :length].tolist(), p)
            np.testing.assert_allclose(probs[row].numpy(), expected, atol=2e-5)


def test_whole_texts_keep_their_distribution():
    """Sequences of three tokens, averaged over keys. Contexts repeat: without the rule on used ones this fails."""
    vocab, length, keys = 3, 4, 300
    table = torch.tensor([[0.5, 0.0, -1.0], [0.0, 1.0, 0.3], [-0.5, 0.2, 0.4]])
    exact = np.ones(1)
    total, squares = np.zeros(vocab**length), np.zeros(vocab**length)
    for key in range(keys + 1):
        config = BiMarkConfig(str(key), "01", n_layers=2, window=1)
        processor = BiMarkLogitsProcessor(config, vocab)
        probs = np.ones(1)
        for step in range(length):
            texts = torch.tensor([(0, *text) for text in itertools.product(range(vocab), repeat=step)])
            scores = table[texts[:, -1]]
            if key:
                scores = processor(texts, scores)
            probs = (probs[:, None] * scores.softmax(-1).double().numpy()).ravel()
        if not key:
            exact = probs
            continue
        total += probs
        squares += probs**2
    mean = total / keys
    error = np.sqrt((squares / keys - mean**2) / keys)
    z = (mean - exact) / error
    assert abs(z).max() < 4.5
    assert (z**2).mean() < 2


def test_rows_do_not_matter_to_each_other(table_lm):
    config = BiMarkConfig("key", MESSAGE)
    prompts = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])
    processor = BiMarkLogitsProcessor(config, 200)
    texts = torch.cat([prompts, table_lm.sample(processor, prompts, 30)], 1)
    orders = [torch.randperm(4, generator=torch.Generator().manual_seed(i)) for i in range(40)]
    alone = [BiMarkLogitsProcessor(config, 200) for _ in range(4)]
    processor.reset()
    for length, order in zip(range(2, 32), orders, strict=False):
        rows = texts[order, :length]
        together = processor(rows, table_lm.logits(rows))
        for row, original in zip(together, order, strict=True):
            single = texts[original : original + 1, :length]
            torch.testing.assert_close(row, alone[original](single, table_lm.logits(single))[0])


@pytest.mark.parametrize("repeats", [1, 2])
def test_rows_may_be_dropped_or_doubled(table_lm, repeats):
    processor = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200)
    texts = torch.tensor([[1, 2, 3], [4, 5, 6]])
    processor(texts, table_lm.logits(texts))
    more = torch.cat([texts, torch.tensor([[7], [8]])], 1)[:1].repeat(repeats, 1)
    assert processor(more, table_lm.logits(more)).shape == (repeats, 200)


def test_used_contexts_are_left_alone_and_those_of_the_prompt_are_not_used(table_lm):
    processor = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200)
    scores = table_lm.table[:1]
    prompt = torch.tensor([[5, 6, 9, 5, 6]])
    assert (processor(prompt, scores) != scores).any()  # (5, 6) stands in the prompt twice, and was not used
    again = torch.tensor([[5, 6, 9, 5, 6, 9, 5, 6]])
    processor(again[:, :6], scores)
    processor(again[:, :7], scores)
    assert (processor(again, scores) == scores).all()  # now it was


def test_a_new_text_begins_anew(table_lm):
    processor = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200)
    scores = table_lm.table[:1]
    first = torch.tensor([[1, 2]])
    marked = processor(first, scores)
    processor(torch.tensor([[1, 2, 1]]), scores)
    unmarked = processor(torch.tensor([[1, 2, 1, 2]]), scores)
    assert (unmarked == scores).all()
    torch.testing.assert_close(processor(first, scores), marked)  # not longer: a new generation
    processor(torch.tensor([[1, 2, 1]]), scores)
    processor.reset()
    assert (processor(torch.tensor([[1, 2, 1, 2]]), scores) != scores).any()  # all of it is a prompt now
    processor(torch.tensor([[7, 1, 2, 1, 2, 9]]), scores)
    assert (processor(torch.tensor([[3, 3, 1, 2, 8]]), scores) != unmarked).any()  # another, shorter text


def test_going_back_inside_a_text_is_no_new_one(table_lm):
    """Assisted generation scores guesses and then goes back to the first that was wrong."""
    processor = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200)
    scores = table_lm.table[:1]
    for text in ([1, 2], [1, 2, 1], [1, 2, 1, 7], [1, 2, 1, 7, 7]):
        processor(torch.tensor([text]), scores)
    assert (processor(torch.tensor([[1, 2, 1, 2]]), scores) == scores).all()


def test_a_longer_unrelated_prompt_begins_anew(table_lm):
    processor = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200)
    scores = table_lm.table[:1]
    for text in ([1, 2], [1, 2, 9]):
        processor(torch.tensor([text]), scores)
    other = torch.tensor([[7, 8, 1, 7, 8]])
    fresh = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200)(other, scores)
    assert (fresh != scores).any() and (processor(other, scores) == fresh).all()


def test_the_prompt_is_kept_as_it_was(table_lm):
    """A caller may write the next text into the same memory."""
    processor = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200)
    scores, ids = table_lm.table[:1], torch.tensor([[1, 2]])
    processor(ids, scores)
    ids[:] = torch.tensor([[7, 8]])
    processor(torch.tensor([[1, 2, 1]]), scores)
    assert (processor(torch.tensor([[1, 2, 1, 2]]), scores) == scores).all()


def test_transposed_scores(table_lm):
    scores = random_scores(np.random.default_rng(0), 3, 200, 10)
    ids = torch.tensor([[1, 2], [3, 4], [5, 6]])
    expected = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200)(ids, scores)
    transposed = scores.t().contiguous().t()
    assert (BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200)(ids, transposed) == expected).all()


def test_dtypes_that_make_no_sense():
    processor = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200)
    with pytest.raises(TypeError, match="scores have dtype"):
        processor(torch.ones((1, 2), dtype=torch.int64), torch.ones((1, 200), dtype=torch.int64))
    with pytest.raises(TypeError, match="input_ids have dtype"):
        processor(torch.ones(1, 2), torch.ones(1, 200))
    with pytest.raises(TypeError, match="vocab_size must be an integer"):
        BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 400.0)


def test_too_short_for_a_context(table_lm):
    processor = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE, window=4), 200)
    scores = table_lm.table[:2]
    for length in range(4):
        assert processor(torch.zeros((2, length), dtype=torch.int64), scores) is scores
    assert (processor(torch.zeros((2, 4), dtype=torch.int64), scores) != scores).any()


def test_left_padding(table_lm):
    config = BiMarkConfig("key", MESSAGE, window=3, pad_token_id=0)
    together, alone = BiMarkLogitsProcessor(config, 200), BiMarkLogitsProcessor(config, 200)
    text = torch.tensor([[5, 6, 5, 6, 5, 6, 5, 6]])
    long = torch.tensor([[1, 2, 3, 4, 9, 9, 8, 8, 7, 7, 5, 5]])
    for length in range(1, 9):
        padded = torch.cat([torch.zeros((1, 4), dtype=torch.int64), text[:, :length]], 1)
        scores = table_lm.table[:2]
        rows = torch.cat([padded, long[:, : length + 4]])
        torch.testing.assert_close(
            together(rows, scores)[:1], alone(text[:, :length], scores[:1]), msg=lambda m, n=length: f"{n}: {m}"
        )


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 3), st.integers(0, 2**32))
def test_padding_is_no_text_but_its_token_may_be(window, start, padding, seed):
    """Texts in which the padding's id comes up again, and contexts come back; each row as the algorithm without padding."""
    rng = np.random.default_rng(seed)
    config = BiMarkConfig(f"key {seed}", MESSAGE, 2, 1.0, window, pad_token_id=0)
    marked = BiMarkLogitsProcessor(config, 16)
    texts = rng.integers(0, 3, (2, 16))
    texts[:, 0] = [1, 2]
    short, long = literal(config, 16), literal(config, 16)
    rows = np.zeros((2, 16), dtype=np.int64)
    rows[0, padding:], rows[1] = texts[0, : 16 - padding], texts[1]
    for length in range(start + padding, 16):
        scores = random_scores(rng, 2, 16)
        probs = marked(torch.from_numpy(rows[:, :length]), scores).softmax(-1).numpy()
        p = scores.double().softmax(-1).numpy()
        np.testing.assert_allclose(probs[0], short.step(texts[0, : length - padding].tolist(), p[0]), atol=2e-5)
        np.testing.assert_allclose(probs[1], long.step(texts[1, :length].tolist(), p[1]), atol=2e-5)


def test_ids_are_only_hashed():
    """A prompt may hold ids that are not in the vocabulary."""
    config, scores = BiMarkConfig("key", MESSAGE), random_scores(np.random.default_rng(0), 1, 200)
    text = [500, 2**40]
    probs = BiMarkLogitsProcessor(config, 200)(torch.tensor([text]), scores).softmax(-1)
    expected = literal(config, 200).step(text, scores[0].double().softmax(-1).numpy())
    np.testing.assert_allclose(probs[0].numpy(), expected, atol=1e-6)
    assert (BiMarkLogitsProcessor(config, 200)(torch.tensor([[-200, -1]]), scores) != scores).any()


@pytest.mark.parametrize(("candidates", "width"), [(1, 1), (10, 10), (25, 25), (26, 200), (None, 200)])
def test_few_candidates_are_gathered(monkeypatch, candidates, width):
    """Up to an eighth of the vocabulary, the layers work on (B, k)."""
    seen, layers = [], processor.reweight_layers

    def watched(probs, members, directions, base_scale):
        seen.append((*probs.shape, members.shape[-1]))
        return layers(probs, members, directions, base_scale)

    monkeypatch.setattr(processor, "reweight_layers", watched)
    scores = random_scores(np.random.default_rng(0), 3, 200, candidates)
    BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200)(torch.tensor([[1, 2], [3, 4], [5, 6]]), scores)
    assert seen == [(3, width, width)]


def test_most_layers_and_bits():
    """All 448 mask bits of a digest, and the longest message."""
    message = "".join(map(str, np.random.default_rng(0).integers(0, 2, 1024)))
    config = BiMarkConfig("key", message, n_layers=448)
    scores = random_scores(np.random.default_rng(1), 3, 64).double()
    texts = np.random.default_rng(2).integers(0, 64, (3, 5))
    probs = BiMarkLogitsProcessor(config, 64)(torch.from_numpy(texts), scores).softmax(-1)
    for row, text, p in zip(probs, texts, scores.softmax(-1), strict=True):
        np.testing.assert_allclose(row.numpy(), literal(config, 64).step(text.tolist(), p.numpy()), atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("candidates", [None, 10])
def test_dtypes(dtype, candidates):
    scores = random_scores(np.random.default_rng(0), 3, 200, candidates).to(dtype)
    ids = torch.tensor([[1, 2], [3, 4], [5, 6]])
    out = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200)(ids, scores)
    assert out.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    exact = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200)(ids, scores.double())
    torch.testing.assert_close(out.softmax(-1).double(), exact.softmax(-1), atol=1e-5, rtol=1e-3)
    assert ((out == -torch.inf) >= (scores == -torch.inf)).all()


def test_the_scores_are_not_changed():
    scores = random_scores(np.random.default_rng(0), 1, 200, 10)
    kept = scores.clone()
    BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200)(torch.tensor([[1, 2]]), scores)
    assert (scores == kept).all()


@pytest.mark.parametrize(("made_for", "given"), [(50265, 50272), (32001, 32000)])
def test_width_of_the_logits(made_for, given):
    processor = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE, n_layers=1), made_for, "cpu")
    with pytest.raises(ValueError, match=rf"\(1, {given}\).*vocab_size {made_for}"):
        processor(torch.tensor([[1, 2]]), torch.zeros(1, given))
    processor(torch.tensor([[1, 2]]), torch.zeros(1, made_for))


@pytest.mark.parametrize("candidates", [None, 5])
@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize(
    ("spoil", "match"),
    [(torch.nan, "NaN or"), (torch.inf, "NaN or"), (-torch.inf, "no finite logit")],
    ids=["nan", "inf", "nothing"],
)
def test_spoilt_scores(candidates, length, spoil, match):
    scores = random_scores(np.random.default_rng(0), 3, 200, candidates)
    scores[1, slice(None) if spoil == -torch.inf else 3] = spoil
    processor = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200)
    with pytest.raises(ValueError, match=rf"scores\[1\] has {match}"):
        processor(torch.ones((3, length), dtype=torch.int64), scores)


def test_other_bad_arguments():
    config = BiMarkConfig("key", MESSAGE)
    with pytest.raises(ValueError, match="vocab_size must be at least 2, got 1"):
        BiMarkLogitsProcessor(config, 1)
    with pytest.raises(ValueError, match="no message"):
        BiMarkLogitsProcessor(config.public(), 10)
    with pytest.raises(Exception, match="config must be a BiMarkConfig, got dict"):
        BiMarkLogitsProcessor(config.to_dict(include_key=True), 10)
    for ids, scores, name in (([[1, 2]], torch.zeros(1, 200), "input_ids"), (torch.ones(1, 2), [[0.0]], "scores")):
        with pytest.raises(Exception, match=rf"{name} must be a tensor, got list|Type-check"):
            BiMarkLogitsProcessor(config, 200)(ids, scores)
    with pytest.raises(Exception, match=r"expected \(2, length\)|input_ids|scores"):
        BiMarkLogitsProcessor(config, 200)(torch.ones((3, 2), dtype=torch.int64), torch.zeros(2, 200))
    empty = BiMarkLogitsProcessor(config, 200)(torch.ones((0, 2), dtype=torch.int64), torch.zeros(0, 200))
    assert empty.shape == (0, 200)


def test_greedy_decoding_warns_and_sampling_does_not(table_lm):
    def write(choose):
        processor, ids = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200), torch.tensor([[1, 2]])
        for _ in range(120):
            ids = torch.cat([ids, choose(processor(ids, table_lm.logits(ids)))], 1)

    with pytest.warns(UserWarning, match="greedy decoding of a watermark is biased"):
        write(lambda scores: scores.argmax(-1, keepdim=True))
    generator = torch.Generator().manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(lambda scores: torch.multinomial(scores.softmax(-1), 1, generator=generator))


def test_a_new_text_after_the_same_prompt_is_watched_anew(table_lm):
    """Sampled once, then decoded greedily: only the second text is warned of."""
    marked, prompt = BiMarkLogitsProcessor(BiMarkConfig("key", MESSAGE), 200), torch.tensor([[1, 2]])

    def write(choose):
        ids = prompt
        for _ in range(120):
            ids = torch.cat([ids, choose(marked(ids, table_lm.logits(ids)))], 1)

    write(lambda scores: scores.argsort(-1)[:, -2:-1])
    with pytest.warns(UserWarning, match="greedy"):
        write(lambda scores: scores.argmax(-1, keepdim=True))
