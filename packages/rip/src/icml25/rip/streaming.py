"""Thresholds of data that do not fit in memory: two passes, 24 bytes a prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from icml25.rip.filter import METRICS, RIPFilter, fit_thresholds

__all__ = ["StreamingRIP"]


class StreamingRIP:
    """Collects the three metrics of each prompt batch by batch; its thresholds are those of `RIPFilter` on all rows at once.

    Parameters
    ----------
    quantile : as for `RIPFilter`.
    max_rows : None keeps every prompt's metrics (exact); a number keeps a uniform random sample of that many prompts.
    length_fn, prompt_col, responses_col, rewards_col, on_nan : as for `RIPFilter`.
    seed : of the random sample.
    """

    def __init__(
        self,
        quantile: Any = 0.5,
        max_rows: int | None = None,
        length_fn: Callable[[str], int] = len,
        prompt_col: str = "prompt",
        responses_col: str = "responses",
        rewards_col: str = "rewards",
        on_nan: str = "raise",
        seed: int = 0,
    ) -> None:
        if max_rows is not None and max_rows < 1:
            raise ValueError(f"max_rows must be at least 1 or None, got {max_rows}")
        self.max_rows = max_rows
        self.n_seen = 0
        self._filter = RIPFilter(quantile, None, length_fn, prompt_col, responses_col, rewards_col, on_nan)
        self._rng = np.random.default_rng(seed)
        self._parts: list[np.ndarray] = []
        self._paired = 0
        self._without = dict.fromkeys(("no_pair", "not_finite"), 0)

    def partial_fit(self, batch: Any, first_row: int | None = None) -> StreamingRIP:
        """Take the metrics of one more batch (any table that `RIPFilter` takes); first_row is for error messages."""
        frame = self._filter.metrics(batch, self.n_seen if first_row is None else first_row)
        self.n_seen += len(frame)
        for why in self._without:
            self._without[why] += int(np.count_nonzero(frame["reason"] == why))
        m = frame.loc[(frame["reason"] == "").to_numpy(), list(METRICS)].to_numpy(np.float64)
        if self.max_rows is None:
            self._parts.append(m)
        else:
            self._sample(m)
        return self

    def _sample(self, m: np.ndarray) -> None:
        """Algorithm R (Vitter, 1985): row i replaces a kept one with probability max_rows / (i + 1)."""
        if not self._parts:
            self._parts = [np.empty((self.max_rows, 3))]  # pyright: ignore
        kept = self._parts[0]
        for row in m:
            slot = self._paired if self._paired < len(kept) else int(self._rng.integers(self._paired + 1))
            if slot < len(kept):
                kept[slot] = row
            self._paired += 1

    def finalize(self) -> RIPFilter:
        """Return a `RIPFilter` with the thresholds of all batches, for the second pass; its report is of the rows kept here.

        Raises
        ------
        ValueError: no row had a pair.
        """
        m = np.concatenate(self._parts) if self._parts else np.empty((0, 3))
        if self.max_rows is not None:
            m = m[: self._paired]
        if not len(m):
            raise ValueError(f"none of the {self.n_seen} rows has a pair of responses with different rewards")
        params: dict[str, Any] = self._filter.get_params()
        params["thresholds"] = fit_thresholds(m.T, self._filter.quantile)
        rip = RIPFilter(**params)
        unpaired = [why for why, count in self._without.items() for _ in range(count)]
        frame = pd.DataFrame(m, columns=list(METRICS)).reindex(range(len(m) + len(unpaired)))
        return rip._fit(frame.assign(reason=[""] * len(m) + unpaired))
