"""Instruments of unknown validity: does a method find the valid ones, and how far off is its effect?

Replicates of an additive nonlinear model with constant effect: X = sum g_j(Z_j) + phi(U) + noise and
Y = beta X + sum f_j(Z_j) + phi(U) + noise, where a candidate Z_j is valid iff f_j = 0. Every replicate has its own beta.
Solvers see candidates, treatment, outcome, covariates and the number of valid candidates; they answer on the first
``size`` rows for each of ``sizes``. beta and the valid set stay here; the candidates come in an order of their own in
every replicate, so that nothing is gained by a preference for the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["draw", "evaluate", "example", "two_stage_least_squares"]

NOISE = {
    "Uniform": lambda rng, shape: rng.uniform(-1, 1, shape),
    "Gaussian": lambda rng, shape: rng.standard_normal(shape),
    "Gamma": lambda rng, shape: rng.gamma(2, 0.5, shape),
    "t": lambda rng, shape: rng.standard_t(3, shape),
}


def draw(settings: dict[str, Any], *, seed: int, budget: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Simulate the replicates.

    Parameters
    ----------
    settings : dataset (its name), scenario ("case1", "proportional" or "many"), sizes (rows, increasing), replicates, noise (a family, or
        several joined by "+", which the replicates take in turn), covariates (only "case1") and p (only "many").
    seed : of everything. Data and order have streams of their own; that of the seed itself is left to solvers.
    budget : not used; the settings say it all.

    Returns
    -------
    public : Z (R, n, p), x (R, n), y (R, n), W (R, n, 2) or absent, sizes (S,), n_valid and dataset.
    truth : beta (R,); columns (R, p): which candidate of the model each column of Z is; valid (p,) bool, and decoy (p,)
        bool, a set of invalid candidates that no data can tell from a valid one, or None, in the order of the model.
    """
    families = settings["noise"].split("+")
    if unknown := [f for f in families if f not in NOISE]:
        raise ValueError(f"noise has {unknown}; expected of {list(NOISE)}")
    rng, order = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2))
    replicates, n = settings["replicates"], max(settings["sizes"])
    scenario = {"case1": _case1, "proportional": _proportional, "many": _many}[settings["scenario"]]
    beta = rng.uniform(-1.5, 1.5, replicates)
    rows = []
    for r in range(replicates):
        noise = NOISE[families[r % len(families)]]
        rows.append(scenario(lambda *k, noise=noise: noise(rng, (*k, n)), rng, beta[r], settings))
    Z, x, y = (np.stack([row[k] for row in rows]) for k in range(3))
    W = None if rows[0][3] is None else np.stack([row[3] for row in rows])
    p = Z.shape[2]
    columns = order.permuted(np.tile(np.arange(p), (replicates, 1)), axis=1)
    Z = np.take_along_axis(Z, columns[:, None], 2)
    n_valid = {"case1": 2, "proportional": 2, "many": max(2, p // 4)}[settings["scenario"]]
    public = {"dataset": settings["dataset"], "n_valid": n_valid, "sizes": np.array(settings["sizes"])}
    public |= {"Z": Z, "x": x, "y": y}
    if W is not None:
        public["W"] = W
    decoy = np.arange(p) >= 2 if settings["scenario"] == "proportional" else None
    return public, {"beta": beta, "columns": columns, "valid": np.arange(p) < n_valid, "decoy": decoy}


def _case1(noise, rng, beta, settings):
    """Five candidates, the first two valid; the fifth is caused by the fourth."""
    covariates = settings.get("covariates", False)
    ratio = 0.5 if covariates else 0.3
    W = noise(2) if covariates else None

    def of_w():
        return 0.0 if W is None else sum(_in_range(c * w) for c, w in zip(rng.uniform(-1.5, 1.5, 2), W, strict=True))

    z = [of_w() + noise() for _ in range(4)]
    z.append(of_w() + _cube(z[3]) + (1.0 if covariates else ratio) * noise())
    u = _cube(noise())
    x = of_w() + _cube(z[0]) + _cube(z[1]) + _cube(z[2]) + np.cos(z[3]) + np.cos(z[4])
    x = x + (z[2] * z[3] * z[4]) ** 3 + u + ratio * noise()
    direct = _cube(z[2]) + 1.5 * _cube(z[3]) + _cube(z[4])
    y = beta * x + direct + u + 0.5 * of_w() + ratio * noise()
    return np.stack(z, axis=1), x, y, None if W is None else W.T


def _proportional(noise, rng, beta, settings):
    """Candidates 3 and 4 have direct effects equal to their first stages: their own effect is beta + 1."""
    z, u = noise(4), _cube(noise())
    g = np.stack([_cube(v) for v in z])
    x = g.sum(0) + u + 0.3 * noise()
    y = beta * x + g[2] + g[3] + u + 0.3 * noise()
    return z.T, x, y, None


def _many(noise, rng, beta, settings):
    """p candidates, a quarter valid; each invalid one has its own ratio of direct effect to first stage."""
    p = settings["p"]
    z, u = noise(p), _cube(noise())
    g = np.stack([_cube(v) for v in z])
    ratio = np.where(np.arange(p) < max(2, p // 4), 0.0, rng.uniform(0.5, 3, p) * rng.choice([-1, 1], p))
    x = g.sum(0) + u + 0.3 * noise()
    y = beta * x + ratio @ g + u + 0.3 * noise()
    return z.T, x, y, None


def _cube(v):
    return _in_range(v**3)


def _in_range(v):
    """The simulator's rule: a power of ten brings a largest value above 100 below 1, and one below 0.01 to 100 or more."""
    exponent = np.floor(np.log10(largest)) if (largest := np.abs(v).max()) > 0 else 0
    if largest > 100:
        return v / 10 ** (exponent + 1)
    return v * 10 ** (2 - exponent) if 0 < largest < 0.01 else v


def two_stage_least_squares(Z: np.ndarray, x: np.ndarray, y: np.ndarray, W: np.ndarray | None) -> float:
    """Effect of x on y with instruments Z (n, k), covariates W (n, d) or None, and an intercept."""
    ones = np.ones((len(x), 1))
    design = ones if W is None else np.column_stack([ones, W])
    columns = np.column_stack([x, y, Z])
    columns = columns - design @ np.linalg.lstsq(design, columns, rcond=None)[0]
    x, y, Z = columns[:, 0], columns[:, 1], columns[:, 2:]
    fitted = Z @ np.linalg.lstsq(Z, x, rcond=None)[0]
    return float((fitted @ y) / (fitted @ x))


def evaluate(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Compare selected sets and effects with the truth.

    Parameters
    ----------
    public, truth : of ``draw``.
    result : support (S, R, p) bool, effect (S, R) with NaN where the solver found no set, which is scored as an effect
        of 0; pair_scores (S, R, p, p) if it scores pairs; scalars.

    Returns
    -------
    At the largest size: correct_selection_rate (share of replicates with exactly the valid set), precision, recall
    (means over replicates; precision of an empty set is 0), answered_rate, mse, rmse, relative_rmse (to the root mean
    square of beta, so 1 for a solver that never answers), mse_over_oracle (to two-stage least squares on the valid set).
    At smaller sizes correct_selection_rate_n<size> and mse_n<size>; smallest_gain of the correct selection rate from
    one size to the next. decoy_rate where there is a decoy. With pair scores: valid_score_ratio (median over
    replicates of the valid pair's score, at the largest size over that at the smallest) and invalid_score_min (the
    smallest, over pairs with an invalid member, of the median score at the largest size).
    """
    sizes, valid, beta = public["sizes"], truth["valid"], truth["beta"]
    shape = (len(sizes), *public["Z"].shape[::2])
    support, effect = np.asarray(result["support"], dtype=bool), np.asarray(result["effect"], dtype=float)
    if support.shape != shape or effect.shape != shape[:2]:
        raise ValueError(f"support {support.shape}, effect {effect.shape}; expected {shape}, {shape[:2]}")
    model_order = np.argsort(truth["columns"], axis=1)
    support = np.take_along_axis(support, model_order[None], 2)
    correct = (support == valid).all(2).mean(1)
    hits, chosen = (support[-1] & valid).sum(1), support[-1].sum(1)
    answered = np.isfinite(effect)
    mse = ((np.where(answered, effect, 0) - beta) ** 2).mean(1)
    W = public.get("W")
    oracle = [
        two_stage_least_squares(Z[:, valid[columns]], public["x"][r], public["y"][r], None if W is None else W[r])
        for r, (Z, columns) in enumerate(zip(public["Z"], truth["columns"], strict=True))
    ]
    columns = {
        "correct_selection_rate": correct[-1],
        "precision": np.mean(hits / np.maximum(chosen, 1)),
        "recall": np.mean(hits / valid.sum()),
        "answered_rate": answered[-1].mean(),
        "mse": mse[-1],
        "rmse": np.sqrt(mse[-1]),
        "relative_rmse": np.sqrt(mse[-1] / np.mean(beta**2)),
        "mse_over_oracle": mse[-1] / np.mean((oracle - beta) ** 2),
    }
    for k, size in enumerate(sizes[:-1]):
        columns |= {f"correct_selection_rate_n{size}": correct[k], f"mse_n{size}": mse[k]}
    if len(sizes) > 1:
        columns["smallest_gain"] = np.diff(correct).min()
    if truth["decoy"] is not None:
        columns["decoy_rate"] = (support[-1] == truth["decoy"]).all(1).mean()
    if "pair_scores" in result:
        scores = np.take_along_axis(result["pair_scores"], model_order[None, :, :, None], 2)
        scores = np.take_along_axis(scores, model_order[None, :, None], 3)
        medians = np.median(scores, axis=1)
        upper = np.triu(np.ones(medians.shape[1:], dtype=bool), 1)
        valid_pairs = upper & np.outer(valid, valid)
        columns["invalid_score_min"] = medians[-1][upper & ~valid_pairs].min()
        if len(sizes) > 1:
            columns["valid_score_ratio"] = (medians[-1][valid_pairs] / medians[0][valid_pairs]).max()
    extra = {k: v for k, v in result.items() if k not in ("support", "effect", "pair_scores")}
    return {name: float(value) for name, value in (extra | columns).items()}


def example(public: dict[str, Any]) -> dict[str, Any]:
    """A result of the right shape: nothing is selected."""
    S, (R, _, p) = len(public["sizes"]), public["Z"].shape
    return {"support": np.zeros((S, R, p), dtype=bool), "effect": np.zeros((S, R))}
