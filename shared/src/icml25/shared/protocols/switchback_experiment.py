"""Switchback experiments in a linear world: what estimators see under each design, and how far off they are.

A world has T time points a day, p states, carryover of mean size ``delta`` and reward errors with an autoregressive
correlation ``rho``. Its coefficients are drawn anew for each seed. ``replicates`` experiments of ``n`` days are simulated
under each design, in equal parts in each of ``worlds`` worlds; solvers see states, arms and rewards, never the coefficients.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import rankdata

__all__ = ["draw", "evaluate", "example"]

WITHIN = 1.25  # a recommended design counts as good when its RMSE is at most this times the best one's


def draw(settings: dict[str, Any], *, seed: int, budget: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Simulate the experiments.

    Parameters
    ----------
    settings : n, T, p, delta, rho, replicates, designs ("AD+AT6+UR": alternating days, alternating every 6 points, a coin for
        each point), worlds (a divisor of replicates) and pilots (0, or the number of experiments under AT6 that solvers see
        instead, in one world: the others then serve to judge the designs). With p = 0 the errors' covariance is public.
    seed : of the worlds and of the experiments.
    budget : not used; the settings say it all.

    Returns
    -------
    public : n, T, p, designs, and for each design D the arrays states_D (R, n, T, p), actions_D (R, n, T), rewards_D
        (R, n, T), or the same for "pilot" alone.
    truth : ate (worlds,), per time point; with pilots also rmse (D,) of least squares under each design.
    """
    n, T, p = settings["n"], settings["T"], settings["p"]
    world_seed, panel_seed = np.random.SeedSequence(seed).spawn(2)
    coefficients, K = np.random.default_rng(world_seed), settings["worlds"]
    worlds = [_world(T, p, settings["delta"], settings["rho"], coefficients) for _ in range(K)]
    rng = np.random.default_rng(panel_seed)
    names, pilots = settings["designs"].split("+"), settings["pilots"]
    public: dict[str, Any] = {"designs": names, "n": n, "T": T, "p": p}
    truth: dict[str, Any] = {"ate": np.array([_effect(world) for world in worlds])}

    def simulate(name: str, replicates: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        actions = _assign(name, replicates, n, T, rng)
        parts = [_simulate(world, part, rng) for world, part in zip(worlds, np.split(actions, K), strict=True)]
        states, rewards = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return states, rewards, actions

    if pilots:
        panels = [simulate(name, settings["replicates"]) for name in names]
        truth["rmse"] = np.array([_rmse(_least_squares(*panel) - truth["ate"]) for panel in panels])
    shown = {"pilot": simulate("AT6", pilots)} if pilots else {d: simulate(d, settings["replicates"]) for d in names}
    for key, (states, rewards, actions) in shown.items():
        public |= {f"states_{key}": states, f"actions_{key}": actions, f"rewards_{key}": rewards}
    if p == 0:
        public["error_covariance"] = worlds[0]["covariance"]
    return public, truth


def evaluate(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Errors of the estimates.

    Parameters
    ----------
    public, truth : of ``draw``.
    result : ``estimates`` is (R,) under one design, (D, R) under all, in the order of public["designs"], or (E, D, R) by E
        estimators, which ``estimators`` names ("OLS+LSTD"). Optional: ``low`` and ``high`` (R,), intervals;
        ``predicted_mse`` (D,). Or, with pilots, ``recommended`` (K,): the index of the design that each pilot advises.
        Further scalars are passed through.

    Returns
    -------
    rmse, relative_rmse (over the root mean square of the worlds' ATE), bias, abs_bias (root mean square of the worlds' biases),
    over all estimates, and where they apply: coverage; each estimator's RMSE by design, rmse_OLS_AT1, and of AT1 over AD and AD
    over AT1, AT1_over_AD_OLS; of three or more designs rank_agreement
    (lowest Spearman correlation of the designs' RMSE between two estimators, and each pair's as agreement_OLS_LSTD);
    mse_error (largest |MSE / predicted - 1|); good_advice (share of pilots whose advice has at most 1.25 times the RMSE of
    the best design) and regret (mean of that ratio).
    """
    values = dict(result)
    if "recommended" in values:
        ratio = truth["rmse"][np.asarray(values.pop("recommended"), dtype=int)] / truth["rmse"].min()
        out = {"good_advice": float((ratio <= WITHIN).mean()), "regret": float(ratio.mean())}
        return {key: float(value) for key, value in values.items()} | out
    estimates = np.asarray(values.pop("estimates"), dtype=np.float64)
    if estimates.ndim not in (1, 2, 3) or not np.isfinite(estimates).all():
        raise ValueError(f"estimates must be finite, of shape (R,), (D, R) or (E, D, R); got shape {estimates.shape}")
    ate = np.repeat(truth["ate"], estimates.shape[-1] // len(truth["ate"]))
    error = estimates - ate
    by_world = error.reshape(-1, len(truth["ate"]), error.shape[-1] // len(truth["ate"])).mean((0, 2))
    rmse = float(_rmse(error, axis=None))
    out = {"rmse": rmse, "relative_rmse": rmse / float(_rmse(ate)), "bias": float(error.mean())}
    out["abs_bias"] = float(_rmse(by_world))
    by_design = _rmse(error)
    if "low" in values:
        covered = (values.pop("low") <= ate) & (ate <= values.pop("high"))
        out["coverage"] = float(covered.mean())
    if estimates.ndim == 3:
        named = dict(zip(values.pop("estimators").split("+"), by_design, strict=True))
        designs = public["designs"]
        for name, errors in named.items():
            of = dict(zip(designs, errors.tolist(), strict=True))
            out |= {f"rmse_{name}_{design}": value for design, value in of.items()}
            if {"AT1", "AD"} <= set(of):
                out |= {f"AT1_over_AD_{name}": of["AT1"] / of["AD"], f"AD_over_AT1_{name}": of["AD"] / of["AT1"]}
        if len(designs) > 2:
            pairs = {
                f"agreement_{a}_{b}": float(np.corrcoef(rankdata(named[a]), rankdata(named[b]))[0, 1])
                for a, b in combinations(named, 2)
            }
            out |= {"rank_agreement": min(pairs.values()), **pairs}
    if "predicted_mse" in values:
        out["mse_error"] = float(np.abs(by_design**2 / np.asarray(values.pop("predicted_mse")) - 1).max())
    return {key: float(value) for key, value in values.items()} | out


def example(public: dict[str, Any]) -> dict[str, Any]:
    """Estimates of zero under the first design, or advice for it."""
    if "rewards_pilot" in public:
        return {"recommended": np.zeros(len(public["rewards_pilot"]), dtype=int)}
    return {"estimates": np.zeros(len(public[f"rewards_{public['designs'][0]}"]))}


def _rmse(error: np.ndarray, axis: int | None = -1) -> Any:
    return np.sqrt((error**2).mean(axis))


def _least_squares(states: np.ndarray, rewards: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """ATE of each replicate: reward and next state on (1, state, arm) at each time, arms propagated to the end."""
    R, n, T, p = states.shape
    effect, total = np.zeros((R, p, 1)), np.zeros(R)
    for t in range(T):
        X = np.concatenate([np.ones((R, n, 1)), states[:, :, t], actions[:, :, t, None]], axis=2)
        after = states[:, :, t + 1] if t + 1 < T else np.zeros((R, n, p))
        targets = np.concatenate([rewards[:, :, t, None], after], axis=2)
        coef = np.linalg.solve(X.swapaxes(1, 2) @ X, X.swapaxes(1, 2) @ targets).swapaxes(1, 2)  # (R, 1 + p, 2 + p)
        step = coef[:, :, 1:-1] @ effect + coef[:, :, -1:]
        total += step[:, 0, 0]
        effect = step[:, 1:]
    return total / T


def _world(T: int, p: int, delta: float, rho: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Coefficients with the paper's distributions, and the covariance of a day's reward errors."""

    def either_sign(low: float, high: float, *shape: int) -> np.ndarray:
        return np.where(rng.random(shape) < 0.5, -1, 1) * rng.uniform(low, high, shape)

    lag = np.abs(np.arange(T)[:, None] - np.arange(T))
    return {
        "reward_level": either_sign(0.5, 1.0, T),
        "reward_slope": either_sign(0.1, 0.3, T, p),
        "reward_arm": rng.uniform(0.5, 0.8, T),
        "state_level": either_sign(0.5, 1.0, T, p),
        "state_slope": rng.uniform(-0.3, 0.3, (T, p, p)),
        "state_arm": rng.normal(delta, 0.3, (T, p)),
        "covariance": 1.5 * float(rho) ** lag + np.eye(T),
    }


def _assign(name: str, replicates: int, n: int, T: int, rng: np.random.Generator) -> np.ndarray:
    """Tables (R, n, T): a row for odd days, its complement for even days."""
    if name == "UR":
        row = rng.random((replicates, T)) < 0.5
    else:
        span = T if name == "AD" else int(name.removeprefix("AT"))
        row = (np.arange(T) // span % 2 == 1) ^ (rng.random((replicates, 1)) < 0.5)
    odd = np.arange(n)[None, :, None] % 2 == 0
    return np.where(odd, row[:, None], ~row[:, None]).astype(np.int8)


def _simulate(
    world: dict[str, np.ndarray], actions: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """States and rewards under given arms."""
    R, n, T = actions.shape
    p = world["state_arm"].shape[1]
    noise = rng.standard_normal((R, n, T)) @ np.linalg.cholesky(world["covariance"]).T
    states, now = np.empty((R, n, T, p)), rng.standard_normal((R, n, p))
    for t in range(T):
        states[:, :, t] = now
        arm = world["state_arm"][t] * actions[:, :, t, None]
        shock = np.sqrt(1.5) * rng.standard_normal((R, n, p))
        now = world["state_level"][t] + now @ world["state_slope"][t].T + arm + shock
    from_state = np.einsum("rntp,tp->rnt", states, world["reward_slope"])
    return states, world["reward_level"] + from_state + world["reward_arm"] * actions + noise


def _effect(world: dict[str, np.ndarray]) -> float:
    """Mean reward on the mean path of always treating minus that of never treating: exact, the world being linear."""
    T, p = world["state_arm"].shape
    total, paths = 0.0, np.zeros((2, p))
    for t in range(T):
        means = [
            world["reward_level"][t] + world["reward_slope"][t] @ paths[a] + world["reward_arm"][t] * a for a in (0, 1)
        ]
        total += means[1] - means[0]
        step = [
            world["state_level"][t] + world["state_slope"][t] @ paths[a] + world["state_arm"][t] * a for a in (0, 1)
        ]
        paths = np.array(step)
    return float(total / T)
