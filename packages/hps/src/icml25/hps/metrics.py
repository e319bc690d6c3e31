"""Reward margins: of a reward model, and of the policy as in the paper's tables."""

import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor

from icml25.hps.sampling import candidates, checked_scores

__all__ = ["reward_margin", "rm_dpo", "rm_r_dpo"]

KINDS = ("hard", "mean", "worst")


def reward_margin(
    rewards: Float[Tensor, "*batch n"],
    scores: Real[Tensor, "*batch n"],
    kind: str = "hard",
    mask: Bool[Tensor, "*batch n"] | None = None,
    normalize: bool = False,
) -> Float[Tensor, ""]:
    """Mean over prompts of how far the preferred response's reward is above the dispreferred ones'.

    Parameters
    ----------
    rewards : (..., n) rewards of the responses.
    scores : (..., n) float or integer; the response of the highest is preferred (the first of several), those scored strictly below
        are dispreferred. Prompts without any are left out.
    kind : "hard" against the dispreferred response of the highest reward (Theorem 3), "mean" against the mean of their rewards,
        "worst" against the response of the lowest score.
    mask : (..., n) bool, True where there is a response. None takes all.
    normalize : divide by the standard deviation of all rewards. A larger margin is partly scale: look at both.

    Returns
    -------
    () float32 (float64 for such rewards).

    Raises
    ------
    ValueError: an unknown kind, shapes that differ, a score that isn't finite, or no prompt is left. TypeError: scores or mask of
    another dtype.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; expected one of {KINDS}")
    if rewards.shape != scores.shape:
        raise ValueError(f"rewards {tuple(rewards.shape)} and scores {tuple(scores.shape)}; expected the same shape")
    scores, mask = checked_scores(scores, mask)
    rewards = rewards.to(torch.promote_types(rewards.dtype, torch.float32))
    below = candidates(scores, mask)
    some = below.any(-1)
    if not some.any():
        raise ValueError("no prompt is left: expected at least one with a response scored below its best")
    chosen = rewards.gather(-1, scores.where(mask, -torch.inf).argmax(-1, keepdim=True))[..., 0]
    if kind == "hard":
        rejected = rewards.where(below, -torch.inf).amax(-1)
    elif kind == "mean":
        rejected = rewards.where(below, 0).sum(-1) / below.sum(-1)
    else:
        rejected = rewards.gather(-1, scores.where(below, torch.inf).argmin(-1, keepdim=True))[..., 0]
    margin = (chosen - rejected)[some].mean()
    return margin / rewards[mask].std(correction=0) if normalize else margin


def rm_dpo(
    chosen_logratio: Float[Tensor, "*batch"], rejected_logratio: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """RM_DPO of the paper's tables (Table 1): the difference of log pi(y|x) - log pi_ref(y|x), in nats and without beta.

    TRL logs beta times its mean as ``rewards/margins``.

    Parameters
    ----------
    chosen_logratio, rejected_logratio : (...) log pi(y | x) - log pi_ref(y | x) of whole responses.
    """
    return chosen_logratio - rejected_logratio


def rm_r_dpo(
    chosen_logratio: Float[Tensor, "*batch"],
    rejected_logratio: Float[Tensor, "*batch"],
    chosen_len: Real[Tensor, "*batch"],
    rejected_len: Real[Tensor, "*batch"],
    alpha: float | int = 0.01,
) -> Float[Tensor, "*batch"]:
    """RM_R-DPO of the paper's tables (Table 1): RM_DPO - alpha (|chosen| - |rejected|).

    Parameters
    ----------
    chosen_logratio, rejected_logratio : as for :func:`rm_dpo`.
    chosen_len, rejected_len : (...) lengths of the responses in tokens.
    alpha : nats per token; 0.01 in the paper.
    """
    return rm_dpo(chosen_logratio, rejected_logratio) - alpha * (chosen_len - rejected_len)
