"""TRL's DPO trainer on scored lists of responses: the negative is drawn at each step, and log N enters the loss.

The step costs what DPO's costs, two sequences per prompt. The shift of Eq. 8 is put where TRL's loss reads it: with
beta (log pi - log pi_ref) for a reward, adding (log N) / beta to the reference log-probability of the preferred response
subtracts log N from its reward.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, no_type_check

import torch
from datasets import Dataset, IterableDataset
from transformers.data.data_collator import DataCollatorMixin
from trl.data_utils import common_prefix_length
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DataCollatorForPreference, DPOTrainer

from icml25.hps.pairs import step_generator, usable_rows
from icml25.hps.sampling import NORMALIZATIONS, candidates, sample_hard_negative
from icml25.hps.schedule import GammaSchedule

__all__ = ["DataCollatorForResponses", "HPSConfig", "HPSTrainer"]

LOSS_TYPES = (
    *("sigmoid", "exo_pair", "ipo", "sppo_hard", "nca_pair", "hinge", "robust", "bco_pair", "aot", "aot_unpaired"),
    *("apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
)
LOG_N_TYPES = ("sigmoid", "robust", "sft")  # functions of the reward difference alone, or of neither reward


@no_type_check  # the inherited annotations are narrower than what transformers takes
@dataclass
class HPSConfig(DPOConfig):
    """TRL's ``DPOConfig`` and the law of the negatives.

    Parameters
    ----------
    gamma, gamma_final, gamma_schedule : :class:`~icml25.hps.GammaSchedule` over the optimiser's steps; "linear" from -5 to 5.
    log_num_negatives : whether log N enters the loss (Eq. 8); False is Eq. 10 and the released code. None, the default, takes True for
        loss_type "sigmoid", which it is about, and False for the others.
    normalize : "std" divides the scores of a prompt by their standard deviation before gamma multiplies them.
    label_smoothing : of the loss "sigmoid" too, in [0, 0.5) (TRL has it only for "robust" and "exo_pair").

    Raises
    ------
    ValueError: beta isn't above 0, label_smoothing is out of range, an unknown loss type, schedule or normalize, gamma isn't finite,
    log_num_negatives with a loss that isn't a function of the reward difference, or truncation of the beginning.
    """

    gamma: float = field(default=-5.0, metadata={"help": "Hardness of the negatives at the first step."})
    gamma_final: float = field(default=5.0, metadata={"help": "Hardness of the negatives after the last step."})
    gamma_schedule: str = field(default="linear", metadata={"help": "'linear', 'stages' or 'constant'."})
    log_num_negatives: bool | None = field(
        default=None, metadata={"help": "Whether log N enters the loss. None: for loss_type 'sigmoid' only."}
    )
    normalize: str | None = field(default=None, metadata={"help": "'std' standardises the scores of each prompt."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.beta > 0:
            raise ValueError(f"beta is {self.beta}; expected a number above 0")
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(f"label_smoothing is {self.label_smoothing}; expected a number in [0, 0.5)")
        if unknown := [kind for kind in self.loss_type if kind not in LOSS_TYPES]:
            raise ValueError(f"loss_type has {', '.join(unknown)}; expected some of {LOSS_TYPES}")
        if self.normalize not in NORMALIZATIONS:
            raise ValueError(f"normalize is {self.normalize!r}; expected one of {NORMALIZATIONS}")
        if self.truncation_mode != "keep_start":
            raise ValueError(f"truncation_mode is {self.truncation_mode!r}; expected 'keep_start'")
        if self.precompute_ref_log_probs and self.ld_alpha is not None:
            raise ValueError("ld_alpha compares the lengths of a pair; it can't be used with precompute_ref_log_probs")
        fits = self.f_divergence_type == "reverse_kl" and set(self.loss_type) <= set(LOG_N_TYPES)
        if self.log_num_negatives is None:
            self.log_num_negatives = fits and "sigmoid" in self.loss_type
        if self.log_num_negatives and not fits:
            raise ValueError(
                f"log_num_negatives needs loss types of {LOG_N_TYPES} and f_divergence_type 'reverse_kl', "
                f"got {self.loss_type} and {self.f_divergence_type!r}"
            )
        self.schedule()

    def schedule(self) -> GammaSchedule:
        """Gamma over the course of training."""
        return GammaSchedule(self.gamma_schedule, self.gamma, self.gamma_final)


@dataclass
class DataCollatorForResponses(DataCollatorMixin):
    """Pads prompts with all their responses; the trainer draws two of each when the step comes.

    That way neither prefetching nor workers draw with a gamma of an earlier step.

    Parameters
    ----------
    pad_token_id : of ``input_ids``.
    max_length : prompt and response are cut to so many tokens, at the end. None leaves them whole.
    return_tensors : "pt".

    A batch of B rows has ``input_ids`` (B, n, L) int64, the prompt followed by each response; ``lengths`` (B, n), 0 where there is none;
    ``prompt_lengths`` (B,); ``scores`` (B, n) float64; and, where rows have them, ``ref_logps`` (B, n) float32.
    """

    pad_token_id: int
    max_length: int | None = None
    return_tensors: str = "pt"

    def torch_call(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Collate rows of prompt_ids, response_ids and scores."""
        texts = [[(row["prompt_ids"] + ids)[: self.max_length] for ids in row["response_ids"]] for row in examples]
        lengths = _pad([[len(ids) for ids in row] for row in texts], torch.int64)
        width = int(lengths.max())
        input_ids = torch.full((*lengths.shape, width), self.pad_token_id)
        for b, row in enumerate(texts):
            for i, ids in enumerate(row):
                input_ids[b, i, : len(ids)] = torch.tensor(ids)
        batch = {
            "input_ids": input_ids,
            "lengths": lengths,
            "prompt_lengths": torch.tensor([len(row["prompt_ids"]) for row in examples]),
            "scores": _pad([row["scores"] for row in examples], torch.float64),
        }
        if "ref_logps" in examples[0]:
            batch["ref_logps"] = _pad([row["ref_logps"] for row in examples], torch.float32)
        return batch


class HPSTrainer(DPOTrainer):
    """Hard preference sampling as a drop-in for TRL's ``DPOTrainer``.

    Logged beside TRL's metrics (whose rewards don't contain log N): ``hps/gamma``; ``hps/negative_rank``, one more than the
    number of responses scored above the drawn one; and ``rewards/margin_hard``, the mean margin where it was the runner-up. Evaluation
    contrasts with the runner-up and draws nothing.

    Parameters
    ----------
    args : HPSConfig.
    train_dataset, eval_dataset : map-style data sets as for :func:`~icml25.hps.to_preference_pairs`.
    data_collator : a DataCollatorForResponses; None makes one.
    Others : as DPOTrainer's.

    Raises
    ------
    ValueError: a row is malformed (see ``to_preference_pairs``), or a prompt leaves no token of a response within max_length.
    TypeError: args aren't an HPSConfig, another collator, a streaming data set; scores or texts of another type.
    """

    _tag_names = ["trl", "hps"]  # noqa: RUF012
    _name = "HPS"
    _paper = {  # noqa: RUF012
        "title": "HPS: Hard Preference Sampling for Human Preference Alignment",
        "id": "2502.14400",
        "citation": "@inproceedings{zou2025hps,\n"
        "    title = {{HPS: Hard Preference Sampling for Human Preference Alignment}},\n"
        "    author = {Xiandong Zou and Wanyu Lin and Yuchen Li and Pan Zhou},\n"
        "    year = 2025,\n"
        "    booktitle = {International Conference on Machine Learning},\n"
        "}",
    }
    args: HPSConfig

    def __init__(
        self,
        model: Any,
        ref_model: Any = None,
        args: DPOConfig | None = None,
        data_collator: DataCollatorMixin | None = None,
        train_dataset: Dataset | IterableDataset | None = None,
        eval_dataset: Dataset | IterableDataset | dict[str, Dataset | IterableDataset] | None = None,
        **kwargs: Any,
    ) -> None:
        args = HPSConfig("trainer_output") if args is None else args
        if not isinstance(args, HPSConfig):
            raise TypeError(f"args are of {type(args).__name__}; expected HPSConfig")
        if not (data_collator is None or isinstance(data_collator, DataCollatorForResponses)):
            raise TypeError(f"data_collator is {type(data_collator).__name__}; expected DataCollatorForResponses")
        if train_dataset is not None and {"image", "images"} & set(train_dataset.column_names or ()):
            raise ValueError("train_dataset has images; expected prompts and responses of text")
        super().__init__(model, ref_model, args=args, train_dataset=train_dataset, eval_dataset=eval_dataset, **kwargs)
        self.data_collator = data_collator or DataCollatorForResponses(self._pad_token_id, args.max_length)
        if args.label_smoothing and self.loss_types == ["sigmoid"]:
            # conservative DPO, (1 - e) A + e B, from TRL's sigmoid, A, and robust, ((1 - e) A - e B) / (1 - 2 e)
            e = args.label_smoothing
            self.loss_types, self.loss_weights = ["sigmoid", "robust"], [2 * (1 - e), 2 * e - 1]

    @property
    def _pad_token_id(self) -> Any:
        return self._tokenizer.pad_token_id

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Dataset:
        if not isinstance(dataset, Dataset):
            raise TypeError(f"{dataset_name} data are {type(dataset).__name__}; expected a map-style datasets.Dataset")
        if "response_ids" in dataset.column_names:
            return dataset
        rows = usable_rows(dataset, f"{dataset_name} data")
        dataset = dataset.select(rows).map(
            _tokenize,
            fn_kwargs={"tokenizer": self._tokenizer},
            remove_columns=["prompt", "responses"],
            num_proc=args.dataset_num_proc,
            desc=f"Tokenizing {dataset_name} data",
        )
        for row, prompt, responses in zip(rows, dataset["prompt_ids"], dataset["response_ids"], strict=True):
            if args.max_length is not None and len(prompt) >= args.max_length:
                raise ValueError(
                    f"{dataset_name} data, row {row}: the prompt has {len(prompt)} tokens, which leaves none of the "
                    f"responses within max_length={args.max_length}"
                )
            if not all(responses):
                raise ValueError(
                    f"{dataset_name} data, row {row}: a response has no tokens, not even an end of sequence"
                )
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = ["prompt_ids", "response_ids", "scores", "ref_logps"]

    def _precompute_ref_logps(self, dataset: Dataset, name: str, batch_size: int) -> Dataset:
        """Reference log-probabilities of every response once: two responses at a time are TRL's pair."""
        counts = [len(scores) for scores in dataset["scores"]]
        pairs = dataset.map(_split_into_pairs, batched=True, remove_columns=dataset.column_names)
        collator = self.data_collator
        self.data_collator = DataCollatorForPreference(self._pad_token_id, self.args.max_length)
        try:
            pairs = super()._precompute_ref_logps(pairs, name, batch_size)
        finally:
            self.data_collator = collator
        logps = iter(zip(pairs["ref_chosen_logps"], pairs["ref_rejected_logps"], strict=True))
        rows = [[value for _ in range(0, n, 2) for value in next(logps)][:n] for n in counts]
        return dataset.add_column("ref_logps", rows)  # pyright: ignore[reportCallIssue]

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The batches of one optimiser step, with negatives drawn at its gamma."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        step = self.state.global_step
        gamma = self.args.schedule().at(min(step / self.state.max_steps, 1))
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        generator = step_generator(seed, step, self.args.process_index)
        pairs = []
        for batch in batches:
            scores, mask = batch["scores"].cpu(), batch["lengths"].cpu() > 0
            negative = sample_hard_negative(scores, gamma, generator, mask, self.args.normalize)
            pairs.append(self._pair(batch, negative.to(batch["scores"].device)))
        if batches:
            self._metrics["train"]["hps/gamma"].append(gamma)
        return pairs, items

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        below = candidates(inputs["scores"], inputs["lengths"] > 0)
        runner_up = inputs["scores"].where(below, -torch.inf).argmax(-1)
        return super().prediction_step(model, self._pair(inputs, runner_up), *args, **kwargs)

    def _pair(self, batch: dict[str, torch.Tensor], negative: torch.Tensor) -> dict[str, torch.Tensor]:
        """TRL's batch of chosen then rejected sequences, and what the loss and the log need."""
        scores, mask = batch["scores"], batch["lengths"] > 0
        below = candidates(scores, mask)
        rows = torch.arange(len(scores), device=scores.device).repeat(2)
        picked = torch.cat([scores.where(mask, -torch.inf).argmax(-1), negative])
        input_ids, lengths = batch["input_ids"][rows, picked], batch["lengths"][rows, picked, None]
        multiple = int(self.args.pad_to_multiple_of or 1)
        width = -(-int(lengths.max()) // multiple) * multiple
        input_ids = input_ids[:, :width]
        if (missing := width - input_ids.shape[1]) > 0:
            input_ids = torch.nn.functional.pad(input_ids, (0, missing), value=self._pad_token_id)
        place = torch.arange(width, device=scores.device)
        attended = place < lengths
        answered = attended & (place >= batch["prompt_lengths"].repeat(2)[:, None])
        drawn = scores[rows, picked].chunk(2)[1]
        pair = {
            "input_ids": input_ids,
            "attention_mask": attended.long(),
            "completion_mask": answered.long(),
            "num_negatives": below.sum(-1),
            "negative_rank": 1 + (mask & (scores > drawn[:, None])).sum(-1),
            "is_runner_up": drawn == scores.where(below, -torch.inf).amax(-1),
        }
        if "ref_logps" in batch:
            pair["ref_chosen_logps"], pair["ref_rejected_logps"] = batch["ref_logps"][rows, picked].chunk(2)
        return pair

    def _compute_loss(self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool) -> Any:
        inputs = dict(inputs)
        count, rank, runner_up = (inputs.pop(name) for name in ("num_negatives", "negative_rank", "is_runner_up"))
        log_n = count.log() if self.args.log_num_negatives else torch.zeros_like(count, dtype=torch.float32)
        if "ref_chosen_logps" not in inputs:
            reference = self.compute_ref_log_probs(self.ref_model or self.model, inputs)
            inputs["ref_chosen_logps"], inputs["ref_rejected_logps"] = reference
        reference = inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]
        inputs["ref_chosen_logps"] = reference[0] + log_n / self.beta
        outputs = []

        def recorded(**kwargs: Any) -> Any:
            outputs.append(model(**kwargs))
            return outputs[-1]

        precompute, self.precompute_ref_logps = self.precompute_ref_logps, True  # TRL then reads them from the inputs
        try:
            loss = super()._compute_loss(recorded, inputs, return_outputs)
        finally:
            self.precompute_ref_logps = precompute
        self._log_rewards(lambda **_: outputs[0], inputs, reference, rank, runner_up)
        return loss

    def _log_rewards(
        self,
        recorded: Callable[..., Any],
        inputs: dict[str, torch.Tensor],
        reference: tuple[torch.Tensor, torch.Tensor],
        rank: torch.Tensor,
        runner_up: torch.Tensor,
    ) -> None:
        """Put rewards without log N in the place of TRL's, and add HPS's own."""
        policy: Any = self.model
        gather: Any = self.accelerator.gather
        metrics = self._metrics["train" if policy.training else "eval"]
        logps = self.compute_ref_log_probs(recorded, inputs)  # TRL's sums over the recorded outputs, no forward pass
        chosen, rejected = (self.beta * (mine - ref) for mine, ref in zip(logps, reference, strict=True))
        margins, hard = gather(chosen - rejected), gather(runner_up)
        metrics["rewards/chosen"][-1] = gather(chosen).mean().item()
        metrics["rewards/accuracies"][-1] = (margins > 0).float().mean().item()
        metrics["rewards/margins"][-1] = margins.mean().item()
        if hard.any():
            metrics["rewards/margin_hard"].append(margins[hard].mean().item())
        metrics["hps/negative_rank"].append(gather(rank).float().mean().item())


def _tokenize(row: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """Tokens of the prompt, and of each response after it, as TRL's for a pair."""
    if isinstance(prompt := row["prompt"], str):
        alone = tokenizer(prompt)["input_ids"]
        ends = [text if text.endswith(tokenizer.eos_token) else text + tokenizer.eos_token for text in row["responses"]]
        whole = [tokenizer(prompt + text)["input_ids"] for text in ends]
    else:
        tools = row.get("tools")
        tools = json.loads(tools) if isinstance(tools, str) else tools
        template = {"tools": tools, **(row.get("chat_template_kwargs") or {}), "return_dict": True}
        alone = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, **template)["input_ids"]
        answers = [{"role": "assistant", "content": text} for text in row["responses"]]
        whole = [tokenizer.apply_chat_template([*prompt, answer], **template)["input_ids"] for answer in answers]
    shared = min(common_prefix_length(alone, ids) for ids in whole)
    if shared < len(alone):
        warnings.warn(
            "tokens of a prompt merge with those of a response; such a prompt ends where they part", stacklevel=2
        )
    return {"prompt_ids": alone[:shared], "response_ids": [ids[shared:] for ids in whole]}


def _split_into_pairs(rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Responses two by two; an odd last one stands twice."""
    pairs: dict[str, list[Any]] = {"prompt_ids": [], "chosen_ids": [], "rejected_ids": []}
    for prompt, responses in zip(rows["prompt_ids"], rows["response_ids"], strict=True):
        for i in range(0, len(responses), 2):
            pairs["prompt_ids"].append(prompt)
            pairs["chosen_ids"].append(responses[i])
            pairs["rejected_ids"].append(responses[min(i + 1, len(responses) - 1)])
    return pairs


def _pad(rows: list[list[Any]], dtype: torch.dtype) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=dtype) for row in rows], batch_first=True)
