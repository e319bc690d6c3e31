"""Shapley shares of A(s) = Σ_k a_k(s), their own-derivatives, and the potential behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from icml25.mshap.accuracy import Accuracy
from icml25.mshap.inputs import as_array, as_count, as_vector

EXACT_LIMIT, AUTO_LIMIT = 20, 12
_MASKS_PER_CHUNK = 2**20


def sample_orders(n: int, num_pairs: int | None = None, seed: int | np.random.Generator | None = 0) -> np.ndarray:
    """Random permutations in antithetic pairs, balanced over positions as far as the number of pairs goes.

    ⌊num_pairs/n⌋ uniform base permutations come with all their n cyclic shifts, and the rest is plain; every permutation
    is followed by its reverse. Each is uniform, so that averages stay unbiased, and in a full set of shifts each agent
    stands once at each position.

    Parameters
    ----------
    n : number of agents, at least 1.
    num_pairs : number of pairs; None takes n ⌈ln n⌉ (at least one).
    seed : seed or generator.

    Returns
    -------
    (2 num_pairs, n) int64.
    """
    n = as_count("n", n)
    pairs = max(1, n * math.ceil(math.log(n))) if num_pairs is None else as_count("num_pairs", num_pairs)
    rng = np.random.default_rng(seed)
    shifts = (np.arange(n)[:, None] + np.arange(n)) % n
    balanced = [rng.permutation(n)[shifts] for _ in range(pairs // n)]
    plain = [rng.permutation(n)[None] for _ in range(pairs % n)]
    forward = np.concatenate(balanced + plain)
    return np.stack([forward, forward[:, ::-1]], axis=1).reshape(-1, n)


def all_orders(n: int) -> Int[np.ndarray, "m n"]:
    """All n! permutations."""
    return np.array(list(permutations(range(n))), dtype=np.int64)


class ShapleyEstimator:
    """How shares are computed: over all coalitions, or along a fixed set of permutations.

    Parameters
    ----------
    method : "exact" (2^n coalitions, n ≤ 20), "permutation", or "auto": exact up to 12 agents.
    num_pairs : pairs of a permutation and its reverse; None takes n ⌈ln n⌉ (``sample_orders``).
    orders : (m, n) permutations of 0..n-1 to use instead of drawn ones.
    seed : the permutations are drawn once per number of agents, and serve values and derivatives of all agents alike.

    Raises
    ------
    ValueError: unknown method, orders that are not permutations, or options that contradict each other.
    """

    def __init__(
        self,
        method: str = "auto",
        *,
        num_pairs: int | None = None,
        orders: ArrayLike | None = None,
        seed: int | np.random.Generator | None = 0,
    ) -> None:
        if method not in ("auto", "exact", "permutation"):
            raise ValueError(f"method is {method!r}; expected 'auto', 'exact' or 'permutation'")
        if method == "exact" and (num_pairs is not None or orders is not None):
            raise ValueError("method 'exact' takes neither num_pairs nor orders")
        if num_pairs is not None and orders is not None:
            raise ValueError("num_pairs and orders were both given; expected one of them")
        self.method = "permutation" if method == "auto" and not (num_pairs is None and orders is None) else method
        self.num_pairs = None if num_pairs is None else as_count("num_pairs", num_pairs)
        self.seed = seed
        self._orders: dict[int, np.ndarray] = {}
        if orders is not None:
            given = _as_orders(orders)
            self._orders[given.shape[1]] = given
        self._given = orders is not None

    def is_exact(self, n: int) -> bool:
        """Whether n agents are handled by enumeration."""
        if self.method == "exact" and n > EXACT_LIMIT:
            raise ValueError(
                f"method 'exact' with {n} agents would need 2^{n} coalitions; use method='permutation' above {EXACT_LIMIT}"
            )
        return self.method == "exact" or (self.method == "auto" and n <= AUTO_LIMIT)

    def orders(self, n: int) -> Int[np.ndarray, "m n"]:
        """The fixed permutations of n agents."""
        if n not in self._orders:
            if self._given:
                raise ValueError(f"orders are of {next(iter(self._orders))} agents; the game has {n}")
            self._orders[n] = sample_orders(n, self.num_pairs, self.seed)
        return self._orders[n]

    def shares(self, accuracy: Accuracy, s: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """φ_i(s)."""
        n = len(s)
        if self.is_exact(n):
            return _exact_shares(lambda masks: accuracy.total(masks * s), n)
        empty = accuracy.total(np.zeros((1, n)))[0]
        return self._average(accuracy, n, lambda orders: _marginals(accuracy.prefix_totals(s, orders) - empty))

    def own_gradient(self, accuracy: Accuracy, s: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """∂φ_i/∂s_i."""
        if self.is_exact(len(s)):
            return self.potential(accuracy, s)[1]
        return self._average(accuracy, len(s), lambda orders: accuracy.prefix_own_gradient(s, orders))

    def potential(self, accuracy: Accuracy, s: Float[np.ndarray, " n"]) -> tuple[float, Float[np.ndarray, " n"]]:
        """P(s) = Σ_{∅≠S} (|S|-1)!(n-|S|)!/n! A(s[S]) and ∇P (Hart and Mas-Colell's potential).

        With all coalitions ∂P/∂s_i = ∂φ_i/∂s_i. Along permutations P is the mean of Σ_r A(s[π(1..r)])/r, an unbiased
        estimate that has a gradient of its own.
        """
        n, total = len(s), 0.0
        if self.is_exact(n):
            gradient = np.zeros(n)
            for masks in _coalitions(n):
                size = masks.sum(1)
                weight = np.where(size > 0, _joining_weight(np.maximum(size - 1, 0), n), 0)
                rows = masks * s
                total += float(weight @ accuracy.total(rows))
                gradient += ((weight[:, None] * masks) * accuracy.total_gradient(rows)).sum(0)
            return total, gradient
        orders = self.orders(n)
        for chunk in _chunks(orders, accuracy.orders_per_chunk(n)):
            total += float((accuracy.prefix_totals(s, chunk) / np.arange(1, n + 1)).sum()) / len(orders)
        return total, self._average(accuracy, n, lambda chunk: accuracy.prefix_potential_gradient(s, chunk))

    def deviation_shares(
        self, accuracy: Accuracy, s: Float[np.ndarray, " n"], T: Float[np.ndarray, "K n"]
    ) -> Float[np.ndarray, "K n"]:
        """φ_i(T_ki, s_-i) for each row k and agent i: one agent at a time deviates from s."""
        n, shares = len(s), np.zeros(T.shape)
        if not self.is_exact(n):
            orders = self.orders(n)
            for chunk in _chunks(orders, accuracy.orders_per_chunk(n)):
                shares += accuracy.deviation_sums(s, chunk, T)
            return shares / len(orders)
        for masks in _coalitions(n):
            size = masks.sum(1)
            values = accuracy.total(masks * s)
            for i in range(n):
                out = masks[:, i] == 0
                rows, weight = masks[out] * s, _joining_weight(size[out], n)
                for k, t in enumerate(T[:, i]):
                    rows[:, i] = t
                    shares[k, i] += weight @ (accuracy.total(rows) - values[out])
        return shares

    def _average(
        self, accuracy: Accuracy, n: int, positions: Callable[[np.ndarray], np.ndarray]
    ) -> Float[np.ndarray, " n"]:
        """Mean over permutations of what each agent has at its position."""
        orders = self.orders(n)
        total = np.zeros(n)
        for chunk in _chunks(orders, accuracy.orders_per_chunk(n)):
            total += np.bincount(chunk.ravel(), weights=positions(chunk).ravel(), minlength=n)
        return total / len(orders)


def shapley_shares(
    v: Callable[[np.ndarray], ArrayLike],
    n: int,
    method: str = "auto",
    *,
    num_pairs: int | None = None,
    orders: ArrayLike | None = None,
    seed: int | np.random.Generator | None = 0,
) -> Float[np.ndarray, " n"]:
    """Shapley value of any cooperative game: φ_i = (1/n) Σ_{X∌i} C(n-1,|X|)^-1 [v(X∪i) - v(X)].

    Parameters
    ----------
    v : maps boolean masks (B, n), True for members, to B values. v(∅) need not be 0.
    n : number of agents.
    method, num_pairs, orders, seed : as in ``ShapleyEstimator``.

    Returns
    -------
    (n,) shares; they sum to v(N) - v(∅) for every number of permutations.

    Raises
    ------
    ValueError: v returned the wrong shape or NaN, n < 1, or "exact" with n > 20.
    """
    n = as_count("n", n)
    if not callable(v):
        raise TypeError(f"v is {type(v).__name__}; expected a function of boolean masks")
    estimator = ShapleyEstimator(method, num_pairs=num_pairs, orders=orders, seed=seed)

    def value(masks: np.ndarray) -> np.ndarray:
        return _values(v(masks.astype(bool)), len(masks))

    if estimator.is_exact(n):
        return _exact_shares(value, n)
    return estimator.shares(_SetFunction(value), np.ones(n))


class _SetFunction(Accuracy):
    """A cooperative game as the accuracy of contributions 0 and 1; it has no derivatives."""

    def __init__(self, value: Callable[[np.ndarray], np.ndarray]) -> None:
        self.value = value

    def __call__(self, S: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B n"]:
        """Not needed: only totals have a meaning here."""
        raise NotImplementedError

    own_gradient = total_gradient = __call__

    def total(self, S: Float[np.ndarray, "B n"]) -> Float[np.ndarray, " B"]:
        """v of each coalition."""
        return self.value(S > 0)


def settle(accuracies: ArrayLike, coalition_values: ArrayLike | Mapping[Any, float]) -> Float[np.ndarray, " n"]:
    """Payments p_i = φ_i - ã_i from measurements of one's own.

    Parameters
    ----------
    accuracies : (n,) gain of each agent from everyone's data: its accuracy less its accuracy without any data.
    coalition_values : A of every coalition, the sum over *all* agents of the accuracy that the coalition's data give. Either
        2^n numbers, entry b for the agents whose bit is set in b (agent 0 is the lowest bit), or a mapping from
        tuples or frozensets of agents to numbers.

    Returns
    -------
    (n,) payments, positive for a subsidy; they sum to 0.

    Raises
    ------
    ValueError: a coalition is missing, unknown or named twice, or the gains do not sum to A(N) - A(∅) (payments would not balance).
    """
    gains = as_vector("accuracies", accuracies)
    n = len(gains)
    if n > EXACT_LIMIT:
        raise ValueError(f"accuracies has {n} agents; 2^n coalitions are for at most {EXACT_LIMIT}")
    if isinstance(coalition_values, Mapping):
        wanted = [frozenset(i for i in range(n) if b >> i & 1) for b in range(2**n)]
        named = _named_coalitions(coalition_values, set(wanted))
        missing = next((coalition for coalition in wanted if coalition not in named), None)
        if missing is not None:
            raise ValueError(f"coalition_values lacks the coalition {sorted(missing)}")
        coalition_values = [named[coalition] for coalition in wanted]
    values = as_array("coalition_values", coalition_values, 1)
    if len(values) != 2**n:
        raise ValueError(f"coalition_values has {len(values)} entries; expected 2^{n} = {2**n}, one per coalition")
    gap = gains.sum() - (values[-1] - values[0])
    if abs(gap) > 1e-6 * max(1.0, np.abs(values).max()):
        raise ValueError(
            f"accuracies sum to {gains.sum():g} but coalition_values rise by {values[-1] - values[0]:g} from nobody to "
            "everyone; expected gains, each agent's accuracy less its accuracy without any data"
        )
    bits = 2 ** np.arange(n)
    return _exact_shares(lambda masks: values[(masks @ bits).astype(np.int64)], n) - gains


def _named_coalitions(values: Mapping[Any, float], known: set[frozenset[int]]) -> dict[frozenset[int], float]:
    named = {}
    for key, value in values.items():
        if not isinstance(key, tuple | frozenset):
            raise TypeError(f"coalition_values has the key {key!r}; expected tuples or frozensets of agents")
        coalition = frozenset(key)
        if coalition not in known or len(coalition) < len(key):
            raise ValueError(f"coalition_values has the unknown coalition {key!r}; expected distinct agents 0, 1, ...")
        if coalition in named:
            raise ValueError(f"coalition_values names the coalition {sorted(coalition)} twice")
        named[coalition] = value
    return named


def _exact_shares(value: Callable[[np.ndarray], np.ndarray], n: int) -> Float[np.ndarray, " n"]:
    shares, empty = np.zeros(n), value(np.zeros((1, n)))[0]
    for masks in _coalitions(n):
        size, gain = masks.sum(1), value(masks) - empty
        inside = np.where(size > 0, _joining_weight(np.maximum(size - 1, 0), n), 0)
        outside = np.where(size < n, _joining_weight(np.minimum(size, n - 1), n), 0)
        shares += masks.T @ (inside * gain) - (1 - masks).T @ (outside * gain)
    return shares


def _joining_weight(size: Float[np.ndarray, " B"], n: int) -> Float[np.ndarray, " B"]:
    """1 / (n C(n-1, |X|)): the probability that exactly X stands before an agent."""
    table = np.array([1 / (n * math.comb(n - 1, k)) for k in range(n)])
    return table[size.astype(np.int64)]


def _coalitions(n: int) -> Iterator[Float[np.ndarray, "B n"]]:
    """All 2^n masks, as 0 and 1, in chunks of a few MB."""
    size = max(1, _MASKS_PER_CHUNK // n)
    for start in range(0, 2**n, size):
        codes = np.arange(start, min(start + size, 2**n))
        yield (codes[:, None] >> np.arange(n) & 1).astype(np.float64)


def _chunks(orders: Int[np.ndarray, "m n"], size: int) -> Iterator[Int[np.ndarray, "c n"]]:
    for start in range(0, len(orders), size):
        yield orders[start : start + size]


def _marginals(totals: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "m n"]:
    return np.diff(totals, axis=1, prepend=0.0)


def _as_orders(orders: ArrayLike) -> Int[np.ndarray, "m n"]:
    given = np.asarray(orders)
    if given.dtype.kind not in "iu" or given.ndim != 2 or given.size == 0:
        raise ValueError(f"orders has dtype {given.dtype} and shape {given.shape}; expected whole numbers (m, n)")
    wrong = (np.sort(given, axis=1) != np.arange(given.shape[1])).any(1)
    if wrong.any():
        raise ValueError(f"orders[{wrong.argmax()}] is not a permutation of 0..{given.shape[1] - 1}")
    return given.astype(np.int64)


def _values(value: ArrayLike, count: int) -> Float[np.ndarray, " B"]:
    array = np.asarray(value)
    if array.shape != (count,):
        raise ValueError(f"v returned shape {array.shape} for {count} masks; expected ({count},)")
    if array.dtype.kind not in "iuf":
        raise TypeError(f"v returned dtype {array.dtype}; expected real numbers")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError("v returned NaN or infinity")
    return array
