"""Columns of lists as flat arrays with row boundaries, from every kind of table; errors name row and column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from icml25.rip.tables import column_of, columns_of, is_arrow


@dataclass(frozen=True)
class Rewards:
    """Rewards of all responses one after the other (R,), and where each prompt's begin: offsets (P + 1,)."""

    flat: Float[np.ndarray, " R"]
    offsets: Int[np.ndarray, " P1"]

    @property
    def sizes(self) -> Int[np.ndarray, " P"]:
        """Responses of each prompt."""
        return np.diff(self.offsets)


def require_columns(data: Any, names: Sequence[str]) -> None:
    """Raise KeyError where a column is missing."""
    found = columns_of(data)
    if isinstance(data, list) and not data:  # no row that could miss one
        return
    if missing := [name for name in names if name not in found]:
        raise KeyError(f"missing column(s) {missing}; expected {list(names)}, found {found}")


def _offsets(sizes: Iterable[int]) -> Int[np.ndarray, " P1"]:
    return np.concatenate([[0], np.cumsum(np.fromiter(sizes, np.int64))]).astype(np.int64)


def _rows_of_lists(column: Any, name: str, first_row: int) -> list[Any]:
    rows = list(column)
    for i, row in enumerate(rows):
        if isinstance(row, str):
            raise TypeError(
                f"row {first_row + i}, column {name!r}: text instead of a list; CSV turns lists into text, "
                "use JSONL or parquet"
            )
        if not hasattr(row, "__len__") or isinstance(row, dict):
            raise TypeError(f"row {first_row + i}, column {name!r}: expected a list, got {type(row).__name__}")
    return rows


def _arrow_lists(column: Any, name: str, first_row: int) -> tuple[Any, Int[np.ndarray, " P1"]]:
    """Flat values and offsets of an Arrow column of lists, without a copy of the values."""
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # no chunk at all
        array = pa.array([], type=array.type)
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    if pa.types.is_null(array.type) and not len(array):
        return pa.array([], pa.float64()), np.zeros(1, np.int64)
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        raise TypeError(f"row {first_row}, column {name!r}: expected lists, got {array.type}")
    if array.null_count:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise TypeError(f"row {first_row + row}, column {name!r}: expected a list, got null")
    offsets = array.offsets.to_numpy().astype(np.int64)
    return array.flatten(), offsets - offsets[0]


def _row_at(offsets: Int[np.ndarray, " P1"], position: int) -> int:
    return int(np.searchsorted(offsets, position, side="right")) - 1


def read_rewards(data: Any, name: str, first_row: int = 0) -> Rewards:
    """Rewards of a table's column of lists of numbers.

    Raises
    ------
    TypeError: a row is no list, or holds something that is no number.
    """
    column = column_of(data, name)
    if is_arrow(column):
        import pyarrow as pa

        values, offsets = _arrow_lists(column, name, first_row)
        kind = values.type
        numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if len(values) and not numbers:
            raise TypeError(f"row {first_row}, column {name!r}: expected numbers, got {kind}")
        if values.null_count:
            row = _row_at(offsets, int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]))
            raise TypeError(f"row {first_row + row}, column {name!r}: expected numbers, got null")
        flat = values.to_numpy(zero_copy_only=False) if len(values) else np.empty(0)
        return Rewards(flat.astype(np.float64, copy=False), offsets)
    rows = _rows_of_lists(column, name, first_row)
    offsets = _offsets(map(len, rows))
    values = list(chain.from_iterable(rows))
    try:
        flat = np.asarray(values)
    except ValueError:  # lists of different lengths within a row
        flat = np.asarray(values, dtype=object)
    if len(values) and (flat.dtype.kind not in "biuf" or flat.ndim != 1):
        bad = next((i for i, v in enumerate(values) if not isinstance(v, (bool, int, float, np.number, np.bool_))), 0)
        raise TypeError(
            f"row {first_row + _row_at(offsets, bad)}, column {name!r}: expected numbers, "
            f"got {type(values[bad]).__name__} {values[bad]!r}"
        )
    return Rewards(flat.astype(np.float64).reshape(-1), offsets)


@dataclass(frozen=True)
class Responses:
    """Texts of all responses one after the other (a list, or an Arrow array), and where each prompt's begin."""

    flat: Any
    offsets: Int[np.ndarray, " P1"]

    def lengths(self, at: Int[np.ndarray, " n"], length_fn: Callable[[str], int]) -> Float[np.ndarray, " n"]:
        """Lengths of the responses at these positions."""
        if is_arrow(self.flat):
            import pyarrow.compute as pc

            texts = self.flat.take(at)
            if length_fn is len:
                return pc.utf8_length(texts).to_numpy(zero_copy_only=False).astype(np.float64)  # pyright: ignore
            return np.array([length_fn(text) for text in texts.to_pylist()], dtype=np.float64)
        return np.array([length_fn(self.flat[i]) for i in at.tolist()], dtype=np.float64)

    def take(self, at: Int[np.ndarray, " n"]) -> list[str]:
        """The responses at these positions."""
        return self.flat.take(at).to_pylist() if is_arrow(self.flat) else [self.flat[i] for i in at.tolist()]


def read_responses(data: Any, name: str, rewards: Rewards, rewards_name: str, first_row: int = 0) -> Responses:
    """Responses of a table's column of lists of texts, as many as rewards.

    Raises
    ------
    TypeError: a row is no list, or holds something that is no text.
    ValueError: a row has another number of responses than of rewards.
    """
    column = column_of(data, name)
    if is_arrow(column):
        import pyarrow as pa

        flat, offsets = _arrow_lists(column, name, first_row)
        if len(flat) and not (pa.types.is_string(flat.type) or pa.types.is_large_string(flat.type)):
            raise TypeError(f"row {first_row}, column {name!r}: expected texts, got {flat.type}")
        bad = int(np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))[0]) if flat.null_count else None
    else:
        rows = _rows_of_lists(column, name, first_row)
        offsets = _offsets(map(len, rows))
        flat = list(chain.from_iterable(rows))
        bad = next((i for i, text in enumerate(flat) if not isinstance(text, str)), None)
    if bad is not None:
        got = flat[bad].as_py() if is_arrow(flat) else flat[bad]
        raise TypeError(
            f"row {first_row + _row_at(offsets, bad)}, column {name!r}: expected texts, got {type(got).__name__} {got!r}"
        )
    unequal = np.flatnonzero(np.diff(offsets) != rewards.sizes)
    if unequal.size:
        row = int(unequal[0])
        raise ValueError(
            f"row {first_row + row}: {int(np.diff(offsets)[row])} in column {name!r} "
            f"but {int(rewards.sizes[row])} in column {rewards_name!r}"
        )
    return Responses(flat, offsets)


def check_quantiles(quantile: Any, n: int) -> tuple[float | None, ...]:
    """One quantile for each of n metrics; None switches a metric off.

    Raises
    ------
    ValueError: a quantile outside [0, 1), or a tuple of another length.
    """
    if isinstance(quantile, (tuple, list)):
        if len(quantile) != n:
            raise ValueError(f"quantile must be one number or {n} (rejected reward, length, gap), got {quantile!r}")
        values = tuple(quantile)
    else:
        values = (quantile,) * n
    for value in values:
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if value is not None and not (number and 0 <= value < 1):
            raise ValueError(f"quantile must be in [0, 1) or None, got {value!r}")
    return tuple(None if value is None else float(value) for value in values)
