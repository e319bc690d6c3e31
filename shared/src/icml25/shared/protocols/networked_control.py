"""The problem "networked" of the track ``control``: a team over a graph, judged by its distance from the optimal policy.

Agents see state and joint action; each has a reward of its own, and the team's is their mean. A data set is one or more
finite problems: random networked MDPs, or the grid variant of Simple Spread. A solver returns the tables of its policies
at given outer steps, and their values, exact to rounding, are computed here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["adjacency", "draw", "evaluate", "example", "model", "optimum", "policy_value"]

RUNS = {"smoke": 1, "quick": 2, "paper": 20}  # independent runs on one grid
OFFSET, SLOPE_FROM = 10, 200  # the slope is that of log gap against log(t + OFFSET), t >= SLOPE_FROM


def adjacency(graph: str, n_agents: int) -> np.ndarray:
    """Neighbours (N, N) in a ring, a path, a star or the complete graph."""
    edges = np.zeros((n_agents, n_agents), dtype=int)
    i = np.arange(n_agents)
    if graph in ("ring", "path"):
        edges[i, (i + 1) % n_agents] = 1
        if graph == "path":
            edges[-1, 0] = 0
    elif graph == "star":
        edges[0, 1:] = 1
    elif graph == "complete":
        edges[:] = 1
    else:
        raise ValueError(f"graph is {graph!r}; expected ring, path, star or complete")
    edges |= edges.T
    np.fill_diagonal(edges, 0)
    return edges


def draw(settings: dict[str, Any], *, seed: int, budget: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Problems of a data set; the optimal and the uniform policy's values are the truth.

    Parameters
    ----------
    settings : kind "mdp" (n_agents, n_states, n_actions, n_problems, conflict) or "grid" (n_agents, width, height,
        reset_every, and runs, by default 1, 2 or 20 by the budget), and graph, gamma, T, checkpoints. With a conflict c,
        agent i's reward is the team's plus c times a term of its own, the terms summing to 0.

    Returns
    -------
    public: kind, edges (N, N), gamma, steps (C,), runs; of "mdp" P (n, S, A, S), R (n, N, S, A), rho (n, S), with the
        joint action row-major, agent 0 slowest; of "grid" landmarks (N, 2) as (x, y), width, height, reset_every.
    """
    rng = np.random.default_rng(seed)
    kind, n, gamma = settings["kind"], int(settings["n_agents"]), float(settings["gamma"])
    T = int(settings["T"][budget]) if isinstance(settings["T"], dict) else int(settings["T"])
    steps = np.linspace(0, T, int(settings["checkpoints"]) + 1).astype(int)
    public: dict[str, Any] = {
        "kind": kind,
        "dataset": settings["dataset"],
        "edges": adjacency(settings["graph"], n),
        "gamma": gamma,
        "steps": steps,
    }
    if kind == "mdp":
        S, A, c = int(settings["n_states"]), int(settings["n_actions"]), float(settings["conflict"])
        problems = [_random_mdp(n, S, A, c, rng) for _ in range(int(settings["n_problems"]))]
        P, R = (np.stack(x) for x in zip(*problems, strict=True))
        public |= {"P": P, "R": R, "rho": np.full((len(P), S), 1 / S), "n_actions": A, "runs": len(P)}
    elif kind == "grid":
        width, height = int(settings["width"]), int(settings["height"])
        cells = rng.choice(width * height, n, replace=False)
        public |= {"width": width, "height": height, "reset_every": int(settings["reset_every"])}
        public |= {"landmarks": np.stack([cells % width, cells // width], 1), "n_actions": 5}
        public["runs"] = int(settings.get("runs", RUNS[budget]))
    else:
        raise ValueError(f"kind is {kind!r}; expected mdp or grid")
    shape = _shape(public)
    uniform = np.full(shape[2:], 1 / public["n_actions"])
    problems = range(len(public["P"])) if kind == "mdp" else range(1)
    models = [model(public, k) for k in problems]
    truth = {
        "models": models,
        "optimum": np.array([optimum(m) for m in models]),
        "uniform": np.array([policy_value(m, uniform) for m in models]),
    }
    return public, truth


def _random_mdp(n: int, S: int, A: int, conflict: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """P rows Dirichlet(1/2); r^i(s, a^i) ~ U[0, 4], or a team reward of that kind with private terms that cancel."""
    joint = A**n
    P = rng.dirichlet(np.full(S, 0.5), (S, joint))
    actions = np.stack(np.unravel_index(np.arange(joint), (A,) * n))
    own = rng.uniform(0, 4, (n, S, A))
    R = np.stack([own[i][:, actions[i]] for i in range(n)])
    if conflict:
        private = rng.uniform(0, 4, (n, S, joint))
        R = R.mean(0) + conflict * (private - private.mean(0))
    return P, R


def _shape(public: dict[str, Any]) -> tuple[int, ...]:
    """(runs, C, N, S, A) of a result's tables."""
    n = len(public["edges"])
    S = public["P"].shape[1] if public["kind"] == "mdp" else (public["width"] * public["height"]) ** n
    return public["runs"], len(public["steps"]), n, S, public["n_actions"]


def model(public: dict[str, Any], k: int) -> dict[str, Any]:
    """Team reward and transitions of problem k."""
    if public["kind"] == "mdp":
        return {"gamma": public["gamma"], "P": public["P"][k], "r": public["R"][k].mean(0), "rho": public["rho"][k]}
    width, height, n = public["width"], public["height"], len(public["edges"])
    cells = np.arange(width * height)
    x, y = cells % width, cells // width
    moves = [(0, -1), (0, 1), (-1, 0), (1, 0), (0, 0)]  # up, down, left, right, stay
    after = np.stack([np.clip(y + v, 0, height - 1) * width + np.clip(x + u, 0, width - 1) for u, v in moves], 1)
    distance = np.abs(np.stack([x, y], 1)[:, None] - public["landmarks"]).sum(2)
    positions = np.stack(np.unravel_index(np.arange(len(cells) ** n), (len(cells),) * n), 1)
    actions = np.stack(np.unravel_index(np.arange(5**n), (5,) * n), 1)
    moved = [after[positions[:, i, None], actions[:, i]] for i in range(n)]
    there = np.ravel_multi_index(moved, (len(cells),) * n)
    team = -distance[positions].min(1).sum(1).astype(float)
    return {"gamma": public["gamma"], "next": there, "r": team[there], "episode": public["reset_every"]}


def policy_value(model: dict[str, Any], tables: np.ndarray) -> float:
    """J of a product policy (N, S, A), exactly.

    The grid sends all agents to random cells after each episode, so J is an episode's value over 1 - gamma^length.
    """
    pi = tables[0]
    for table in tables[1:]:
        pi = (pi[:, :, None] * table[:, None, :]).reshape(len(pi), -1)
    r, gamma = (pi * model["r"]).sum(1), model["gamma"]
    if "P" in model:
        P = np.einsum("sa,sat->st", pi, model["P"])
        return float(model["rho"] @ np.linalg.solve(np.eye(len(P)) - gamma * P, r))
    V = np.zeros(len(r))
    for _ in range(model["episode"]):
        V = r + gamma * (pi * V[model["next"]]).sum(1)
    return float(V.mean() / (1 - gamma ** model["episode"]))


def optimum(model: dict[str, Any]) -> float:
    """J* over joint policies, on the grid over those that also see the step of the episode, by value iteration."""
    r, gamma = model["r"], model["gamma"]
    V = np.zeros(len(r))
    if "next" in model:
        for _ in range(model["episode"]):
            V = (r + gamma * V[model["next"]]).max(1)
        return float(V.mean() / (1 - gamma ** model["episode"]))
    while True:
        updated = (r + gamma * model["P"] @ V).max(1)
        if np.abs(updated - V).max() < 1e-12 * np.abs(updated).max():
            return float(model["rho"] @ updated)
        V = updated


def evaluate(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Compare the returned policies with the optimum.

    Parameters
    ----------
    public, truth : of ``draw``.
    result : ``policies`` (runs, C, N, S, A), the tables after each of ``steps`` outer steps, run r on problem r; or, from a
        solver that compares settings, ``policies_<label>`` for each of them (C may be 2: first and last step); scalars.

    Returns
    -------
    relative_gap, (J* - J) / (J* - J of the uniform policy) at the end, mean over runs; remaining_gap, the same with the
    run's own first policy, its median, and of five runs or more the median's 95% bootstrap interval, remaining_gap_low and
    remaining_gap_high; gap_area, mean relative gap over outer steps; gap_slope, median over runs of the
    slope of log(J* - J) against log(t + 10) from t = 200 on (where there are checkpoints); reward, (1 - gamma) J at the end,
    beside optimal_reward. Of labels gap_<label>; spread_depth and spread_width, largest minus smallest over labels D* and
    m*, and their difference depth_over_width.
    """
    shape, steps = _shape(public), public["steps"]
    optimal, uniform = (np.resize(truth[name], shape[0]) for name in ("optimum", "uniform"))
    own = {name: float(value) for name, value in result.items() if np.ndim(value) == 0}
    labelled = {k.removeprefix("policies_"): v for k, v in result.items() if k.startswith("policies_")}
    if labelled:
        gaps = {}
        for label, policies in labelled.items():
            values = _values(policies, truth["models"], (shape[0], 2, *shape[2:]))
            gaps[label] = float(np.mean((optimal - values[:, -1]) / (optimal - uniform)))
        columns = {f"gap_{label}": gap for label, gap in gaps.items()}
        for name, letter in (("spread_depth", "D"), ("spread_width", "m")):
            if among := [gap for label, gap in gaps.items() if label.startswith(letter)]:
                columns[name] = max(among) - min(among)
        if {"spread_depth", "spread_width"} <= set(columns):
            columns["depth_over_width"] = columns["spread_depth"] - columns["spread_width"]
        return {**own, **columns, "relative_gap": float(np.mean(list(gaps.values())))}
    values = _values(result["policies"], truth["models"], shape)
    gap = optimal[:, None] - values
    relative = gap / (optimal - uniform)[:, None]
    remaining = gap[:, -1] / gap[:, 0]
    columns = {
        "relative_gap": relative[:, -1].mean(),
        "remaining_gap": remaining.mean(),
        "remaining_gap_median": np.median(remaining),
        "gap_area": ((relative[:, 1:] + relative[:, :-1]) / 2 @ np.diff(steps) / (steps[-1] - steps[0])).mean(),
        "reward": (1 - public["gamma"]) * values[:, -1].mean(),
        "optimal_reward": (1 - public["gamma"]) * optimal.mean(),
    }
    if len(remaining) >= 5:
        resampled = remaining[np.random.default_rng(0).integers(len(remaining), size=(2000, len(remaining)))]
        low, high = np.quantile(np.median(resampled, axis=1), [0.025, 0.975])
        columns |= {"remaining_gap_low": low, "remaining_gap_high": high}
    late = steps >= SLOPE_FROM
    if late.sum() >= 5:
        log_gap = np.log(np.maximum(gap[:, late], 1e-12))
        columns["gap_slope"] = np.median(np.polyfit(np.log(steps[late] + OFFSET), log_gap.T, 1)[0])
    return {**own, **{name: float(value) for name, value in columns.items()}}


def _values(policies: Any, models: list[dict[str, Any]], shape: tuple[int, ...]) -> np.ndarray:
    """J (runs, C) of tables that are checked."""
    tables = np.asarray(policies, dtype=float)
    if tables.shape != shape:
        raise ValueError(f"policies have shape {tables.shape}; expected (runs, checkpoints, N, S, A) = {shape}")
    if not (tables >= 0).all() or not np.allclose(tables.sum(-1), 1, atol=1e-4):
        raise ValueError("policies have rows that are no probabilities")
    return np.array([[policy_value(models[r % len(models)], one) for one in run] for r, run in enumerate(tables)])


def example(public: dict[str, Any]) -> dict[str, Any]:
    """The uniform policy at every step."""
    return {"policies": np.full(_shape(public), 1 / public["n_actions"])}
