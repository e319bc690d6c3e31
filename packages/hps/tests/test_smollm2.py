"""A real model on real lists: SmolLM2 with LoRA, answers to GSM8K questions scored right or wrong."""

import gzip
import json
import os
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.slow, pytest.mark.realdata]
for name in ("trl", "gguf", "accelerate", "icml25.shared"):
    pytest.importorskip(name, reason=f"needs {name}")

DATA = Path(os.environ.get("ICML25_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(scope="module")
def smollm2():
    from icml25.shared.datasets import DataError
    from icml25.shared.tracks.watermarking.language_models import load_smollm2

    try:
        return load_smollm2("float32")
    except DataError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def lists():
    """The shortest questions with right and wrong answers."""
    from datasets import Dataset

    file = DATA / "gsm8k" / "model_solutions.jsonl.gz"
    if not file.is_file():
        pytest.skip(f"{file} is not there")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    answers = [[a for name, a in row.items() if name not in ("question", "ground_truth")] for row in rows]
    mixed = [(row, a) for row, a in zip(rows, answers, strict=True) if 0 < sum(x["is_correct"] for x in a) < 4]
    mixed.sort(key=lambda pair: len(pair[0]["question"]) + max(len(x["solution"]) for x in pair[1]))
    return Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": row["question"]}] for row, _ in mixed[:8]],
            "responses": [[x["solution"] for x in a] for _, a in mixed[:8]],
            "scores": [[float(x["is_correct"]) for x in a] for _, a in mixed[:8]],
        }
    )


def test_twenty_steps_of_lora(smollm2, lists, tmp_path):
    from peft import LoraConfig

    from icml25.hps import HPSConfig, HPSTrainer

    model, tokenizer = smollm2
    args = HPSConfig(
        str(tmp_path),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=1,
        gradient_checkpointing=False,
        max_steps=20,
        learning_rate=1e-3,
        beta=0.1,
        max_length=256,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    base = model.model.layers[3].mlp.up_proj.weight.detach().clone()
    trainer = HPSTrainer(model, args=args, train_dataset=lists, processing_class=tokenizer, peft_config=lora)
    row = trainer.train_dataset[0]
    ids = torch.tensor([row["prompt_ids"] + row["response_ids"][0]])
    assert "<|im_start|>assistant" in tokenizer.decode(row["prompt_ids"])
    with torch.no_grad():
        before = trainer.model(input_ids=ids).logits[0, -1]
    trainer.train()
    history = [log for log in trainer.state.log_history if "rewards/margins" in log]
    margins = [float(log["rewards/margins"]) for log in history]
    assert len(margins) == 20 and margins[0] == pytest.approx(0, abs=1e-4)
    assert sum(margins[-5:]) / 5 > 0.2
    losses = [float(log["loss"]) for log in history]
    assert sum(losses[-5:]) < sum(losses[:5])
    assert torch.equal(model.model.layers[3].mlp.up_proj.weight, base)
    with torch.no_grad(), trainer.model.disable_adapter():
        torch.testing.assert_close(trainer.model(input_ids=ids).logits[0, -1], before, atol=1e-3, rtol=1e-3)
