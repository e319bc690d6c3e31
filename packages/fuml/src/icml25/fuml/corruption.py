"""Conflicting test sets: some rows get noise in some views, others a view of a sample of another class (Section 4.1)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["corrupt_views"]


def corrupt_views(
    X: Any,
    y: Any,
    *,
    noise_ratio: float = 0.1,
    sigma: float = 0.5,
    conflict_ratio: float = 0.4,
    random_state: int | np.random.Generator | None = None,
    reference: tuple[Any, Any] | None = None,
    donor: str = "random",
) -> tuple[list[np.ndarray] | dict[str, np.ndarray], np.ndarray]:
    """Make a conflicting copy of a multi-view data set.

    ``noise_ratio`` of the rows get ``N(0, sigma)`` added in some of their views (how many is drawn from 0..V-1), then
    ``conflict_ratio`` of the rows, drawn anew, get one view replaced by that of a sample of another class.

    Args:
        X: views (sequence or mapping), each (n, d_v), scaled as ``sigma`` means it (the paper scales to [0, 1]).
        y: labels, (n,).
        noise_ratio: share of rows in [0, 1] that get noise.
        sigma: standard deviation of the noise, >= 0.
        conflict_ratio: share of rows in [0, 1] that get a foreign view.
        random_state: seed or generator.
        reference: views and labels, such as those of the training set, that foreign views are taken from; None for
            (X, y) itself.
        donor: "random": a random sample of any other class; "first": the first sample of the next class (in sorted
            order, cyclic), as in the official code.

    Returns:
        The changed copy (list, or dict for a mapping), floating, and a boolean mask (n, V) of the cells touched.

    Raises:
        ValueError: an argument outside its range, views that don't fit each other, y or the reference, no other class.
        TypeError: a view that is not a dense array of numbers.
    """
    for name, ratio in (("noise_ratio", noise_ratio), ("conflict_ratio", conflict_ratio)):
        if not 0 <= ratio <= 1:
            raise ValueError(f"{name} must be in [0, 1], got {ratio!r}.")
    if not 0 <= sigma < np.inf:
        raise ValueError(f"sigma must be >= 0 and finite, got {sigma!r}.")
    if donor not in ("random", "first"):
        raise ValueError(f"donor must be 'random' or 'first', got {donor!r}.")
    rng = np.random.default_rng(random_state)
    keys = list(X) if isinstance(X, Mapping) else None
    views, labels = _dense(X, y, keys, "X")
    pool, pool_labels = (views, labels) if reference is None else _dense(*reference, keys, "reference")
    if [v.shape[1] for v in pool] != [v.shape[1] for v in views]:
        raise ValueError("reference must have the same views, of the same widths, as X.")

    n, n_views = len(labels), len(views)
    out = [v.copy() for v in views]
    touched = np.zeros((n, n_views), dtype=bool)
    for i in rng.choice(n, size=int(noise_ratio * n), replace=False):
        for v in rng.choice(n_views, size=rng.integers(n_views), replace=False):
            out[v][i] += rng.normal(0.0, sigma, size=out[v].shape[1])
            touched[i, v] = True
    classes = np.unique(np.concatenate([labels, pool_labels]))
    for i in rng.choice(n, size=int(conflict_ratio * n), replace=False):
        if donor == "first":
            next_class = classes[(np.searchsorted(classes, labels[i]) + 1) % len(classes)]
            candidates = np.flatnonzero(pool_labels == next_class)[:1]
        else:
            candidates = np.flatnonzero(pool_labels != labels[i])
        if len(classes) < 2 or len(candidates) == 0:
            raise ValueError(f"donor={donor!r}: no sample of another class for a row of class {labels[i]!r}.")
        v = rng.integers(n_views)
        out[v][i] = pool[v][rng.choice(candidates)]
        touched[i, v] = True
    return (out if keys is None else dict(zip(keys, out, strict=True))), touched


def _dense(X: Any, y: Any, keys: list[str] | None, name: str) -> tuple[list[np.ndarray], np.ndarray]:
    if keys is not None:
        if not isinstance(X, Mapping) or set(X) != set(keys):
            raise ValueError(f"{name} must be a mapping with the views {keys}.")
        X = [X[key] for key in keys]
    elif not isinstance(X, Sequence) or isinstance(X, str) or len(X) == 0:
        raise TypeError(f"{name} must be a sequence or mapping of 2-D arrays, got {type(X).__name__}.")
    views, labels = [np.asarray(view) for view in X], np.asarray(y)
    for v, view in enumerate(views):
        if view.dtype.kind not in "buif":
            raise TypeError(f"{name}: view {v} must be a dense array of real numbers, got dtype {view.dtype}.")
        if view.ndim != 2 or labels.ndim != 1 or len(view) != len(labels):
            raise ValueError(
                f"{name}: view {v} must be (n, d) with one label per row, got shapes {view.shape} and {labels.shape}."
            )
    return [v if v.dtype.kind == "f" else v.astype(np.float64) for v in views], labels
