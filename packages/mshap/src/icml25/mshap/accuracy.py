"""Accuracy of every agent as a function of what all agents contribute: a_i(s)."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from icml25.mshap.inputs import as_array, as_positive

_FLOATS_PER_CHUNK = 2**20
_FLOATS_IN_CACHE = 2**15


class Accuracy(ABC):
    """a(s): contributions of all agents to the accuracy of each, and its derivatives.

    A subclass gives the values and two gradients; A(s) = Σ_k a_k(s). ``n_agents`` is None for any number.
    """

    n_agents: int | None = None

    @abstractmethod
    def __call__(self, S: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B n"]:
        """a_k at each row of contributions."""

    @abstractmethod
    def own_gradient(self, S: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B n"]:
        """∂a_i/∂s_i at each row."""

    @abstractmethod
    def total_gradient(self, S: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B n"]:
        """∂A/∂s_i at each row."""

    def total(self, S: Float[np.ndarray, "B n"]) -> Float[np.ndarray, " B"]:
        """A at each row."""
        return self(S).sum(1)

    def orders_per_chunk(self, n: int) -> int:
        """How many permutations the prefix methods take at once within a few MB."""
        return max(1, _FLOATS_PER_CHUNK // n**2)

    def prefix_totals(
        self, s: Float[np.ndarray, " n"], orders: Int[np.ndarray, "m n"], last: Float[np.ndarray, " n"] | None = None
    ) -> Float[np.ndarray, "m n"]:
        """A(s[π(1..r)]) for each permutation and position r; the agent at r contributes ``last`` instead of s, if given."""
        rows = _prefixes(s, orders)
        if last is not None:
            m, n = orders.shape
            rows[np.arange(m)[:, None], np.arange(n), orders] = last[orders]
        return self.total(rows.reshape(-1, len(s))).reshape(orders.shape)

    def prefix_own_gradient(
        self, s: Float[np.ndarray, " n"], orders: Int[np.ndarray, "m n"]
    ) -> Float[np.ndarray, "m n"]:
        """∂A(s[π(1..r)])/∂s_π(r)."""
        gradient = self.total_gradient(_prefixes(s, orders).reshape(-1, len(s))).reshape(*orders.shape, len(s))
        return np.take_along_axis(gradient, orders[..., None], axis=2)[..., 0]

    def prefix_potential_gradient(
        self, s: Float[np.ndarray, " n"], orders: Int[np.ndarray, "m n"]
    ) -> Float[np.ndarray, "m n"]:
        """Σ_{q ≥ r} (1/q) ∂A(s[π(1..q)])/∂s_π(r)."""
        n = len(s)
        gradient = self.total_gradient(_prefixes(s, orders).reshape(-1, n)).reshape(*orders.shape, n)
        gradient /= np.arange(1, n + 1)[:, None]
        tails = np.cumsum(gradient[:, ::-1], axis=1)[:, ::-1]
        return np.take_along_axis(tails, orders[..., None], axis=2)[..., 0]

    def deviation_sums(
        self, s: Float[np.ndarray, " n"], orders: Int[np.ndarray, "m n"], T: Float[np.ndarray, "K n"]
    ) -> Float[np.ndarray, "K n"]:
        """Σ over the permutations of what agent i adds to A after those before it, if it gives T[k, i] and they s."""
        empty = np.full((len(orders), 1), self.total(np.zeros((1, len(s))))[0])
        before = np.concatenate([empty, self.prefix_totals(s, orders)[:, :-1]], axis=1)
        marginals = (self.prefix_totals(s, orders, t) - before for t in T)
        return np.stack([np.bincount(orders.ravel(), weights=m.ravel(), minlength=len(s)) for m in marginals])


def _prefixes(s: Float[np.ndarray, " n"], orders: Int[np.ndarray, "m n"]) -> Float[np.ndarray, "m n n"]:
    """Row r of each permutation: contributions of its first r agents, others 0."""
    m, n = orders.shape
    rows = np.zeros((m, n, n))
    members = np.broadcast_to(orders[:, None, :], (m, n, n))
    np.put_along_axis(rows, members, np.tri(n) * s[orders][:, None, :], axis=2)
    return rows


class PooledAccuracy(Accuracy):
    """a_k = f(w_g(k) · s): every group g of agents sees its own weighted pool of data.

    A subclass gives the concave f and its derivative; permutations then cost one cumulative sum per group.
    """

    weights: Float[np.ndarray, "G n"]
    groups: Int[np.ndarray, " n"]
    sizes: Float[np.ndarray, " G"]

    @abstractmethod
    def pool(self, z: np.ndarray) -> np.ndarray:
        """f of pooled data z, elementwise."""

    @abstractmethod
    def pool_derivative(self, z: np.ndarray) -> np.ndarray:
        """f'."""

    def _matrices(self, n: int) -> tuple[Float[np.ndarray, "G n"], Int[np.ndarray, " n"], Float[np.ndarray, " G"]]:
        return self.weights, self.groups, self.sizes

    def __call__(self, S: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B n"]:
        """a_k at each row of contributions."""
        weights, groups, _ = self._matrices(S.shape[1])
        return self.pool(S @ weights.T)[:, groups]

    def own_gradient(self, S: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B n"]:
        """∂a_i/∂s_i at each row."""
        weights, groups, _ = self._matrices(S.shape[1])
        return self.pool_derivative(S @ weights.T)[:, groups] * weights[groups, np.arange(S.shape[1])]

    def total(self, S: Float[np.ndarray, "B n"]) -> Float[np.ndarray, " B"]:
        """A at each row."""
        weights, _, sizes = self._matrices(S.shape[1])
        return self.pool(S @ weights.T) @ sizes

    def total_gradient(self, S: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B n"]:
        """∂A/∂s_i at each row."""
        weights, _, sizes = self._matrices(S.shape[1])
        return self.pool_derivative(S @ weights.T) @ (sizes[:, None] * weights)

    def orders_per_chunk(self, n: int) -> int:
        """How many permutations the prefix methods take at once: as many as stay in the cache."""
        return max(1, _FLOATS_IN_CACHE // n)

    def prefix_totals(
        self, s: Float[np.ndarray, " n"], orders: Int[np.ndarray, "m n"], last: Float[np.ndarray, " n"] | None = None
    ) -> Float[np.ndarray, "m n"]:
        """A(s[π(1..r)]), one cumulative sum per group; the agent at r contributes ``last`` instead of s, if given."""
        weights, _, sizes = self._matrices(len(s))
        totals = np.zeros(orders.shape)
        for w, size in zip(weights, sizes, strict=True):
            z = np.take(w * s, orders)
            np.cumsum(z, axis=1, out=z)
            if last is not None:
                z += (w * (last - s))[orders]
            totals += size * self.pool(z)
        return totals

    def prefix_own_gradient(
        self, s: Float[np.ndarray, " n"], orders: Int[np.ndarray, "m n"]
    ) -> Float[np.ndarray, "m n"]:
        """∂A(s[π(1..r)])/∂s_π(r)."""
        weights, _, sizes = self._matrices(len(s))
        gradient = np.zeros(orders.shape)
        for w, size in zip(weights, sizes, strict=True):
            z = np.take(w * s, orders)
            slope = self.pool_derivative(np.cumsum(z, axis=1, out=z))
            slope *= np.take(size * w, orders)
            gradient += slope
        return gradient

    def prefix_potential_gradient(
        self, s: Float[np.ndarray, " n"], orders: Int[np.ndarray, "m n"]
    ) -> Float[np.ndarray, "m n"]:
        """Σ_{q ≥ r} (1/q) ∂A(s[π(1..q)])/∂s_π(r)."""
        weights, _, sizes = self._matrices(len(s))
        gradient, positions = np.zeros(orders.shape), np.arange(1, len(s) + 1)
        for w, size in zip(weights, sizes, strict=True):
            slope = self.pool_derivative(np.cumsum((w * s)[orders], axis=1)) / positions
            gradient += (size * w)[orders] * np.cumsum(slope[:, ::-1], axis=1)[:, ::-1]
        return gradient

    def deviation_sums(
        self, s: Float[np.ndarray, " n"], orders: Int[np.ndarray, "m n"], T: Float[np.ndarray, "K n"]
    ) -> Float[np.ndarray, "K n"]:
        """Σ over the permutations of what agent i adds to A if it gives T[k, i]: one pass for all T."""
        weights, _, sizes = self._matrices(len(s))
        sums, before = np.zeros(T.shape), np.empty(orders.shape)
        for w, size in zip(weights, sizes, strict=True):
            gives = np.take(w * s, orders)
            np.put_along_axis(before, orders, np.cumsum(gives, axis=1) - gives, axis=1)
            without = self.pool(before).sum(0)
            for k, t in enumerate(T):
                sums[k] += size * (self.pool(before + w * t).sum(0) - without)
        return sums


class LinearFractional(PooledAccuracy):
    """a_k = 1 - 1/(1 + Σ_j W_kj s_j).

    Parameters
    ----------
    W : (n, n) array, W_kj ≥ 0: what a sample of agent j is worth to agent k, per sample. With ``groups``: (G, G), from
        group to group.
    groups : (n,) whole numbers 0..G-1, the group of each agent; None when W is per agent.

    Raises
    ------
    ValueError: W is not square, negative or not finite, or groups does not fit it. TypeError: not numbers.
    """

    def __init__(self, W: ArrayLike, groups: ArrayLike | None = None) -> None:
        matrix = as_array("W", W, 2, minimum=0)
        if matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"W has shape {matrix.shape}; expected a square matrix")
        self.groups = np.arange(len(matrix)) if groups is None else _as_groups(groups, len(matrix))
        self.W = matrix
        self.n_agents = len(self.groups)
        self.weights = np.ascontiguousarray(matrix[:, self.groups])
        self.sizes = np.bincount(self.groups, minlength=len(matrix)).astype(float)

    def pool(self, z: np.ndarray) -> np.ndarray:
        """z / (1 + z)."""
        value = 1 + z
        return np.divide(z, value, out=value)

    def pool_derivative(self, z: np.ndarray) -> np.ndarray:
        """(1 + z)^-2."""
        value = 1 + z
        np.reciprocal(value, out=value)
        return np.multiply(value, value, out=value)


class PowerLaw(PooledAccuracy):
    """a_k = 1 - α (Σ_j s_j + offset)^-β, the same for every agent and any number of agents.

    Parameters
    ----------
    alpha : α > 0. Above 1 the accuracy of very few samples is negative (clip it for display only).
    beta : β > 0.
    offset : > 0, in samples; 1 by default.

    Raises
    ------
    ValueError: a parameter is not above 0. TypeError: not a number.
    """

    def __init__(self, alpha: Any, beta: Any, offset: Any = 1.0) -> None:
        self.alpha, self.beta = as_positive("alpha", alpha), as_positive("beta", beta)
        self.offset = as_positive("offset", offset)
        with np.errstate(over="ignore"):
            steepest = self.alpha * self.beta * np.float64(self.offset) ** (-self.beta - 1)
        if not steepest < 1e150:  # squares of it must be finite
            raise ValueError(f"offset is {self.offset:g}; the slope without data, {steepest:g}, is beyond 1e150")

    def _matrices(self, n: int) -> tuple[Float[np.ndarray, "G n"], Int[np.ndarray, " n"], Float[np.ndarray, " G"]]:
        return np.ones((1, n)), np.zeros(n, dtype=np.int64), np.array([float(n)])

    def pool(self, z: np.ndarray) -> np.ndarray:
        """1 - α (z + offset)^-β."""
        return 1 - self.alpha * (z + self.offset) ** -self.beta

    def pool_derivative(self, z: np.ndarray) -> np.ndarray:
        """α β (z + offset)^(-β-1)."""
        return self.alpha * self.beta * (z + self.offset) ** (-self.beta - 1)


class CallableAccuracy(Accuracy):
    """Any function of the contributions.

    Parameters
    ----------
    f : maps contributions (B, n) to accuracies (B, n). Contributions up to a millionth (of themselves, or of a sample)
        above the capacity are asked for when ``grad`` is missing.
    grad : maps (B, n) to (B, n, n), entry [b, k, i] = ∂a_k/∂s_i; None takes second-order finite differences.

    Raises
    ------
    ValueError, at a call: f or grad returned the wrong shape or something that is not finite.
    """

    def __init__(self, f: Any, grad: Any = None) -> None:
        if not callable(f) or not (grad is None or callable(grad)):
            raise TypeError("f and grad must be callable, or grad None")
        self.f, self.grad = f, grad

    def __call__(self, S: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B n"]:
        """f, checked."""
        return _checked("the accuracy function", self.f(S.copy()), S.shape)

    def _jacobian(self, S: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B n n"]:
        if self.grad is not None:
            return _checked("grad", self.grad(S.copy()), (*S.shape, S.shape[1]))
        columns = []
        for i, unit in enumerate(np.eye(S.shape[1])):
            h = 1e-6 * np.maximum(S[:, i], 1)
            edge = S[:, i] < h  # no negative contributions: a one-sided formula of the same order
            step = h[:, None] * unit
            ahead, behind = (
                self(S + np.where(edge, 2, 1)[:, None] * step),
                self(S - np.where(edge, 0, 1)[:, None] * step),
            )
            slope = ahead - behind
            if edge.any():
                slope[edge] = 4 * self((S + step)[edge]) - 3 * behind[edge] - ahead[edge]
            columns.append(slope / (2 * h[:, None]))
        return np.stack(columns, axis=2)

    def own_gradient(self, S: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B n"]:
        """∂a_i/∂s_i at each row."""
        return np.einsum("bii->bi", self._jacobian(S))

    def total_gradient(self, S: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B n"]:
        """∂A/∂s_i at each row."""
        return self._jacobian(S).sum(1)


def fit_linear_fractional(S: ArrayLike, acc: ArrayLike, groups: ArrayLike | None = None) -> LinearFractional:
    """Least-squares fit of W ≥ 0 to measured accuracies, one bounded ``curve_fit`` per row of W.

    Parameters
    ----------
    S : (m, n) contributions of m measurements, in samples.
    acc : (m, n) accuracy of each agent in each of them, in [0, 1).
    groups : (n,) group of each agent; W is then (G, G). None fits a row per agent.

    Returns
    -------
    LinearFractional.

    Raises
    ------
    ValueError: shapes differ, fewer measurements than weights in a row, an accuracy outside [0, 1), or contributions that
        leave weights undetermined (an agent that never contributes, or always in proportion to others).
    RuntimeError: the fit of a row failed.
    """
    from scipy.optimize import OptimizeWarning, curve_fit  # most of the import time

    S, acc = as_array("S", S, 2, minimum=0), as_array("acc", acc, 2, minimum=0)
    if S.shape != acc.shape:
        raise ValueError(f"S has shape {S.shape} and acc {acc.shape}; expected the same shape (measurements, agents)")
    if acc.max() >= 1:
        raise ValueError(f"acc has an entry {acc.max():g}; the model's accuracies lie in [0, 1)")
    ids = np.arange(S.shape[1]) if groups is None else _as_groups(groups, None)
    if len(ids) != S.shape[1]:
        raise ValueError(f"groups has {len(ids)} entries; expected {S.shape[1]}, one per agent")
    n_groups = int(ids.max()) + 1
    if len(S) < n_groups:
        raise ValueError(f"S has {len(S)} measurements; expected at least {n_groups}, one per weight of a row")
    pools = np.stack([S[:, ids == g].sum(1) for g in range(n_groups)], axis=1)
    silent = np.flatnonzero(pools.max(0) == 0)
    what = "agents" if groups is None else "groups"
    if len(silent):
        raise ValueError(f"S: {what} {silent.tolist()} never contribute; their weights cannot be told")
    scale = pools.max(0)
    if np.linalg.matrix_rank(pools / scale) < n_groups:
        raise ValueError(
            f"S has rank below {n_groups}: contributions of some {what} are combinations of others' in every row"
        )

    def predicted(X: np.ndarray, *w: float) -> np.ndarray:
        z = X @ np.array(w)
        return np.tile(z / (1 + z), repeat)

    W = np.zeros((n_groups, n_groups))
    for g in range(n_groups):
        measured = acc[:, ids == g].T
        repeat = len(measured)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", OptimizeWarning)
                W[g], _ = curve_fit(
                    predicted,
                    pools / scale,
                    measured.ravel(),
                    p0=np.ones(n_groups),
                    bounds=(0, np.inf),
                    max_nfev=10_000,
                )
        except (RuntimeError, ValueError, OptimizeWarning, np.linalg.LinAlgError) as error:
            raise RuntimeError(f"the fit of row {g} of W failed: {error}") from error
    return LinearFractional(W / scale, groups=None if groups is None else ids)


def _as_groups(groups: ArrayLike, n_groups: int | None) -> Int[np.ndarray, " n"]:
    ids = np.asarray(groups)
    if ids.dtype.kind not in "iu" or ids.ndim != 1 or ids.size == 0:
        raise ValueError(f"groups has dtype {ids.dtype} and shape {ids.shape}; expected whole numbers, one per agent")
    if ids.min() < 0 or (n_groups is not None and ids.max() >= n_groups):
        raise ValueError(f"groups has entries from {ids.min()} to {ids.max()}; expected 0 to {(n_groups or 0) - 1}")
    if n_groups is None and len(np.unique(ids)) != ids.max() + 1:
        raise ValueError("groups leaves out a number; expected every group 0..G-1 to have an agent")
    return ids.astype(np.int64)


def _checked(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(value, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"{name} returned shape {array.shape}; expected {shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} returned NaN or infinity")
    return array
