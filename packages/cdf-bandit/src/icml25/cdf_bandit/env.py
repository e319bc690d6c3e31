"""An environment whose outcomes follow Eq. 1, and regret in it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from icml25.cdf_bandit.bandit import EpochBandit
from icml25.cdf_bandit.basis import check_basis, check_domain, chunks, invert_mixture, mixture_cdf
from icml25.cdf_bandit.checks import check_actions, check_contexts, check_integer, check_numbers
from icml25.cdf_bandit.measure import Measure, interval
from icml25.cdf_bandit.utility import evaluate_utility


class MixtureEnvironment:
    """Outcomes with CDF integral of theta(w) phi(x,a,w,s) d nu(w), nu read at its nodes.

    Parameters
    ----------
    basis : phi.
    theta : function of the nodes, or (G,) values at the nodes; not negative, of mass 1 (scaled to it).
    context_sampler : (n, generator) -> (n, d) contexts.
    n_actions : A.
    seed : integer, generator or None.
    measure : nu, default ``interval(0, 1, 64)``.
    n_s : Gauss-Legendre nodes for the utilities, default 128.

    Raises
    ------
    TypeError, ValueError: theta is negative, without mass or of a wrong shape; or the basis is not a CDF.
    """

    def __init__(
        self,
        basis: Any,
        theta: Callable[..., Any] | ArrayLike,
        context_sampler: Callable[..., Any],
        n_actions: int,
        seed: int | np.random.Generator | None = None,
        *,
        measure: Measure | None = None,
        n_s: int = 128,
    ) -> None:
        self.basis, self.context_sampler = basis, context_sampler
        self.n_actions = check_integer(n_actions, "n_actions", 1)
        self.measure = measure or interval(0, 1, 64)
        values = check_numbers(theta(self.measure.points) if callable(theta) else theta, "theta", ndim=1)
        if values.shape != self.measure.weights.shape:
            raise ValueError(
                f"theta has shape {values.shape}, expected {self.measure.weights.shape}, one per node of nu"
            )
        mass = values * self.measure.weights
        if (mass < 0).any() or mass.sum() <= 0:
            raise ValueError("theta must be non-negative and of positive mass")
        self.mass = mass / mass.sum()
        self.rng = np.random.default_rng(seed)
        self.outcomes = interval(*check_domain(basis.domain), check_integer(n_s, "n_s", 1))
        rows = max(8, self.n_actions)
        probe = self.context(rows, np.random.default_rng(0))
        check_basis(basis, probe, np.arange(rows) % self.n_actions, self.measure.points, rows)

    def context(self, n: int, rng: np.random.Generator | None = None) -> Float[np.ndarray, "n d"]:
        """Draw contexts.

        Parameters
        ----------
        n : number of rows.
        rng : generator, default the environment's own.

        Returns
        -------
        (n, d)

        Raises
        ------
        ValueError: context_sampler returned another shape.
        """
        x = check_contexts(self.context_sampler(check_integer(n, "n", 1), rng or self.rng))
        if len(x) != n:
            raise ValueError(f"context_sampler returned {len(x)} row(s), expected {n}")
        return x

    def reward(self, X: ArrayLike, a: ArrayLike, rng: np.random.Generator | None = None) -> Float[np.ndarray, " n"]:
        """Draw outcomes.

        Parameters
        ----------
        X, a : contexts (n, d) and actions (n,).
        rng : generator, default the environment's own.

        Returns
        -------
        (n,)

        Raises
        ------
        TypeError, ValueError: bad contexts or actions.
        """
        x, rng = check_contexts(X), rng or self.rng
        actions = check_actions(a, len(x), self.n_actions)
        if sample := getattr(self.basis, "sample", None):
            return sample(x, actions, rng.choice(self.measure.points, size=len(x), p=self.mass), rng)
        return invert_mixture(self.basis, x, actions, self.measure.points, self.mass, rng.random((len(x), 1)))[:, 0]

    def value(self, X: ArrayLike, utility: Callable[..., Any]) -> Float[np.ndarray, "n A"]:
        """True utility of each action, by quadrature.

        Parameters
        ----------
        X : (n, d) contexts.
        utility : u(F, s, m).

        Returns
        -------
        (n, A)

        Raises
        ------
        TypeError, ValueError: bad contexts, or a utility that returns a wrong shape or NaN.
        """
        x, s = check_contexts(X), self.outcomes
        out = np.empty((len(x), self.n_actions))
        for a in range(self.n_actions):
            for rows in chunks(len(x), 8 * len(s.points), 2**20):
                actions = np.full(len(x[rows]), a)
                F = mixture_cdf(self.basis, x[rows], actions, self.measure.points, self.mass, s.points)
                out[rows, a] = evaluate_utility(utility, np.clip(F, 0.0, 1.0), s.points, s.weights)
        return out

    def regret(self, X: ArrayLike, a: ArrayLike, utility: Callable[..., Any]) -> Float[np.ndarray, " n"]:
        """Utility lost to the best action in each row.

        Parameters
        ----------
        X, a : contexts (n, d) and actions (n,).
        utility : u(F, s, m).

        Returns
        -------
        (n,)

        Raises
        ------
        TypeError, ValueError: as for value.
        """
        values = self.value(X, utility)
        actions: Int[np.ndarray, " n"] = check_actions(a, len(values), self.n_actions)
        return values.max(1) - values[np.arange(len(values)), actions]


class Regret(NamedTuple):
    """Cumulative utility regret.

    Parameters
    ----------
    rounds : (C,) numbers of rounds at the checkpoints, the ends of the epochs.
    regret : (n_runs, C).
    """

    rounds: Int[np.ndarray, " C"]
    regret: Float[np.ndarray, "R C"]


def simulate(
    bandit: EpochBandit,
    env: MixtureEnvironment,
    horizon: int,
    n_runs: int = 1,
    seed: int | np.random.Generator | None = None,
    utility: Callable[..., Any] | None = None,
) -> Regret:
    """Run copies of a bandit that has seen nothing.

    Parameters
    ----------
    bandit : its settings are taken.
    env : the environment.
    horizon : rounds T; the last epoch is cut there.
    n_runs : independent runs.
    seed : of all randomness.
    utility : what regret is measured in, default the bandit's.

    Returns
    -------
    Regret

    Raises
    ------
    TypeError, ValueError: bad numbers, or no utility given and the bandit has none.
    """
    check_integer(horizon, "horizon", 1)
    utility = utility or getattr(bandit, "utility", None)
    if utility is None:
        raise ValueError("utility is needed: this bandit has none of its own")
    curves = []
    rounds: list[int] = []
    for rng in np.random.default_rng(seed).spawn(check_integer(n_runs, "n_runs", 1)):
        policy, total, t = bandit.fresh(rng), 0.0, 0
        rounds, curve = [], []
        while t < horizon:
            X = env.context(min(policy.rounds_left_, horizon - t), rng)
            actions, _ = policy.act_batch(X)
            policy.update_batch(X, actions, env.reward(X, actions, rng))
            total += env.regret(X, actions, utility).sum()
            t += len(X)
            rounds.append(t)
            curve.append(total)
        curves.append(curve)
    return Regret(np.array(rounds), np.array(curves))
