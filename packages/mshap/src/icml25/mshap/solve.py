"""Nash equilibria: maximise the potential, or follow best-response dynamics, and certify."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from icml25.mshap.game import FLGame
from icml25.mshap.inputs import as_count, as_positive
from icml25.mshap.mechanisms import Mechanism, MShap, NoPayment, free_riders, reciprocity
from icml25.mshap.shapley import ShapleyEstimator

_GRID, _PEAKS, _ZOOM, _ZOOMS = 33, 2, 9, 7
_POLISH = 500


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """Contributions from which no agent gains by moving, and what follows from them.

    Arrays are (n,): contributions (samples), gains ã_i, accuracies a_i, shares φ_i, payments p_i, costs c_i, utilities
    u_i = ã_i + p_i - c_i. ``reciprocity`` is min_i (ã_i + p_i)/φ_i; ``budget_residual`` |Σ p_i|; ``exploitability`` the
    most that one agent gains by a deviation, as far as the search of ``exploitability`` finds; ``welfare`` Σ (ã_i - c_i);
    ``data_share`` Σ s / Σ capacity; ``converged`` that the solver stopped by itself and ``exploitability`` is at most
    tol, or a millionth of A at the capacities where that is more.
    """

    mechanism: str
    contributions: Float[np.ndarray, " n"]
    gains: Float[np.ndarray, " n"]
    accuracies: Float[np.ndarray, " n"]
    shares: Float[np.ndarray, " n"]
    payments: Float[np.ndarray, " n"]
    costs: Float[np.ndarray, " n"]
    utilities: Float[np.ndarray, " n"]
    reciprocity: float
    budget_residual: float
    exploitability: float
    welfare: float
    data_share: float
    n_iter: int
    converged: bool
    free_riders: list[int]

    def to_frame(self) -> Any:
        """One row per agent, as a pandas DataFrame."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_frame needs pandas: pip install icml25-mshap[frame]") from error
        columns = [f.name for f in fields(self) if isinstance(getattr(self, f.name), np.ndarray)]
        return pd.DataFrame({name: getattr(self, name) for name in columns})


def solve(
    game: FLGame,
    mechanism: Any,
    *,
    method: str | None = None,
    agents_per_step: int | None = None,
    step: float | int | None = None,
    tol: float | int = 1e-8,
    max_iter: int = 20_000,
    init: ArrayLike | None = None,
    restarts: int = 0,
    seed: int | np.random.Generator | None = 0,
) -> Equilibrium:
    """Nash equilibrium of a game under a mechanism.

    Parameters
    ----------
    game, mechanism : the game and its payments.
    method : "potential" (the default of ``MShap`` with exact shares, and only for it) maximises Φ(s) = P(s) - Σ c_i by
        L-BFGS-B; "dynamics" is the projected gradient step s_i ← Proj(s_i + δ ∂u_i/∂s_i) of the paper.
    agents_per_step : agents that move in a step of the dynamics, drawn at random; None moves all.
    step : δ, in samples² per unit of accuracy; None adapts it to the curvature on the way.
    tol : stop when no agent could gain more than this, by the bound that concavity gives.
    max_iter : steps of the dynamics, or iterations of L-BFGS-B.
    init : (n,) start; None starts at one sample each (or the capacity, where that is less).
    restarts : further random starts; the equilibrium with the largest welfare is returned. For mechanisms with several.
    seed : for agents_per_step and restarts.

    Returns
    -------
    Equilibrium; ``converged`` says whether it is one. A ``UserWarning`` where the solver stopped at a point that is
    stationary but from which some agent gains by a larger deviation (utilities are not concave): use restarts.

    Raises
    ------
    ValueError: unknown method, or "potential" for a mechanism without one, or options out of range. TypeError: not a mechanism.
    """
    _check_mechanism(mechanism)
    if method is None:
        method = "potential" if _has_potential(game, mechanism) else "dynamics"
    if method not in ("potential", "dynamics"):
        raise ValueError(f"method is {method!r}; expected 'potential' or 'dynamics'")
    if method == "potential" and not _has_potential(game, mechanism):
        raise ValueError(
            f"method 'potential' is for MShap with exact shares; {type(mechanism).__name__} here has no potential, "
            "use 'dynamics'"
        )
    tol, max_iter, restarts = as_positive("tol", tol), as_count("max_iter", max_iter), as_count("restarts", restarts, 0)
    moving = game.n if agents_per_step is None else as_count("agents_per_step", agents_per_step)
    if moving > game.n:
        raise ValueError(f"agents_per_step is {moving}; the game has {game.n} agents")
    delta = None if step is None else as_positive("step", step)
    rng = np.random.default_rng(seed)
    start = np.minimum(1.0, game.capacity) if init is None else game.contributions(init, "init")
    best, stopped, enough = None, False, max(tol, 1e-6 * float(game.accuracies(game.capacity).sum()))
    for trial in range(restarts + 1):
        s = start if trial == 0 else rng.random(game.n) * game.capacity
        if method == "potential":
            s, n_iter, converged = _maximise_potential(game, mechanism, s, tol, max_iter)
        else:
            s, n_iter, converged = _dynamics(game, mechanism, s, moving, delta, tol, max_iter, rng)
        found = evaluate(game, mechanism, s, n_iter=n_iter, converged=converged)
        found = replace(found, converged=converged and found.exploitability <= enough)
        if best is None or (found.converged, found.welfare) > (best.converged, best.welfare):
            best, stopped = found, converged
    assert best is not None
    if not best.converged and stopped:
        warnings.warn(
            f"stopped at a stationary point that is no equilibrium: an agent gains {best.exploitability:.3g} by a larger "
            "deviation; try restarts or another init",
            stacklevel=2,
        )
    return best


def _has_potential(game: FLGame, mechanism: Mechanism) -> bool:
    return isinstance(mechanism, MShap) and mechanism.shapley.is_exact(game.n)


def _check_mechanism(mechanism: Any) -> None:
    if not isinstance(mechanism, Mechanism):
        hint = f", with parentheses: {mechanism.__name__}()" if isinstance(mechanism, type) else ""
        raise TypeError(f"mechanism is {mechanism!r}; expected a Mechanism such as MShap(){hint}")


def evaluate(game: FLGame, mechanism: Any, s: ArrayLike, *, n_iter: int = 0, converged: bool = False) -> Equilibrium:
    """Everything that an ``Equilibrium`` holds, at any contributions s (``exploitability`` says how far from one).

    Shares are the mechanism's own where it is ``MShap``, else by ``ShapleyEstimator()``.
    """
    _check_mechanism(mechanism)
    s = game.contributions(s)
    gains, payments, costs = game.gains(s), mechanism.payments(game, s), game.costs.value(s)
    estimator = mechanism.shapley if isinstance(mechanism, MShap) else ShapleyEstimator()
    shares, capacity = estimator.shares(game.accuracy, s), float(game.capacity.sum())
    return Equilibrium(
        mechanism=mechanism.name,
        contributions=s,
        gains=gains,
        accuracies=game.accuracies(s),
        shares=shares,
        payments=payments,
        costs=costs,
        utilities=gains + payments - costs,
        reciprocity=reciprocity(gains, payments, shares),
        budget_residual=float(abs(payments.sum())),
        exploitability=exploitability(game, mechanism, s),
        welfare=float((gains - costs).sum()),
        data_share=float(s.sum()) / capacity if capacity > 0 else 0.0,
        n_iter=n_iter,
        converged=converged,
        free_riders=free_riders(gains, payments, shares),
    )


def exploitability(game: FLGame, mechanism: Any, s: ArrayLike) -> float:
    """Most that one agent gains by changing its own contribution, as far as a search finds: a lower bound.

    Each agent's range [0, capacity_i] is looked at in 33 equidistant points, both ends among them; 9 points then divide
    the cells beside the two highest local peaks, and again beside the best of the 9, seven times. For concave utilities it
    falls short of the truth by what 10^-6 of the range can make; a gain within less than a cell (1/32 of the range) can be
    missed.
    """
    _check_mechanism(mechanism)
    s = game.contributions(s)

    def utility(T: np.ndarray) -> np.ndarray:
        return mechanism.deviation_utilities(game, s, np.clip(T, 0, game.capacity))

    now = best = utility(s[None])[0]
    grid = np.linspace(0, game.capacity, _GRID)
    at_grid = utility(grid)
    beside = np.pad(at_grid, ((1, 1), (0, 0)), constant_values=-np.inf)
    peaks = np.where((at_grid >= beside[:-2]) & (at_grid >= beside[2:]), at_grid, -np.inf)
    most = min(_PEAKS, int(np.isfinite(peaks).sum(0).max()))  # one where all utilities are concave
    top = np.argsort(-peaks, axis=0, kind="stable")[:most]
    low = np.take_along_axis(grid, np.maximum(top - 1, 0), axis=0)
    high = np.take_along_axis(grid, np.minimum(top + 1, _GRID - 1), axis=0)
    for _ in range(_ZOOMS):
        points = np.linspace(low, high, _ZOOM)
        values = utility(points.reshape(-1, game.n)).reshape(points.shape)
        best = np.maximum(best, values.max((0, 1)))
        at = values.argmax(0)[None]
        low = np.take_along_axis(points, np.maximum(at - 1, 0), axis=0)[0]
        high = np.take_along_axis(points, np.minimum(at + 1, _ZOOM - 1), axis=0)[0]
    return float((best - now).max())


def compare(game: FLGame, mechanisms: Iterable[Any], **options: Any) -> list[dict[str, Any]]:
    """Solve for several mechanisms and put their equilibria side by side.

    Parameters
    ----------
    game : the game.
    mechanisms : at least one.
    options : passed to ``solve``; method "potential" goes to the mechanisms that have one, the others take the dynamics.

    Returns
    -------
    One dict a mechanism; ``data_gain`` and ``accuracy_gain`` are ratios to the first ``NoPayment`` (NaN without one).
    """
    mechanisms = list(mechanisms)
    if not mechanisms:
        raise ValueError("mechanisms is empty; expected at least one")
    solved = []
    for mechanism in mechanisms:
        _check_mechanism(mechanism)
        own = dict(options)
        if options.get("method") == "potential" and not _has_potential(game, mechanism):
            own["method"] = "dynamics"
        solved.append(solve(game, mechanism, **own))
    reference = next((e for m, e in zip(mechanisms, solved, strict=True) if isinstance(m, NoPayment)), None)

    def ratio(value: float, base: float | None) -> float:
        if base is None or value == base == 0:
            return float("nan")
        return value / base if base else float("inf")

    return [
        {
            "mechanism": e.mechanism,
            "total_data": float(e.contributions.sum()),
            "data_share": e.data_share,
            "data_gain": ratio(float(e.contributions.sum()), reference and float(reference.contributions.sum())),
            "mean_accuracy": float(e.accuracies.mean()),
            "accuracy_gain": ratio(float(e.accuracies.mean()), reference and float(reference.accuracies.mean())),
            "reciprocity": e.reciprocity,
            "free_riders": len(e.free_riders),
            "welfare": e.welfare,
            "budget_residual": e.budget_residual,
            "exploitability": e.exploitability,
            "converged": e.converged,
        }
        for e in solved
    ]


def _gain_bound(gradient: np.ndarray, s: np.ndarray, capacity: np.ndarray) -> float:
    """No agent with a concave utility gains more: its slope times its room."""
    return float(np.maximum(gradient * (capacity - s), -gradient * s).max())


def _dynamics(
    game: FLGame,
    mechanism: Mechanism,
    s: np.ndarray,
    moving: int,
    step: float | None,
    tol: float,
    max_iter: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, int, bool]:
    """Projected steps of own gradients; an adaptive δ stays below half of the inverse local curvature |Δs|/|Δg|."""
    gradient, growth = mechanism.own_gradient(game, s), 1.0
    delta = _inverse_curvature(game, mechanism, s, gradient) if step is None else step
    for n_iter in range(max_iter):
        if _gain_bound(gradient, s, game.capacity) <= tol:
            return s, n_iter, True
        target = np.clip(s + delta * gradient, 0, game.capacity)
        if moving < game.n:
            chosen = rng.choice(game.n, moving, replace=False)
            target[np.setdiff1d(np.arange(game.n), chosen)] = s[np.setdiff1d(np.arange(game.n), chosen)]
        new_gradient = mechanism.own_gradient(game, target)
        if step is None:
            old = delta
            delta = min((1 + growth) ** 0.5 * old, _half_ratio(target - s, new_gradient - gradient))
            growth = delta / old
        s, gradient = target, new_gradient
    return s, max_iter, _gain_bound(gradient, s, game.capacity) <= tol


def _half_ratio(moved: np.ndarray, turned: np.ndarray) -> float:
    """|Δs| / (2 |Δg|), infinite where nothing changed."""
    length, turn = float(np.linalg.norm(moved)), float(np.linalg.norm(turned))
    return length / (2 * turn) if length > 0 and turn > 0 else np.inf


def _inverse_curvature(game: FLGame, mechanism: Mechanism, s: np.ndarray, gradient: np.ndarray) -> float:
    """First δ: half of the inverse curvature along a short probe of the gradient, else a step across the box."""
    slope, width = float(np.abs(gradient).max()), float(game.capacity.max())
    if slope == 0 or width == 0:
        return 1.0
    probe = np.clip(s + 1e-4 * width / slope * gradient, 0, game.capacity)
    delta = _half_ratio(probe - s, mechanism.own_gradient(game, probe) - gradient)
    return delta if np.isfinite(delta) else width / slope


def _maximise_potential(
    game: FLGame, mechanism: MShap, s: np.ndarray, tol: float, max_iter: int
) -> tuple[np.ndarray, int, bool]:
    """L-BFGS-B on Φ."""
    from scipy.optimize import minimize  # most of the import time

    scale = np.where(game.capacity > 0, game.capacity, 1.0)

    def negative(x: np.ndarray) -> tuple[float, np.ndarray]:
        at = np.clip(x * scale, 0, game.capacity)
        value, gradient = mechanism.shapley.potential(game.accuracy, at)
        return game.costs.value(at).sum() - value, (game.costs.grad(at) - gradient) * scale

    bounds = [(0.0, 1.0 if tau > 0 else 0.0) for tau in game.capacity]
    options = {"maxiter": max_iter, "ftol": 0.0, "gtol": tol / 10, "maxcor": 20}
    found = minimize(negative, s / scale, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    s, n_iter = np.clip(found.x * scale, 0, game.capacity), int(found.get("nit", 0))
    if _gain_bound(mechanism.own_gradient(game, s), s, game.capacity) > tol and n_iter < max_iter:
        # the last digits, below the resolution of the value of Φ
        rng = np.random.default_rng(0)  # not drawn from: all agents move
        s, more, _ = _dynamics(game, mechanism, s, game.n, None, tol, min(_POLISH, max_iter - n_iter), rng)
        n_iter += more
    return s, n_iter, _gain_bound(mechanism.own_gradient(game, s), s, game.capacity) <= tol
