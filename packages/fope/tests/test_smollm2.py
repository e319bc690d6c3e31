"""A real pretrained model (SmolLM2-135M, 4 bits): RoPE -> FoPE."""

import copy

import pytest
import torch

from icml25.fope import FopeConfig, ablation, convert_model, load_fope, perplexity_by_length

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TEXT = (
    "The Pythagorean theorem states that in a right triangle the square of the length of the hypotenuse equals the sum of "
    "the squares of the lengths of the other two sides. It is one of the oldest theorems of geometry."
)


@pytest.fixture(scope="module")
def smollm2():
    datasets = pytest.importorskip("icml25.shared.datasets")
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    try:
        file = datasets.smollm2()
    except datasets.DataError as error:
        pytest.skip(str(error))
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    stored = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    model = LlamaForCausalLM(copy.deepcopy(stored.config))
    model.load_state_dict(stored.state_dict())
    return model.eval(), tokenizer


def test_rope_to_fope(smollm2, tmp_path):
    original, tokenizer = smollm2
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    theta = original.config.rope_parameters["rope_theta"]
    with torch.no_grad():
        before = original(ids).logits
        same = convert_model(copy.deepcopy(original), ablation("rope", 2048, theta=theta))
        torch.testing.assert_close(same(ids).logits, before, atol=2e-3, rtol=1e-4)

    model = convert_model(copy.deepcopy(original), FopeConfig(2048, theta=theta, main_frequency="spread", zero_sin=0.0))
    first = perplexity_by_length(model, ids[0], [ids.shape[1]])[ids.shape[1]]
    assert perplexity_by_length(original, ids[0], [ids.shape[1]])[ids.shape[1]] < first
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    assert perplexity_by_length(model, ids[0], [ids.shape[1]])[ids.shape[1]] < 0.8 * first
    out = model.generate(ids[:, :12], max_new_tokens=5, do_sample=False)
    assert out.shape == (1, 17)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    loaded = load_fope(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(ids[:, :12]).logits, model(ids[:, :12]).logits)
