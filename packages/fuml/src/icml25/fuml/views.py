"""Reading multi-view input: a sequence or mapping of 2-D arrays, or one 2-D array cut into blocks of columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

__all__ = ["View", "cut", "given_as_views", "read_views"]


@dataclass(frozen=True)
class View:
    """One view of all samples, made dense and float only for the rows asked for."""

    name: str
    array: Any  # ndarray or CSR
    columns: Any  # slice, or index array
    width: int
    names: list[str] | None = None  # of the columns, where they have some

    @property
    def sparse(self) -> bool:
        """Whether the rows are stored sparse."""
        return sp.issparse(self.array)

    def rows(self, index: slice | np.ndarray) -> np.ndarray:
        """Return the rows asked for as a dense array of shape (len(index), width)."""
        block = self.array[index]
        if not (isinstance(self.columns, slice) and self.columns == slice(None)):
            block = block[:, self.columns]
        return block.toarray() if self.sparse else block


def given_as_views(X: Any) -> bool:
    """Whether X is a mapping, or a sequence whose items are all 2-D arrays (dense, sparse or frames)."""
    if isinstance(X, Mapping):
        return True
    if not isinstance(X, Sequence) or isinstance(X, str) or len(X) == 0:
        return False
    return all(getattr(view, "ndim", None) == 2 for view in X)


def read_views(X: Any) -> tuple[list[View], list[str] | None]:
    """Read a sequence or mapping of 2-D arrays.

    Args:
        X: the views, each (n, d_v): array, sparse matrix or data frame.

    Returns:
        The views, and the keys where X is a mapping, else None.

    Raises:
        TypeError: X is one array or not a collection of views; a view that is not numeric; keys that are not strings.
        ValueError: no view, a view that is not 2-D or has no column, views of different lengths.
    """
    if isinstance(X, Mapping):
        if not all(isinstance(key, str) for key in X):
            raise TypeError(f"X: the keys of a mapping of views must be strings, got {list(X)}.")
        keys, items = list(X), list(X.values())
    elif not isinstance(X, Sequence) or isinstance(X, str):
        shape = f" of shape {X.shape}" if isinstance(X, np.ndarray) else ""
        raise TypeError(
            f"X must be a sequence or mapping of 2-D arrays, one per view, got {type(X).__name__}{shape}. "
            "To cut one 2-D array into views, set the parameter `views`."
        )
    else:
        keys, items = None, list(X)
    if not items:
        raise ValueError("X holds no view: at least one 2-D array is needed.")
    names = keys or [str(v) for v in range(len(items))]
    views = [_as_view(item, name) for item, name in zip(items, names, strict=True)]
    lengths = {view.name: view.array.shape[0] for view in views}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"X: all views must have the same number of rows, got {lengths} (view: rows).")
    return views, keys


def _as_view(item: Any, name: str) -> View:
    array = item.tocsr() if sp.issparse(item) else np.asarray(item)
    if array.ndim != 2:
        raise ValueError(f"X: view {name} must be 2-D (rows, columns), got {array.ndim}-D of shape {array.shape}.")
    if array.dtype.kind not in "buif":
        raise TypeError(f"X: view {name} must hold real numbers, got dtype {array.dtype}.")
    if array.shape[1] == 0:
        raise ValueError(f"X: view {name} has no column, got shape {array.shape}.")
    columns = list(getattr(item, "columns", [None]))
    names = columns if all(isinstance(column, str) for column in columns) else None
    return View(name, array, slice(None), array.shape[1], names)


def cut(X: Any, views: Any, names: np.ndarray | None = None) -> list[View]:
    """Cut one 2-D array into views.

    Args:
        X: array or CSR matrix, (n, d).
        views: a number of contiguous blocks of (nearly) equal width, or one entry per view: a (start, stop) tuple or a
            list of column numbers, also where it holds two. Columns in no view are not used.
        names: column names of X, (d,), or None.

    Returns:
        The views.

    Raises:
        TypeError: views of another kind.
        ValueError: no view, an empty view, or columns that X does not have.
    """
    d = X.shape[1]
    if isinstance(views, (int, np.integer)) and not isinstance(views, bool):
        if not 1 <= views <= d:
            raise ValueError(
                f"views={views} blocks of columns need 1 <= views <= n_features, but X has n_features = {d}."
            )
        blocks = [slice(int(b[0]), int(b[-1]) + 1) for b in np.array_split(np.arange(d), views)]
    elif isinstance(views, (Sequence, np.ndarray)) and not isinstance(views, str):
        if len(views) == 0:
            raise ValueError("views is empty: at least one view is needed.")
        blocks = [_columns(entry, v, d) for v, entry in enumerate(views)]
    else:
        raise TypeError(
            "views must be None, a number of blocks, or a list with a (start, stop) tuple or a list of column numbers "
            f"per view, got {views!r}."
        )
    return [
        View(
            str(v),
            X,
            block,
            block.stop - block.start if isinstance(block, slice) else len(block),
            None if names is None else list(names[block]),
        )
        for v, block in enumerate(blocks)
    ]


def _columns(entry: Any, v: int, d: int) -> slice | np.ndarray:
    index = np.asarray(entry)
    numbers = index.ndim == 1 and index.size > 0 and index.dtype.kind in "iu"
    if not numbers or any(isinstance(i, (bool, np.bool_)) for i in entry):
        raise TypeError(
            f"views[{v}] must be a (start, stop) tuple or a non-empty list of column numbers, got {entry!r}."
        )
    if isinstance(entry, tuple):
        if len(entry) != 2 or not 0 <= entry[0] < entry[1] <= d:
            raise ValueError(f"views[{v}] must be (start, stop) with 0 <= start < stop <= {d}, got {entry!r}.")
        return slice(int(entry[0]), int(entry[1]))
    if index.min() < 0 or index.max() >= d:
        raise ValueError(f"views[{v}] must hold column numbers in 0..{d - 1}, got {entry!r}.")
    return index
