"""The data of an experiment: states, arms and rewards of n days with T time points each."""

from __future__ import annotations

import datetime
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int8, Shaped
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NotIdentifiedError", "Panel"]

_HUGE = 1e100
_DAY, _CLOCK = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d(:\d\d)?"
_COMPACT_DAY = r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])"  # never matches a day written ddmmyyyy
_SORTABLE = (_DAY, f"{_DAY}T{_CLOCK}", f"{_DAY} {_CLOCK}", _CLOCK, _COMPACT_DAY, r"\d{1,3}")


class NotIdentifiedError(ValueError):
    """The panel does not determine the effect: some arm or some window of arms never occurs."""


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Panel:
    """States, actions and rewards by day and time; validated copies that cannot be written to.

    Parameters
    ----------
    states : (n, T, p) finite numbers below 1e100, observed before the action; p may be 0.
    actions : (n, T) of 0 and 1 (or booleans), 1 where the treatment is on.
    rewards : (n, T) finite numbers below 1e100.
    days, times : different labels of the n days and T time points; default 0, 1, 2, ...

    Raises
    ------
    ValueError: a shape does not fit, n < 2, T < 1, a value is masked or not finite (the first day and time are named), a label
        comes twice, or an action is neither 0 nor 1.
    """

    states: Float[np.ndarray, "n T p"]
    actions: Int8[np.ndarray, "n T"]
    rewards: Float[np.ndarray, "n T"]
    days: Shaped[np.ndarray, " n"]
    times: Shaped[np.ndarray, " T"]

    def __init__(
        self,
        states: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        days: ArrayLike | None = None,
        times: ArrayLike | None = None,
    ) -> None:
        rewards = as_numbers(rewards, "rewards")
        if rewards.ndim != 2 or rewards.shape[0] < 2 or rewards.shape[1] < 1:
            raise ValueError(f"rewards must have shape (n >= 2 days, T >= 1 times), got {rewards.shape}")
        n, T = rewards.shape
        states = as_numbers(states, "states")
        if states.ndim != 3 or states.shape[:2] != (n, T):
            hint = "; a single covariate needs states[:, :, None]" if states.shape == (n, T) else ""
            raise ValueError(f"states must have shape (n, T, p) = ({n}, {T}, p) like rewards, got {states.shape}{hint}")
        arms = as_arms(actions, "actions")
        if arms.shape != (n, T):
            raise ValueError(f"actions must have shape (n, T) = ({n}, {T}) like rewards, got {arms.shape}")
        for name, given, size in (("days", days, n), ("times", times, T)):
            labels = np.arange(size) if given is None else np.array(given)
            if labels.shape != (size,):
                raise ValueError(f"{name} must have shape ({size},), got {labels.shape}")
            if len(different := set(labels.tolist())) < size:
                twice = next(label for label in different if labels.tolist().count(label) > 1)
                raise ValueError(f"{name} must be different labels, got {twice!r} more than once")
            labels.setflags(write=False)
            object.__setattr__(self, name, labels)
        for name, array in (("states", states), ("rewards", rewards)):
            if not np.isfinite(array).all():
                i, t = np.argwhere(~np.isfinite(array))[0][:2]
                raise ValueError(
                    f"{name} must be finite, got {array[i, t]} at day {self.days[i]}, time {self.times[t]}"
                )
        object.__setattr__(self, "states", states)
        object.__setattr__(self, "rewards", rewards)
        object.__setattr__(self, "actions", arms)
        for array in (self.states, self.actions, self.rewards):
            array.setflags(write=False)

    @property
    def n_days(self) -> int:
        """n."""
        return self.rewards.shape[0]

    @property
    def n_times(self) -> int:
        """T, time points a day."""
        return self.rewards.shape[1]

    @property
    def n_states(self) -> int:
        """p, state covariates."""
        return self.states.shape[2]

    def __repr__(self) -> str:
        share = self.actions.mean()
        return f"Panel({self.n_days} days x {self.n_times} times, {self.n_states} states, {share:.0%} treated)"

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        *,
        time: str,
        reward: str,
        action: str | None = None,
        states: Sequence[str] = (),
        day: str | None = None,
        treated: object = None,
    ) -> Panel:
        """Pivot a long frame, one row for each day and time in any order; nothing is filled in.

        Parameters
        ----------
        frame : pandas DataFrame (``pip install icml25-switchback[pandas]``).
        time : column with the time within the day, or, with day=None, with timestamps, which are split into date and
            time of day in their own time zone. Times and days are put in the order of numbers, dates, clock times or
            periods, or of an ordered categorical; text must be ISO dates, yyyymmdd, 24-hour clock times or up to three digits, zero-padded.
        reward : column of rewards.
        action : column of arms: 0/1, booleans, or any two labels with ``treated``; None is an A/A history, all arm 0.
        states : columns of state covariates, numbers or booleans.
        day : column with the day.
        treated : the label in ``action`` that is the treatment, for arms that are not 0/1.

        Returns
        -------
        Panel with days and times in sorted order.

        Raises
        ------
        ValueError: a column is missing or doubled; a cell is missing, repeated or not finite; the labels of the arms, or the
            order of times or days, are not understood. Cells are named, at most five, with their count.

        Warns
        -----
        UserWarning: days or times that can be counted have gaps.
        """
        try:
            import pandas as pd
        except ImportError as error:  # pragma: no cover
            raise ImportError("from_frame needs pandas: pip install icml25-switchback[pandas]") from error
        if not isinstance(frame, pd.DataFrame):
            raise TypeError(f"frame must be a pandas DataFrame, got {type(frame).__name__}")
        if isinstance(states, str):
            raise TypeError(f"states must be a list of column names, got the text {states!r}")
        wanted = [name for name in (day, time, action, reward, *states) if name is not None]
        for name in wanted:
            if (found := list(frame.columns).count(name)) != 1:
                raise ValueError(f"frame must have one column {name!r}, it has {found}; columns: {list(frame.columns)}")
        if len(frame) == 0:
            raise ValueError("frame is empty; expected one row for each day and time")
        when = frame[time]
        if day is None:
            if not isinstance(when.dtype, pd.DatetimeTZDtype) and when.dtype.kind != "M":
                raise ValueError(f"day is None, so column {time!r} must hold timestamps, got dtype {when.dtype}")
            dates, clock = when.dt.normalize(), when.dt.time
        else:
            dates, clock = frame[day], when
        for name, column in ((day or time, dates), (time, clock)):
            if missing := int(np.sum(pd.isna(column))):
                raise ValueError(f"column {name!r} has {missing} missing value(s)")
        day_codes, days = _sorted_codes(dates, day or time)
        time_codes, times = _sorted_codes(clock, time)
        n, T = len(days), len(times)

        counts = np.bincount(day_codes * T + time_codes, minlength=n * T)
        for bad, what in ((counts == 0, "missing"), (counts > 1, "repeated")):
            if bad.any():
                cells = ", ".join(f"({days[c // T]}, {times[c % T]})" for c in np.flatnonzero(bad)[:5])
                hint = "" if bad.sum() < n * T / 2 else f"; is {time!r} the time within the day?"
                raise ValueError(f"{int(bad.sum())} of {n} x {T} (day, time) cells are {what}: {cells}{hint}")
        _warn_of_gaps(days, "days", "; days are paired for standard errors where neighbours have complementary arms")
        _warn_of_gaps(times, "times", "")

        order = np.empty(n * T, dtype=np.int64)
        order[day_codes * T + time_codes] = np.arange(n * T)

        def grid(name: str) -> np.ndarray:
            return _column(frame[name], name)[order].reshape(n, T)

        arms = (
            np.zeros((n, T), dtype=np.int8)
            if action is None
            else _arms_of_column(frame[action], action, treated)[order].reshape(n, T)
        )
        stacked = np.stack([grid(name) for name in states], axis=-1) if len(states) else np.zeros((n, T, 0))
        return cls(stacked, arms, grid(reward), np.asarray(days), np.asarray(times))

    def to_frame(self) -> pd.DataFrame:
        """The long frame: columns day, time, action, reward, state0, state1, ..., one row for each cell."""
        import pandas as pd

        n, T, p = self.states.shape
        columns = {
            "day": np.repeat(self.days, T),
            "time": np.tile(self.times, n),
            "action": self.actions.ravel(),
            "reward": self.rewards.ravel(),
        }
        return pd.DataFrame(columns | {f"state{j}": self.states[:, :, j].ravel() for j in range(p)})


def as_arms(values: ArrayLike, name: str) -> Int8[np.ndarray, ...]:
    """Arms as int8, or a ValueError that names what is neither 0 nor 1."""
    array = _unmasked(values, name)
    if array.dtype.kind not in "biufO":
        raise ValueError(f"{name} must be 0 or 1, got dtype {array.dtype}, such as {array.ravel()[:1]}")
    wrong = ~((array == 0) | (array == 1))
    if wrong.any():
        raise ValueError(f"{name} must be 0 or 1, got {sorted({str(value) for value in array[wrong]})[:5]}")
    return array.astype(np.int8)


def as_numbers(values: Any, name: str, copy: bool = True) -> Float[np.ndarray, ...]:
    """Values as float64, or a ValueError that says what else came."""
    array = _unmasked(values, name)
    if array.dtype.kind not in "biufO":
        raise ValueError(f"{name} must be real numbers, got dtype {array.dtype}")
    try:
        array = array.astype(np.float64, copy=copy)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be real numbers: {error}") from error
    if _HUGE <= (size := max(array.max(initial=0), -array.min(initial=0))) < np.inf:
        raise ValueError(f"{name} must be below {_HUGE:g} in size, got {size:.3g}; their squares would overflow")
    return array


def _unmasked(values: Any, name: str) -> np.ndarray:
    if np.ma.is_masked(values):
        raise ValueError(f"{name} has {int(np.ma.getmaskarray(values).sum())} masked value(s); every cell is needed")
    return np.asarray(values)


def clusters(actions: Int8[np.ndarray, "n T"]) -> list[np.ndarray]:
    """Days that belong together: neighbours with complementary rows make a pair, any other day stands alone."""
    found, i = [], 0
    while i < len(actions):
        size = 2 if i + 1 < len(actions) and np.array_equal(actions[i], 1 - actions[i + 1]) else 1
        found.append(np.arange(i, i + size))
        i += size
    return found


def _sorted_codes(column: Any, name: str) -> tuple[np.ndarray, Any]:
    """Codes and labels in order of time, or a ValueError where that order is not known."""
    import pandas as pd

    advice = f"make {name!r} an ordered categorical (pd.Categorical(..., categories=[...], ordered=True)), numbers or datetimes"
    categories = None
    if isinstance(column.dtype, pd.CategoricalDtype):
        categories = column.cat.remove_unused_categories().cat.categories
        if column.cat.ordered:
            return pd.factorize(column, sort=True)[0], np.asarray(categories)
        column = column.astype(categories.dtype)
    try:
        codes, labels = pd.factorize(column, sort=True)
    except TypeError as error:
        raise ValueError(f"column {name!r} mixes labels that cannot be ordered: {error}") from error
    if categories is not None and list(categories) != list(labels):
        raise ValueError(f"column {name!r} is unordered with categories {list(categories[:5])}, not sorted; {advice}")
    if len(labels) > 1 and any(isinstance(label, (str, bytes)) for label in labels):
        same_length = len({len(str(label)) for label in labels}) == 1
        if not (same_length and any(all(re.fullmatch(form, str(label)) for label in labels) for form in _SORTABLE)):
            raise ValueError(
                f"column {name!r} holds text whose order in time is not known, {list(labels[:3])}; {advice}"
            )
    return codes, labels


def _column(column: Any, name: str) -> np.ndarray:
    import pandas as pd

    dtype = column.dtype
    if not (pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_object_dtype(dtype)) or dtype.kind == "c":
        raise ValueError(f"column {name!r} must hold numbers, got dtype {column.dtype}")
    try:
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {name!r} must hold numbers: {error}") from error


def _arms_of_column(column: Any, name: str, treated: object) -> np.ndarray:
    if column.isna().any():
        raise ValueError(f"column {name!r} has {int(column.isna().sum())} missing arm(s)")
    labels = list(column.unique())
    if treated is None:
        if not all(label in (0, 1) for label in labels):
            raise ValueError(f"column {name!r} must hold 0 and 1, got {labels[:5]}; name the treatment with treated=")
        return np.array([int(label) for label in column], dtype=np.int8)
    if treated not in labels:
        raise ValueError(f"treated={treated!r} is not in column {name!r}: {labels[:5]}; action=None is an A/A history")
    if len(labels) > 2:
        raise ValueError(f"column {name!r} must hold two arms, got {len(labels)}: {labels[:5]}")
    return (column.astype(object) == treated).to_numpy(dtype=np.int8)


def _warn_of_gaps(labels: Any, name: str, hint: str) -> None:
    """Warn where labels that can be counted do not follow each other evenly."""
    steps = np.diff([_count(label) for label in labels])
    least = steps.min(initial=np.inf)
    wide = np.flatnonzero(steps > least * (1 + 1e-9))
    if least > 0 and len(wide):
        warnings.warn(
            f"the {name} have {len(wide)} gap(s), the first after {labels[wide[0]]}; nothing is filled in{hint}",
            stacklevel=3,
        )


def _count(label: Any) -> float:
    """A number that grows evenly with time, NaN for labels that have none."""
    import pandas as pd

    text = str(label)
    try:
        if isinstance(label, pd.Period):
            return float(label.ordinal)
        if isinstance(label, (datetime.date, np.datetime64)) or re.match(r"\d{4}-\d\d-\d\d|(19|20)\d{6}$", text):
            return float(pd.Timestamp(text).tz_localize(None).value)
        if re.match(r"\d\d:\d\d", text):
            return pd.Timedelta(text if text.count(":") > 1 else f"{text}:00").total_seconds()
        return float(label)
    except (TypeError, ValueError):
        return np.nan
