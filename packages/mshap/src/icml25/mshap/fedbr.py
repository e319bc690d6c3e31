"""FedBR-Shap: best responses and payments inside a federated training loop, where a_i(s) has no formula (Algorithm 1)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from icml25.mshap.game import LinearCosts, as_costs
from icml25.mshap.inputs import as_count, as_positive, as_vector
from icml25.mshap.shapley import all_orders, sample_orders

Params = Any
"""Model parameters: an array, a list or tuple of arrays, or a dict of arrays."""
Coalition = tuple[tuple[int, ...], int | None]
"""Members in ascending order, and the one whose model saw ε samples more (None: nobody's)."""

ALL_ORDERS_LIMIT = 5


@dataclass(frozen=True, eq=False)
class Round:
    """What one round measured and settled; arrays are (n,).

    ``contributions`` are those the round was trained with, ``gradient`` estimates ∂φ_i/∂s_i, ``accuracies`` are of the new
    global model, ``gains`` over the model before the round, and ``payments`` = ``shares`` - ``gains`` sum to 0.
    """

    number: int
    contributions: Float[np.ndarray, " n"]
    gradient: Float[np.ndarray, " n"]
    accuracies: Float[np.ndarray, " n"]
    gains: Float[np.ndarray, " n"]
    shares: Float[np.ndarray, " n"]
    payments: Float[np.ndarray, " n"]


_VECTORS = ("contributions", "gradient", "accuracies", "gains", "shares", "payments")


def draw_orders(n: int, num_permutations: int | None, seed: int | np.random.Generator | None) -> Int[np.ndarray, "m n"]:
    """All n! permutations up to 5 agents, else ⌊n ln n⌋ (102 for 30) unless a number is given."""
    if num_permutations is None:
        if n <= ALL_ORDERS_LIMIT:
            return all_orders(n)
        num_permutations = math.floor(n * math.log(n))
    m = as_count("num_permutations", num_permutations)
    return sample_orders(n, (m + 1) // 2, seed)[:m]


def coalitions_of(orders: Int[np.ndarray, "m n"]) -> list[Coalition]:
    """The distinct coalitions whose accuracy an estimate along these permutations needs, the empty one first."""
    wanted: dict[Coalition, None] = {((), None): None}
    for order in orders.tolist():
        for r, agent in enumerate(order):
            members = tuple(sorted(order[: r + 1]))
            wanted[members, None] = None
            wanted[members, agent] = None
    return list(wanted)


def estimate(
    orders: Int[np.ndarray, "m n"], totals: Mapping[Coalition, float], epsilon: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Shares φ̂_i, which telescope, and ĝ_i = mean of (A(T^ε) - A(T))/ε_i over the permutations (0 where ε_i = 0)."""
    n = orders.shape[1]
    shares, gradient = np.zeros(n), np.zeros(n)
    for order in orders.tolist():
        before = totals[(), None]
        for r, agent in enumerate(order):
            members = tuple(sorted(order[: r + 1]))
            value = totals[members, None]
            shares[agent] += value - before
            gradient[agent] += totals[members, agent] - value
            before = value
    return shares / len(orders), np.divide(gradient / len(orders), epsilon, out=np.zeros(n), where=epsilon != 0)


def extra_samples(
    samples: Int[np.ndarray, " n"], capacity: Float[np.ndarray, " n"], epsilon: int
) -> Int[np.ndarray, " n"]:
    """Signed ε_i: forward where there are ε samples left, else backward, else as far as the longer side goes."""
    room = np.floor(capacity).astype(np.int64) - samples
    forward = (room >= epsilon) | (room >= samples)
    return np.where(forward, np.minimum(room, epsilon), -np.minimum(samples, epsilon))


def average(models: list[Params], weights: Float[np.ndarray, " k"]) -> Params:
    """Weighted mean of parameters of the same structure."""
    flat = [flatten(model) for model in models]
    for arrays, _ in flat:
        check_shapes("a model", arrays, flat[0][0])
    shares = weights / weights.sum()
    mean = []
    for arrays in zip(*(arrays for arrays, _ in flat), strict=True):
        total = sum(w * np.asarray(a, dtype=np.float64) for w, a in zip(shares, arrays, strict=True))
        mean.append(np.asarray(total, dtype=np.result_type(arrays[0], np.float32)))
    return unflatten(mean, flat[0][1])


def check_shapes(what: str, arrays: Iterable[np.ndarray], expected: Iterable[np.ndarray]) -> None:
    """ValueError unless arrays have the expected shapes; averaging would broadcast them."""
    found, wanted = [np.shape(a) for a in arrays], [np.shape(a) for a in expected]
    if found != wanted:
        raise ValueError(f"{what} has arrays of shapes {found}; expected those of the global model, {wanted}")


def flatten(params: Params) -> tuple[list[np.ndarray], Any]:
    """Arrays of parameters, and a JSON-able note of their structure."""
    if isinstance(params, np.ndarray):
        return [params], "array"
    if isinstance(params, Mapping):
        return [np.asarray(a) for a in params.values()], list(params)
    if isinstance(params, list | tuple) and all(isinstance(a, np.ndarray) for a in params):
        return list(params), "list" if isinstance(params, list) else "tuple"
    raise TypeError(f"params is {type(params).__name__}; expected an array, or a list, tuple or dict of arrays")


def unflatten(arrays: list[np.ndarray], structure: Any) -> Params:
    """Inverse of ``flatten``."""
    if structure == "array":
        return arrays[0]
    if structure == "list":
        return arrays
    return tuple(arrays) if structure == "tuple" else dict(zip(structure, arrays, strict=True))


class FedBRShap:
    """A federated loop in which agents adapt what they give, and are paid, round by round.

    Each round every agent trains the global model on s_i and on s_i + ε of its samples; the models of coalitions are
    averages of these, and every agent reports its accuracy under each. Shares and their derivatives follow along
    permutations, agents take a projected step δ(ĝ_i - c_i'(s_i)), and payments φ_i - ã_i are settled: they sum to 0.

    Parameters
    ----------
    n_agents : number of agents.
    capacity : (n,) samples that each agent has.
    costs : (n,) costs per sample, or an object with ``value(s)`` and ``grad(s)``.
    epsilon_samples : ε, samples; 50 by default. An agent without ε samples left compares with fewer instead of more.
    step : δ, in samples² per unit of accuracy.
    num_permutations : None takes all n! up to 5 agents, else ⌊n ln n⌋; drawn once, the same in each round.
    rounds : number of rounds of ``run``.
    init : (n,) first contributions; None takes ε samples each (or the capacity, where that is less).
    weighting : "uniform" averages models as the paper does; "samples" weights them by their samples, so that an agent that
        gives nothing changes nothing.
    seed : of the permutations.

    Raises
    ------
    ValueError, TypeError: as for ``FLGame``; a count below 1, an unknown weighting.
    """

    def __init__(
        self,
        n_agents: int,
        capacity: ArrayLike,
        costs: Any,
        *,
        epsilon_samples: int = 50,
        step: float | int,
        num_permutations: int | None = None,
        rounds: int = 10,
        init: ArrayLike | None = None,
        weighting: str = "uniform",
        seed: int | np.random.Generator | None = 0,
    ) -> None:
        self.n = as_count("n_agents", n_agents)
        self.capacity = as_vector("capacity", capacity, self.n, minimum=0)
        self.costs = as_costs(costs, self.n)
        self.epsilon_samples = as_count("epsilon_samples", epsilon_samples)
        self.step_size = as_positive("step", step)
        self.rounds = as_count("rounds", rounds)
        if weighting not in ("uniform", "samples"):
            raise ValueError(f"weighting is {weighting!r}; expected 'uniform' or 'samples'")
        self.weighting = weighting
        self.num_permutations = num_permutations
        self.seed = int(seed) if isinstance(seed, int | np.integer) else None if seed is None else "generator"
        self.orders = draw_orders(self.n, num_permutations, seed)
        start = np.full(self.n, float(self.epsilon_samples)) if init is None else as_vector("init", init, self.n, 0)
        if init is not None and (start > self.capacity).any():
            i = int((start > self.capacity).argmax())
            raise ValueError(f"init[{i}] is {start[i]:g}; expected at most the capacity {self.capacity[i]:g}")
        self.contributions = np.minimum(start, self.capacity)
        self.params: Params = None
        self.history: list[Round] = []

    @property
    def payments(self) -> Float[np.ndarray, " n"]:
        """Payments of all rounds so far, (n,)."""
        return np.sum([r.payments for r in self.history], axis=0) if self.history else np.zeros(self.n)

    def run(
        self,
        train: Callable[[int, Params, int], Params],
        evaluate: Callable[[int, Params], float],
        params: Params = None,
        *,
        callback: Callable[[Round], None] | None = None,
    ) -> list[Round]:
        """Train until ``rounds`` rounds are done, counting those of a restored state.

        Parameters
        ----------
        train : ``train(i, params, n_samples)`` returns the parameters that agent i reaches from ``params`` on its first
            ``n_samples`` samples; it must not change ``params``.
        evaluate : ``evaluate(i, params)`` returns agent i's test accuracy.
        params : the first global model: an array, or a list, tuple or dict of arrays; None continues with ``self.params``.
        callback : called with each ``Round``.

        Returns
        -------
        All rounds so far; ``self.params`` is the global model.

        Raises
        ------
        ValueError: there is no model to start from, or a callback returned NaN or another structure.
        """
        if params is not None:
            flatten(params)
            self.params = params
        if self.params is None:
            raise ValueError("params is None; expected the first global model")
        while len(self.history) < self.rounds:
            done = self.round(train, evaluate)
            if callback is not None:
                callback(done)
        return self.history

    def round(self, train: Callable[[int, Params, int], Params], evaluate: Callable[[int, Params], float]) -> Round:
        """One round: train, measure the coalitions, settle, and let agents respond."""
        samples = np.minimum(np.rint(self.contributions), np.floor(self.capacity)).astype(np.int64)
        extra = extra_samples(samples, self.capacity, self.epsilon_samples)
        own = [self._trained(train, i, samples[i]) for i in range(self.n)]
        varied = [self._trained(train, i, samples[i] + extra[i]) if extra[i] else own[i] for i in range(self.n)]
        accuracies = {}
        for members, changed in coalitions_of(self.orders):
            model = self._coalition_model(members, changed, own, varied, samples, extra)
            accuracies[members, changed] = self._evaluated(evaluate, model)
        totals = {coalition: float(a.sum()) for coalition, a in accuracies.items()}
        shares, gradient = estimate(self.orders, totals, extra.astype(np.float64))
        everyone = tuple(range(self.n)), None
        gains = accuracies[everyone] - accuracies[(), None]
        done = Round(
            number=len(self.history) + 1,
            contributions=self.contributions,
            gradient=gradient,
            accuracies=accuracies[everyone],
            gains=gains,
            shares=shares,
            payments=shares - gains,
        )
        self.params = self._coalition_model(*everyone, own, varied, samples, extra)
        response = self.contributions + self.step_size * (gradient - self.costs.grad(self.contributions))
        self.contributions = np.clip(response, 0, self.capacity)
        self.history.append(done)
        return done

    def _trained(self, train: Callable[[int, Params, int], Params], agent: int, samples: np.integer) -> Params:
        if samples == 0:
            return self.params
        model = train(agent, self.params, int(samples))
        arrays, structure = flatten(model)
        if structure != flatten(self.params)[1]:
            raise ValueError(f"train({agent}, ...) returned parameters of another structure than the global model's")
        check_shapes(f"what train({agent}, ...) returned", arrays, flatten(self.params)[0])
        if not all(np.isfinite(a).all() for a in arrays):
            raise ValueError(f"train({agent}, ...) returned NaN or infinity")
        return model

    def _evaluated(self, evaluate: Callable[[int, Params], float], model: Params) -> Float[np.ndarray, " n"]:
        accuracies = np.array([float(evaluate(i, model)) for i in range(self.n)])
        if not np.isfinite(accuracies).all():
            raise ValueError(f"evaluate({int((~np.isfinite(accuracies)).argmax())}, ...) returned NaN or infinity")
        return accuracies

    def _coalition_model(
        self,
        members: tuple[int, ...],
        changed: int | None,
        own: list[Params],
        varied: list[Params],
        samples: np.ndarray,
        extra: np.ndarray,
    ) -> Params:
        """T (or T^ε): the mean of the members' models; the global model for nobody, or nobody's samples."""
        models = [varied[i] if i == changed else own[i] for i in members]
        weights = np.ones(len(members))
        if self.weighting == "samples":
            weights = np.array([samples[i] + (extra[i] if i == changed else 0) for i in members], dtype=np.float64)
        return average(models, weights) if weights.sum() > 0 else self.params

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write model, contributions, permutations and history to an npz file."""
        arrays, structure = flatten(self.params) if self.params is not None else ([], None)
        past = {name: np.array([getattr(r, name) for r in self.history]) for name in _VECTORS}
        meta = {"settings": self._settings(), "structure": structure, "n_params": len(arrays)}
        state: dict[str, Any] = {"meta": np.array(json.dumps(meta))}
        state |= {"contributions": self.contributions, "orders": self.orders}
        state |= {f"history_{name}": value.reshape(-1, self.n) for name, value in past.items()}
        state |= {f"params_{k}": a for k, a in enumerate(arrays)}
        with Path(file).open("wb") as handle:  # a bare name would get a suffix of numpy's
            np.savez(handle, **state)

    def restore(self, file: str | os.PathLike[str]) -> FedBRShap:
        """Continue from a saved state, bit for bit, in a loop that was made with the same settings.

        Raises
        ------
        ValueError: the file is of a loop with other settings, or is no state.
        """
        with np.load(Path(file), allow_pickle=False) as state:
            if "meta" not in state:
                raise ValueError(f"{file} holds no state of FedBRShap")
            meta = json.loads(str(state["meta"]))
            mine = json.loads(json.dumps(self._settings()))
            differ = [
                f"{key}: {meta['settings'].get(key)} there, {mine[key]} here"
                for key in mine
                if meta["settings"].get(key) != mine[key]
            ]
            if differ:
                raise ValueError(f"{file} was saved with other settings: {'; '.join(differ)}")
            self.contributions, self.orders = state["contributions"], state["orders"]
            past = {name: state[f"history_{name}"] for name in _VECTORS}
            self.history = [
                Round(number=t + 1, **{name: past[name][t] for name in _VECTORS}) for t in range(len(past["shares"]))
            ]
            arrays = [state[f"params_{k}"] for k in range(meta["n_params"])]
            self.params = None if meta["structure"] is None else unflatten(arrays, meta["structure"])
        return self

    def _settings(self) -> dict[str, Any]:
        return {
            "n_agents": self.n,
            "capacity": self.capacity.tolist(),
            "epsilon_samples": self.epsilon_samples,
            "step": self.step_size,
            "weighting": self.weighting,
            "num_permutations": self.num_permutations,
            "seed": self.seed,
            "costs": self.costs.gamma.tolist() if isinstance(self.costs, LinearCosts) else type(self.costs).__name__,
        }
