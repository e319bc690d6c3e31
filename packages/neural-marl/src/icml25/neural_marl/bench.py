"""The method, its ablations and its baselines on the problem "networked" of the track "control"."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

# Chosen on seeds 1000 and 1001, never reported. GRID: gamma = 0.9, beta among .03, .05, .1, .2, .3, alpha among 2 / (t + 10),
# .01, .02, .03. CONFLICT: beta among .02, .1 (diverges), alpha among .03, .06. All variants share them.
GRID = {"width": 32, "depth": 3, "alpha": 0.03, "beta": 0.1, "exact_mean_limit": 25}  # three agents: V(s) by one draw
CONFLICT = {"width": 32, "depth": 2, "alpha": 0.06, "beta": 0.02}
# The paper's own ablation setting: of the clock, and of the grid at the budget "paper".
PAPER = {"param": "paper", "warm_start": False, "width": 20, "depth": 5, "critic_steps": 1, "actor_batch": 1}
PAPER |= {"alpha": 0.005, "beta": 0.001, "continue_chain": True}
ABLATION: dict[str, dict[str, Any]] = {f"R{rounds}": {"gossip_rounds": rounds} for rounds in (0, 20)}  # paper budget
ABLATION |= {f"m{m}": {"width": m} for m in (10, 40)} | {f"D{D}": {"depth": D} for D in (20, 40)}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {  # by data set
    "mdp": {f"exact {norm}": {"critic": "exact", "normalize": norm} for norm in ("joint", "agent")},
    "grid": {
        "td": {},
        "q": {"advantage": "q"},
        "sarsa": {"advantage": "sarsa"},
        "linear": {"critic": "linear", "actor": "linear"},
        "K1 M1": {"critic_steps": 1, "actor_batch": 1},
        "K1 M5": {"critic_steps": 1, "actor_batch": 5},
        "K5 M1": {"critic_steps": 5, "actor_batch": 1},
        "K10 M10": {"critic_steps": 10, "actor_batch": 10},
        **ABLATION,
    },
    "conflict": {f"gossip {rounds}": {"gossip_rounds": rounds} for rounds in (0, 1, 10)},
    "shapes": {"shapes": {}},
    "speed": {"speed": {}},
}
SMOKE = ("exact joint", "td", "q", "gossip 10")
BESIDE = ("sarsa", "linear", "K1 M5", "K5 M1", "gossip 1")  # no claim rests on them: one seed, but for the paper budget
SHAPES = {f"D{D}": (D, 20) for D in (1, 3, 5)} | {f"m{m}": (3, m) for m in (10, 20, 40)}  # depth, width


def warm_up() -> None:
    """Load what the clock should not see; what one run has compiled, the next ones take from the run's cache."""
    import jax
    import pandas  # noqa: F401

    import icml25.neural_marl  # noqa: F401

    if folder := os.environ.get("BENCHOPT_CACHE"):
        jax.config.update("jax_compilation_cache_dir", str(Path(folder) / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def _environment(arrays: dict[str, np.ndarray], params: dict[str, Any], run: int) -> Any:
    from icml25.neural_marl import GridSpread, NetworkedMDP

    n, gamma = len(arrays["edges"]), params["gamma"]
    if params["kind"] == "mdp":
        P, R, rho = (arrays[name][run] for name in ("P", "R", "rho"))
        return NetworkedMDP(P, R, rho, gamma, (params["n_actions"],) * n)
    landmarks = [(int(x), int(y)) for x, y in arrays["landmarks"]]
    return GridSpread(n, params["width"], params["height"], params["reset_every"], landmarks=landmarks, gamma=gamma)


def _learn(algo: Any, steps: np.ndarray) -> np.ndarray:
    """Tables (runs, C, N, S, A) at equally spaced steps."""
    seen = []

    def note(row: dict[str, Any]) -> None:
        if row.get("seed", algo.seed) == algo.seed + algo.num_seeds - 1:
            seen.append([np.stack(algo.policy_tables(k)) for k in range(algo.num_seeds)])

    algo.train(int(steps[-1]), log_every=int(steps[1]), callback=note)
    return np.moveaxis(np.array(seen), 0, 1)


def train(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Train on every problem and run."""
    import networkx as nx

    from icml25.neural_marl import NeuralDAC, consensus_matrix

    dataset, variant, steps = params["dataset"], params["variant"], arrays["steps"]
    graph, runs, seed = nx.from_numpy_array(arrays["edges"]), params["runs"], 1000 * params["seed"]
    settings = VARIANTS[dataset][variant]
    if dataset in ("mdp", "conflict"):
        base = CONFLICT if dataset == "conflict" else {}
        algos = [
            NeuralDAC(_environment(arrays, params, run), graph, seed=seed + run, **{**base, **settings})
            for run in range(runs)
        ]
        out: dict[str, Any] = {"policies": np.concatenate([_learn(algo, steps) for algo in algos])}
        if variant == "gossip 0":
            out["consensus_rate_excess"] = max(map(_rate_excess, algos))
        return out
    env = _environment(arrays, params, 0)
    if dataset == "shapes":
        ends = np.array([0, steps[-1]])
        done: dict[tuple[int, int], np.ndarray] = {}
        for shape in SHAPES.values():
            if shape not in done:
                settings = {**GRID, "depth": shape[0], "width": shape[1]}
                done[shape] = _learn(NeuralDAC(env, graph, seed=seed, num_seeds=runs, **settings), ends)
        return {f"policies_{label}": done[shape] for label, shape in SHAPES.items()}
    if dataset == "speed":
        return _speed(env, graph, seed, steps)
    base, weights = GRID, consensus_matrix(graph)
    if params["budget"] == "paper":
        base, weights = PAPER, consensus_matrix(graph, "random", seed)
    return {"policies": _learn(NeuralDAC(env, weights, seed=seed, num_seeds=runs, **{**base, **settings}), steps)}


def _rate_excess(algo: Any) -> float:
    """Rate of consensus, fitted to 20 rounds of gossip on critics that never talked, minus sigma_2."""
    import jax

    from icml25.neural_marl import gossip, mixing_rate

    W = np.concatenate([np.asarray(w, np.float64).reshape(len(w), -1) for w in jax.tree.leaves(algo.critics)], 1)
    errors = [np.linalg.norm(x - x.mean(0)) for x in (gossip(W, algo.A, rounds) for rounds in range(21))]
    return float(np.exp(np.polyfit(np.arange(21), np.log(errors), 1)[0]) - mixing_rate(algo.A))


def _speed(env: Any, graph: Any, seed: int, steps: np.ndarray) -> dict[str, Any]:
    """Medians of five alternating repeats; compiling is not in them."""
    import jax

    from icml25.neural_marl import NeuralDAC

    one, many = (NeuralDAC(env, graph, seed=seed, num_seeds=n, **PAPER) for n in (1, 100))
    length, few = int(steps[1]), max(1, int(steps[-1]) // 40)

    def scan(algo: Any, length: int) -> float:
        start = time.perf_counter()
        jax.block_until_ready(algo._run(algo.state, length))
        return (time.perf_counter() - start) / length

    def loop(length: int) -> float:
        start, state = time.perf_counter(), one.state
        for _ in range(length):
            state, _ = one._run(state, 1)
        jax.block_until_ready(state)
        return (time.perf_counter() - start) / length

    def all_three() -> tuple[float, float, float]:
        return scan(one, length), scan(many, few), loop(length)

    all_three()
    single, hundred, stepped = np.median([all_three() for _ in range(5)], 0)
    ratios = {"hundred_seeds": hundred / single, "scan_over_loop": single / stepped}
    return {"policies": _learn(one, steps), "steps_per_second": 1 / single, **ratios}


class Solver(BaseSolver):
    """Neural decentralised actor-critic, with parts of it exchanged."""

    name = "neural-marl"
    sampling_strategy = "run_once"
    problems = ("networked",)
    parameters = {"variant": [variant for variants in VARIANTS.values() for variant in variants]}  # noqa: RUF012

    def skip(
        self, problem: str, budget: str, seed: int = 0, dataset: str = "", edges: Any = (), **_: Any
    ) -> tuple[bool, str | None]:
        """Leave out what a data set is not about."""
        if problem != "networked":
            return True, "learns in teams only"
        if self.variant not in VARIANTS[dataset]:
            return True, f"{self.variant} is not run on {dataset}"
        if dataset == "grid" and len(edges) > 2 and self.variant != "td":
            return True, "only the method itself is run with more agents"
        if budget != "paper" and self.variant in ABLATION:
            return True, "left to the paper budget"
        if budget == "quick" and seed and (self.variant in BESIDE or (dataset == "grid" and len(edges) > 2)):
            return True, "one seed, as no claim rests on it"
        return budget == "smoke" and self.variant not in SMOKE, "left out of this budget"

    def set_objective(self, **problem: Any) -> None:
        """Note arrays and numbers."""
        self.arrays = {k: v for k, v in problem.items() if isinstance(v, np.ndarray)}
        self.params = {k: v for k, v in problem.items() if isinstance(v, (int, float, str))} | {"variant": self.variant}

    def run(self, _: Any) -> None:
        """Train in a process of its own."""
        self.result = measure(__file__, "train", self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return tables, seconds and memory."""
        return self.result
