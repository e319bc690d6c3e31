"""Contextual decisions by a measure of risk: outcomes with a known basis of CDFs, and truths that only this module knows.

Outcomes lie in [0, 1]. Given a context x in [0, 1], an action a in 0..A-1 and a hidden W, they follow the logistic law with
location 0.5 + amplitude sin(2 pi (W/2 + x + a/A)) and scale scales[a], truncated to [0, 1]; W is Beta(2, 2). Solvers know
this family (amplitude, scales) but not the law of W. In the family "step", Y = W.

Kinds of data sets:

* "regret": contexts (R, T) and the outcomes (R, T, A) of all actions, of which a solver may look at those it takes; it returns
  ``actions`` (U, R, T), a run per utility of ``utilities``.
* "regression": contexts, actions, outcomes (R, n), sizes (S,), gammas (L,), n_w; the solver returns, for every prefix of the data,
  ``theta`` and ``unprojected`` (R, S, L, n_w) at the Gauss-Legendre nodes of [0, 1], ``rank`` and ``bound`` (R, S, L).
* "eigenvalues": contexts, actions (n,); it returns ``step``, ``quadrature``, ``galerkin`` (k,) each, largest first.
* "utilities": E environments with training data (E, n) and contexts (E, m); it returns ``actions`` (E, U, m).
* "assembly": contexts, actions (n,), n_w; it returns ``operator`` (n_w, n_w) at the Gauss-Legendre nodes, the mean of
  integral phi(x,a,w,s) phi(x,a,w',s) ds.

Errors, ranks and bounds are scored with the operator, its spectrum and the norm of the truth as computed here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.integrate import trapezoid
from scipy.interpolate import CubicSpline
from scipy.special import expit, logit

__all__ = ["UTILITIES", "draw", "evaluate", "example"]

ACTIONS = 5
AMPLITUDE = 0.45
ENVIRONMENTS = {"equal": (0.45, (0.08,) * ACTIONS), "varied": (0.1, (0.02, 0.05, 0.1, 0.2, 0.35))}
CVAR_LEVEL = {"regret": 0.25, "utilities": 0.1}
FIRST_EPOCH = 6  # 2^6 rounds
HORIZON = {"smoke": (192, 1), "quick": (4032, 2), "paper": (1_000_000, 1)}
SIZES = {"smoke": (100, 400), "quick": (100, 400, 1600, 6400, 25_600), "paper": (100, 400, 1600, 6400, 25_600)}
RUNS = {"smoke": {"logistic": 1, "step": 1}, "quick": {"logistic": 8, "step": 2}, "paper": {"logistic": 10, "step": 10}}
GAMMAS = {"logistic": (0.1, 0.5, 1.0), "step": (0.5,)}  # the first one is scored, all are checked against the bound
NODES = {"logistic": (32, 32), "step": (200, 1024)}  # a basis with jumps needs other and more nodes for the outcomes
TRAINING = {"smoke": 800, "quick": 6400, "paper": 6400}
TESTING = 2000
DELTA, NORM = 0.05, np.sqrt(6 / 5)  # level of the bound, and the L2 norm of the density of Beta(2, 2)


def _mean(F: np.ndarray, s: np.ndarray) -> Any:
    return 1 - trapezoid(F, s)


def _mean_variance(F: np.ndarray, s: np.ndarray) -> Any:
    mean = _mean(F, s)
    return mean - (1 - trapezoid(2 * s * F, s) - mean**2)


def _cvar(F: np.ndarray, s: np.ndarray, level: float) -> Any:
    below = np.minimum(F, level)  # integral of the quantile function up to level, by parts
    return np.asarray(trapezoid(1 - below / level, s))


def _entropic(F: np.ndarray, s: np.ndarray) -> Any:
    return -np.log(np.exp(-2) + 2 * trapezoid(np.exp(-2 * s) * F, s)) / 2


def _utility(name: str, kind: str) -> Callable[..., np.ndarray]:
    if name == "cvar":
        return lambda F, s: _cvar(F, s, CVAR_LEVEL[kind])
    return {"mean": _mean, "mean_variance": _mean_variance, "entropic": _entropic}[name]


UTILITIES = {"regret": ("mean", "cvar"), "utilities": ("mean", "mean_variance", "cvar", "entropic")}


def _gauss(n: int) -> tuple[np.ndarray, np.ndarray]:
    x, weight = np.polynomial.legendre.leggauss(n)
    return (1 + x) / 2, weight / 2


def _phi(z: np.ndarray, h: np.ndarray, amplitude: float, w: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Truncated logistic CDFs (n, G, Q) at phases z = x + a/A (n,) and scales h (n,)."""
    mu = (0.5 + amplitude * np.sin(2 * np.pi * (w / 2 + z[:, None])))[..., None]
    h = h[:, None, None]
    low, high = expit(-mu / h), expit((1 - mu) / h)
    return (1 / (1 + np.exp((mu - s) / h)) - low) / (high - low)


def _outcomes(rng: np.random.Generator, z: np.ndarray, h: np.ndarray, amplitude: float) -> np.ndarray:
    """Draw W, then Y by the inverse CDF."""
    mu = 0.5 + amplitude * np.sin(2 * np.pi * (rng.beta(2, 2, size=z.shape) / 2 + z))
    low, high = expit(-mu / h), expit((1 - mu) / h)
    return np.clip(mu + h * logit(low + rng.random(z.shape) * (high - low)), 0, 1)


def _values(x: np.ndarray, kind: str, environment: str) -> np.ndarray:
    """True utilities (U, ..., A): functions of the phase, with period one, interpolated per scale."""
    amplitude, scales = ENVIRONMENTS[environment]
    w, weight = _gauss(48)
    phases, s = np.linspace(0, 1, 129), np.linspace(0, 1, 1025)
    splines = {}
    for h in set(scales):
        F = np.stack(
            [weight * 6 * w * (1 - w) @ _phi(phases[[i]], np.array([h]), amplitude, w, s)[0] for i in range(129)]
        )
        values = np.stack([_utility(name, kind)(F, s) for name in UTILITIES[kind]], -1)
        values[-1] = values[0]
        splines[h] = CubicSpline(phases, values, bc_type="periodic")
    by_action = [splines[h]((x + a / ACTIONS) % 1) for a, h in enumerate(scales)]
    return np.moveaxis(np.stack(by_action, -1), -2, 0)


def draw(settings: dict[str, Any], *, seed: int, budget: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw one data set.

    Parameters
    ----------
    settings : ``kind``, and for "regret" the ``environment`` ("equal" or "varied" scales), for "regression" the ``family``
        ("logistic" or "step"), for "assembly" ``n`` and ``contexts`` (number of different ones, 0 for all different).
    seed : of all randomness.
    budget : "smoke", "quick" or "paper".

    Returns
    -------
    public, truth : what solvers may see, and what they may not.
    """
    kind, rng = settings["kind"], np.random.default_rng(seed)
    amplitude, scales = AMPLITUDE, np.array(ENVIRONMENTS["equal"][1])
    public: dict[str, Any] = {"kind": kind, "n_actions": ACTIONS, "amplitude": amplitude, "scales": scales}
    if kind == "regret":
        T, R = HORIZON[budget]
        environment = settings["environment"]
        amplitude, scales = ENVIRONMENTS[environment][0], np.array(ENVIRONMENTS[environment][1])
        x = rng.random((R, T))
        z = x[..., None] + np.arange(ACTIONS) / ACTIONS
        outcomes = _outcomes(rng, z, np.broadcast_to(scales, z.shape), amplitude)
        public |= {"amplitude": amplitude, "scales": scales, "environment": environment}
        public |= {"contexts": x, "outcomes": outcomes, "first_epoch": FIRST_EPOCH, "cvar_level": CVAR_LEVEL[kind]}
        return public, {"values": _values(x, kind, environment)}
    if kind == "regression":
        family = settings["family"]
        sizes, R = SIZES[budget], RUNS[budget][family]
        shape, (n_w, n_s) = (R, sizes[-1]), NODES[family]
        x, a = rng.random(shape), rng.integers(ACTIONS, size=shape)
        y = _outcomes(rng, x + a / ACTIONS, scales[a], amplitude)
        if family == "step":
            x, a, y = np.zeros(shape), np.zeros(shape, np.int64), rng.beta(2, 2, size=shape)
        public |= {
            "contexts": x,
            "actions": a,
            "outcomes": y,
            "sizes": np.array(sizes),
            "gammas": np.array(GAMMAS[family]),
        }
        return public | {"family": family, "n_w": n_w, "n_s": n_s}, {}
    if kind == "eigenvalues":
        x, a = rng.random(200), rng.integers(ACTIONS, size=200)
        return public | {"contexts": x, "actions": a}, {}
    if kind == "utilities":
        n, E = TRAINING[budget], len(ENVIRONMENTS)
        x, a, test = rng.random((E, n)), rng.integers(ACTIONS, size=(E, n)), rng.random((E, TESTING))
        amplitudes, all_scales = (np.array(part) for part in zip(*ENVIRONMENTS.values(), strict=True))
        y = np.stack([_outcomes(rng, x[e] + a[e] / ACTIONS, all_scales[e][a[e]], amplitudes[e]) for e in range(E)])
        values = [_values(test[e], kind, environment) for e, environment in enumerate(ENVIRONMENTS)]
        public |= {"contexts": x, "actions": a, "outcomes": y, "test_contexts": test, "cvar_level": CVAR_LEVEL[kind]}
        return public | {"amplitude": amplitudes, "scales": all_scales}, {"values": np.array(values)}
    if kind == "assembly":
        n = min(settings["n"], 500) if budget == "smoke" else settings["n"]
        x = rng.random(n)
        if settings["contexts"]:
            x = np.floor(x * settings["contexts"]) / settings["contexts"]
        return public | {"contexts": x, "actions": rng.integers(ACTIONS, size=n), "n_w": 64, "n_s": 64}, {}
    raise ValueError(f"kind must be regret, regression, eigenvalues, utilities or assembly, got {kind!r}")


def evaluate(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Score what a solver returned.

    Parameters
    ----------
    public, truth : from draw.
    result : see the module's docstring; other scalars pass through, but never in place of a score.

    Returns
    -------
    dict of floats: the columns.
    """
    score = {
        "regret": _regret,
        "regression": _regression,
        "eigenvalues": _eigenvalues,
        "utilities": _advantage,
        "assembly": _assembly,
    }[public["kind"]]
    scalars = {key: float(value) for key, value in result.items() if np.ndim(value) == 0}
    return scalars | score(public, truth, result)


def _check_actions(actions: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    actions = np.asarray(actions)
    if actions.shape != shape or actions.dtype.kind not in "iu" or actions.min() < 0 or actions.max() >= ACTIONS:
        raise ValueError(
            f"actions must be integers in 0..{ACTIONS - 1} of shape {shape}, got {actions.dtype} {actions.shape}"
        )
    return actions


def _regret(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    values = truth["values"]
    actions = _check_actions(result["actions"], values.shape[:-1])
    best = values.max(-1)
    lost = best - np.take_along_axis(values, actions[..., None], -1)[..., 0]
    uniform = (best - values.mean(-1)).sum((1, 2))
    relative = lost.sum((1, 2)) / uniform
    T = lost.shape[-1]
    curve = lost.sum(1).cumsum(-1)[:, [T // 4 - 1, T // 2 - 1, T - 1]]
    slope = np.log(np.maximum(curve[:, 2], 1e-300) / np.maximum(curve[:, 0], 1e-300)) / np.log(T / (T // 4))
    columns = {"relative_regret": float(relative.mean()), "regret_slope": float(slope.max())}
    columns |= {f"relative_regret_{name}": float(r) for name, r in zip(UTILITIES["regret"], relative, strict=True)}
    if "oracle_calls" in result:
        epochs = np.ceil(np.log2(T / 2 ** public["first_epoch"] + 1))
        columns["oracle_call_excess"] = float(result["oracle_calls"] - epochs)
    return columns


def _design(public: dict[str, Any], x: np.ndarray, a: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Sum over the data of the integral of phi phi' ds, at pairs of w."""
    s, m = _gauss(48)
    total = np.zeros((len(w), len(w)))
    for start in range(0, len(x), 64):
        rows = slice(start, start + 64)
        phi = _phi(x[rows] + a[rows] / ACTIONS, public["scales"][a[rows]], public["amplitude"], w, s)
        flat = (phi * np.sqrt(m)).transpose(1, 0, 2).reshape(len(w), -1)
        total += flat @ flat.T
    return total


def _regression(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    (w, weight), sizes, gammas = _gauss(public["n_w"]), public["sizes"], public["gammas"]
    shape = len(public["contexts"]), len(sizes), len(gammas)
    theta, unprojected = (result[key].reshape(*shape, len(w)) for key in ("theta", "unprojected"))
    rank, own_bound = result["rank"].reshape(shape), result["bound"].reshape(shape)
    known = 4 / ((2 * np.arange(1, 10_000) - 1) ** 2 * np.pi**2)  # of the step family
    error, before, exact_rank, bound = np.empty((4, *shape))
    for r in range(shape[0]):
        total, start = np.zeros((len(w), len(w))), 0
        for i, n in enumerate(sizes):
            if public["family"] == "step":
                kernel, eigenvalues = 1 - np.maximum(w[:, None], w), known
            else:
                total += _design(public, public["contexts"][r, start:n], public["actions"][r, start:n], w)
                kernel, start = total / n, n
                eigenvalues = np.linalg.eigvalsh(np.sqrt(weight)[:, None] * kernel * np.sqrt(weight))[::-1]
            for values, found in ((theta, error), (unprojected, before)):
                off = weight * (values[r, i] - 6 * w * (1 - w))
                found[r, i] = ((off @ kernel) * off).sum(-1)
            for k, gamma in enumerate(gammas):
                kept = eigenvalues[: max(1, (eigenvalues >= n ** (-2 / (gamma + 2))).sum())]
                noise = np.sqrt(2 * (2 * np.log(1 / DELTA) + np.log1p(n * kept).sum()))
                exact_rank[r, i, k], bound[r, i, k] = len(kept), noise + n ** (gamma / (gamma + 2)) * NORM
    mean_error, mean_before, mean_rank = error[..., 0].mean(0), before[..., 0].mean(0), rank[..., 0].mean(0)
    log = np.log(sizes)
    distance = np.sqrt(error * sizes[:, None])
    return {
        "error": float(mean_error[-1]),
        "error_slope": float(np.polyfit(log, np.log(mean_error), 1)[0]),
        "rank": float(mean_rank[-1]),
        "rank_slope": float(np.polyfit(log, np.log(mean_rank), 1)[0]),
        "rank_increment": float(np.diff(mean_rank).max()),
        "rank_deviation": float(abs(rank - exact_rank).max()),
        "projection_gain": float((1 - mean_error / mean_before).min()),
        "projection_harm": float(np.maximum(mean_error / mean_before - 1, 0).max()),
        "bound_ratio": float((distance / bound).max()),
        "bound_ratio_typical": float(np.median(distance / bound)),
        "own_bound_ratio": float((distance / own_bound).max()),
    }


def _eigenvalues(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    known = 4 / ((2 * np.arange(1, 5) - 1) ** 2 * np.pi**2)
    w, weight = _gauss(64)
    root = np.sqrt(weight)
    kernel = _design(public, public["contexts"], public["actions"], w) / len(public["contexts"])
    exact = np.linalg.eigvalsh(root[:, None] * kernel * root)[::-1]
    quadrature, galerkin = result["quadrature"], result["galerkin"]
    return {
        "eigenvalue_error": float(abs(result["step"][:4] / known - 1).max()),
        "spectrum_error": float(abs(quadrature - exact[: len(quadrature)]).max()),
        "galerkin_gap": float(abs(galerkin - quadrature).max()),
    }


def _advantage(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    values = truth["values"]
    actions = _check_actions(result["actions"], values.shape[:-1])
    chosen = np.take_along_axis(values, actions[..., None], -1)[..., 0].mean(-1)
    uniform, best = values.mean((-2, -1)), values.max(-1).mean(-1)
    share = (chosen - uniform) / (best - uniform)
    columns = {
        f"advantage_{name}_{environment}": float(share[e, u])
        for e, environment in enumerate(ENVIRONMENTS)
        for u, name in enumerate(UTILITIES["utilities"])
    }
    return columns | {"relative_regret": float((1 - share).mean()), "advantage_min": float(share.min())}


def _assembly(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    exact = _design(public, public["contexts"], public["actions"], _gauss(public["n_w"])[0]) / len(public["contexts"])
    return {"operator_error": float(abs(result["operator"] - exact).max())}


def example(public: dict[str, Any]) -> dict[str, Any]:
    """A result of the right shape."""
    kind = public["kind"]
    if kind == "regret":
        return {"actions": np.zeros((len(UTILITIES[kind]), *public["contexts"].shape), np.int64)}
    if kind == "regression":
        shape = (len(public["contexts"]), len(public["sizes"]), len(public["gammas"]))
        flat, one = np.ones((*shape, public["n_w"])), np.ones(shape)
        return {"theta": flat, "unprojected": flat, "rank": one, "bound": one}
    if kind == "eigenvalues":
        return {"step": np.ones(4), "quadrature": np.ones(4), "galerkin": np.ones(4)}
    if kind == "utilities":
        E, m = public["test_contexts"].shape
        return {"actions": np.zeros((E, len(UTILITIES[kind]), m), np.int64)}
    return {"operator": np.zeros((public["n_w"], public["n_w"]))}
