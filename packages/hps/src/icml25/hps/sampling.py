"""The law q of the hard negatives: a softmax of scores over the dispreferred responses (Eq. 9), and draws from it."""

import torch
from jaxtyping import Bool, Float, Int64, Real, Shaped
from torch import Tensor

__all__ = ["candidates", "checked_scores", "hard_negative_weights", "log_weights", "sample_hard_negative"]

NORMALIZATIONS = (None, "std")


def hard_negative_weights(
    scores: Real[Tensor, "*batch n"],
    gamma: float | int | Real[Tensor, "*batch"],
    mask: Bool[Tensor, "*batch n"] | None = None,
    normalize: str | None = None,
) -> Float[Tensor, "*batch n"]:
    """q(y_i) = softmax(gamma * score_i) over the responses scored strictly below the best (Eq. 9).

    Parameters
    ----------
    scores : (..., n) float or integer, the scores of the n responses of each prompt by a fixed reward model or people.
    gamma : how hard the negatives are, one for all or (...) one for each prompt. Above 0 the closer a score is to the best the more
        weight, 0 is uniform, below 0 the lowest scores get the weight.
    mask : (..., n) bool, True where there is a response. None takes all.
    normalize : "std" divides the scores of a prompt by their standard deviation, None leaves them as they are.

    Returns
    -------
    (..., n) float32 (float64 for such scores), zero on the best response and its ties; rows sum to one, or to zero where
    nothing is scored below the best.

    Raises
    ------
    ValueError: gamma or a score isn't finite, shapes differ, an unknown normalize. TypeError: scores or mask of another dtype.
    """
    scores, mask = checked_scores(scores, mask)
    return log_weights(scores, candidates(scores, mask), gamma, mask, normalize).exp()


def sample_hard_negative(
    scores: Real[Tensor, "*batch n"],
    gamma: float | int | Real[Tensor, "*batch"],
    generator: torch.Generator | None = None,
    mask: Bool[Tensor, "*batch n"] | None = None,
    normalize: str | None = None,
) -> Int64[Tensor, "*batch"]:
    """Draw one negative per prompt from :func:`hard_negative_weights`, by the Gumbel-max trick.

    Parameters
    ----------
    scores, gamma, mask, normalize : as for :func:`hard_negative_weights`.
    generator : of the device of the scores. None takes torch's global one.

    Returns
    -------
    (...) int64 positions among the n responses, -1 where nothing is scored below the best.

    Raises
    ------
    As :func:`hard_negative_weights`.
    """
    scores, mask = checked_scores(scores, mask)
    below = candidates(scores, mask)
    log_q = log_weights(scores, below, gamma, mask, normalize)
    gumbel = -torch.empty_like(log_q).exponential_(generator=generator).log()
    return (log_q + gumbel).argmax(-1).where(below.any(-1), -1)


def candidates(scores: Float[Tensor, "*batch n"], mask: Bool[Tensor, "*batch n"]) -> Bool[Tensor, "*batch n"]:
    """The dispreferred responses: those scored strictly below the best."""
    return mask & (scores < scores.where(mask, -torch.inf).amax(-1, keepdim=True))


def log_weights(
    scores: Float[Tensor, "*batch n"],
    below: Bool[Tensor, "*batch n"],
    gamma: float | int | Real[Tensor, "*batch"],
    mask: Bool[Tensor, "*batch n"],
    normalize: str | None = None,
) -> Float[Tensor, "*batch n"]:
    """log q over the responses ``below`` (Eq. 9), -inf elsewhere."""
    gamma = torch.as_tensor(gamma, dtype=scores.dtype, device=scores.device)[..., None]
    if not gamma.isfinite().all():
        raise ValueError(f"gamma is {gamma[~gamma.isfinite()][0].item()}; expected finite numbers")
    if normalize not in NORMALIZATIONS:
        raise ValueError(f"normalize is {normalize!r}; expected one of {NORMALIZATIONS}")
    if normalize == "std":
        count = mask.sum(-1, keepdim=True).clamp(min=1)
        deviation = (scores - scores.where(mask, 0).sum(-1, keepdim=True) / count).where(mask, 0)
        spread = deviation.square().sum(-1, keepdim=True).div(count).sqrt()
        scores = deviation / spread.where(spread > 0, 1)
    # centred, so that neither an offset nor a large score costs digits or overflows
    centred = scores - scores.where(below, -torch.inf).amax(-1, keepdim=True).nan_to_num(neginf=0)
    logits = (gamma * centred.where(below, 0)).masked_fill(~below, -torch.inf)
    none = ~below.any(-1, keepdim=True)
    return logits.masked_fill(none, 0).log_softmax(-1).masked_fill(none, -torch.inf)


def checked_scores(
    scores: Shaped[Tensor, "..."], mask: Shaped[Tensor, "..."] | None
) -> tuple[Float[Tensor, "*batch n"], Bool[Tensor, "*batch n"]]:
    """Scores in float32 or float64, zero where masked, and the mask."""
    if scores.dtype == torch.bool or scores.is_complex():
        raise TypeError(f"scores have dtype {scores.dtype}; expected real numbers")
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    if mask.dtype != torch.bool:
        raise TypeError(f"mask has dtype {mask.dtype}; expected torch.bool")
    if scores.ndim == 0 or mask.shape != scores.shape:
        raise ValueError(f"scores {tuple(scores.shape)} and mask {tuple(mask.shape)}; expected the same shape (..., n)")
    if (bad := mask & ~scores.isfinite()).any():
        *row, response = bad.nonzero()[0].tolist()
        raise ValueError(f"scores of row {', '.join(map(str, row)) or 0}, response {response}: not a finite number")
    return scores.to(torch.promote_types(scores.dtype, torch.float32)).where(mask, 0), mask
