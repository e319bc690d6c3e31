"""From past data to the design of the next experiment."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from icml25.switchback.designs import Design, Number, Seed, as_design, as_integer
from icml25.switchback.estimators import CHUNK, DRL, LSTD, OLS, resampled_errors
from icml25.switchback.mdp import LinearMDP, as_covariance, check_arms, check_rank, square_root
from icml25.switchback.panel import NotIdentifiedError, Panel
from icml25.switchback.regression import regress

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CarryoverTest",
    "Recommendation",
    "carryover_test",
    "design_gain",
    "recommend_design",
    "residual_covariance",
    "weak_carryover_mse",
]


def residual_covariance(panel: Panel) -> Float[np.ndarray, "T T"]:
    """Covariance of a day's reward errors: residuals e of the reward on (1, S_t) at each t, e'e / (n - p - 1).

    Parameters
    ----------
    panel : a history under one arm, or an experiment, where the arm is a regressor too (and costs a degree of freedom).

    Returns
    -------
    (T, T), positive semidefinite.

    Raises
    ------
    ValueError: too few days, or collinear states.
    """
    residuals = reward_residuals(panel)
    return residuals.T @ residuals / _freedom(panel)


def reward_residuals(panel: Panel) -> Float[np.ndarray, "n T"]:
    """Residuals of the reward on (1, state), and on the arm where there are two."""
    n, p = panel.n_days, panel.n_states
    both = _has_both_arms(panel)
    if _freedom(panel) < 1:
        raise ValueError(f"n = {n} days leave no residuals with p = {p} states; at least {p + 2 + both} are needed")
    if both:
        check_arms(panel)
    columns = [panel.states[None], panel.actions[None, ..., None]][: 1 + both]
    fit = regress(columns, panel.rewards[None], 0, residuals=True)
    check_rank(panel, fit.rank[0] + (not both), ridge_of="OLS")
    assert fit.residuals is not None
    return fit.residuals[0, :, 0].T


def _has_both_arms(panel: Panel) -> bool:
    return bool(panel.actions.any() and not panel.actions.all())


def _freedom(panel: Panel) -> int:
    return panel.n_days - panel.n_states - 1 - _has_both_arms(panel)


def weak_carryover_mse(Sigma_e: ArrayLike, n_days: Number, design: Design | object) -> float:
    """Mean squared error of the ATE without carryover: (4 / (n T^2)) sum_{t,s} c_ts Sigma_e(t, s).

    c_ts = E[(2 A_t - 1)(2 A_s - 1)] is 1 for AD, (-1)^(k(t) - k(s)) for AT with blocks k, and 1(t = s) for UR.

    Parameters
    ----------
    Sigma_e : (T, T) covariance of a day's reward errors.
    n_days : n days, balanced between the arms.
    design : the design.

    Returns
    -------
    float. Regressing on p states inflates it by about n / (n - p - 2).

    Raises
    ------
    ValueError: Sigma_e is empty or not symmetric positive semidefinite.
    TypeError: design is not a Design.
    """
    Sigma = as_covariance(Sigma_e, "Sigma_e")
    n, T = as_integer(n_days, "n_days", 2), as_integer(len(Sigma), "size of Sigma_e", 1)
    return float(4 / (n * T**2) * (as_design(design, "design").correlation(T) * Sigma).sum())


def design_gain(Sigma_e: ArrayLike, n_days: Number, span: Number | Design | object) -> float:
    """MSE(AD) - MSE(AT(span)) without carryover, Eq. (2); given Design("UR") instead of a span, Eq. (3).

    Parameters
    ----------
    Sigma_e : (T, T) covariance of a day's reward errors.
    n_days : n days.
    span : points between two switches, or a design.

    Returns
    -------
    float; positive where switching is better than alternating days.
    """
    design = span if isinstance(span, Design) else Design("AT", as_integer(span, "span", 1))
    return weak_carryover_mse(Sigma_e, n_days, Design("AD")) - weak_carryover_mse(Sigma_e, n_days, design)


@dataclass(frozen=True)
class CarryoverTest:
    """Test of no indirect effect.

    Attributes
    ----------
    indirect_effect, std_error, p_value : IE per time point, its error, two-sided Wald test of IE = 0.
    size : |IE| / (|DE| + |IE|), between 0 and 1.
    """

    indirect_effect: float
    std_error: float
    p_value: float
    size: float


def carryover_test(
    panel: Panel, *, method: str | None = "jackknife", n_boot: Number = 200, seed: Seed = None
) -> CarryoverTest:
    """Is there carryover? Wald test of the indirect effect of OLS.

    The test is conservative: IE sums products of two estimates, whose error is overestimated where one is near zero. Measured
    at a nominal 5% without carryover, in ``paper_mdp(seed=1)`` with Gamma = 0 under AT(6), with the jackknife: 1.2% at n = 20
    (600 experiments), 2.3% at n = 40 (400), 2.0% at n = 200 (200). The bootstrap is more conservative.

    Parameters
    ----------
    panel : a switchback experiment.
    method, n_boot, seed : of the standard error, over pairs of days; see ``OLS.std_error``. Default the jackknife.

    Returns
    -------
    CarryoverTest
    """
    fit = OLS().fit(panel)
    error = resampled_errors(fit, panel, method, n_boot, seed)[1]
    direct, indirect = fit.direct_effect_, fit.indirect_effect_
    z = abs(indirect) / error if error > 0 else np.inf * abs(indirect) if indirect else 0.0
    total = abs(direct) + abs(indirect)
    return CarryoverTest(indirect, error, 2 * (1 - NormalDist().cdf(z)), abs(indirect) / total if total > 0 else 0.0)


@dataclass(frozen=True)
class Recommendation:
    """Which design to run, and why.

    Attributes
    ----------
    best : the design.
    needs_pilot : whether only the errors were looked at: carryover could overturn the advice, a pilot would tell.
    table : one dict per design. Without a pilot: design, switches, gain over AD and its std_error. With one: design,
        switches, mse, std_error (Monte Carlo) and bias, against the ATE of the fitted model.
    positive_share : share of positive covariances between two points of a day.
    lag_correlation : (T // 2,) mean correlation of the reward errors at lags 1 .. T // 2.
    carryover : test of carryover in the pilot, or None.
    """

    best: Design
    needs_pilot: bool
    table: tuple[dict[str, Any], ...]
    positive_share: float
    lag_correlation: Float[np.ndarray, " lags"]
    carryover: CarryoverTest | None = None

    def __str__(self) -> str:
        keys = list(self.table[0])
        cells = [keys, *([f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()] for row in self.table)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([f"best: {self.best}" + (" (needs a pilot)" if self.needs_pilot else ""), *lines])

    def to_frame(self) -> pd.DataFrame:
        """The table as a DataFrame (needs pandas), designs as text."""
        import pandas as pd

        return pd.DataFrame([row | {"design": str(row["design"])} for row in self.table])


def recommend_design(
    history: Panel | None = None,
    pilot: Panel | None = None,
    *,
    n_days: Number,
    estimator: OLS | LSTD | DRL | object | None = None,
    candidates: Sequence[Design] | object | None = None,
    n_sim: Number = 200,
    n_boot: Number = 200,
    n_jobs: Number = 1,
    seed: Seed = None,
) -> Recommendation:
    """Which design gives the smallest mean squared error in the next experiment?

    Without a pilot: gains of switching, Eqs. (2)-(3), with bootstrap errors over days; AD unless the largest gain is above
    two standard errors. With a pilot: the linear model is fitted to it, n_sim experiments are simulated under each design
    with common noise (first states and whole days of reward residuals, with random signs, are resampled), and the estimator
    is applied to each; designs within one standard error of the best are ties, and the fewest switches win.

    Parameters
    ----------
    history : panel under one arm.
    pilot : panel of a switchback experiment with the same T; with it, history only adds residual days.
    n_days : n of the next experiment, at least 2.
    estimator : that will be used there; None is OLS().
    candidates : designs to choose from; None is AD, UR and AT(m) for every m that divides T.
    n_sim : simulated experiments per design.
    n_boot : day resamples for the gains' errors.
    n_jobs : threads over designs; the result does not depend on it.
    seed : of all randomness; the coins of a design do not depend on the other candidates.

    Returns
    -------
    Recommendation

    Raises
    ------
    ValueError: neither panel is given, history has both arms, the panels' T differ, or no simulated experiment of some
        design identifies the effect.
    """
    if history is None and pilot is None:
        raise ValueError("history and pilot are both None; at least one panel is needed")
    for name, panel in (("history", history), ("pilot", pilot)):
        if panel is not None and not isinstance(panel, Panel):
            raise TypeError(f"{name} must be a Panel or None, got {type(panel).__name__}")
    if history is not None and _has_both_arms(history):
        raise ValueError("history must be under one arm, it has both; pass a switchback experiment as pilot=")
    if history is not None and pilot is not None and history.n_times != pilot.n_times:
        raise ValueError(f"history has T = {history.n_times} times a day, pilot has {pilot.n_times}; they must agree")
    n, jobs = as_integer(n_days, "n_days", 2), as_integer(n_jobs, "n_jobs", 1)
    R, B = as_integer(n_sim, "n_sim", 2), as_integer(n_boot, "n_boot", 2)
    rng = np.random.default_rng(seed)
    source = history if history is not None else pilot
    assert source is not None
    T = source.n_times
    if candidates is None:
        candidates = [Design("AD"), Design("UR"), *(Design("AT", m) for m in range(1, T) if T % m == 0)]
    if not isinstance(candidates, Sequence) or not candidates:
        raise ValueError(f"candidates must be a list of Designs, at least one, got {candidates!r}")
    designs = [as_design(design, "each of candidates") for design in candidates]
    used = OLS() if estimator is None else estimator
    if not isinstance(used, (OLS, LSTD, DRL)):
        raise TypeError(f"estimator must be OLS(), LSTD(), DRL() or None, got {estimator!r}")
    used._validate()
    Sigma = residual_covariance(source)
    summary = _correlation_summary(Sigma)
    if pilot is None:
        return Recommendation(*_by_gain(reward_residuals(source), Sigma, n, designs, B, rng), *summary)

    test = carryover_test(pilot)
    table = _by_simulation(history, pilot, n, used, designs, R, jobs, rng)
    best = min(table, key=lambda row: row["mse"])
    ties = [row for row in table if row["mse"] - best["mse"] <= row["gap_error"]]
    winner = min(ties, key=lambda row: (row["switches"], row["mse"]))
    rows = tuple({k: v for k, v in row.items() if k != "gap_error"} for row in table)
    return Recommendation(winner["design"], False, rows, *summary, carryover=test)


def _correlation_summary(Sigma: np.ndarray) -> tuple[float, np.ndarray]:
    T = len(Sigma)
    above = Sigma[np.triu_indices(T, 1)]
    sd = np.sqrt(np.diag(Sigma))
    R = Sigma / np.where(sd > 0, sd, 1)[:, None] / np.where(sd > 0, sd, 1)
    lags = np.array([np.diagonal(R, lag).mean() for lag in range(1, T // 2 + 1)])
    return float((above > 0).mean()) if len(above) else 0.0, lags


def _by_gain(
    residuals: np.ndarray, Sigma: np.ndarray, n: int, candidates: Sequence[Design], B: int, rng: np.random.Generator
) -> tuple[Design, bool, tuple[dict[str, Any], ...]]:
    """AD, or the design with the largest gain when that is above two standard errors."""
    N, T = residuals.shape
    scale = Sigma.trace() / max((residuals**2).sum(), np.finfo(float).tiny)  # 1 / (n - p - 1)
    draws = rng.multinomial(N, np.full(N, 1 / N), size=B)
    rows = []
    for design in candidates:
        weight = 4 / (n * T**2) * (1 - design.correlation(T))
        of_day = np.einsum("it,ts,is->i", residuals, weight, residuals, optimize=True) * scale
        gain, error = float(of_day.sum()), float((draws @ of_day).std(ddof=1))
        rows.append({"design": design, "switches": design.switches(T), "gain": gain, "std_error": error})
    top = max(rows, key=lambda row: row["gain"])
    switching = top["gain"] > 2 * top["std_error"]
    return (top["design"] if switching else Design("AD")), switching, tuple(rows)


def _by_simulation(
    history: Panel | None,
    pilot: Panel,
    n: int,
    estimator: OLS | LSTD | DRL,
    candidates: Sequence[Design],
    R: int,
    jobs: int,
    rng: np.random.Generator,
) -> list[dict[str, Any]]:
    """MSE of the estimator under each design, in experiments simulated from the model of the pilot."""
    model = LinearMDP.fit(pilot)
    truth, T, p = model.ate(), model.n_times, model.n_states
    errors = [
        reward_residuals(panel) * np.sqrt(panel.n_days / _freedom(panel))
        for panel in (history, pilot)
        if panel is not None
    ]
    error_days, first_states = np.concatenate(errors), pilot.states[:, 0]
    root = square_root(model.Q)
    entropy = int(rng.integers(2**63))
    signed = np.empty((len(candidates), R))
    coins = [np.random.default_rng([entropy, *str(design).encode()]) for design in candidates]

    chunk = max(1, 8 * CHUNK // (n * T * (2 * p + 4)))
    for start in range(0, R, chunk):
        size = min(chunk, R - start)
        first = first_states[rng.integers(len(first_states), size=(size, n))]
        state_noise = rng.normal(size=(size, n, T - 1, p)) @ root.T
        signs = rng.choice([-1.0, 1.0], size=(size, n, 1))
        reward_noise = signs * error_days[rng.integers(len(error_days), size=(size, n))]

        def run(index: int) -> np.ndarray:
            design = candidates[index]
            arms = np.stack([_draw_quietly(design, n, T, coins[index]) for _ in range(size)])  # noqa: B023
            states = model.propagate(first, arms, state_noise)  # noqa: B023
            return estimator.estimate(states, arms, model.mean_reward(states, arms) + reward_noise)  # noqa: B023

        with ThreadPoolExecutor(jobs) as pool:
            for index, estimates in enumerate(pool.map(run, range(len(candidates)))):
                signed[index, start : start + size] = estimates - truth
    for index, design in enumerate(candidates):
        if not np.isfinite(signed[index]).any():
            raise NotIdentifiedError(f"no simulated experiment of {n} days under {design} identifies the effect")
    squared = signed**2
    best = int(np.argmin(np.nanmean(squared, axis=1)))
    rows = []
    for index, design in enumerate(candidates):
        values, gaps = squared[index], squared[index] - squared[best]
        values, gaps = values[np.isfinite(values)], gaps[np.isfinite(gaps)]
        rows.append(
            {
                "design": design,
                "switches": design.switches(T),
                "mse": float(values.mean()),
                "std_error": _mean_error(values),
                "bias": float(np.nanmean(signed[index])),
                "identified": len(values) / R,
                "gap_error": _mean_error(gaps),
            }
        )
    return rows


def _draw_quietly(design: Design, n: int, T: int, rng: np.random.Generator) -> np.ndarray:
    """A table without the warning of odd n, which would come once per replicate."""
    return design.draw(n + n % 2, T, rng)[:n]


def _mean_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("inf")
