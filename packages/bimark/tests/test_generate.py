"""Through transformers' own generate: what was written is read, with sampling, beams, padding and caches."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from icml25.bimark import BiMarkConfig, BiMarkDetector, BiMarkLogitsProcessor

PROMPT = torch.tensor([[1, 5, 7]])


def write(model, config, prompts=PROMPT, tokens=60, seed=0, **settings):
    torch.manual_seed(seed)
    settings = {"do_sample": True, "top_k": 50, "pad_token_id": 0} | settings
    settings.setdefault("attention_mask", torch.ones_like(prompts))
    out = model.generate(prompts, max_new_tokens=tokens, watermarking_config=config, **settings)
    return out[:, prompts.shape[1] :]


def test_written_message_is_read(llama):
    config = BiMarkConfig("key", "1011001110001111")
    text = write(llama, config, tokens=200)
    result = BiMarkDetector(config.public(), 300).detect(text[0])
    assert result.message == "1011001110001111" and result and result.p_value < 1e-20
    assert BiMarkDetector(config, 300).detect(text[0], "1011001110001111").match


@settings(max_examples=20)
@given(message=st.integers(0, 255))
def test_all_messages(table_lm, message):
    config = BiMarkConfig("key", message, message_bits=8)
    text = table_lm.sample(BiMarkLogitsProcessor(config, 200), torch.tensor([[1, message % 200]]), 400, seed=message)
    assert BiMarkDetector(config, 200).detect(text[0]).message == config.message


@pytest.mark.parametrize("base_scale", [0.5, 1.0])
@pytest.mark.parametrize("message", ["1", "0"])
def test_one_bit(table_lm, message, base_scale):
    config = BiMarkConfig("key", message, base_scale=base_scale)
    texts = table_lm.sample(BiMarkLogitsProcessor(config, 200), torch.tensor([[1, 2]] * 20), 50)
    results = BiMarkDetector(config, 200).detect_batch(texts)
    assert all(result and result.message == message for result in results)


def test_another_key_reads_nothing(table_lm):
    config = BiMarkConfig("key", "10110011")
    texts = table_lm.sample(BiMarkLogitsProcessor(config, 200), torch.tensor([[1, 2]] * 400), 100)
    other = BiMarkDetector(BiMarkConfig("other", "10110011"), 200)
    results = other.detect_batch(texts, expected_message="10110011")
    # texts share a key and so their luck: two standard errors of one position's votes
    assert abs(np.mean([result.bit_accuracy for result in results]) - 0.5) < 0.05
    assert np.mean([result.p_value <= 0.05 for result in other.detect_batch(texts)]) < 0.12


def test_messages_cannot_be_told_apart_without_the_key():
    """Next-token counts over keys, for two messages: a chi-square test of homogeneity."""
    logits = torch.tensor([[1.0, 0.5, 0.0, -0.5, -1.0, -3.0]])
    generator = torch.Generator().manual_seed(0)
    counts = np.zeros((2, 6))
    contexts = torch.stack([torch.arange(500), torch.arange(500) % 7], 1)
    for key in range(40):
        for row, message in enumerate(("0000", "1111")):
            processor = BiMarkLogitsProcessor(BiMarkConfig(str(key), message), 6)
            probs = processor(contexts, logits.expand(500, -1)).softmax(-1)
            tokens = torch.multinomial(probs, 1, generator=generator)
            counts[row] += np.bincount(tokens.ravel().numpy(), minlength=6)
    assert stats.chi2_contingency(counts).pvalue > 1e-3
    expected = logits.double().softmax(-1).numpy()[0] * 40_000
    assert stats.chisquare(counts.sum(0), expected).pvalue > 1e-3


def test_same_seed_same_text(llama):
    config = BiMarkConfig("key", "1011")
    assert (write(llama, config, seed=3) == write(llama, config, seed=3)).all()
    assert (write(llama, config, seed=3) != write(llama, config, seed=4)).any()
    assert (write(llama, config, seed=3) != write(llama, BiMarkConfig("other", "1011"), seed=3)).any()


def test_beams_and_several_sequences(llama):
    config = BiMarkConfig("key", "1011")
    texts = write(llama, config, tokens=120, num_beams=2)
    assert BiMarkDetector(config, 300).detect(texts[0]).p_value < 1e-6
    texts = write(llama, config, tokens=120, num_beams=3, num_return_sequences=3)
    assert texts.shape == (3, 120)
    assert all(result for result in BiMarkDetector(config, 300).detect_batch(texts))
    texts = write(llama, config, tokens=120, num_return_sequences=3)
    assert [result.message for result in BiMarkDetector(config, 300).detect_batch(texts)] == ["1011"] * 3


def test_left_padded_batch_with_static_cache(llama):
    config = BiMarkConfig("key", "1011")
    prompts = torch.tensor([[0, 0, 0, 9, 8], [1, 2, 3, 4, 5]])
    mask = (prompts != 0).long()
    texts = write(llama, config, prompts, 120, attention_mask=mask, cache_implementation="static", disable_compile=True)
    assert [result.message for result in BiMarkDetector(config, 300).detect_batch(texts)] == ["1011"] * 2


def test_a_row_of_a_batch_is_the_row_alone(llama):
    """With a sampler that is fixed by the row's own tokens: the token at a hashed quantile."""
    config = BiMarkConfig("key", "1011", pad_token_id=0)

    def sample(prompts, tokens=25):
        processor, ids = config.construct_processor(300, "cpu"), prompts
        for _ in range(tokens):
            mask = (ids != 0).long()
            positions = (mask.cumsum(1) - 1).clamp_min(0)
            with torch.no_grad():
                logits = llama(ids, attention_mask=mask, position_ids=positions).logits[:, -1]
            probs = processor(ids, logits).softmax(-1)
            quantile = (ids[:, -1] * 97 + ids[:, -2] * 31) % 101 / 101
            ids = torch.cat([ids, (probs.cumsum(-1) < quantile[:, None]).sum(-1, keepdim=True).clamp(1, 299)], 1)
        return ids[:, prompts.shape[1] :]

    batch = sample(torch.tensor([[0, 0, 6, 7], [1, 2, 3, 4]]))
    assert (batch[:1] == sample(torch.tensor([[6, 7]]))).all()
    assert (batch[1:] == sample(torch.tensor([[1, 2, 3, 4]]))).all()


def test_greedy_decoding_warns_but_runs(llama):
    with pytest.warns(UserWarning, match="greedy"):
        text = write(llama, BiMarkConfig("key", "1011"), tokens=60, do_sample=False, top_k=None)
    assert text.shape == (1, 60)


def test_only_candidates_of_the_warpers_are_written(llama):
    """Temperature, top-k and top-p come first: with one candidate left the watermark has nothing to do."""
    config = BiMarkConfig("key", "1011")
    plain = write(llama, None, do_sample=False, top_k=None)
    assert (write(llama, config, top_k=1) == plain).all()


def test_assisted_generation_keeps_the_message(llama):
    config = BiMarkConfig("key", "1011")
    text = write(llama, config, tokens=120, prompt_lookup_num_tokens=3)
    assert BiMarkDetector(config, 300).detect(text[0]).message == "1011"


def test_a_gpu_gives_the_same():
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    config = BiMarkConfig("key", "1011")
    scores = torch.randn(4, 200, generator=torch.Generator().manual_seed(0))
    scores[scores < scores.topk(20).values[:, -1:]] = -torch.inf
    ids = torch.arange(40).view(4, 10)
    here = BiMarkLogitsProcessor(config, 200)(ids, scores)
    there = BiMarkLogitsProcessor(config, 200, "cuda")(ids.cuda(), scores.cuda())
    torch.testing.assert_close(there.cpu(), here, atol=1e-5, rtol=1e-5)
