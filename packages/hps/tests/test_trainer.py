"""The trainer against TRL's own, against losses computed from logits, and against itself after a stop."""

import math

import pytest
import torch

pytest.importorskip("trl")

import datasets
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference

from icml25.hps import DataCollatorForResponses, HPSConfig, HPSTrainer, hps_loss, to_preference_pairs

QUIET = {
    "use_cpu": True,
    "bf16": False,
    "per_device_train_batch_size": 4,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
    "learning_rate": 1e-2,
    "num_train_epochs": 1,
}


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.fixture
def trainer(tmp_path, make_llama, tokenizer, copy_task):
    def make(
        rows=None,
        eval_rows=None,
        model=None,
        ref_seed=1,
        ref_model=True,
        cls=HPSTrainer,
        config=HPSConfig,
        peft=None,
        **changes,
    ):
        return cls(
            make_llama() if model is None else model,
            make_llama(ref_seed) if ref_model else None,
            config(str(tmp_path / "out"), **{**QUIET, **changes}),
            train_dataset=copy_task(12) if rows is None else rows,
            eval_dataset=eval_rows,
            processing_class=tokenizer,
            peft_config=peft,
        )

    return make


def batches_of(trainer, step=0, count=1):
    """What the trainer would train on at that step."""
    trainer.state.global_step, trainer.state.max_steps = step, 10
    trainer._train_batch_size = trainer.args.per_device_train_batch_size
    return trainer.get_batch_samples(iter(trainer.get_train_dataloader()), count, torch.device("cpu"))[0]


def logps(model, batch):
    """Sums of log-probabilities of the answers, from the logits."""
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    each = logits[:, :-1].log_softmax(-1).gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
    return (each * batch["completion_mask"][:, 1:]).sum(1).chunk(2)


def rewards_of(trainer, batch):
    trainer.model.eval()
    mine, reference = logps(trainer.model, batch), logps(trainer.ref_model, batch)
    return [trainer.beta * (m - r) for m, r in zip(mine, reference, strict=True)]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("log_n", [True, False])
@pytest.mark.parametrize("precomputed", [False, True])
def test_loss_is_the_direct_one(trainer, smoothing, log_n, precomputed):
    t = trainer(log_num_negatives=log_n, label_smoothing=smoothing, precompute_ref_log_probs=precomputed, beta=0.5)
    [batch] = batches_of(t)
    chosen, rejected = rewards_of(t, batch)
    counts = batch["num_negatives"]
    assert len(set(counts.tolist())) > 1
    wanted = hps_loss(chosen, rejected, counts if log_n else 1, smoothing)
    t.model.train()
    torch.testing.assert_close(t.compute_loss(t.model, dict(batch)), wanted, atol=1e-5, rtol=1e-5)
    logged = {name: values[-1] for name, values in t._metrics["train"].items()}
    assert logged["rewards/chosen"] == pytest.approx(chosen.mean().item(), abs=1e-5)
    assert logged["rewards/rejected"] == pytest.approx(rejected.mean().item(), abs=1e-5)
    assert logged["rewards/margins"] == pytest.approx((chosen - rejected).mean().item(), abs=1e-5)
    assert logged["rewards/accuracies"] == pytest.approx((chosen > rejected).float().mean().item())
    assert logged["hps/negative_rank"] == pytest.approx(batch["negative_rank"].float().mean().item())
    hard = batch["is_runner_up"]
    if hard.any():
        assert logged["rewards/margin_hard"] == pytest.approx((chosen - rejected)[hard].mean().item(), abs=1e-5)
    else:
        assert "rewards/margin_hard" not in logged


def test_gradient_is_that_of_the_direct_loss(trainer):
    t = trainer(beta=0.5)
    [batch] = batches_of(t)
    t.model.train()
    t.compute_loss(t.model, dict(batch)).backward()
    found = {name: p.grad.clone() for name, p in t.model.named_parameters() if p.grad is not None}
    t.model.zero_grad()
    logits = t.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    each = logits[:, :-1].log_softmax(-1).gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
    mine = (each * batch["completion_mask"][:, 1:]).sum(1).chunk(2)
    chosen, rejected = (t.beta * (m - r) for m, r in zip(mine, logps(t.ref_model, batch), strict=True))
    hps_loss(chosen, rejected, batch["num_negatives"]).backward()
    assert found
    for name, p in t.model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(found[name], p.grad, atol=1e-5, rtol=1e-4)


def test_the_pair_is_trls(trainer, tokenizer, copy_task):
    """The same tokens and masks as TRL's own preparation of the drawn pairs."""
    rows = copy_task(8)
    t = trainer(rows, gamma=50.0, gamma_schedule="constant", pad_to_multiple_of=8)
    examples = [t.train_dataset[i] for i in range(8)]
    inputs = t.data_collator(examples)
    below = inputs["scores"].masked_fill(inputs["lengths"] == 0, -math.inf)
    below = below.masked_fill(below == below.amax(1, keepdim=True), -math.inf)
    ours = t._pair(inputs, below.argmax(1))
    pairs = to_preference_pairs(rows, gamma=500.0, resamples=1)
    theirs = trainer(pairs.select_columns(["prompt", "chosen", "rejected"]), cls=DPOTrainer, config=DPOConfig)
    collate = DataCollatorForPreference(tokenizer.pad_token_id, 1024, pad_to_multiple_of=8)
    wanted = collate([theirs.train_dataset[i] for i in range(8)])
    for name, values in wanted.items():
        assert torch.equal(ours[name], values), name
    assert ours["num_negatives"].tolist() == pairs["num_negatives"][:]


@pytest.mark.parametrize("log_n", [True, False])
def test_two_responses_are_trls_dpo(trainer, copy_task, log_n):
    """Three steps of both, shuffled alike: losses to 1e-6, and the same weights."""
    rows = copy_task(12, sizes=(2,))
    ours = trainer(rows, log_num_negatives=log_n, gamma=-3.0)
    ours.train()
    pairs = to_preference_pairs(rows, gamma=1.0, resamples=1).select_columns(["prompt", "chosen", "rejected"])
    theirs = trainer(pairs, cls=DPOTrainer, config=DPOConfig)
    theirs.train()
    shared = ("loss", "rewards/chosen", "rewards/margins", "rewards/accuracies", "logps/rejected", "num_tokens")
    for mine, other in zip(ours.state.log_history[:3], theirs.state.log_history[:3], strict=True):
        for name in shared:
            assert float(mine[name]) == pytest.approx(float(other[name]), rel=1e-6, abs=1e-6), name
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("loss_type", "extra"),
    [
        ("ipo", {}),
        ("exo_pair", {"label_smoothing": 1e-3}),
        ("sppo_hard", {}),
        ("nca_pair", {}),
        ("hinge", {}),
        ("sigmoid_norm", {}),
    ],
)
def test_other_losses_take_the_hard_negative_and_no_log_n(trainer, copy_task, loss_type, extra):
    t = trainer(loss_type=loss_type, **extra)
    assert t.args.log_num_negatives is False
    [batch] = batches_of(t)
    t.model.train()
    found = t.compute_loss(t.model, dict(batch))
    dpo = trainer(
        to_preference_pairs(copy_task(4), gamma=1.0).select_columns(["prompt", "chosen", "rejected"]),
        cls=DPOTrainer,
        config=DPOConfig,
        loss_type=loss_type,
        **extra,
    )
    dpo.model.train()
    pair = {name: batch[name] for name in ("input_ids", "attention_mask", "completion_mask")}
    torch.testing.assert_close(found, dpo.compute_loss(dpo.model, pair))


def test_gamma_and_negatives_follow_the_steps(trainer, copy_task, monkeypatch):
    drawn = []
    original = HPSTrainer._pair

    def spy(self, batch, negative):
        drawn.append((batch["prompt_lengths"].tolist(), batch["scores"].tolist(), negative.tolist()))
        return original(self, batch, negative)

    monkeypatch.setattr(HPSTrainer, "_pair", spy)
    rows = copy_task(16, sizes=(5,))
    t = trainer(
        rows,
        num_train_epochs=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        gamma=-2.0,
        gamma_final=2.0,
    )
    t.train()
    history = [log for log in t.state.log_history if "hps/gamma" in log]
    assert [float(log["hps/gamma"]) for log in history] == [-2, -1, 0, 1]
    assert len(drawn) == 16  # 4 steps of 4 batches
    by_epoch = [{}, {}]
    for place, (_, scores, negatives) in enumerate(drawn):
        for row, negative in zip(scores, negatives, strict=True):
            by_epoch[place // 8].setdefault(tuple(row), []).append(row[negative])
    assert by_epoch[0].keys() == by_epoch[1].keys() and by_epoch[0] != by_epoch[1]
    easy, hard = ([score for values in epoch.values() for score in values] for epoch in by_epoch)
    assert sum(easy) / len(easy) < sum(hard) / len(hard)  # scores of the negatives
    drawn.clear()
    trainer(
        rows,
        num_train_epochs=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        gamma=-2.0,
        gamma_final=2.0,
    ).train()
    again = [{}, {}]
    for place, (_, scores, negatives) in enumerate(drawn):
        for row, negative in zip(scores, negatives, strict=True):
            again[place // 8].setdefault(tuple(row), []).append(row[negative])
    assert again == by_epoch


def test_each_step_draws_anew(trainer, copy_task):
    t = trainer(copy_task(24, sizes=(5,)), gamma_schedule="constant", gamma=0.0, per_device_train_batch_size=24)

    def drawn(step):
        [batch] = batches_of(t, step)
        return {tuple(pair) for pair in torch.cat(batch["input_ids"].chunk(2), 1).tolist()}

    assert drawn(0) == drawn(0) != drawn(1)


def test_resuming_goes_on_as_if_never_stopped(trainer, copy_task, tmp_path):
    settings = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3, "gamma_schedule": "stages"}
    whole = trainer(copy_task(12), **settings)
    whole.train()
    rest = trainer(copy_task(12), **settings)
    rest.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    for a, b in zip(whole.model.parameters(), rest.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    gammas = [float(log["hps/gamma"]) for log in rest.state.log_history if "hps/gamma" in log]
    assert gammas == pytest.approx([-5, -5, -3, -1, 1, 3])


def test_reference_log_probabilities_of_every_response(trainer, copy_task):
    t = trainer(copy_task(5), precompute_ref_log_probs=True, precompute_ref_batch_size=2)
    for row in t.train_dataset:
        assert len(row["ref_logps"]) == len(row["response_ids"])
        for ids, found in zip(row["response_ids"], row["ref_logps"], strict=True):
            tokens = torch.tensor([row["prompt_ids"] + ids])
            with torch.no_grad():
                each = t.ref_model(input_ids=tokens).logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])
            assert found == pytest.approx(each[0, len(row["prompt_ids"]) - 1 :].sum().item(), abs=1e-4)
    t.train()
    assert isinstance(t.data_collator, DataCollatorForResponses)


def test_training_prefers_the_better_answer(trainer, copy_task):
    t = trainer(
        copy_task(16),
        copy_task(16, seed=1),
        num_train_epochs=5,
        ref_seed=0,
        beta=0.5,
        gamma_schedule="constant",
        gamma=2.0,
    )
    before = t.evaluate()
    assert before["eval_rewards/margin_hard"] == pytest.approx(0, abs=1e-5)
    assert before["eval_hps/negative_rank"] == 2
    t.train()
    after = t.evaluate()
    assert after["eval_rewards/margin_hard"] == after["eval_rewards/margins"]
    assert float(t.state.log_history[-3]["rewards/margins"]) > 1
    again = t.evaluate()
    assert all(again[name] == after[name] for name in ("eval_loss", "eval_rewards/margins"))  # nothing is drawn


def test_lora_trains_the_adapter_alone(trainer, copy_task, make_llama):
    t = trainer(
        copy_task(12), ref_model=False, peft=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    base = {name: p.detach().clone() for name, p in t.model.named_parameters() if "lora" not in name}
    t.train()
    first, *_, last = (log for log in t.state.log_history if "rewards/margins" in log)
    assert float(first["rewards/margins"]) == pytest.approx(0, abs=1e-6) != float(last["rewards/margins"])
    for name, p in t.model.named_parameters():
        assert name not in base or torch.equal(p, base[name])


def test_bfloat16_agrees(trainer, make_llama, copy_task):
    full = trainer(copy_task(12))
    half = trainer(copy_task(12), model=make_llama(dtype=torch.bfloat16), bf16=True)
    [batch] = batches_of(full)
    losses = [t.compute_loss(t.model.train(), dict(batch)).item() for t in (full, half)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


def test_chat_prompts_take_the_template(trainer, copy_task):
    rows = copy_task(6)
    chats = rows.map(lambda row: {"chat": [{"role": "user", "content": row["prompt"]}]}).remove_columns("prompt")
    t = trainer(chats.rename_column("chat", "prompt"))
    row, tokenizer = t.train_dataset[0], t.processing_class
    assert tokenizer.decode(row["prompt_ids"]) == f"<user> {rows[0]['prompt']} <eos> <assistant>"
    assert tokenizer.decode(row["response_ids"][0]) == f"{rows[0]['responses'][0].strip()} <eos>"
    t.train()


def test_collator_cuts_at_the_end_and_pads():
    collate = DataCollatorForResponses(pad_token_id=0, max_length=5)
    batch = collate(
        [
            {
                "prompt_ids": [5, 6],
                "response_ids": [[7, 1], [8, 9, 9, 1]],
                "scores": [1.0, 0.0],
                "ref_logps": [-1.0, -2.0],
            },
            {
                "prompt_ids": [5],
                "response_ids": [[1], [7, 1], [8, 1]],
                "scores": [0, 1, 2],
                "ref_logps": [-3.0, -4.0, -5.0],
            },
        ]
    )
    assert batch["input_ids"].tolist() == [
        [[5, 6, 7, 1, 0], [5, 6, 8, 9, 9], [0, 0, 0, 0, 0]],
        [[5, 1, 0, 0, 0], [5, 7, 1, 0, 0], [5, 8, 1, 0, 0]],
    ]
    assert batch["lengths"].tolist() == [[4, 5, 0], [2, 3, 3]] and batch["prompt_lengths"].tolist() == [2, 1]
    assert batch["scores"].tolist() == [[1, 0, 0], [0, 1, 2]]
    assert batch["ref_logps"].tolist() == [[-1, -2, 0], [-3, -4, -5]]


def test_nothing_left_after_truncation(trainer, copy_task):
    rows = copy_task(4).to_dict()
    rows["prompt"][2] = " ".join(["w1"] * 60)
    with pytest.raises(ValueError, match=r"train data, row 2: the prompt has 60 tokens.*max_length=32"):
        trainer(datasets.Dataset.from_dict(rows), max_length=32)
    rows["scores"][0] = [1.0] * len(rows["scores"][0])  # a skipped row doesn't shift the number
    with pytest.warns(UserWarning, match="1 of 4 rows skipped"), pytest.raises(ValueError, match="row 2: the prompt"):
        trainer(datasets.Dataset.from_dict(rows), max_length=32)
    trainer(datasets.Dataset.from_dict({name: values[3:] for name, values in rows.items()}), max_length=5)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"beta": 0.0}, r"beta is 0\.0; expected a number above 0"),
        ({"beta": math.nan}, "beta is nan"),
        ({"label_smoothing": 0.5}, r"label_smoothing is 0\.5"),
        ({"label_smoothing": -0.1}, "label_smoothing is -0.1"),
        ({"gamma": math.inf}, "start and end are inf"),
        ({"gamma_schedule": "cosine"}, "kind is 'cosine'; expected one of"),
        ({"normalize": "max"}, "normalize is 'max'; expected one of"),
        ({"loss_type": "simpo"}, "loss_type has simpo; expected some of .*'sigmoid'"),
        ({"loss_type": "ipo", "log_num_negatives": True}, "log_num_negatives needs loss types of"),
        ({"f_divergence_type": "js_divergence", "log_num_negatives": True}, "'js_divergence'"),
        ({"precompute_ref_log_probs": True, "ld_alpha": 0.5}, "ld_alpha"),
    ],
    ids=str,
)
def test_bad_settings(tmp_path, changes, match):
    with pytest.raises(ValueError, match=match):
        HPSConfig(str(tmp_path), **{**QUIET, **changes})


@pytest.mark.filterwarnings("ignore:The `'keep_end'` truncation mode:FutureWarning")
def test_truncation_of_the_beginning_is_refused(tmp_path):
    with pytest.raises(ValueError, match="truncation_mode is 'keep_end'; expected 'keep_start'"):
        HPSConfig(str(tmp_path), **QUIET, truncation_mode="keep_end")


def test_log_n_is_for_the_sigmoid_loss(tmp_path):
    def used(**changes):
        return HPSConfig(str(tmp_path), **QUIET, **changes).log_num_negatives

    assert used() and used(loss_type=["sigmoid", "sft"]) and not used(log_num_negatives=False)
    assert not used(loss_type=["sigmoid", "ipo"]) and not used(f_divergence_type="js_divergence")


def test_bad_data_and_arguments(trainer, copy_task, tmp_path, make_llama, tokenizer):
    rows = copy_task(4)
    with pytest.raises(ValueError, match=r"train data has no scores; expected \['prompt', 'responses', 'scores'\]"):
        trainer(rows.remove_columns("scores"))
    with pytest.raises(TypeError, match="train data are IterableDataset; expected a map-style"):
        trainer(rows.to_iterable_dataset(), max_steps=1)
    with pytest.raises(ValueError, match="train_dataset has images"):
        trainer(rows.add_column("image", [0] * 4))
    with pytest.raises(TypeError, match="args are of DPOConfig; expected HPSConfig"):
        trainer(rows, config=DPOConfig)
    with pytest.raises(TypeError, match="data_collator is DataCollatorForPreference"):
        HPSTrainer(make_llama(), make_llama(), HPSConfig(str(tmp_path), **QUIET), DataCollatorForPreference(0), rows)
    texts = datasets.Dataset.from_dict(
        rows.to_dict() | {"scores": [[str(score) for score in row] for row in rows["scores"]]}
    )
    with pytest.raises(TypeError, match=r"scores are list<.*string>"):
        trainer(texts)
