"""The HPS loss, with one sampled negative and in full, and the losses that it is compared with.

All are functions of implicit rewards, r(x, y) = beta (log pi(y | x) - log pi_ref(y | x)) for DPO's; what depends on the prompt
alone cancels.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int, Real, Shaped
from torch import Tensor
from torch.nn.functional import softplus

from icml25.hps.sampling import candidates, checked_scores, log_weights

__all__ = ["bt_loss", "hps_full_loss", "hps_loss", "pl_loss"]

REDUCTIONS = ("mean", "sum", "none")


def hps_loss(
    chosen_rewards: Float[Tensor, "*batch"],
    rejected_rewards: Float[Tensor, "*batch"],
    num_negatives: Int[Tensor, "*batch"] | int,
    label_smoothing: float | int = 0.0,
    reduction: str = "mean",
) -> Float[Tensor, "..."]:
    """HPS with one sampled negative (Eq. 8): -log sigmoid(r(y_1) - r(y_i) - log N), with i drawn from q.

    Its mean over the draws is at most :func:`hps_full_loss` (Jensen), and equal for a single negative.

    Parameters
    ----------
    chosen_rewards : (...) implicit rewards of the preferred responses.
    rejected_rewards : (...) of a negative each, drawn by :func:`~icml25.hps.sample_hard_negative`.
    num_negatives : (...) int or one for all, the number N of responses that the negative was drawn from. 1 leaves log N out, which
        is DPO on the drawn pair (Eq. 10, and the released code). Rows with 0 are ignored.
    label_smoothing : probability that a label is flipped (conservative DPO), in [0, 0.5).
    reduction : "mean" (of the rows that aren't ignored), "sum" or "none" (zero for ignored rows).

    Returns
    -------
    float32 (float64 for such rewards), a scalar, or (...) for "none".

    Raises
    ------
    ValueError: shapes that differ, a negative N, label_smoothing out of range, an unknown reduction, or no row is left.
    """
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing is {label_smoothing}; expected a number in [0, 0.5)")
    if chosen_rewards.shape != rejected_rewards.shape:
        raise ValueError(
            f"chosen_rewards {tuple(chosen_rewards.shape)} and rejected_rewards {tuple(rejected_rewards.shape)}; "
            "expected the same shape"
        )
    count = torch.as_tensor(num_negatives, device=chosen_rewards.device).expand(chosen_rewards.shape)
    if (count < 0).any():
        raise ValueError(f"num_negatives has {count.min().item()}; expected 0 or more")
    margin = _precise(chosen_rewards) - _precise(rejected_rewards)
    margin = (margin - count.clamp(min=1).to(margin.dtype).log()).where(count > 0, 0)
    loss = (1 - label_smoothing) * softplus(-margin) + label_smoothing * softplus(margin)
    return _reduce(loss, count > 0, reduction)


def hps_full_loss(
    rewards: Float[Tensor, "*batch n"],
    scores: Real[Tensor, "*batch n"],
    gamma: float | int | Real[Tensor, "*batch"],
    mask: Bool[Tensor, "*batch n"] | None = None,
    log_num_negatives: bool = True,
    num_preferred: int = 1,
    preferred_weights: Sequence[float | int] | None = None,
    normalize: str | None = None,
    reduction: str = "mean",
) -> Float[Tensor, "..."]:
    """HPS with the expectation over q (Eq. 8): -log e^r(y_1) / (e^r(y_1) + N E_{y~q}[e^r(y)]).

    It needs the rewards of all n responses. At gamma = 0 it is the cross-entropy of a softmax over them (Eq. 6), and it tends to
    softplus(log N + r(y_2) - r(y_1)) with the runner-up y_2 as gamma grows (Theorem 2).

    Parameters
    ----------
    rewards : (..., n) implicit rewards of the responses.
    scores, gamma, mask, normalize : as for :func:`~icml25.hps.hard_negative_weights`. The preferred response has the highest score,
        and is the first of several such.
    log_num_negatives : whether the expectation is multiplied by the number N of responses scored below; False is Eq. 10.
    num_preferred : number K of valid responses (appendix E): the sum over k <= K of weight_k times the loss of the k-th best
        response against all that is scored strictly below it. A rank with nothing below adds nothing.
    preferred_weights : K weights. None takes ones.
    reduction : "mean" (of the rows that aren't ignored), "sum" or "none". Rows with nothing below the best are ignored.

    Returns
    -------
    float32 (float64 for such rewards), a scalar, or (...) for "none".

    Raises
    ------
    ValueError: as :func:`~icml25.hps.hard_negative_weights`; K outside 1..n-1, weights that aren't K non-negative numbers,
    an unknown reduction, or no row is left. TypeError: scores or mask of another dtype.
    """
    rewards, scores, mask = _checked(rewards, scores, mask)
    if not 1 <= num_preferred < rewards.shape[-1]:
        raise ValueError(
            f"num_preferred is {num_preferred}; expected 1..{rewards.shape[-1] - 1}, one less than responses"
        )
    weights = [1.0] * num_preferred if preferred_weights is None else list(preferred_weights)
    if len(weights) != num_preferred or not all(0 <= weight < math.inf for weight in weights):
        raise ValueError(f"preferred_weights are {weights}; expected {num_preferred} finite non-negative numbers")
    ranking = _ranking(scores, mask)
    loss = torch.zeros_like(rewards[..., 0])
    for weight, best in zip(weights, ranking[..., :num_preferred].split(1, -1), strict=True):
        below = mask & (scores < scores.gather(-1, best)) & mask.gather(-1, best)
        some, count = below.any(-1), below.sum(-1).clamp(min=1)
        log_q = log_weights(scores, below, gamma, mask, normalize)
        expected = (rewards + log_q).masked_fill(~some[..., None], 0).logsumexp(-1)  # log E_q[e^r]
        log_n = count.to(rewards.dtype).log() if log_num_negatives else 0.0
        loss = loss + weight * softplus(log_n + expected - rewards.gather(-1, best)[..., 0]).where(some, 0)
    return _reduce(loss, candidates(scores, mask).any(-1), reduction)


def pl_loss(
    rewards: Float[Tensor, "*batch n"],
    scores: Real[Tensor, "*batch n"],
    mask: Bool[Tensor, "*batch n"] | None = None,
    reduction: str = "mean",
) -> Float[Tensor, "..."]:
    """Plackett-Luce: minus the log-probability of the whole ranking, sum_j [logsumexp_{k>=j} r(y_k) - r(y_j)].

    Parameters
    ----------
    rewards : (..., n) implicit rewards of the responses.
    scores : (..., n) float or integer, by which they are sorted; ties keep their order.
    mask : (..., n) bool, True where there is a response. None takes all.
    reduction : "mean" (of the rows that aren't ignored), "sum" or "none". Rows whose responses are all tied are ignored.

    Returns
    -------
    float32 (float64 for such rewards), a scalar, or (...) for "none".

    Raises
    ------
    ValueError: shapes differ, a score isn't finite, an unknown reduction, or no row is left. TypeError: scores or mask of another
    dtype.
    """
    rewards, scores, mask = _checked(rewards, scores, mask)
    ranking = _ranking(scores, mask)
    ranked, there = rewards.gather(-1, ranking), mask.gather(-1, ranking)
    ranked = ranked.masked_fill(~there, torch.finfo(ranked.dtype).min)
    remaining = ranked.flip(-1).logcumsumexp(-1).flip(-1)
    loss = (remaining - ranked).where(there, 0).sum(-1)
    return _reduce(loss, candidates(scores, mask).any(-1), reduction)


def bt_loss(
    rewards: Float[Tensor, "*batch n"],
    scores: Real[Tensor, "*batch n"],
    mask: Bool[Tensor, "*batch n"] | None = None,
    reduction: str = "mean",
) -> Float[Tensor, "..."]:
    """Bradley-Terry on the best and the worst response: -log sigmoid(r(y_1) - r(y_n)).

    Parameters, what is returned and raised : as for :func:`pl_loss`; of several best or worst the first is taken.
    """
    rewards, scores, mask = _checked(rewards, scores, mask)
    best = scores.where(mask, -torch.inf).argmax(-1, keepdim=True)
    worst = scores.where(mask, torch.inf).argmin(-1, keepdim=True)
    loss = softplus(rewards.gather(-1, worst) - rewards.gather(-1, best))[..., 0]
    return _reduce(loss, candidates(scores, mask).any(-1), reduction)


def _precise(rewards: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return rewards.to(torch.promote_types(rewards.dtype, torch.float32))


def _checked(
    rewards: Shaped[Tensor, "..."], scores: Shaped[Tensor, "..."], mask: Shaped[Tensor, "..."] | None
) -> tuple[Float[Tensor, "*batch n"], Float[Tensor, "*batch n"], Bool[Tensor, "*batch n"]]:
    """Rewards and scores in float32 or float64, zero where masked, and the mask."""
    if rewards.shape != scores.shape:
        raise ValueError(f"rewards {tuple(rewards.shape)} and scores {tuple(scores.shape)}; expected the same shape")
    scores, mask = checked_scores(scores, mask)
    return _precise(rewards).where(mask, 0), scores, mask


def _ranking(scores: Float[Tensor, "*batch n"], mask: Bool[Tensor, "*batch n"]) -> Int[Tensor, "*batch n"]:
    """Positions from the best score to the worst, then those without a response."""
    return scores.where(mask, -torch.inf).argsort(dim=-1, descending=True, stable=True)


def _reduce(loss: Float[Tensor, "*batch"], keep: Bool[Tensor, "*batch"], reduction: str) -> Float[Tensor, "..."]:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}; expected one of {REDUCTIONS}")
    if not keep.any():
        raise ValueError("no row is left: expected at least one with a response scored below its best")
    loss = loss.where(keep, 0)
    if reduction == "none":
        return loss
    return loss.sum() / keep.sum() if reduction == "mean" else loss.sum()
