"""The kinds of tables that filters take and return: DataFrame, datasets.Dataset, Arrow table, list of dicts."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool

__all__ = ["column_of", "columns_of", "is_arrow", "is_dataset", "like", "rows_in", "select"]


def is_arrow(column: Any) -> bool:
    """Whether this is an array of pyarrow, if pyarrow is loaded at all."""
    pa = sys.modules.get("pyarrow")
    return pa is not None and isinstance(column, (pa.Array, pa.ChunkedArray))


def _is_table(data: Any) -> bool:
    pa = sys.modules.get("pyarrow")
    return pa is not None and isinstance(data, (pa.Table, pa.RecordBatch))


def is_dataset(data: Any) -> bool:
    """Whether this is a ``datasets.Dataset``, if that library is loaded at all."""
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(data, datasets.Dataset)


def columns_of(data: Any) -> list[str]:
    """Names of the columns; of a list of dicts, those that every row has.

    Raises
    ------
    TypeError: no table of a known kind.
    """
    if isinstance(data, pd.DataFrame):
        return [str(name) for name in data.columns]
    if _is_table(data):
        return list(data.schema.names)
    if is_dataset(data):
        return list(data.column_names)
    if isinstance(data, list) and all(isinstance(row, dict) for row in data):
        common = set(data[0]) if data else set()
        for row in data:
            common &= set(row)
        return [name for name in (data[0] if data else ()) if name in common]
    raise TypeError(f"expected a DataFrame, a datasets.Dataset, an Arrow table or a list of dicts, got {type(data)}")


def rows_in(data: Any) -> int:
    """Number of rows."""
    return int(data.num_rows) if _is_table(data) else len(data)


def column_of(data: Any, name: str) -> Any:
    """One column: an Arrow array, or something to iterate over."""
    if _is_table(data):
        return data.column(name)
    if is_dataset(data):
        return data.select_columns([name]).with_format("arrow")[:].column(name)
    if isinstance(data, pd.DataFrame):
        return data[name].tolist()
    return [row[name] for row in data]


def select(data: Any, keep: Bool[np.ndarray, " P"]) -> Any:
    """The rows to keep, in kind."""
    if isinstance(data, pd.DataFrame):
        return data.loc[keep]
    if is_dataset(data):
        return data.select(np.flatnonzero(keep))
    if _is_table(data):
        import pyarrow as pa

        return data.filter(pa.array(keep))
    return [row for row, kept in zip(data, keep, strict=True) if kept]


def like(data: Any, columns: dict[str, Any]) -> Any:
    """New columns as a table of the same kind."""
    if _is_table(data):
        import pyarrow as pa

        return pa.table(columns)
    if is_dataset(data):
        import datasets

        return datasets.Dataset.from_dict(columns)
    if isinstance(data, pd.DataFrame):
        return pd.DataFrame(columns)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
