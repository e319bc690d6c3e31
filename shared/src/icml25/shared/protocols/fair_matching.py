"""Max-min fair multi-player bandits: regret of players that share arms, against the bottleneck matching.

A data set is a list of problems (means, horizon). A solver reports, for each problem i and each of its runs, the
cumulative regret at the checkpoints (``regret{i}``, (runs, checkpoints)) and how often each player was alone on each arm
(``pulls{i}``, (runs, N, K)); the regret must lie between the two bounds that these counts allow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

__all__ = ["draw", "evaluate", "example", "instance", "max_min_value", "minimal_gap", "uniform_regret"]

# Six players, eight arms: the max-min experiment of the simulator of Shi et al. (2021).
SHI2021 = [
    [0.45, 0.49, 0.59, 0.17, 0.37, 0.86, 0.94, 0.98],
    [0.39, 0.25, 0.4, 0.6, 0.24, 0.54, 0.43, 0.67],
    [0.39, 0.33, 0.8, 0.01, 0.12, 0.2, 0.61, 0.77],
    [0.95, 0.22, 0.24, 0.88, 0.2, 0.12, 0.29, 0.3],
    [0.69, 0.89, 0.25, 0.59, 0.43, 0.18, 0.01, 0.84],
    [0.97, 0.15, 0.89, 0.16, 0.09, 0.57, 0.61, 0.19],
]
RUNS = {"smoke": 2, "quick": 8, "paper": 50}
RANDOM_INSTANCES = {"smoke": 2, "quick": 20, "paper": 100}
N_CHECKPOINTS = 30


def max_min_value(means: np.ndarray) -> float:
    """Largest value that every player can have at once: the bottleneck of the best matching of (N, K) means."""
    values = np.unique(means)
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high + 1) // 2
        missing = means < values[middle]
        rows, columns = linear_sum_assignment(missing)
        low, high = (low, middle - 1) if missing[rows, columns].any() else (middle, high)
    return float(values[low])


def minimal_gap(means: np.ndarray) -> float:
    """Smallest distance of a mean below the max-min value to it; infinite where no mean is below."""
    short = max_min_value(means) - means
    return float(short[short > 0].min(initial=np.inf))


def uniform_regret(means: np.ndarray) -> float:
    """Mean regret a round of cyclic shifts, player i on arm (i + t) mod K."""
    n, k = means.shape
    players = np.arange(n)
    worst = [means[players, (players + t) % k].min() for t in range(k)]
    return float(np.maximum(max_min_value(means) - np.array(worst), 0).mean())


def instance(n_players: int, n_arms: int, delta: float, value: float = 0.7) -> np.ndarray:
    """One good arm a player: ``value`` on the diagonal, ``value - delta`` elsewhere."""
    return np.where(np.eye(n_players, n_arms, dtype=bool), value, value - delta)


def draw(settings: dict[str, Any], *, seed: int, budget: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Problems of a data set; the max-min value, gap and uniform regret are the truth."""
    kind, horizon = settings["kind"], int(settings.get("T", 1_000_000))
    if kind == "shi2021":
        problems = [(np.array(SHI2021), horizon)]
    elif kind == "horizons":
        problems = [(np.array(SHI2021), t) for t in (10**5, 10**6, 10**7)]
    elif kind == "gaps":
        problems = [(instance(4, 4, delta), horizon) for delta in (settings["wide"], settings["narrow"])]
    elif kind == "sizes":
        shapes = [(3, 6), (4, 4), (2, 8), (3, 12), (4, 8), (8, 8), (3, 24), (3, 48)]
        problems = [(instance(n, k, 0.2), horizon) for n, k in shapes]
    elif kind == "random":
        rng = np.random.default_rng(seed)
        problems = [(rng.uniform(0.05, 0.95, (4, 6)), horizon) for _ in range(RANDOM_INSTANCES[budget])]
    else:
        raise ValueError(f"kind is {kind!r}; expected shi2021, horizons, gaps, sizes or random")
    public: dict[str, Any] = {
        "kind": kind,
        "n_problems": len(problems),
        "n_runs": 1 if kind == "random" else RUNS[budget],
        "horizons": [t for _, t in problems],
    }
    for i, (means, t) in enumerate(problems):
        public[f"means{i}"] = means
        public[f"checkpoints{i}"] = np.unique(np.r_[np.geomspace(1, t, N_CHECKPOINTS).astype(int), t - t // 10, t])
    truth = {
        "value": [max_min_value(means) for means, _ in problems],
        "gap": [minimal_gap(means) for means, _ in problems],
        "uniform": [t * uniform_regret(means) for means, t in problems],
    }
    return public, truth


def evaluate(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Columns: regret, its share of the uniform policy's, growth from the first problem to the last, constants."""
    final, constants, wrong = [], [], []
    for i, horizon in enumerate(public["horizons"]):
        means, curve = public[f"means{i}"], np.asarray(result[f"regret{i}"], dtype=float)
        value = truth["value"][i]
        _check_result(f"regret{i}", curve, np.asarray(result[f"pulls{i}"]), means, value, public[f"checkpoints{i}"])
        final.append(curve[:, -1].mean())
        n, k = means.shape
        constants.append(final[-1] * truth["gap"][i] / ((n**2 + k) * np.log(horizon)))
        if f"active{i}" in result:
            left = np.asarray(result[f"active{i}"], dtype=bool)
            wrong.append(np.mean([_misses(active, means, value) for active in left]))
    middle = len(final) // 2
    at_90 = int(np.searchsorted(public[f"checkpoints{middle}"], public["horizons"][middle] * 0.9))
    curve, horizon = result[f"regret{middle}"], public["horizons"][middle]
    columns = {
        "relative_regret": float(np.mean(np.array(final) / truth["uniform"])),
        "regret": float(final[middle]),
        "regret_per_round": float(final[middle] / horizon),
        "late_regret": float((curve[:, -1] - curve[:, at_90]).mean() / (horizon * 0.1)),
        "growth": float(final[-1] / final[0]) if final[0] > 0 else float("nan"),
        "constant": float(max(constants)),
        "wrong_runs": float(np.mean(wrong)) if wrong else float("nan"),
    }
    if "comm_rounds0" in result:
        rounds = [float(np.mean(result[f"comm_rounds{i}"])) for i in range(len(final))]
        columns["comm_rounds"] = rounds[middle]
        columns["comm_growth"] = rounds[-1] / rounds[0] if rounds[0] > 0 else float("nan")
    own = {name: float(value) for name, value in result.items() if np.ndim(value) == 0}
    return {**own, **columns}


def example(public: dict[str, Any]) -> dict[str, Any]:
    """A solver that collides all the time: no pull counts, and each round costs the max-min value."""
    result = {}
    for i in range(public["n_problems"]):
        means, runs = public[f"means{i}"], public["n_runs"]
        result[f"regret{i}"] = np.tile(max_min_value(means) * public[f"checkpoints{i}"], (runs, 1))
        result[f"pulls{i}"] = np.zeros((runs, *means.shape))
    return result


def _check_result(
    name: str, curve: np.ndarray, pulls: np.ndarray, means: np.ndarray, value: float, points: np.ndarray
) -> None:
    """Raise unless the curve rises and its end agrees with the counts.

    A round without collision costs the largest shortfall over players, one with a collision the max-min value. So a run costs
    at least any one player's shortfalls, the rounds that it was not alone among them, and at most all players' together.
    """
    runs, horizon = len(curve), int(points[-1])
    if curve.shape != (runs, len(points)) or pulls.shape != (runs, *means.shape) or not runs:
        raise ValueError(
            f"{name} and its pulls have shapes {curve.shape} and {pulls.shape}, for {len(points)} checkpoints"
        )
    slack = 1e-6 * horizon + 1e-6
    alone = pulls.sum(2)
    if not (np.isfinite(curve).all() and np.isfinite(pulls).all()) or (pulls < 0).any():
        raise ValueError(f"{name} or its pull counts are not finite, or a count is negative")
    if max(alone.max(), pulls.sum(1).max()) > horizon + slack:
        raise ValueError(f"{name}: a player, or an arm, has more pulls without collision than the horizon {horizon}")
    if (np.diff(curve, axis=1) < -slack).any() or (curve < -slack).any():
        raise ValueError(f"{name} falls or is negative; cumulative regret is of means and never falls")
    cost = (pulls * np.maximum(value - means, 0)).sum(2) + value * (horizon - alone)
    end = curve[:, -1]
    low, high = cost.max(1), np.minimum(cost.sum(1), value * horizon)
    if (end < low - slack).any() or (end > high + slack).any():
        raise ValueError(f"{name} ends at {end}, outside [{low}, {high}] that the pull counts allow")


def _misses(active: np.ndarray, means: np.ndarray, value: float) -> bool:
    """Whether a pair that is not fair is still active, or no max-min matching is left among the active pairs."""
    kept = np.where(active, means, -1.0)
    return bool((active & (means < value - 0.03)).any()) or max_min_value(kept) < value
