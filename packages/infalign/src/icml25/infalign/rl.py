"""The calibrated and transformed reward as a reward function of TRL's trainers (Algorithm 1, step 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from icml25.infalign.calibration import Calibrator
from icml25.infalign.checks import whole
from icml25.infalign.transforms import Transform

__all__ = ["CTRLReward", "reward_model_fn"]


class CTRLReward:
    """R_Phi(x, y) = Phi(C^(x, y)) for the argument ``reward_funcs`` of TRL's RLOOTrainer and GRPOTrainer.

    RLOO keeps Phi as it is (``normalize_advantages=False``, the default). GRPO's defaults do not: it divides by the group's standard
    deviation, which undoes the transformation prompt by prompt, and has no KL term; set ``scale_rewards="none"`` and
    ``beta`` > 0 there.

    Parameters
    ----------
    reward_fn : (prompts, completions, **columns) -> one number or None a completion; further columns of the data set are passed on.
        None (no reward for this completion) stays None.
    calibrator : rollouts of the base policy for every prompt.
    transform : Phi, see ``transforms``.

    Raises
    ------
    ValueError, when called: reward_fn returned another number of rewards, or NaN. KeyError: a prompt without rollouts.
    """

    def __init__(self, reward_fn: Callable[..., Sequence[Any]], calibrator: Calibrator, transform: Transform) -> None:
        self.reward_fn, self.calibrator, self.transform = reward_fn, calibrator, transform
        self.__name__ = f"ctrl_{getattr(reward_fn, '__name__', type(reward_fn).__name__)}"  # TRL logs by this name

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """One transformed reward (or None) for each completion."""
        raw = list(self.reward_fn(prompts=prompts, completions=completions, **columns))
        if len(raw) != len(completions):
            name = self.__name__.removeprefix("ctrl_")
            raise ValueError(f"{name} returned {len(raw)} rewards for {len(completions)} completions")
        scored = [i for i, r in enumerate(raw) if r is not None]
        C = self.calibrator.calibrate([prompts[i] for i in scored], [float(raw[i]) for i in scored])
        out: list[float | None] = [None] * len(raw)
        for i, value in zip(scored, self.transform(C).tolist(), strict=True):
            out[i] = value
        return out


def reward_model_fn(model: Any, tokenizer: Any, batch_size: int = 16) -> Callable[..., list[float]]:
    """A transformers sequence classifier with one output as a reward function (extra ``[trl]``).

    Parameters
    ----------
    model : ``AutoModelForSequenceClassification`` with ``num_labels=1``; used where it is and as it is, in evaluation mode.
    tokenizer : its tokenizer, with a padding token if batch_size > 1. Chats are put in its template.
    batch_size : texts scored at once.

    Returns
    -------
    (prompts, completions, **columns) -> one number a completion. It raises ValueError for a text longer than the model reads.
    """
    whole(batch_size, "batch_size")
    limit = getattr(model.config, "max_position_embeddings", None)

    def text(prompt: Any, completion: Any) -> str:
        if isinstance(prompt, str):
            return prompt + completion
        return tokenizer.apply_chat_template([*prompt, *completion], tokenize=False)

    def score(prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
        try:
            import torch
        except ImportError as error:
            raise ImportError("reward_model_fn needs torch: pip install 'icml25-infalign[trl]'") from error
        texts = [text(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
        rewards: list[float] = []
        training = model.training
        model.eval()
        try:
            for start in range(0, len(texts), batch_size):
                batch = tokenizer(texts[start : start + batch_size], return_tensors="pt", padding=True)
                if limit is not None and batch["input_ids"].shape[1] > limit:
                    raise ValueError(f"a text has {batch['input_ids'].shape[1]} tokens; the model reads {limit}")
                with torch.no_grad():
                    logits = model(**{key: value.to(model.device) for key, value in batch.items()}).logits
                if logits.shape[1] != 1:
                    raise ValueError(f"the model has {logits.shape[1]} outputs; a reward model has one")
                rewards += logits[:, 0].float().tolist()
        finally:
            model.train(training)
        return rewards

    score.__name__ = f"{type(model).__name__}_reward"
    return score
