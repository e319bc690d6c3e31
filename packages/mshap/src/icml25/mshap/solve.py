"""Nash equilibria: maximise the potential, or follow best-response dynamics, and certify."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from icml25.mshap.game import FLGame
from icml25.mshap.inputs import as_count, as_positive
from icml25.mshap.mechanisms import Mechanism, MShap, NoPayment, free_riders, reciprocity
from icml25.mshap.shapley import ShapleyEstimator

_GOLDEN = (5**0.5 - 1) / 2
_POLISH = 500


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """Contributions from which no agent gains by moving, and what follows from them.

    Arrays are (n,): contributions (samples), gains ã_i, accuracies a_i, shares φ_i, payments p_i, costs c_i, utilities
    u_i = ã_i + p_i - c_i. ``reciprocity`` is min_i (ã_i + p_i)/φ_i; ``budget_residual`` |Σ p_i|; ``exploitability`` the
    most that one agent gains by a deviation, found by a search of each agent's own range; ``welfare`` Σ (ã_i - c_i);
    ``data_share`` Σ s / Σ capacity.
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
    mechanism: Mechanism,
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
    method : "potential" (``MShap`` only, its default) maximises Φ(s) = P(s) - Σ c_i by L-BFGS-B; "dynamics" is the projected
        gradient step s_i ← Proj(s_i + δ ∂u_i/∂s_i) of the paper.
    agents_per_step : agents that move in a step of the dynamics, drawn at random; None moves all.
    step : δ, in samples² per unit of accuracy; None adapts it to the curvature on the way.
    tol : stop when no agent could gain more than this, by the bound that concavity gives.
    max_iter : steps of the dynamics, or iterations of L-BFGS-B.
    init : (n,) start; None starts at one sample each (or the capacity, where that is less).
    restarts : further random starts; the equilibrium with the largest welfare is returned. For mechanisms with several.
    seed : for agents_per_step and restarts.

    Returns
    -------
    Equilibrium; ``converged`` says whether tol was met.

    Raises
    ------
    ValueError: unknown method, or "potential" for a mechanism without one, or options out of range.
    """
    if method is None:
        method = "potential" if isinstance(mechanism, MShap) else "dynamics"
    if method not in ("potential", "dynamics"):
        raise ValueError(f"method is {method!r}; expected 'potential' or 'dynamics'")
    if method == "potential" and not isinstance(mechanism, MShap):
        raise ValueError(
            f"method 'potential' is for MShap; {type(mechanism).__name__} has no potential, use 'dynamics'"
        )
    tol, max_iter, restarts = as_positive("tol", tol), as_count("max_iter", max_iter), as_count("restarts", restarts, 0)
    moving = game.n if agents_per_step is None else as_count("agents_per_step", agents_per_step)
    if moving > game.n:
        raise ValueError(f"agents_per_step is {moving}; the game has {game.n} agents")
    delta = None if step is None else as_positive("step", step)
    rng = np.random.default_rng(seed)
    start = np.minimum(1.0, game.capacity) if init is None else game.contributions(init, "init")
    best = None
    for trial in range(restarts + 1):
        s = start if trial == 0 else rng.random(game.n) * game.capacity
        if isinstance(mechanism, MShap) and method == "potential":
            s, n_iter, converged = _maximise_potential(game, mechanism, s, tol, max_iter)
        else:
            s, n_iter, converged = _dynamics(game, mechanism, s, moving, delta, tol, max_iter, rng)
        found = evaluate(game, mechanism, s, n_iter=n_iter, converged=converged)
        if best is None or found.welfare > best.welfare:
            best = found
    assert best is not None
    return best


def evaluate(
    game: FLGame, mechanism: Mechanism, s: ArrayLike, *, n_iter: int = 0, converged: bool = False
) -> Equilibrium:
    """Everything that an ``Equilibrium`` holds, at any contributions s (``exploitability`` says how far from one).

    Shares are the mechanism's own where it is ``MShap``, else by ``ShapleyEstimator()``.
    """
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


def exploitability(game: FLGame, mechanism: Mechanism, s: ArrayLike) -> float:
    """Most that one agent gains by changing its own contribution: a golden-section search of [0, capacity_i] for each."""
    s = game.contributions(s)
    now = mechanism.deviation_utilities(game, s, s)

    def utility(t: np.ndarray) -> np.ndarray:
        return mechanism.deviation_utilities(game, s, np.clip(t, 0, game.capacity))

    low, high = np.zeros(game.n), game.capacity.copy()
    best = np.maximum(utility(low), utility(high))
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = utility(left), utility(right)
    for _ in range(40):
        best = np.maximum(best, np.maximum(at_left, at_right))
        down = at_left >= at_right
        low, high = np.where(down, low, left), np.where(down, right, high)
        kept, at_kept = np.where(down, left, right), np.where(down, at_left, at_right)
        new = np.where(down, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        at_new = utility(new)
        left, right = np.where(down, new, kept), np.where(down, kept, new)
        at_left, at_right = np.where(down, at_new, at_kept), np.where(down, at_kept, at_new)
    return float(np.maximum(best - now, 0).max())


def compare(game: FLGame, mechanisms: Sequence[Mechanism], **options: Any) -> list[dict[str, Any]]:
    """Solve for several mechanisms and put their equilibria side by side.

    Parameters
    ----------
    game : the game.
    mechanisms : at least one.
    options : passed to ``solve``.

    Returns
    -------
    One dict a mechanism; ``data_gain`` and ``accuracy_gain`` are ratios to the first ``NoPayment`` (NaN without one).
    """
    if not mechanisms:
        raise ValueError("mechanisms is empty; expected at least one")
    solved = [solve(game, mechanism, **options) for mechanism in mechanisms]
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
    """L-BFGS-B on Φ. Sampled shares have no exact potential: a linear tilt, renewed after each solve, mends the gradient."""
    from scipy.optimize import minimize  # most of the import time

    scale = np.where(game.capacity > 0, game.capacity, 1.0)
    bounds = [(0.0, 1.0 if tau > 0 else 0.0) for tau in game.capacity]

    def descent(tilt: np.ndarray) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
        def negative(x: np.ndarray) -> tuple[float, np.ndarray]:
            at = np.clip(x * scale, 0, game.capacity)
            value, gradient = mechanism.shapley.potential(game.accuracy, at)
            value += tilt @ at - game.costs.value(at).sum()
            return -value, -(gradient + tilt - game.costs.grad(at)) * scale

        return negative

    tilt, n_iter, error = np.zeros(game.n), 0, np.inf
    for _ in range(50):
        options = {"maxiter": max(1, max_iter - n_iter), "ftol": 0.0, "gtol": tol / 10, "maxcor": 20}
        found = minimize(descent(tilt), s / scale, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        s, n_iter = np.clip(found.x * scale, 0, game.capacity), n_iter + int(found.get("nit", 0))
        own = mechanism.own_gradient(game, s)
        previous, error = error, _gain_bound(own, s, game.capacity)
        if error <= tol or n_iter >= max_iter or error > 0.5 * previous:
            break
        tilt = own + game.costs.grad(s) - mechanism.shapley.potential(game.accuracy, s)[1]
    if error > tol and n_iter < max_iter:  # the last digits, below the resolution of the value of Φ
        rng = np.random.default_rng(0)  # not drawn from: all agents move
        s, more, converged = _dynamics(game, mechanism, s, game.n, None, tol, min(_POLISH, max_iter - n_iter), rng)
        return s, n_iter + more, converged
    return s, n_iter, error <= tol
