"""Multi-view data sets in the MATLAB files that the field shares."""

import os
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

__all__ = ["load_mat"]


def load_mat(path: str | os.PathLike[str]) -> tuple[list[Any], np.ndarray]:
    """Read a multi-view data set: a cell array ``X`` of views and labels ``Y`` (or ``y``, ``gt``).

    Cells may be dense or sparse and hold samples as rows or as columns: the side that matches the number of labels
    is taken. Where all views are square, samples are rows.

    Args:
        path: a MATLAB file of version 4 to 7.2.

    Returns:
        The views, each (n, d_v), dense float arrays or CSR, and the labels as codes 0..K-1 in sorted order, (n,) int64.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not such a file (also version 7.3, which is HDF5), no ``X`` or no labels, or views whose number of
            samples is not that of the labels.
    """
    name = os.fspath(path)
    with open(name, "rb") as file:
        try:
            content = scipy.io.loadmat(file)
        except NotImplementedError as error:
            raise ValueError(
                f"{name} is a MATLAB 7.3 (HDF5) file, whose keys can't be read here: save it with `-v7`."
            ) from error
        except Exception as error:  # scipy raises many types on damaged files
            raise ValueError(f"{name} is not a readable MATLAB file: {error}") from error
    keys = [key for key in content if not key.startswith("__")]
    label_key = next((key for key in ("Y", "y", "gt") if key in keys), None)
    if "X" not in keys or label_key is None:
        raise ValueError(f"{name} must hold the views as X and the labels as Y, y or gt, found the keys {keys}.")
    cells, labels = content["X"], np.asarray(content[label_key])
    if cells.dtype != object or min(cells.shape, default=0) != 1:
        raise ValueError(f"{name}: X must be a cell array with one cell per view, got {cells.dtype} {cells.shape}.")
    if labels.size == 0 or labels.size != max(labels.shape) or labels.dtype.kind not in "buif":
        raise ValueError(
            f"{name}: {label_key} must be one column or row of numbers, got {labels.dtype} {labels.shape}."
        )
    y = np.unique(labels.ravel(), return_inverse=True)[1].astype(np.int64)

    views = [cell if sp.issparse(cell) else np.asarray(cell) for cell in cells.ravel()]
    for v, view in enumerate(views):
        if view.ndim != 2 or view.dtype.kind not in "buif" or len(y) not in view.shape:
            raise ValueError(
                f"{name}: view {v} must be a matrix of numbers with {len(y)} rows or columns, one per label, "
                f"got {view.dtype} {view.shape}."
            )
    # A square view says nothing about its orientation: it follows the others.
    transposed = any(view.shape[0] != len(y) for view in views)
    if transposed and any(view.shape[1] != len(y) for view in views):
        transposed = None
    return [_samples_as_rows(view, len(y), transposed, name) for view in views], y


def _samples_as_rows(view: Any, n: int, transposed: bool | None, name: str) -> Any:
    if view.shape == (n, n) and transposed is None:
        raise ValueError(
            f"{name}: a view of shape {view.shape} is ambiguous, as the other views differ in orientation."
        )
    if transposed or view.shape[0] != n:
        view = view.T
    if sp.issparse(view):
        return view.tocsr().astype(np.float64)
    return np.ascontiguousarray(view, dtype=np.float64)
