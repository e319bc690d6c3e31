"""The 135M language model of PyPI: samples of a real policy, rewards by a length rule and by VADER's lexicon."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from icml25.infalign import (
    BestOf,
    Calibrator,
    Standard,
    WorstOf,
    exponential,
    identity,
    inference_win_rate,
    tilt_weights,
    win_rate,
)

pytestmark = [pytest.mark.slow, pytest.mark.realdata, pytest.mark.filterwarnings("ignore")]
PROMPTS, SAMPLES, TOKENS = 12, 32, 16


@pytest.fixture(scope="module")
def samples():
    """PROMPTS x SAMPLES continuations."""
    datasets = pytest.importorskip("icml25.shared.datasets")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    file = Path(os.environ.get("ICML25_DATA", "")) / "prompts" / "vicuna_bench_questions.jsonl.gz"
    if not file.is_file():
        pytest.skip("ICML25_DATA has no prompts")
    try:
        model_file = datasets.smollm2()
    except datasets.DataError as error:
        pytest.skip(str(error))
    source = {"pretrained_model_name_or_path": model_file.parent, "gguf_file": model_file.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    transformers.set_seed(0)
    with gzip.open(file, "rt") as stream:
        prompts = [json.loads(line)["turns"][0] for line in stream][:PROMPTS]
    texts = []
    for prompt in prompts:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(**ids, do_sample=True, max_new_tokens=TOKENS, num_return_sequences=SAMPLES)
        texts.append(tokenizer.batch_decode(out[:, ids["input_ids"].shape[1] :], skip_special_tokens=True))
    return prompts, texts


def letters(text):
    return float(len(text))


def sentiment(text):
    vader = pytest.importorskip("vaderSentiment.vaderSentiment")
    return vader.SentimentIntensityAnalyzer().polarity_scores(text)["compound"]


@pytest.mark.parametrize("rule", [letters, sentiment])
def test_alignment_without_training(samples, rule):
    prompts, texts = samples
    reward = np.array([[rule(text) for text in row] for row in texts])
    table = Calibrator.fit(prompts, reward)
    C = table.calibrate([p for p in prompts for _ in range(SAMPLES)], reward.ravel()).reshape(reward.shape)
    np.testing.assert_allclose(C.mean(1), 0.5, atol=1e-14)
    ties = SAMPLES - np.array([len(np.unique(row)) for row in reward])
    assert ties.mean() > (5 if rule is sentiment else 0)
    base = np.full_like(reward, 1 / SAMPLES)
    rates = {}
    for transform in (identity(), exponential(10), exponential(-10)):
        low, high = 1e-3, 1e3
        for _ in range(60):  # KL 0.3 in the mean
            beta = np.sqrt(low * high)
            weights = tilt_weights(C, transform, beta)
            low, high = (
                (low, beta) if (weights * np.log(SAMPLES * weights + 1e-300)).sum(1).mean() < 0.3 else (beta, high)
            )
        for procedure in (Standard(), BestOf(4), WorstOf(4)):
            served = (procedure.apply(w, reward) for w in (weights, base))
            rates[transform.name, type(procedure).__name__] = win_rate(*served, reward).mean()
    assert rates["exp(10u)", "BestOf"] > rates["u", "BestOf"] > rates["-exp(-10u)", "BestOf"] > 0.5
    assert rates["-exp(-10u)", "WorstOf"] > rates["u", "WorstOf"] > rates["exp(10u)", "WorstOf"] > 0.5
    assert rates["u", "Standard"] > max(rates["exp(10u)", "Standard"], rates["-exp(-10u)", "Standard"])
    half = inference_win_rate(reward[:, ::2], reward[:, 1::2], BestOf(4))  # two samples of one policy
    assert half.low < 0.5 < half.high
