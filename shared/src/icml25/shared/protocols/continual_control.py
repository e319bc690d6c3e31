"""One learner while its task keeps changing: control with a changing world, a stationary check, and permuted digits.

- ``changing``: a pendulum whose gravity changes every ``period`` environment steps; the learner is not told.
- ``stationary``: a classic environment that stays, where implementations of the same algorithm must agree.
- ``events``: the pendulum without change; what counts is what happens at the learner's own resets.
- ``digits``: one classifier on a sequence of tasks, each the digits with another permutation of the pixels.
- ``speed``: environment steps per second, of several loops in one process.

Solvers bring their own environments (a simulator belongs to the backend that runs it); the settings say which.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["draw", "evaluate", "example", "iqm_interval"]

KINDS = ("changing", "stationary", "events", "digits", "speed")
RANGE = {"pendulum": 1200.0, "cartpole": 500.0}  # about the return's distance from an untrained policy to the best one
LAST_TASKS = 5


def draw(settings: dict[str, Any], *, seed: int, budget: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the world, or the digits' tasks.

    Parameters
    ----------
    settings : kind; of worlds env ("pendulum" or "cartpole"), steps, replicates, num_envs, and of ``changing`` factors
        ("1+0.5+0.25") and period; of digits tasks, epochs, batch.
    seed : of the permutations and orders; learners take it for themselves.
    budget : not used; the settings say it all.

    Returns
    -------
    public : the settings (factors as an array), with digits X (n, 64), y (n,), pixels (tasks, 64) and rows (tasks, steps, batch).
    truth : empty: returns and accuracies speak for themselves.
    """
    if settings["kind"] not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {settings['kind']!r}")
    public = dict(settings)
    if "factors" in public:
        public["factors"] = np.array([float(factor) for factor in public["factors"].split("+")])
    if public["kind"] == "digits":
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        rng = np.random.default_rng(seed)
        tasks, batch = public["tasks"], public["batch"]
        per_epoch = len(y) // batch
        orders = [[rng.permutation(len(y)) for _ in range(public["epochs"])] for _ in range(tasks)]
        rows = [np.concatenate([o[: per_epoch * batch].reshape(-1, batch) for o in order]) for order in orders]
        public |= {"X": (X / 16 - 0.3).astype(np.float32), "y": y, "rows": np.array(rows)}
        public["pixels"] = np.array([rng.permutation(64) for _ in range(tasks)])
    return public, {}


def evaluate(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Columns of the result table.

    Parameters
    ----------
    public, truth : of ``draw``.
    result : of worlds ``returns`` and ``episodes`` (R, I), mean return and number of the episodes that ended in each of I
        equal spans of the run (NaN without any), for R replicates. Of events ``before``, ``reset`` and ``after`` (E,), mean
        returns around each event, and ``distance`` (E,) with ``threshold``. Of digits ``accuracy`` (tasks, steps), each batch's
        before it is learned, and ``weight_norm``. Optional ``unit_resets``, how often each hidden unit was renewed, with
        ``cycles``, how often it should have been. Scalars are passed through.

    Returns
    -------
    mean_return (over all episodes of the run), score (in units of the environment's range), last_return (last fifth of the
    run), return_iqm with return_low and return_high (interquartile mean over replicates, 95% bootstrap interval);
    drop_ratio (mean drop after distillation over that without), drop_reset, drop_after and within_threshold (share of events); last_accuracy
    (last five tasks) and accuracy; reset_miss (largest |resets - cycles| of a unit).
    """
    columns: dict[str, float] = {}
    kind = public["kind"]
    if kind in ("changing", "stationary"):
        returns, episodes = _pair(result, "returns", "episodes")
        weight = np.where(np.isnan(returns), 0, episodes)
        if not (weight.sum(1) > 0).all():
            raise ValueError("returns: a replicate without any episode")
        totals = np.nan_to_num(returns) * weight
        means = totals.sum(1) / weight.sum(1)
        last = slice(-max(1, returns.shape[1] // 5), None)
        columns["mean_return"] = means.mean()
        columns["score"] = means.mean() / RANGE[public["env"]]
        columns["last_return"] = totals[:, last].sum() / max(weight[:, last].sum(), 1)
        columns |= dict(zip(("return_iqm", "return_low", "return_high"), iqm_interval(means), strict=True))
    elif kind == "events":
        before, reset = _pair(result, "before", "reset")
        after, distance = _pair(result, "after", "distance")
        columns["drop_reset"], columns["drop_after"] = (before - reset).mean(), (before - after).mean()
        columns["drop_ratio"] = columns["drop_after"] / columns["drop_reset"]
        columns["within_threshold"] = (distance <= result["threshold"]).mean()
    elif kind == "digits":
        accuracy = np.asarray(result["accuracy"], dtype=np.float64)
        if accuracy.shape != public["rows"].shape[:2] or not ((accuracy >= 0) & (accuracy <= 1)).all():
            raise ValueError(f"accuracy must be shares of shape {public['rows'].shape[:2]}, got shape {accuracy.shape}")
        columns |= {"accuracy": accuracy.mean(), "last_accuracy": accuracy[-LAST_TASKS:].mean()}
    if "unit_resets" in result:
        columns["reset_miss"] = np.abs(np.asarray(result["unit_resets"]) - result["cycles"]).max()
    scalars = {name: value for name, value in result.items() if np.ndim(value) == 0}
    columns = {name: float(value) for name, value in (scalars | columns).items()}
    if bad := [name for name, value in columns.items() if not np.isfinite(value)]:
        raise ValueError(f"not finite: {', '.join(bad)}")
    return columns


def iqm_interval(values: np.ndarray, *, resamples: int = 2000, seed: int = 0) -> tuple[float, float, float]:
    """Interquartile mean of runs' scores with a 95% percentile bootstrap interval (as rliable reports them).

    Parameters
    ----------
    values : (R,) one score per run.
    resamples : bootstrap samples of R runs each.
    seed : of the resampling.

    Returns
    -------
    mean, low, high : the three are equal for one run.
    """
    from scipy.stats import trim_mean

    values = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(len(values), size=(resamples, len(values)))
    low, high = np.quantile(trim_mean(values[draws], 0.25, axis=1), [0.025, 0.975])
    return float(trim_mean(values, 0.25)), float(low), float(high)


def _pair(result: dict[str, Any], first: str, second: str) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of one shape, not empty."""
    a, b = (np.asarray(result[name], dtype=np.float64) for name in (first, second))
    if a.shape != b.shape or a.size == 0 or np.isinf(a).any() or np.isinf(b).any():
        raise ValueError(f"{first} and {second} must be finite and of one shape, got shapes {a.shape} and {b.shape}")
    return a, b


def example(public: dict[str, Any]) -> dict[str, Any]:
    """A result of the right shape: a learner that learns nothing."""
    if public["kind"] == "digits":
        return {"accuracy": np.full(public["rows"].shape[:2], 0.1), "weight_norm": 1.0}
    if public["kind"] == "events":
        return {
            "before": np.zeros(2),
            "reset": -np.ones(2),
            "after": np.zeros(2),
            "distance": np.zeros(2),
            "threshold": 0.01,
        }
    if public["kind"] == "speed":
        return {"steps_per_second": 1.0}
    return {"returns": np.zeros((public["replicates"], 5)), "episodes": np.ones((public["replicates"], 5))}
