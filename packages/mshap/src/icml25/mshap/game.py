"""The game: who gives how much, what accuracy it buys, what it costs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from icml25.mshap.accuracy import Accuracy, CallableAccuracy
from icml25.mshap.inputs import as_vector

if TYPE_CHECKING:
    from icml25.mshap.mechanisms import Mechanism
    from icml25.mshap.solve import Equilibrium


@runtime_checkable
class Costs(Protocol):
    """Private costs c_i(s_i): 0 at 0, increasing and convex, of all agents at once."""

    def value(self, s: np.ndarray) -> np.ndarray:
        """c_i(s_i), (n,)."""
        ...

    def grad(self, s: np.ndarray) -> np.ndarray:
        """c_i'(s_i), (n,)."""
        ...


class LinearCosts:
    """c_i = γ_i s_i.

    Parameters
    ----------
    gamma : (n,) cost of a sample, γ_i ≥ 0, in units of accuracy.
    """

    def __init__(self, gamma: ArrayLike) -> None:
        self.gamma = as_vector("costs", gamma, minimum=0)

    def value(self, s: np.ndarray) -> np.ndarray:
        """γ_i s_i, (n,)."""
        return self.gamma * s

    def grad(self, s: np.ndarray) -> np.ndarray:
        """γ_i, (n,)."""
        return self.gamma.copy()


def as_costs(costs: Any, n: int) -> Costs:
    """An object with ``value`` and ``grad`` as it is, checked at 0; an array as linear costs."""
    if not isinstance(costs, Costs):
        costs = LinearCosts(as_vector("costs", costs, n, minimum=0))
    zero = np.zeros(n)
    for name, result in (("value", costs.value(zero)), ("grad", costs.grad(zero))):
        if np.shape(result) != (n,) or not np.isfinite(result).all():
            raise ValueError(f"costs.{name} returned {result!r} for {n} zeros; expected {n} finite numbers")
    if np.abs(costs.value(zero)).max() > 1e-12:
        raise ValueError(f"costs.value(0) is {costs.value(zero)}; expected 0, no data cost nothing")
    return costs


class FLGame:
    """n agents that choose contributions s_i in [0, capacity_i], with utility a_i(s) + p_i(s) - c_i(s_i).

    Parameters
    ----------
    accuracy : a_i(s), an ``Accuracy`` such as ``LinearFractional``, ``PowerLaw`` or ``CallableAccuracy``.
    costs : (n,) costs per sample γ_i ≥ 0, or an object with vectorised ``value(s)`` and ``grad(s)``.
    capacity : (n,) samples that each agent has, finite, ≥ 0.
    baseline : "subtract" (default): agents' gains are a_i(s) - a_i(0), which makes payments balance. "none": gains are
        a_i(s) as the literal formula has it, with a warning when a(0) is not 0.

    Raises
    ------
    ValueError: lengths differ, or something is negative, not finite or empty; the accuracy returns a wrong shape or NaN.
    TypeError: not numbers, or accuracy is not an ``Accuracy``.
    """

    def __init__(self, accuracy: Accuracy, costs: Any, capacity: ArrayLike, *, baseline: str = "subtract") -> None:
        if not isinstance(accuracy, Accuracy):
            raise TypeError(
                f"accuracy is {type(accuracy).__name__}; expected an Accuracy (wrap a function in CallableAccuracy)"
            )
        if baseline not in ("subtract", "none"):
            raise ValueError(f"baseline is {baseline!r}; expected 'subtract' or 'none'")
        self.accuracy = accuracy
        self.capacity = as_vector("capacity", capacity, accuracy.n_agents, minimum=0)
        self.costs = as_costs(costs, self.n)
        self.baseline = baseline
        self._probe()
        self._set_baseline()

    @property
    def n(self) -> int:
        """Number of agents."""
        return len(self.capacity)

    def _probe(self) -> None:
        """Look at a few points, from nothing to everything."""
        steps = np.linspace(0, 1, 5)[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            values = self.accuracy(steps * self.capacity)
        if not np.isfinite(values).all():
            raise ValueError("accuracy is not finite at the capacities; weights times capacities overflow")
        if values.shape != (5, self.n):
            raise ValueError(f"accuracy returned shape {values.shape} for (5, {self.n}) contributions")
        self._empty = values[0]
        self._warn_of_falls("all give", values)
        if isinstance(self.accuracy, CallableAccuracy):  # the formulas rise by construction
            for base in (0.1, 0.5):
                for i in range(self.n):
                    rows = np.tile(base * self.capacity, (5, 1))
                    rows[:, i] = steps[:, 0] * self.capacity[i]
                    self._warn_of_falls(f"agent {i} gives", self.accuracy(rows))

    def _warn_of_falls(self, who: str, values: np.ndarray) -> None:
        falls = (np.diff(values, axis=0) < -1e-9).any(0)
        if falls.any():
            text = f"the accuracy of agent {int(falls.argmax())} falls as {who} more data; equilibria may not exist"
            warnings.warn(text, stacklevel=4)

    def _set_baseline(self) -> None:
        if self.baseline == "none":
            if abs(self._empty.sum()) > 1e-9:
                warnings.warn(
                    f"payments will sum to {-self._empty.sum():g}, not 0: agents have accuracy without any data; "
                    "use baseline='subtract'",
                    stacklevel=3,
                )
            self._empty = np.zeros(self.n)

    def contributions(self, s: ArrayLike, name: str = "s") -> Float[np.ndarray, " n"]:
        """``s`` checked against the capacities."""
        vector = as_vector(name, s, self.n, minimum=0)
        over = vector > self.capacity * (1 + 1e-12)
        if over.any():
            i = int(over.argmax())
            raise ValueError(f"{name}[{i}] is {vector[i]:g}; expected at most the capacity {self.capacity[i]:g}")
        return vector

    def accuracies(self, s: ArrayLike) -> Float[np.ndarray, " n"]:
        """a_i(s)."""
        return self.accuracy(self.contributions(s)[None])[0]

    def gains(self, s: ArrayLike) -> Float[np.ndarray, " n"]:
        """ã_i(s) = a_i(s) - a_i(0), or a_i(s) with baseline "none"."""
        return self.accuracies(s) - self._empty

    def solve(self, mechanism: Mechanism, **options: Any) -> Equilibrium:
        """Nash equilibrium under a mechanism; see ``icml25.mshap.solve``."""
        from icml25.mshap.solve import solve

        return solve(self, mechanism, **options)

    def compare(self, mechanisms: Iterable[Mechanism], **options: Any) -> list[dict[str, Any]]:
        """Equilibria of several mechanisms side by side; see ``icml25.mshap.compare``."""
        from icml25.mshap.solve import compare

        return compare(self, mechanisms, **options)
