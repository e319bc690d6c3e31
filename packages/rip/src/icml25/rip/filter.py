"""Judge a prompt by its preference pair: rejected reward, rejected length, reward gap."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Shaped
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError

from icml25.rip.checks import Responses, Rewards, check_quantiles, read_responses, read_rewards, require_columns
from icml25.rip.pairing import best_worst, gaps, pair_rows
from icml25.rip.tables import column_of, like, select

__all__ = ["RULES", "PromptFilter", "RIPFilter"]

RULES = ("rejected_reward", "rejected_length", "gap")
METRICS = ("m_rejected_reward", "m_rejected_length", "m_gap")


class PromptFilter(TransformerMixin, BaseEstimator):
    """What all filters of prompts share: tables in and out in kind, metrics of preference pairs, training pairs.

    A subclass sets ``fit`` and ``support``.
    """

    length_fn: Callable[[str], int] = len
    prompt_col: str = "prompt"
    responses_col: str = "responses"
    rewards_col: str = "rewards"
    on_nan: str = "raise"

    def _read(self, data: Any, first_row: int = 0) -> tuple[Rewards, Responses, Bool[np.ndarray, " P"]]:
        """Rewards, responses, and the rows that on_nan='drop' drops."""
        if self.on_nan not in ("raise", "drop"):
            raise ValueError(f"on_nan must be 'raise' or 'drop', got {self.on_nan!r}")
        require_columns(data, [self.prompt_col, self.responses_col, self.rewards_col])
        rewards = read_rewards(data, self.rewards_col, first_row)
        responses = read_responses(data, self.responses_col, rewards, self.rewards_col, first_row)
        bad = _not_finite(rewards)
        if self.on_nan == "raise" and bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise ValueError(
                f"row {first_row + row}, column {self.rewards_col!r}: a reward is not finite; on_nan='drop' drops such rows"
            )
        return rewards, responses, bad

    def metrics(self, data: Any, first_row: int = 0) -> pd.DataFrame:
        """Metrics of every prompt's best-versus-worst pair.

        Parameters
        ----------
        data : DataFrame, ``datasets.Dataset``, Arrow table or list of dicts with prompts, responses (lists of texts) and
            rewards (lists of numbers).
        first_row : number of the first row in error messages.

        Returns
        -------
        DataFrame (P rows): ``m_rejected_reward`` r(y_l|x), ``m_rejected_length`` len(y_l), ``m_gap`` r(y_w|x) - r(y_l|x)
            (NaN without a pair), ``chosen_idx`` and ``rejected_idx`` within the row (-1 without a pair), and ``reason``:
            "" or why the row has none, "no_pair" (fewer than two responses, or equal rewards) or "not_finite".
        """
        rewards, responses, bad = self._read(data, first_row)
        chosen, rejected, paired = best_worst(rewards)
        length = np.full(len(paired), np.nan)
        length[paired] = responses.lengths(rejected[paired], self.length_fn)
        return _frame(rewards, chosen, rejected, length, paired, bad)

    def support(self, data: Any) -> Bool[np.ndarray, " P"]:
        """Which prompts are kept."""
        raise NotImplementedError

    def transform(self, data: Any) -> Any:
        """Return the kept rows, in kind: same columns, same order.

        Parameters
        ----------
        data : as for `metrics`.
        """
        return select(data, self.support(data))

    def to_pairs(self, data: Any, strategy: str = "best_worst", q: float | int = 0.25, seed: int = 0) -> Any:
        """Training pairs for DPO; rows without a pair are left out.

        Parameters
        ----------
        data : as for `metrics`, usually after `transform`.
        strategy, q, seed : see `pair`.

        Returns
        -------
        Table in kind: prompt, chosen, rejected, chosen_reward, rejected_reward.
        """
        rewards, responses, _ = self._read(data)
        chosen, rejected = pair_rows(rewards, strategy, q, seed)
        paired = chosen >= 0
        prompts = column_of(select(data, paired), self.prompt_col)
        return like(
            data,
            {
                "prompt": prompts.to_pylist() if hasattr(prompts, "to_pylist") else list(prompts),
                "chosen": responses.take(chosen[paired]),
                "rejected": responses.take(rejected[paired]),
                "chosen_reward": rewards.flat[chosen[paired]].tolist(),
                "rejected_reward": rewards.flat[rejected[paired]].tolist(),
            },
        )

    def _warn_of_duplicates(self, data: Any) -> None:
        column = column_of(data, self.prompt_col)
        prompts = column.to_pylist() if hasattr(column, "to_pylist") else list(column)
        keys = [prompt if isinstance(prompt, str) else repr(prompt) for prompt in prompts]
        if duplicates := len(keys) - len(set(keys)):
            warnings.warn(f"{duplicates} rows repeat the prompt of an earlier row", UserWarning, stacklevel=3)


def _not_finite(rewards: Rewards) -> Bool[np.ndarray, " P"]:
    bad = np.zeros(len(rewards.sizes), dtype=bool)
    wrong = np.flatnonzero(~np.isfinite(rewards.flat))
    bad[np.searchsorted(rewards.offsets, wrong, side="right") - 1] = True
    return bad


def _frame(rewards: Rewards, chosen: Any, rejected: Any, length: Any, paired: Any, bad: Any) -> pd.DataFrame:
    """The metrics of pairs at flat positions."""
    m = np.full((3, len(paired)), np.nan)
    m[0, paired] = rewards.flat[rejected[paired]]
    m[1] = length
    m[2, paired] = gaps(rewards, chosen[paired], rejected[paired])
    starts = rewards.offsets[:-1]
    return pd.DataFrame(
        dict(zip(METRICS, m, strict=True))
        | {
            "chosen_idx": np.where(paired, chosen - starts, -1),
            "rejected_idx": np.where(paired, rejected - starts, -1),
            "reason": pd.Categorical(
                np.select([bad, ~paired], ["not_finite", "no_pair"], ""), ["", "not_finite", "no_pair"]
            ),
        }
    )


def metrics_of_arrays(rewards: Float[np.ndarray, "P N"], lengths: Shaped[np.ndarray, "P N"]) -> pd.DataFrame:
    """The same metrics from rewards and lengths of N responses to each of P prompts."""
    if rewards.shape != lengths.shape:
        raise ValueError(f"rewards {rewards.shape} and lengths {lengths.shape} must have the same shape")
    P, N = rewards.shape
    rows = Rewards(np.asarray(rewards, np.float64).reshape(-1), np.arange(P + 1, dtype=np.int64) * N)
    bad = _not_finite(rows)
    if bad.any():
        raise ValueError(f"row {int(np.flatnonzero(bad)[0])}: a reward is not finite")
    chosen, rejected, paired = best_worst(rows)
    length = np.full(P, np.nan)
    length[paired] = lengths.reshape(-1)[rejected[paired]]
    return _frame(rows, chosen, rejected, length, paired, bad)


def fit_thresholds(metrics: Float[np.ndarray, "3 P"], quantile: Any) -> dict[str, float | None]:
    """tau_1 = Q(m_1, q_1), tau_2 = Q(m_2, q_2), tau_3 = Q(m_3, 1 - q_3), each over all prompts that have a pair.

    The rules do not see each other: no quantile is taken again on what another rule left.
    """
    levels = check_quantiles(quantile, len(RULES))
    paired = metrics[:, np.isfinite(metrics).all(0)]
    if not paired.size:
        raise ValueError(f"none of the {metrics.shape[1]} rows has a pair of responses with different rewards")
    return {
        rule: None if not q else float(np.quantile(m, 1 - q if rule == "gap" else q, method="linear"))
        for rule, m, q in zip(RULES, paired, levels, strict=True)
    }


def passes(
    metrics: Float[np.ndarray, "3 P"], thresholds: Mapping[str, float | None]
) -> dict[str, Bool[np.ndarray, " P"]]:
    """Which prompts meet each rule: m_1 >= tau_1, m_2 >= tau_2, m_3 <= tau_3; rules that are off pass all."""
    out = {}
    for rule, m in zip(RULES, metrics, strict=True):
        tau = thresholds.get(rule)
        out[rule] = np.ones(m.shape, bool) if tau is None else (m <= tau if rule == "gap" else m >= tau)
    return out


def summarise(
    frame: pd.DataFrame, rules: Mapping[str, Bool[np.ndarray, " P"]], thresholds: Mapping[str, float | None]
) -> dict[str, Any]:
    """Counts: in, kept, dropped by each rule, by each set of rules, and by two rules at once."""
    reason = frame["reason"].to_numpy()
    paired = reason == ""
    fails = {rule: ~passed & paired for rule, passed in rules.items()}
    kept = paired & ~np.any(list(fails.values()), axis=0)
    without = {why: int((reason == why).sum()) for why in ("no_pair", "not_finite")}
    sets = [some for n in (1, 2, 3) for some in combinations(RULES, n)]
    exactly = {
        " & ".join(some): int(np.all([fails[rule] == (rule in some) for rule in RULES], axis=0).sum()) for some in sets
    }
    return {
        "n_in": len(frame),
        "n_kept": int(kept.sum()),
        "dropped": without | {rule: int(failed.sum()) for rule, failed in fails.items()},
        "reasons": without | exactly,
        "overlap": {f"{a} & {b}": int((fails[a] & fails[b]).sum()) for a, b in combinations(RULES, 2)},
        "thresholds": dict(thresholds),
    }


def check_thresholds(thresholds: Mapping[str, Any]) -> dict[str, float | None]:
    """One threshold for each rule, None where a rule is off.

    Raises
    ------
    ValueError: an unknown rule, or a threshold that is no finite number.
    """
    if unknown := set(thresholds) - set(RULES):
        raise ValueError(f"thresholds has unknown rules {sorted(unknown)}; expected some of {list(RULES)}")
    for rule, value in thresholds.items():
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if value is not None and not (number and np.isfinite(value)):
            raise ValueError(f"thresholds[{rule!r}] must be a finite number or None, got {value!r}")
    return {rule: None if thresholds.get(rule) is None else float(thresholds[rule]) for rule in RULES}


def _unit(length_fn: Callable[[str], int]) -> str:
    return "characters" if length_fn is len else getattr(length_fn, "__name__", "custom")


class RIPFilter(PromptFilter):
    """Keep prompts whose rejected response is good and long, and whose reward gap is small.

    m_1 = r(y_l|x) >= tau_1, m_2 = len(y_l) >= tau_2, m_3 = r(y_w|x) - r(y_l|x) <= tau_3, with y_w and y_l the responses of
    highest and lowest reward; thresholds are quantiles of each metric over all prompts, independently of the other rules.

    Parameters
    ----------
    quantile : share in [0, 1) that each rule drops, one for all or (q_1, q_2, q_3); 0 or None switches a rule off.
    thresholds : values to use instead, keys among "rejected_reward", "rejected_length", "gap"; a missing one is off. No fit
        is needed then.
    length_fn : length of a text; characters by default. Called for rejected responses only.
    prompt_col, responses_col, rewards_col : names of columns.
    on_nan : "raise" or "drop" rows with a reward that is not finite.

    Attributes
    ----------
    thresholds_ : dict, None where a rule is off.
    report_ : counts of the last `fit`, `support` or `transform`: ``n_in``, ``n_kept``, ``dropped`` by each rule (a
        prompt counts for every rule that it fails), ``reasons`` (a prompt counts once, for the set of rules that it fails),
        ``overlap`` of two rules, ``thresholds``.
    """

    def __init__(
        self,
        quantile: Any = 0.5,
        thresholds: Mapping[str, Any] | None = None,
        length_fn: Callable[[str], int] = len,
        prompt_col: str = "prompt",
        responses_col: str = "responses",
        rewards_col: str = "rewards",
        on_nan: str = "raise",
    ) -> None:
        self.quantile = quantile
        self.thresholds = thresholds
        self.length_fn = length_fn
        self.prompt_col = prompt_col
        self.responses_col = responses_col
        self.rewards_col = rewards_col
        self.on_nan = on_nan

    def fit(self, data: Any, y: None = None) -> RIPFilter:
        """Set the thresholds from the prompts' metrics.

        Parameters
        ----------
        data : DataFrame, ``datasets.Dataset``, Arrow table or list of dicts.
        y : ignored.

        Raises
        ------
        ValueError: no rows, none with a pair, a quantile outside [0, 1), unequal numbers of responses and rewards, a reward
            that is not finite. TypeError: a response is no text, a reward no number. KeyError: a column is missing.
        """
        if not len(data):
            raise ValueError("no rows; expected at least one prompt with two responses of different rewards")
        frame = self.metrics(data)
        self._warn_of_duplicates(data)
        return self._fit(frame)

    def fit_arrays(self, rewards: Float[np.ndarray, "P N"], lengths: Shaped[np.ndarray, "P N"]) -> RIPFilter:
        """Set the thresholds from rewards and lengths of N responses to each of P prompts."""
        return self._fit(metrics_of_arrays(rewards, lengths))

    def support_arrays(
        self, rewards: Float[np.ndarray, "P N"], lengths: Shaped[np.ndarray, "P N"]
    ) -> Bool[np.ndarray, " P"]:
        """Which prompts are kept, from rewards and lengths of their responses."""
        return self._judge(metrics_of_arrays(rewards, lengths))

    def support(self, data: Any, first_row: int = 0) -> Bool[np.ndarray, " P"]:
        """Which prompts are kept.

        Parameters
        ----------
        data : as for `fit`.
        first_row : number of the first row in error messages.

        Raises
        ------
        sklearn.exceptions.NotFittedError: neither fitted nor given thresholds.
        """
        self._fitted()
        return self._judge(self.metrics(data, first_row))

    def _fit(self, frame: pd.DataFrame) -> RIPFilter:
        found = fit_thresholds(frame[list(METRICS)].to_numpy(np.float64).T, self.quantile)
        self.thresholds_ = found if self.thresholds is None else check_thresholds(self.thresholds)
        self._judge(frame)
        return self

    def _fitted(self) -> dict[str, float | None]:
        if hasattr(self, "thresholds_"):
            return self.thresholds_
        if self.thresholds is not None:
            return check_thresholds(self.thresholds)
        raise NotFittedError("this RIPFilter has no thresholds; call fit first, or give thresholds")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "thresholds_") or self.thresholds is not None

    def _judge(self, frame: pd.DataFrame) -> Bool[np.ndarray, " P"]:
        thresholds = self._fitted()
        rules = passes(frame[list(METRICS)].to_numpy(np.float64).T, thresholds)
        self.report_ = summarise(frame, rules, thresholds)
        return np.all([*rules.values(), frame["reason"].to_numpy() == ""], axis=0)

    def as_json(self) -> dict[str, Any]:
        """Thresholds, quantiles and the unit of length."""
        return {"thresholds": self._fitted(), "quantile": self.quantile, "length": _unit(self.length_fn)}

    def save(self, file: str | Path) -> None:
        """Write thresholds, quantiles and the unit of length as JSON."""
        Path(file).write_text(json.dumps(self.as_json(), indent=2) + "\n")

    @classmethod
    def load(cls, file: str | Path, **params: Any) -> RIPFilter:
        """Read a filter that `save` wrote; thresholds in another unit than characters need their ``length_fn``.

        Raises
        ------
        ValueError: not such a file, or the unit of length is not that of ``length_fn``.
        """
        try:
            content = json.loads(Path(file).read_text())
            thresholds, unit = check_thresholds(content["thresholds"]), content["length"]
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file} holds no thresholds of a RIPFilter: {error!r}") from error
        if (have := _unit(params.get("length_fn", len))) != unit:
            raise ValueError(f"{file}: lengths were measured in {unit!r}, length_fn gives {have!r}")
        quantile = content.get("quantile", 0.5)
        quantile = tuple(quantile) if isinstance(quantile, list) else quantile
        return cls(quantile=quantile, thresholds=thresholds, **params)
