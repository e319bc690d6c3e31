"""Rows of X in blocks: the data stay where they are, one block at a time is centred, cast and moved."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from scipy import sparse
from torch import Tensor

CHUNK_BYTES = 1 << 20  # of X, read at a time when streaming over all of it

Index = Int[Tensor, "_"]


@runtime_checkable
class Rows(Protocol):
    """Anything whose rows can be fetched by index (perhaps in another thread) and then put on the device."""

    def fetch(self, index: Tensor) -> Any:
        """Return the raw rows."""
        ...

    def place(self, raw: Any) -> Tensor:
        """Return fetched rows as a tensor of the solver's dtype and device."""
        ...


def take(rows: Rows, index: Tensor) -> Tensor:
    """Return the rows at ``index``, on the device."""
    return rows.place(rows.fetch(index))


def prefetch(rows: Rows, blocks: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the rows of each block in turn, while a thread fetches the next one."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(rows.fetch, blocks[0])
        for following in [*blocks[1:], None]:
            raw = coming.result()
            if following is not None:
                coming = pool.submit(rows.fetch, following)
            yield rows.place(raw)


class TensorRows:
    """Rows of a tensor that is already where the solver works."""

    def __init__(self, x: Tensor):
        self.x = x

    def fetch(self, index: Tensor) -> Tensor:
        """Return the indices: a tensor's rows are gathered on its device."""
        return index

    def place(self, raw: Tensor) -> Tensor:
        """Return the rows."""
        return self.x[raw]


class RowSource:
    """Rows of a user's X (numpy, memory map, CSR or tensor), never copied as a whole.

    Args:
        X: (n, d) array of numbers; a CSR matrix stays sparse.
        device: where blocks go.
        dtype: dtype of the blocks.
        shift: (d,) float64 row subtracted from every row, in X's own precision; None for none, as a sparse X needs.
    """

    def __init__(self, X: Any, device: torch.device, dtype: torch.dtype, shift: np.ndarray | None = None):
        self.X, self.device, self.dtype = X, device, dtype
        self.shift = shift

    def __len__(self) -> int:
        """Number of rows."""
        return self.X.shape[0]

    def fetch(self, index: Tensor) -> Any:
        """Return the rows in X's own container, dense ones centred and cast."""
        if isinstance(self.X, Tensor):
            return self.X[index.to(self.X.device)]
        block = self.X[index.numpy()]
        if sparse.issparse(block):
            return block.tocoo()
        if self.shift is not None:
            block = block - self.shift
        return np.asarray(block, dtype=np.float64 if self.dtype == torch.float64 else np.float32)

    def place(self, raw: Any) -> Tensor:
        """Return the fetched rows on the device."""
        if isinstance(raw, Tensor):
            if self.shift is not None:
                raw = raw - torch.from_numpy(self.shift).to(raw.device)
            return raw.to(self.device, self.dtype)
        if sparse.issparse(raw):
            where = torch.from_numpy(np.stack([raw.row, raw.col]).astype(np.int64))
            what = torch.as_tensor(raw.data).to(self.dtype)
            return torch.sparse_coo_tensor(where, what, raw.shape, check_invariants=False).to(self.device)
        block = torch.from_numpy(raw)
        if self.device.type == "cuda":
            block = block.pin_memory()
        return block.to(self.device, non_blocking=True)

    def resident(self) -> RowSource:
        """Return the same rows held on the device when they fit there, else these (with one warning)."""
        if self.device.type != "cuda" or on_disk(self.X) or sparse.issparse(self.X):
            return self
        try:
            return RowSource(torch.as_tensor(self.X).to(self.device), self.device, self.dtype, self.shift)
        except torch.cuda.OutOfMemoryError:
            warnings.warn("X does not fit in the GPU memory: its blocks are transferred one by one", stacklevel=2)
            return self


def on_disk(X: Any) -> bool:
    """Say whether an array is, or is a view of, a memory map."""
    while isinstance(X, np.ndarray):
        X = X.base
    return isinstance(X, mmap.mmap)


def chunks_of(X: Any) -> Iterator[tuple[int, Any]]:
    """Yield (first row, rows as a finite-checkable float array) over X, about 1 MiB at a time."""
    n, d = X.shape
    step = max(1, CHUNK_BYTES // (8 * d))
    for i in range(0, n, step):
        block = X[i : i + step]
        yield i, block.detach().cpu().double().numpy() if isinstance(block, Tensor) else block


def streamed_mean(X: Any, dtype: torch.dtype, name: str = "X") -> np.ndarray:
    """Return the column means of X in float64, refusing what is not finite in ``dtype``.

    Raises:
        ValueError: a NaN, an infinity or a value too large for ``dtype``, named with its first position.
    """
    total = np.zeros(X.shape[1])
    largest = torch.finfo(dtype).max
    for first, block in chunks_of(X):
        values = block.data if sparse.issparse(block) else block
        with np.errstate(over="ignore", invalid="ignore"):
            good = np.isfinite(values) & (np.abs(values) <= largest)
        if not good.all():
            at = np.argwhere(~good)[0]
            found = values[tuple(at)]
            where = (
                f"row {first + at[0]}, column {at[1]}" if len(at) == 2 else f"among the stored values from row {first}"
            )
            kind = str(dtype).removeprefix("torch.")
            what = "NaN" if np.isnan(found) else f"infinity or a value too large for dtype('{kind}')"
            raise ValueError(f"Input {name} contains {what} (first at {where}): {found}; expected finite numbers")
        total += np.asarray(block.sum(axis=0, dtype=np.float64)).ravel()
    return total / X.shape[0]
