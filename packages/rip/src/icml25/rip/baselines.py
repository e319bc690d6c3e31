"""Other filters of prompts with the interface of `RIPFilter`, each keeping the side that the paper keeps."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from sklearn.exceptions import NotFittedError

from icml25.rip.checks import check_quantiles, read_rewards, require_columns
from icml25.rip.filter import PromptFilter
from icml25.rip.pairing import best_worst
from icml25.rip.tables import rows_in

__all__ = [
    "ChosenRewardFilter",
    "GapFilter",
    "IFDFilter",
    "JaccardFilter",
    "PerplexityFilter",
    "RandomFilter",
    "RejectedRewardFilter",
]


class _ScoreFilter(PromptFilter):
    """Keep the prompts on one side of a quantile of one score; those without a pair are dropped."""

    quantile: float

    def _scores(self, data: Any, first_row: int = 0) -> Float[np.ndarray, " P"]:
        """Score of each prompt, NaN without a pair."""
        raise NotImplementedError

    def _side(self) -> str:
        return "large"

    def fit(self, data: Any, y: None = None) -> _ScoreFilter:
        """Set the threshold: the quantile from below where large scores are kept, from above where small ones are.

        Parameters
        ----------
        data : DataFrame, ``datasets.Dataset``, Arrow table or list of dicts.
        y : ignored.

        Raises
        ------
        ValueError: no row has a pair, or the quantile is outside [0, 1).
        """
        [q] = check_quantiles(self.quantile, 1)
        scores = self._scores(data)
        scores = scores[np.isfinite(scores)]
        if not len(scores):
            raise ValueError("no row has a pair of responses with different rewards")
        level = q or 0.0
        self.threshold_ = float(np.quantile(scores, level if self._side() == "large" else 1 - level))
        return self

    def support(self, data: Any, first_row: int = 0) -> Bool[np.ndarray, " P"]:
        """Which prompts are kept."""
        if not hasattr(self, "threshold_"):
            raise NotFittedError(f"this {type(self).__name__} has no threshold; call fit first")
        scores = self._scores(data, first_row)  # comparisons with NaN are false
        return scores >= self.threshold_ if self._side() == "large" else scores <= self.threshold_


class _PairFilter(_ScoreFilter):
    """A score of the preference pair, read from columns of these names."""

    def __init__(
        self,
        quantile: float | int = 0.5,
        prompt_col: str = "prompt",
        responses_col: str = "responses",
        rewards_col: str = "rewards",
    ) -> None:
        self.quantile = quantile
        self.prompt_col = prompt_col
        self.responses_col = responses_col
        self.rewards_col = rewards_col


class JaccardFilter(_PairFilter):
    """Jaccard similarity |A n B| / |A u B| of the lower-cased word sets of chosen and rejected response.

    Parameters
    ----------
    keep : "similar" (the paper's side) or "dissimilar" pairs.
    quantile : share that is dropped.
    prompt_col, responses_col, rewards_col : names of columns.
    """

    def __init__(
        self,
        keep: str = "similar",
        quantile: float | int = 0.5,
        prompt_col: str = "prompt",
        responses_col: str = "responses",
        rewards_col: str = "rewards",
    ) -> None:
        super().__init__(quantile, prompt_col, responses_col, rewards_col)
        self.keep = keep

    def _side(self) -> str:
        if self.keep not in ("similar", "dissimilar"):
            raise ValueError(f"keep must be 'similar' or 'dissimilar', got {self.keep!r}")
        return "large" if self.keep == "similar" else "small"

    def _scores(self, data: Any, first_row: int = 0) -> Float[np.ndarray, " P"]:
        rewards, responses, bad = self._read(data, first_row)
        chosen, rejected, paired = best_worst(rewards)
        paired = paired & ~bad
        sets = [
            (set(re.findall(r"\w+", a.lower())), set(re.findall(r"\w+", b.lower())))
            for a, b in zip(responses.take(chosen[paired]), responses.take(rejected[paired]), strict=True)
        ]
        out = np.full(len(paired), np.nan)
        out[paired] = [len(a & b) / max(len(a | b), 1) for a, b in sets]
        return out


class GapFilter(_PairFilter):
    """Reward gap r(y_w) - r(y_l).

    Parameters
    ----------
    keep : "small" (the paper's side) or "large" gaps, the natural but opposite choice.
    quantile : share that is dropped.
    prompt_col, responses_col, rewards_col : names of columns.
    """

    def __init__(
        self,
        keep: str = "small",
        quantile: float | int = 0.5,
        prompt_col: str = "prompt",
        responses_col: str = "responses",
        rewards_col: str = "rewards",
    ) -> None:
        super().__init__(quantile, prompt_col, responses_col, rewards_col)
        self.keep = keep

    def _side(self) -> str:
        if self.keep not in ("small", "large"):
            raise ValueError(f"keep must be 'small' or 'large', got {self.keep!r}")
        return self.keep

    def _scores(self, data: Any, first_row: int = 0) -> Float[np.ndarray, " P"]:
        return self.metrics(data, first_row)["m_gap"].to_numpy(np.float64)


class RejectedRewardFilter(_PairFilter):
    """Keep prompts whose rejected response has a high reward: the first rule of `RIPFilter` alone."""

    def _scores(self, data: Any, first_row: int = 0) -> Float[np.ndarray, " P"]:
        return self.metrics(data, first_row)["m_rejected_reward"].to_numpy(np.float64)


class ChosenRewardFilter(_PairFilter):
    """Keep prompts whose chosen response has a high reward."""

    def _scores(self, data: Any, first_row: int = 0) -> Float[np.ndarray, " P"]:
        frame = self.metrics(data, first_row)
        return (frame["m_rejected_reward"] + frame["m_gap"]).to_numpy(np.float64)


class PerplexityFilter(_ScoreFilter):
    """Keep prompts whose chosen response has a high perplexity given the prompt.

    Parameters
    ----------
    quantile : share that is dropped (the paper's best range is 25 to 100%).
    logprobs_col : column of the token log-probabilities of the chosen response given the prompt, a list a row.
    """

    def __init__(self, quantile: float | int = 0.25, logprobs_col: str = "chosen_logprobs") -> None:
        self.quantile = quantile
        self.logprobs_col = logprobs_col

    def _cross_entropy(self, data: Any, column: str, first_row: int) -> Float[np.ndarray, " P"]:
        """Mean of -log p(token); NaN without a token."""
        require_columns(data, [column])
        tokens = read_rewards(data, column, first_row)
        sums = np.bincount(
            np.repeat(np.arange(len(tokens.sizes)), tokens.sizes), weights=-tokens.flat, minlength=len(tokens.sizes)
        )
        return np.divide(sums, tokens.sizes, out=np.full(len(sums), np.nan), where=tokens.sizes > 0)

    def _scores(self, data: Any, first_row: int = 0) -> Float[np.ndarray, " P"]:
        return np.exp(self._cross_entropy(data, self.logprobs_col, first_row))


class IFDFilter(PerplexityFilter):
    """Keep prompts of high instruction-following difficulty: cross-entropy of the chosen response given the prompt over that
    without it (a ratio of losses, not of perplexities).

    Parameters
    ----------
    quantile : share that is dropped (the paper's best range is 25 to 100%).
    logprobs_col : column of the token log-probabilities of the chosen response given the prompt, a list a row.
    alone_col : the same without the prompt.
    """

    def __init__(
        self,
        quantile: float | int = 0.25,
        logprobs_col: str = "chosen_logprobs",
        alone_col: str = "chosen_logprobs_alone",
    ) -> None:
        super().__init__(quantile, logprobs_col)
        self.alone_col = alone_col

    def _scores(self, data: Any, first_row: int = 0) -> Float[np.ndarray, " P"]:
        given = self._cross_entropy(data, self.logprobs_col, first_row)
        return given / self._cross_entropy(data, self.alone_col, first_row)


class RandomFilter(PromptFilter):
    """Keep a share of the prompts at random, the control for size.

    Parameters
    ----------
    quantile : share that is dropped.
    seed : of the draw.
    """

    def __init__(self, quantile: float | int = 0.5, seed: int = 0) -> None:
        self.quantile = quantile
        self.seed = seed

    def fit(self, data: Any, y: None = None) -> RandomFilter:
        """Check the quantile; nothing is learned."""
        check_quantiles(self.quantile, 1)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def support(self, data: Any, first_row: int = 0) -> Bool[np.ndarray, " P"]:
        """Which prompts are kept."""
        P = rows_in(data)
        keep = np.zeros(P, dtype=bool)
        keep[np.random.default_rng(self.seed).permutation(P)[: int((1 - self.quantile) * P + 0.5)]] = True
        return keep
