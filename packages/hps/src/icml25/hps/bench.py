"""HPS on the problems "ranking" and "alignment" of the track "preference" (needs the extra ``bench``).

Its variants are other gammas, log N left out, and the expectation over the negatives in the place of one draw. For the clock,
steps are timed in turns with Plackett-Luce's on the same lists, and with those of TRL's DPOTrainer on the same pairs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure
from icml25.shared.protocols.alignment import filters

VARIANTS: dict[str, dict[str, Any]] = {
    "hard": {"gamma": 3.0},
    "mild": {"gamma": 1.0},
    "uniform": {"gamma": 0.0},
    "easy": {"gamma": -3.0},
    "no_log_n": {"gamma": 3.0, "log_n": False},
    "full": {"gamma": 3.0, "full": True},
}
ALIGNMENT = {"beta": 0.3, "lr": 0.1}  # the best of the grid that every loss of the problem has
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
ROWS = 50_000


def warm_up() -> None:
    """Load what the clock should not see."""
    from icml25.hps import hps_full_loss  # noqa: F401
    from icml25.shared.tracks.preference.ranking_model import load

    load()


def hps(gamma: float, log_n: bool = True, full: bool = False) -> Callable[[Any, Any, Any], Any]:
    """A loss a prompt from rewards (B, n), scores (B, n) and a generator."""
    from icml25.hps import hps_full_loss, hps_loss, sample_hard_negative

    def loss(rewards: Any, scores: Any, generator: Any) -> Any:
        if full:
            return hps_full_loss(rewards, scores, gamma, log_num_negatives=log_n, reduction="none")
        best, negative = scores.argmax(1, keepdim=True), sample_hard_negative(scores, gamma, generator)[:, None]
        pair = rewards.gather(1, best)[:, 0], rewards.gather(1, negative)[:, 0]
        return hps_loss(*pair, scores.shape[1] - 1 if log_n else 1, reduction="none")

    return loss


def rank(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """The problem "ranking" as for every loss."""
    from icml25.shared.tracks.preference import ranking_model

    return ranking_model.rank(arrays, params, hps(**VARIANTS[params["variant"]]))


def align(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Train a policy while gamma goes from -5 to 5."""
    from icml25.hps import GammaSchedule
    from icml25.shared.tracks.preference.aligning import STEPS, train

    schedule, steps = GammaSchedule("linear", -5.0, 5.0), iter(range(STEPS[params["budget"]]))

    def loss(rewards: Any, scores: Any, generator: Any) -> Any:
        gamma = schedule.at(next(steps) / STEPS[params["budget"]])
        return hps(gamma)(rewards, scores, generator).mean()

    return train(arrays, params | ALIGNMENT, loss)


def cost(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Seconds of steps in turns with their peers', activations kept for the backward pass, and pairs drawn a second."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(params["seed"])
    repeats, tokens = params["repeats"], {name: torch.from_numpy(arrays[name]) for name in ("prompt_ids", "answer_ids")}
    scores = torch.from_numpy(arrays["answer_scores"])
    steps = {
        "": _pair_step(**tokens, scores=scores, params=params),
        "pl_": _list_step(**tokens, scores=scores, params=params),
    }
    out: dict[str, Any] = {f"{name}activations": _kept_bytes(*made) for name, (_, *made) in steps.items()}
    out |= _in_turns({f"{name}step_seconds": step for name, (step, *_) in steps.items()}, repeats)
    with tempfile.TemporaryDirectory() as folder:
        out |= _in_turns(_trainer_steps(arrays, params, folder), repeats)
    return out | {"pairs_per_second": _pairs_per_second(params["seed"], 1000 if repeats < 5 else ROWS)}


def _in_turns(jobs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, np.ndarray]:
    """Processor seconds of jobs that take turns, after one that doesn't count."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for repeat in range(repeats + 1):
        for name, job in jobs.items():
            start = time.process_time()
            job()
            if repeat:
                seconds[name].append(time.process_time() - start)
    return {name: np.array(values) for name, values in seconds.items()}


def _llama(params: dict[str, Any]) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SIZES, vocab_size=params["vocabulary"], pad_token_id=0, eos_token_id=1))


def _step(params: dict[str, Any], loss: Callable[[Any], Any]) -> tuple[Callable[[], None], Callable[[], Any], Any]:
    """A step of Adam, its forward pass, and the model. ``loss`` gets a function from texts (N, L) and answers to log-probabilities."""
    import torch

    model = _llama(params)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def log_probability(texts: Any, answer: int) -> Any:
        logits = model(input_ids=texts, use_cache=False).logits[:, -answer - 1 : -1]
        return logits.log_softmax(-1).gather(-1, texts[:, -answer:, None]).sum((1, 2))

    def forward() -> Any:
        return loss(log_probability)

    def step() -> None:
        optimizer.zero_grad()
        forward().backward()
        optimizer.step()

    return step, forward, model


def _texts(prompt_ids: Any, answer_ids: Any) -> Any:
    """Prompts followed by their answers, (m, n, L)."""
    import torch

    return torch.cat([prompt_ids[:, None].expand(-1, answer_ids.shape[1], -1), answer_ids], -1)


def _pair_step(prompt_ids: Any, answer_ids: Any, scores: Any, params: dict[str, Any]) -> Any:
    """HPS: two sequences a prompt. The reference's log-probabilities would be constants, and are left out."""
    import torch

    from icml25.hps import hps_loss, sample_hard_negative

    texts, rows, answer = _texts(prompt_ids, answer_ids), torch.arange(len(scores)), answer_ids.shape[2]

    def loss(log_probability: Any) -> Any:
        negative = sample_hard_negative(scores, 3.0)
        pairs = torch.cat([texts[rows, scores.argmax(1)], texts[rows, negative]])
        chosen, rejected = log_probability(pairs, answer).chunk(2)
        return hps_loss(0.1 * chosen, 0.1 * rejected, scores.shape[1] - 1)

    return _step(params, loss)


def _list_step(prompt_ids: Any, answer_ids: Any, scores: Any, params: dict[str, Any]) -> Any:
    """Plackett-Luce: n sequences a prompt."""
    from icml25.hps import pl_loss

    texts, answer = _texts(prompt_ids, answer_ids).flatten(0, 1), answer_ids.shape[2]

    def loss(log_probability: Any) -> Any:
        return pl_loss(0.1 * log_probability(texts, answer).view(scores.shape), scores)

    return _step(params, loss)


def _kept_bytes(forward: Callable[[], Any], model: Any) -> int:
    """Bytes of the tensors that autograd keeps for the backward pass, without the weights."""
    import torch

    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = forward()
    del loss
    return sum(kept.values())


def _trainer_steps(arrays: dict[str, np.ndarray], params: dict[str, Any], folder: str) -> dict[str, Callable[[], None]]:
    """A step without the optimiser's part, of HPSTrainer and of TRL's DPOTrainer on pairs drawn once."""
    import datasets
    import torch
    from trl import DPOConfig, DPOTrainer

    from icml25.hps import HPSConfig, HPSTrainer, to_preference_pairs

    datasets.disable_progress_bars()
    tokenizer = _word_tokenizer(params["vocabulary"])

    def text(ids: np.ndarray) -> str:
        return "".join(f" w{i}" for i in ids)

    lists = datasets.Dataset.from_dict(
        {
            "prompt": [text(ids).strip() for ids in arrays["prompt_ids"]],
            "responses": [[text(ids) for ids in answers] for answers in arrays["answer_ids"]],
            "scores": arrays["answer_scores"].tolist(),
        }
    )
    pairs = to_preference_pairs(lists, gamma=3.0, resamples=1).select_columns(["prompt", "chosen", "rejected"])

    def steps(trainer_type: Any, config: Any, data: Any) -> Callable[[], None]:
        settings = config(
            folder, use_cpu=True, bf16=False, report_to=[], per_device_train_batch_size=len(lists), disable_tqdm=True
        )
        settings.gradient_checkpointing = False
        trainer = trainer_type(_llama(params), _llama(params), settings, train_dataset=data, processing_class=tokenizer)
        trainer._train_batch_size, trainer.state.max_steps, trainer.current_gradient_accumulation_steps = (
            len(lists),
            10,
            1,
        )

        def step() -> None:
            trainer.model.zero_grad()
            batches, _ = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 1, torch.device("cpu"))
            trainer.training_step(trainer.model, batches[0])

        return step

    return {
        "trainer_seconds": steps(HPSTrainer, HPSConfig, lists),
        "dpo_trainer_seconds": steps(DPOTrainer, DPOConfig, pairs),
    }


def _word_tokenizer(vocabulary: int) -> Any:
    """Words w3, w4, ... as tokens of their number."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(3, vocabulary))]
    words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def _pairs_per_second(seed: int, count: int) -> float:
    """Prompts with eight answers a second, wall time, of the second call."""
    from datasets import Dataset

    from icml25.hps import to_preference_pairs

    scores = np.random.default_rng(seed).normal(size=(count, 8))
    answers = [[f"answer {k} to it" for k in range(8)]] * count
    lists = Dataset.from_dict({"prompt": ["a prompt"] * count, "responses": answers, "scores": scores.tolist()})
    for _ in range(2):
        start = time.perf_counter()
        to_preference_pairs(lists, gamma=3.0, resamples=1, seed=seed)
        seconds = time.perf_counter() - start
    return count / seconds


class Solver(BaseSolver):
    """HPS and its variants on "ranking"; with every filter of prompts on "alignment"."""

    name = "hps"
    sampling_strategy = "run_once"
    problems = ("ranking", "alignment")
    parameters = {  # noqa: RUF012
        "variant, filter": [
            *((variant, "none") for variant in (*VARIANTS, "scheduled")),  # the paper's gamma, on "alignment"
            *(("scheduled", name + control) for name in filters() for control in ("", "_random")),
        ]
    }

    def skip(self, problem: str, budget: str = "", world: str = "", **_: Any) -> tuple[bool, str | None]:
        """Leave out what a problem is not about."""
        if problem not in self.problems:
            return True, "learns nothing from lists of answers there"
        if (problem == "alignment") != (self.variant == "scheduled"):
            return True, "a variant for the other problem"
        if problem == "ranking":
            return self.variant != "hard" and world != "gaussian", "a variant for one data set"
        return budget == "smoke" and self.filter.endswith("_random"), "left out of this budget"

    def set_objective(self, problem: str, world: str = "", **public: Any) -> None:
        """Note the problem."""
        self.arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
        self.params = {key: value for key, value in public.items() if isinstance(value, (int, float, str))}
        self.params |= {"world": world, "variant": self.variant, "filter": self.filter}
        self.function = "align" if problem == "alignment" else "cost" if world == "cost" else "rank"

    def run(self, _: Any) -> None:
        """Run in a process of its own."""
        self.result = measure(__file__, self.function, self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return rewards, gradients, log-ratios or times."""
        return self.result
