"""Win rate against KL of a transformation, without a language model.

With u the calibrated reward, the KL-RL policy of Phi has density f(u) = e^{Phi(u)/beta} / int e^{Phi/beta} and cdf F for every
prompt and every continuous reward, so that KL = int f log f and every win rate are integrals over [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, softmax, xlogy

from icml25.infalign.checks import Real, positive, whole
from icml25.infalign.procedures import Procedure, midpoints
from icml25.infalign.tabular import ConvergenceError, _fixed_point, beta_search
from icml25.infalign.transforms import Transform, from_grid

__all__ = ["Tilt", "beta_for_kl", "fit_optimal", "optimal", "optimum_at_kl", "tilted", "tradeoff"]

POINTS = 4001


@dataclass(frozen=True)
class Tilt:
    """A policy on the unit interval of calibrated rewards.

    Parameters
    ----------
    u : (M,) midpoints of M equal cells.
    phi : (M,) the transformation there.
    beta : strength of the KL penalty.
    f, F : (M,) density and cdf at u.
    kl : KL to the base policy, in nats.
    """

    u: Float[np.ndarray, " M"]
    phi: Float[np.ndarray, " M"]
    beta: float
    f: Float[np.ndarray, " M"]
    F: Float[np.ndarray, " M"]
    kl: float

    def win_rate(self, procedure: Procedure) -> float:
        """W^T of this policy against the base policy, both served by the procedure."""
        return procedure.win_rate(self.F)


def tilted(transform: Callable[[np.ndarray], np.ndarray], beta: Real, *, points: int = POINTS) -> Tilt:
    """The KL-RL policy of a transformation.

    Parameters
    ----------
    transform : function of arrays in [0, 1].
    beta : in (0, inf].
    points : cells of the quadrature; the density must not be much narrower than one.

    Raises
    ------
    ValueError: beta <= 0.
    """
    u = midpoints(whole(points, "points", 2))
    return _tilt(u, np.asarray(transform(u), dtype=np.float64), positive(beta, "beta"))


def _tilt(u: np.ndarray, phi: np.ndarray, beta: Real) -> Tilt:
    log_f = (phi - phi.max()) / beta
    log_f -= logsumexp(log_f) - np.log(len(u))
    f = np.exp(log_f)
    return Tilt(u, phi, beta, f, _cdf(f / len(u)), float(xlogy(f, f).mean()))


def _cdf(mass: np.ndarray) -> np.ndarray:
    """At the midpoints, of the mass of each cell."""
    return np.clip(np.cumsum(mass, -1) - mass / 2, 0, 1)


def beta_for_kl(transform: Callable[[np.ndarray], np.ndarray], kl: Real, *, points: int = POINTS) -> float:
    """The beta at which the KL-RL policy of a transformation has this KL to the base policy; inf for kl = 0.

    Raises
    ------
    ValueError: kl is negative, or not reached by any beta (log(points) is the most, 0 for a constant transformation).
    """
    u = midpoints(whole(points, "points", 2))
    phi = np.asarray(transform(u), dtype=np.float64)
    return float(np.exp(beta_search(lambda log_beta: _tilt(u, phi, np.exp(log_beta)).kl, kl)))


def fit_optimal(
    procedure: Procedure, beta: Real, tol: Real = 1e-10, *, points: int = POINTS, max_iterations: int = 4000
) -> Tilt:
    """The optimum of W^T - beta KL over all policies of the calibrated reward: phi = dW^T/df at its own F (Theorem 1).

    Parameters
    ----------
    procedure : ``BestOf(N)``, ``WorstOf(N)``, ``Standard()`` or one of your own.
    beta : in (0, inf].
    tol : largest change of phi (up to a constant) at which the iteration stops.

    Raises
    ------
    ConvergenceError: tol was not reached (best-of-N beyond N = 100 or so at moderate beta). ValueError: beta <= 0.
    """
    beta = positive(beta, "beta")
    u = midpoints(whole(points, "points", 2))
    cells = np.full(len(u), 1 / len(u))

    def derivative(mass: np.ndarray) -> np.ndarray:
        return procedure.derivative(_cdf(mass))

    def tilt(start: np.ndarray, beta: float, iterations: int) -> np.ndarray:
        return _fixed_point(cells, derivative, beta, start, tol, iterations)

    if beta == np.inf:
        return _tilt(u, derivative(cells), beta)
    start = np.zeros(len(u))
    try:
        s = tilt(start, beta, min(max_iterations, 500))
    except ConvergenceError:  # far from the base policy: come from large beta by halves
        s, last = start, 8 * float(np.ptp(derivative(cells)))
        for b in np.geomspace(last, beta, max(2, int(np.ceil(np.log2(last / beta))) + 1)):
            s, last = tilt(s * (last / b), b, max_iterations), b
    return _tilt(u, derivative(softmax(s)), beta)


def optimal(procedure: Procedure, beta: Real) -> Transform:
    """The optimal transformation for a procedure at one beta, normalised: train with beta / its ``scale`` for that optimum."""
    best = fit_optimal(procedure, beta)
    u = np.concatenate([[0], best.u, [1]])
    ends = best.phi[[0, -1]] + (best.phi[[0, -1]] - best.phi[[1, -2]]) / 2  # half a cell on
    return from_grid(u, np.concatenate([ends[:1], best.phi, ends[1:]]), name=f"optimal for {procedure}")


def optimum_at_kl(procedure: Procedure, kl: Real, *, points: int = POINTS) -> Tilt:
    """The policy of highest W^T among those of this KL to the base policy.

    Raises
    ------
    ValueError: kl is negative, or beyond that of the optimum for beta = e^-8.
    """

    points = whole(points, "points", 2)

    def at(log_beta: float) -> Tilt:
        return fit_optimal(procedure, np.exp(log_beta), points=points)

    log_beta = beta_search(lambda x: at(x).kl, kl, low=-1.0, high=1.0, lowest=-8.0)
    return at(log_beta) if np.isfinite(log_beta) else _tilt(midpoints(points), np.zeros(points), np.inf)


def tradeoff(
    transform: Callable[[np.ndarray], np.ndarray] | None,
    procedure: Procedure,
    kls: Iterable[float],
    *,
    points: int = POINTS,
) -> dict[str, np.ndarray]:
    """Win rates at given KLs.

    Parameters
    ----------
    transform : a transformation; None takes the optimum for the procedure at each KL.
    procedure : how the policy and the base policy are served.
    kls : in nats.

    Returns
    -------
    dict of arrays as long as kls: ``kl``, ``beta``, ``win_rate`` and ``standard_win_rate``.
    """
    kls = np.asarray(list(kls), dtype=np.float64)
    if transform is None:
        tilts = [optimum_at_kl(procedure, kl, points=points) for kl in kls]
    else:
        betas = [beta_for_kl(transform, kl, points=points) for kl in kls]
        tilts = [tilted(transform, beta, points=points) for beta in betas]
    return {
        "kl": kls,
        "beta": np.array([tilt.beta for tilt in tilts]),
        "win_rate": np.array([tilt.win_rate(procedure) for tilt in tilts]),
        "standard_win_rate": np.array([(tilt.u * tilt.f).mean() for tilt in tilts]),
    }
