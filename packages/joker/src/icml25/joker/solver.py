"""Algorithm 3 of the paper: dual block coordinate descent with a trust region (DBCD-TR), and its duality gap."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from icml25.joker.kernels import Kernel
from icml25.joker.losses import LOSSES, Loss, Matrix, Scalar, number
from icml25.joker.rows import Index, Rows, TensorRows, prefetch, take
from icml25.joker.trust_region import minimise_block

BLOCK_BYTES = 64 << 20  # features of one block held at a time
CHUNK_BYTES = 4 << 20  # kernel entries computed at a time in exact mode
RADIUS_FLOOR = 1e-3  # in the same units as max_radius
REDUCTION = 0.1  # of a block's projected gradient in one visit: more is undone by the other blocks
BLOCK_ORDERS = ("permute", "random", "cyclic")
INITS = ("default", "random")
NUMBERS: dict[str, tuple[str, type[int] | type[float]]] = {
    "C": ("> 0", float),
    "tol": ("> 0", float),
    "max_radius": ("> 0", float),
    "radius_decay": ("in (0, 1]", float),
    "radius_decay_every": (">= 1", int),
    "block_size": (">= 1", int),
    "max_epochs": (">= 1", int),
    "check_every": (">= 1", int),
    "max_tr_iter": (">= 1", int),
    "max_cg_iter": (">= 1", int),
    "seed": (">= 0", int),
    "epochs": (">= 0", int),
}
NAMES = {"block_order": BLOCK_ORDERS, "init": INITS}
Product = Callable[[Tensor], Tensor]
Check = tuple[Matrix, float, float]


@dataclass
class DualResult:
    """Answer of :func:`solve_dual`.

    Attributes:
        alpha: dual coefficients, (n, T), in the order of the rows given.
        theta: primal coefficients Psi^T alpha, (M, T); None in exact mode.
        primal: P at the last check, summed over columns.
        dual: D at the last check.
        gap: primal - dual, non-negative up to rounding.
        relative_gap: gap / |primal|.
        converged: whether relative_gap reached tol.
        epochs: epochs done in all, those before a resumption counted in.
        steps: block updates done in all.
        tr_iterations: trust-region iterations of this call, summed over columns.
        products: products with a kernel block of this call, summed over columns.
        history: one dict per check: epoch, primal, dual, gap, relative_gap, seconds, tr_iterations, products.
    """

    alpha: Tensor
    theta: Tensor | None
    primal: float
    dual: float
    gap: float
    relative_gap: float
    converged: bool
    epochs: int
    steps: int
    tr_iterations: int
    products: int
    history: list[dict[str, Any]]


@runtime_checkable
class Aggregate(Protocol):
    """What stands for all of alpha while one block moves."""

    @property
    def theta(self) -> Tensor | None:
        """The primal coefficients, where they are finite in number."""
        ...

    def open(self, block: slice, x: Tensor, expected_products: Scalar) -> tuple[Tensor, Product]:
        """Return decision values of a block's rows x and the product with K_BB."""
        ...

    def update(self, change: Tensor) -> None:
        """Take in the open block's change of alpha."""
        ...

    def values(self, alpha: Tensor) -> Check:
        """Return decision values of all rows, ||theta||^2 and alpha^T K alpha."""
        ...

    def rebuild(self, alpha: Tensor) -> Check:
        """Recompute the aggregate from alpha, and return what :meth:`values` does."""
        ...


class FeatureChunks:
    """Features of a block of rows, slice by slice of at most BLOCK_BYTES, in one buffer that is used again.

    Args:
        feature_map: ``feature_map(x, columns, out)`` returns psi(x)[:, columns].
        n_features: number of features M.
        like: tensor whose dtype and device are taken.
    """

    def __init__(self, feature_map: Callable[..., Tensor], n_features: int, like: Tensor):
        self.feature_map, self.n_features = feature_map, n_features
        self.psi = like.new_empty(0, 0)

    def __call__(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of the features with psi(x) over them; each is valid until the next."""
        width = max(1, BLOCK_BYTES // (len(x) * self.psi.element_size()))
        for start in range(0, self.n_features, width):
            columns = slice(start, min(start + width, self.n_features))
            shape = (len(x), columns.stop - start)
            buffer = self.psi if self.psi.shape == shape else self.psi.new_empty(shape)
            self.psi = self.feature_map(x, columns, out=buffer)
            yield columns, self.psi


class FeatureDual:
    """The dual through features: theta = Psi^T alpha, (M, T). Holds one block of features, never all of them.

    Args:
        rows: source of the rows.
        blocks: row indices of each block; alpha follows their order.
        feature_map: ``feature_map(x, columns, out)`` returns psi(x)[:, columns].
        n_features: number of features M.
        like: (n, T) tensor whose width, dtype and device are taken.
    """

    def __init__(
        self, rows: Rows, blocks: Sequence[Index], feature_map: Callable[..., Tensor], n_features: int, like: Matrix
    ):
        self.rows, self.blocks, self.n_features = rows, blocks, n_features
        self.theta = like.new_zeros(n_features, like.shape[1])
        self._chunks = FeatureChunks(feature_map, n_features, like)
        self._gram = like.new_empty(0, 0)

    def open(self, block: slice, x: Tensor, expected_products: Scalar) -> tuple[Tensor, Product]:
        """Return psi_B theta and the product with psi_B psi_B^T, through the Gram matrix where that is cheaper."""
        n = len(x)
        self._x, self._whole = x, n * self.n_features * self.theta.element_size() <= BLOCK_BYTES
        # v -> psi (psi^T v) costs 4BM flop against 2B^2 M for the Gram matrix, at about an eighth of its speed.
        matrix_free = self._whole and expected_products < n / 16
        if not matrix_free:
            self._gram = self._gram.zero_() if len(self._gram) == n else self.theta.new_zeros(n, n)
        u = self.theta.new_zeros(n, self.theta.shape[1])
        for columns, psi in self._chunks(x):
            u.addmm_(psi, self.theta[columns])
            if not matrix_free:
                add_gram(psi, self._gram)
        if matrix_free:
            psi = self._chunks.psi
            return u, lambda v: psi @ (psi.T @ v)
        gram = self._gram.triu() + self._gram.triu(1).T
        return u, gram.__matmul__

    def update(self, change: Matrix) -> None:
        """Add psi_B^T change to theta; psi_B is computed again where it was not held whole."""
        for columns, psi in [(slice(None), self._chunks.psi)] if self._whole else self._chunks(self._x):
            self.theta[columns].addmm_(psi.T, change)

    def rebuild(self, alpha: Matrix) -> Check:
        """Set theta = Psi^T alpha in one pass; the decision values and ||theta||^2 are of the theta held until now.

        Weak duality holds for any theta and any alpha, so drift in theta cannot fake a small gap.
        """
        theta, u = torch.zeros_like(self.theta, dtype=torch.float64), torch.zeros_like(alpha)
        start = 0
        for x in prefetch(self.rows, self.blocks):
            block = slice(start, start := start + len(x))
            for columns, psi in self._chunks(x):
                u[block].addmm_(psi, self.theta[columns])
                theta[columns] += psi.T @ alpha[block]
        held = float(self.theta.double().square().sum())
        self.theta = theta.to(self.theta.dtype)
        return u, held, float(theta.square().sum())

    values = rebuild


class KernelDual:
    """The exact dual: beta = K alpha, (n, T), kept up to date in row chunks; the n x n matrix is never formed.

    Args:
        rows: source of the rows.
        blocks: row indices of each block; alpha and beta follow their order.
        kernel: ``kernel(x, z)`` returns the kernel matrix.
        like: (n, T) tensor whose shape, dtype and device are taken.
    """

    theta = None

    def __init__(self, rows: Rows, blocks: Sequence[Index], kernel: Kernel, like: Matrix):
        self.rows, self.kernel, self.blocks = rows, kernel, blocks
        self.beta = torch.zeros_like(like)
        block = max(len(b) for b in blocks)
        self._chunks = torch.cat(list(blocks)).split(max(block, CHUNK_BYTES // (block * like.element_size())))

    def open(self, block: slice, x: Tensor, expected_products: Scalar) -> tuple[Tensor, Product]:
        """Return beta_B and the product with K_BB."""
        self._x = x
        return self.beta[block], self.kernel(x, x).__matmul__

    def update(self, change: Matrix) -> None:
        """Add K_{:,B} change to beta, over the rows that moved."""
        moved = change.ne(0).any(1)
        if moved.any():
            self._add(self._x[moved], change[moved])

    def _add(self, x: Tensor, a: Matrix) -> None:
        start = 0
        for index in self._chunks:
            z = take(self.rows, index)
            self.beta[start : (start := start + len(z))].addmm_(self.kernel(z, x), a)

    def values(self, alpha: Matrix) -> Check:
        """Return the decision values beta held so far and alpha^T beta, twice."""
        squared_norm = float((alpha * self.beta).sum(dtype=torch.float64))
        return self.beta, squared_norm, squared_norm

    def rebuild(self, alpha: Matrix) -> Check:
        """Set beta = K alpha afresh."""
        self.beta.zero_()
        start = 0
        for index in self.blocks:
            block = slice(start, start := start + len(index))
            if alpha[block].any():
                self._add(take(self.rows, index), alpha[block])
        return self.values(alpha)


def add_gram(psi: Float[Tensor, "B m"], gram: Float[Tensor, "B B"], panels: int = 4) -> None:
    """Add psi psi^T to the upper triangle of ``gram`` (and a little below it), panel by panel: 5/8 of the flops."""
    width = -(-len(psi) // panels)
    for i in range(0, len(psi), width):
        gram[i : i + width, i:].addmm_(psi[i : i + width], psi[i:].T)


def stream_seed(*key: int) -> torch.Generator:
    """Return a generator of its own for a (seed, purpose, epoch): nothing needs storing to resume."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))


def partition(n: int, block_size: int, seed: int) -> list[Index]:
    """Assign rows to blocks at random, so that a sorted file does not give one-class blocks.

    Args:
        n: number of rows.
        block_size: rows in a block; the last block may be shorter.
        seed: seed of the assignment.

    Returns:
        Row indices of each block, ascending (so that a memory map is read forwards).
    """
    return [b.sort().values for b in torch.randperm(n, generator=stream_seed(seed, 0)).split(block_size)]


def block_sequence(order: str, n_blocks: int, seed: int, epoch: int) -> list[int]:
    """Return the blocks to visit in one epoch: "permute", "random" (with replacement) or "cyclic"."""
    generator = stream_seed(seed, 1, epoch)
    if order == "permute":
        return torch.randperm(n_blocks, generator=generator).tolist()
    if order == "random":
        return torch.randint(n_blocks, (n_blocks,), generator=generator).tolist()
    return list(range(n_blocks))


def alpha_box(loss: Loss, y: Matrix, C: Scalar) -> tuple[Matrix, Matrix]:
    """Return the bounds of alpha itself (of a_plus - a_minus for a split loss)."""
    lo, hi = loss.box(y, C)
    return (-hi, hi) if loss.split else (lo, hi)


def initial_alpha(loss: Loss, y: Matrix, C: Scalar, init: str, seed: int) -> Matrix:
    """Return a feasible start: the loss's own, or uniform in the box where the box is bounded ("random")."""
    alpha = loss.start(y, C)
    if init == "random":
        lo, hi = alpha_box(loss, y, C)
        uniform = torch.rand(y.shape, generator=stream_seed(seed, 2), dtype=torch.float64).to(y)
        bounded = torch.isfinite(lo) & torch.isfinite(hi)
        alpha = torch.where(bounded, torch.lerp(lo, hi, uniform).clamp(lo, hi), alpha)
    return alpha


def alpha_scale(loss: Loss, y: Matrix, C: Scalar) -> float:
    """Return the unit of the trust radius: the largest target or, where it is larger, the largest finite bound."""
    bounds = torch.cat([y, *alpha_box(loss, y, C)]).abs()
    return float(bounds[bounds.isfinite()].max()) or 1.0


def descend(
    aggregate: Aggregate,
    rows: Rows,
    blocks: Sequence[Index],
    y: Matrix,
    loss: Loss,
    *,
    C: Scalar = 1.0,
    max_epochs: int = 100,
    tol: Scalar = 1e-3,
    check_every: int = 1,
    block_order: str = "permute",
    max_tr_iter: int = 50,
    max_cg_iter: int = 100,
    max_radius: Scalar = 64.0,
    radius_decay: Scalar = 0.5,
    radius_decay_every: int = 1000,
    init: str = "default",
    seed: int = 0,
    alpha: Matrix | None = None,
    epochs: int = 0,
    callback: Callable[[DualResult], bool | None] | None = None,
    freeze_active: bool = True,
) -> DualResult:
    """Run Algorithm 3 on an aggregate; :func:`solve_dual` says what the arguments are.

    ``callback`` is given the result so far, a copy that later epochs leave alone.
    """
    order = torch.cat(list(blocks)).to(y.device)
    y = y[order]
    start = initial_alpha(loss, y, C, init, seed) if alpha is None else alpha[order]
    alpha = start.clamp(*alpha_box(loss, y, C))
    if alpha.any():
        aggregate.rebuild(alpha)
    unit = alpha_scale(loss, y, C)
    edges = np.cumsum([0, *map(len, blocks)]).tolist()
    kkt_tol = max(min(1e-6, tol / 10), 50 * torch.finfo(y.dtype).eps) * (float(y.abs().max()) or 1.0)
    reduction = REDUCTION if len(blocks) > 1 else 0.0
    begin, steps, tr_iterations, products = time.perf_counter(), epochs * len(blocks), 0, 0
    history: list[dict[str, Any]] = []
    last_epoch = epochs + max_epochs
    epoch = epochs
    while True:
        epoch += 1
        sequence = block_sequence(block_order, len(blocks), seed, epoch)
        expected_products = math.inf
        for i, x in zip(sequence, prefetch(rows, [blocks[i] for i in sequence]), strict=True):
            block = slice(edges[i], edges[i + 1])
            u, product = aggregate.open(block, x, expected_products)
            solution = minimise_block(
                product, u, alpha[block], y[block], loss, C, kkt_tol=kkt_tol, reduction=reduction,
                max_iter=max_tr_iter, max_cg_iter=max_cg_iter, freeze_active=freeze_active,
                max_radius=unit * max(max_radius * radius_decay ** (steps // radius_decay_every), RADIUS_FLOOR),
            )  # fmt: skip
            aggregate.update(solution.a - alpha[block])
            alpha[block] = solution.a
            expected_products = solution.products
            steps += 1
            tr_iterations += solution.iterations
            products += solution.products
        if (epoch - epochs) % check_every and epoch < last_epoch:
            continue
        for check in (aggregate.values, aggregate.rebuild):
            u, squared_norm, quadratic = check(alpha)
            primal = squared_norm / 2 + C * float(loss.value(y, u).sum(dtype=torch.float64))
            dual = -quadratic / 2 - float(loss.conjugate(alpha, y, C).sum(dtype=torch.float64))
            gap = primal - dual
            row = {
                "epoch": epoch, "primal": primal, "dual": dual, "gap": gap,
                "relative_gap": gap / abs(primal) if gap else 0.0, "seconds": time.perf_counter() - begin,
                "tr_iterations": tr_iterations, "products": products,
            }  # fmt: skip
            done = abs(row["relative_gap"]) <= tol  # weak duality forbids a gap below zero but for rounding
            # In exact mode beta is kept by increments: an answer is certified on a fresh one.
            if aggregate.theta is not None or not (done or epoch == last_epoch):
                break
        history.append(row)
        unsorted = torch.empty_like(alpha)
        unsorted[order] = alpha
        result = DualResult(
            unsorted, None if aggregate.theta is None else aggregate.theta.clone(), primal, dual, gap,
            row["relative_gap"], done, epoch, steps, tr_iterations, products, history.copy(),
        )  # fmt: skip
        if (callback is not None and callback(result)) or done or epoch == last_epoch:
            return result


def solve_dual(
    psi_or_gram: Float[Tensor, "n m"],
    y: Float[Tensor, "*n_or_n_T"],
    loss: str | Loss,
    *,
    gram: bool = False,
    block_size: int = 512,
    **options: Any,
) -> DualResult:
    """Solve min_alpha alpha^T K alpha / 2 + sum f(alpha) over the box, for your own features or kernel (Alg. 3).

    Args:
        psi_or_gram: features Psi (n, M) with K = Psi Psi^T, or the kernel matrix K (n, n) itself.
        y: targets, (n,) or (n, T): real for regression, -1 or +1 for classification.
        loss: a name, or a :class:`Loss` (your own subclass works as it is).
        gram: whether ``psi_or_gram`` is K.
        block_size: rows in a block, B.
        **options: ``C`` = 1.0, weight of the summed loss; ``max_epochs`` = 100; ``tol`` = 1e-3, relative duality gap to
            stop at; ``check_every`` = 1 epochs between gap checks; ``block_order`` = "permute", "random" or "cyclic";
            ``max_tr_iter`` = 50; ``max_cg_iter`` = 100; ``max_radius`` = 64, cap of the trust radius as a multiple of
            max |y| or of the largest finite bound of alpha, whichever is larger, multiplied by ``radius_decay`` = 0.5
            every ``radius_decay_every`` = 1000 steps, down to 1e-3; ``init`` = "default" or "random"; ``seed`` = 0;
            ``callback(row)``, called at each check, stops when it returns True; ``alpha`` (n, T) and ``epochs``
            resume a result (same seed: as if uninterrupted).

    Returns:
        The dual and primal coefficients with the certified gap.

    Raises:
        ValueError: shapes that do not fit, values out of range or not finite, or an unknown name.
        TypeError: an option of another type.

    Source: Algorithm 3 and Theorem 1 of the paper.
    """
    loss = loss if isinstance(loss, Loss) else LOSSES[one_of("loss", loss, LOSSES)]()
    y = y[:, None] if y.ndim == 1 else y
    if len(y) != len(psi_or_gram) or len(y) == 0:
        raise ValueError(
            f"psi_or_gram has {len(psi_or_gram)} rows and y {len(y)}; expected the same number, at least 1"
        )
    if gram and psi_or_gram.shape[0] != psi_or_gram.shape[1]:
        raise ValueError(f"gram=True needs a square matrix, got psi_or_gram of shape {tuple(psi_or_gram.shape)}")
    if y.dtype != psi_or_gram.dtype:
        raise ValueError(f"y is {y.dtype} and psi_or_gram {psi_or_gram.dtype}; expected the same dtype")
    for name, values in (("psi_or_gram", psi_or_gram), ("y", y)):
        if not torch.isfinite(values).all():
            raise ValueError(f"{name} contains NaN or infinity; expected finite numbers")
    if loss.task == "classification" and not (y.abs() == 1).all():
        raise ValueError(f"y must be -1 or +1 for {type(loss).__name__}, got {y[y.abs() != 1][0].item()}")
    options = checked(options)
    alpha = options.get("alpha")
    if alpha is not None:
        if alpha.shape != y.shape or alpha.dtype != y.dtype:
            raise ValueError(
                f"alpha is {alpha.dtype} of shape {tuple(alpha.shape)}; expected {y.dtype} of shape {tuple(y.shape)}"
            )
        if not torch.isfinite(alpha).all():
            raise ValueError("alpha contains NaN or infinity; expected finite numbers")
    callback = options.pop("callback", None)
    blocks = partition(len(y), checked({"block_size": block_size})["block_size"], options.get("seed", 0))
    if gram:
        rows = TensorRows(torch.arange(len(y), device=y.device))
        aggregate = KernelDual(rows, blocks, lambda i, j: psi_or_gram[i[:, None], j], y)
    else:
        rows = TensorRows(psi_or_gram)
        aggregate = FeatureDual(rows, blocks, lambda x, columns, out: x[:, columns], psi_or_gram.shape[1], y)
    report = None if callback is None else lambda result: callback(result.history[-1])
    return descend(aggregate, rows, blocks, y, loss, **options, callback=report)


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with their numbers as Python's own, or raise an error that names the first bad one."""
    for name, value in options.items():
        if name in NAMES:
            one_of(name, value, NAMES[name])
    return {name: number(name, value, *NUMBERS[name]) if name in NUMBERS else value for name, value in options.items()}


def one_of(name: str, given: Any, allowed: Iterable[str]) -> str:
    """Return ``given``, or raise a ValueError that lists what is allowed."""
    if given not in (choices := list(allowed)):
        raise ValueError(f"{name} must be one of {choices}, got {given!r}")
    return given
