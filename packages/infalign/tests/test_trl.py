"""CTRLReward in TRL's trainers: a tiny random Llama, a few steps."""

import math

import numpy as np
import pytest

from icml25.infalign import Calibrator, CTRLReward, exponential, reward_model_fn

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
WORDS = ["<pad>", "<bos>", "<eos>", "good", "bad", "so", "it", "is", "say", "?"]
TEMPLATE = "{% for m in messages %}{{ m['content'] + ' ' }}{% endfor %}"
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", chat_template=TEMPLATE
    )


def text_of(completion):
    return completion if isinstance(completion, str) else completion[0]["content"]


def goodness(prompts, completions, **columns):
    return [float(text_of(completion).split().count("good")) for completion in completions]


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
@pytest.mark.parametrize("algorithm", ["RLOO", "GRPO"])
def test_training(tmp_path, tokenizer, algorithm, chat):
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    prompts = ["say it", "say so"]
    if chat:
        prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
    table = Calibrator.fit(prompts, np.random.default_rng(0).binomial(4, 0.1, (2, 50)).astype(float))
    calls = []

    class Spy(CTRLReward):
        def __call__(self, prompts, completions, **columns):
            found = super().__call__(prompts, completions, **columns)
            calls.append((goodness(prompts, completions), [columns["mark"], prompts], found))
            return found

    transformers.set_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    model.save_pretrained(tmp_path / "model")  # the reference policy is loaded from there
    settings = {"scale_rewards": "none"} if algorithm == "GRPO" else {}
    args = getattr(trl, f"{algorithm}Config")(
        output_dir=str(tmp_path),
        beta=0.05,
        max_completion_length=4,
        num_generations=4,
        per_device_train_batch_size=8,
        max_steps=3,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        seed=0,
        **settings,
    )
    trainer = getattr(trl, f"{algorithm}Trainer")(
        model=str(tmp_path / "model"),
        reward_funcs=Spy(goodness, table, exponential(10)),
        args=args,
        train_dataset=Dataset.from_dict({"prompt": prompts * 8, "mark": list(range(16))}),
        processing_class=tokenizer,
    )
    trainer.train()
    assert len(calls) >= 3 and (trainer.model.lm_head.weight.float() != model.lm_head.weight).any()
    for raw, (marks, asked), found in calls:
        assert len(set(marks)) == 2 and found == exponential(10)(table.calibrate(asked, raw)).tolist()
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    for entry, (_, _, found) in zip(logged, calls, strict=False):
        assert entry["reward"] == pytest.approx(np.mean(found), abs=1e-5)
        assert entry["rewards/ctrl_goodness/mean"] == pytest.approx(np.mean(found), abs=1e-5)
        assert math.isfinite(entry["loss"])


def test_reward_model(tokenizer):
    transformers.set_seed(0)
    model = transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**SIZES, num_labels=1)).train()
    one, many = (reward_model_fn(model, tokenizer, batch_size=size) for size in (1, 3))
    prompts, completions = ["say it ", "say so ", "it ", "is ", "so "], ["good", "bad bad", "so", "is good", "it is so"]
    found = many(prompts=prompts, completions=completions, answer=None)
    np.testing.assert_allclose(found, one(prompts, completions), atol=1e-6)
    assert len(set(found)) == 5 and all(type(x) is float for x in found) and model.training
    with torch.no_grad():
        expected = model.eval()(**tokenizer("say so bad bad", return_tensors="pt")).logits.item()
    assert found[1] == pytest.approx(expected, abs=1e-6)
    chat = [[{"role": "user", "content": p.strip()}] for p in prompts]
    answers = [[{"role": "assistant", "content": c}] for c in completions]
    np.testing.assert_allclose(many(chat, answers), found, atol=1e-6)
    assert many.__name__ == "LlamaForSequenceClassification_reward"


def test_bad_reward_models(tokenizer):
    transformers.set_seed(0)
    two = transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**SIZES, num_labels=2))
    with pytest.raises(ValueError, match="has 2 outputs"):
        reward_model_fn(two, tokenizer)(["it "], ["is"])
    with pytest.raises(ValueError, match="65 tokens; the model reads 64"):
        reward_model_fn(two, tokenizer)(["it "], ["is " * 64])
    with pytest.raises(ValueError, match="batch_size must be an integer >= 1"):
        reward_model_fn(two, tokenizer, 0)
