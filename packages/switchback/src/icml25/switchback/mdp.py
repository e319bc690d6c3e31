"""The time-inhomogeneous linear Markov decision process behind the estimators, and the paper's simulations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Int8
from numpy.typing import ArrayLike

from icml25.switchback.designs import Number, Seed, as_integer, as_real
from icml25.switchback.panel import NotIdentifiedError, Panel, as_arms, as_numbers
from icml25.switchback.regression import regress

__all__ = ["LinearMDP", "NonlinearMDP", "paper_mdp"]


class Coefficients(NamedTuple):
    """Fits of R panels: coefficients of reward and transition, their residuals where wanted, and the rank at each time."""

    beta0: Float[np.ndarray, "R T"]
    beta: Float[np.ndarray, "R T p"]
    gamma: Float[np.ndarray, "R T"]
    phi0: Float[np.ndarray, "R steps p"]
    Phi: Float[np.ndarray, "R steps p p"]
    Gamma: Float[np.ndarray, "R steps p"]
    reward_residuals: Float[np.ndarray, "R T n"]
    state_residuals: Float[np.ndarray, "R steps p n"]
    rank: Int[np.ndarray, "R T"]


def fit_coefficients(
    states: Float[np.ndarray, "R n T p"],
    actions: Int8[np.ndarray, "R n T"],
    rewards: Float[np.ndarray, "R n T"],
    ridge: float = 0.0,
    residuals: bool = True,
) -> Coefficients:
    """Regress, at every t, the reward and the next state on (1, state, action); residuals=False leaves those empty."""
    R, _n, T, p = states.shape
    fit = regress([states, actions[..., None]], rewards, p, ridge=ridge, residuals=residuals)
    left = np.empty((R, T, 1 + p, 0)) if fit.residuals is None else fit.residuals
    to_reward, to_state = fit.coef[:, :, 0], fit.coef[:, :-1, 1:]
    return Coefficients(
        fit.intercept[:, :, 0],
        to_reward[..., :p],
        to_reward[..., p],
        fit.intercept[:, :-1, 1:],
        to_state[..., :p],
        to_state[..., p],
        left[:, :, 0],
        left[:, :-1, 1:],
        fit.rank,
    )


def state_effects(
    Phi: Float[np.ndarray, "*batch steps p p"], Gamma: Float[np.ndarray, "*batch steps p"]
) -> Float[np.ndarray, "*batch T p"]:
    """Eq. (1): d_1 = 0, d_{t+1} = Phi_t d_t + Gamma_t, what always treating does to the state at t."""
    *batch, steps, p = Gamma.shape
    d = np.zeros((*batch, steps + 1, p))
    for t in range(steps):
        d[..., t + 1, :] = (Phi[..., t, :, :] @ d[..., t, :, None])[..., 0] + Gamma[..., t, :]
    return d


def effects(
    beta: Float[np.ndarray, "*batch T p"],
    gamma: Float[np.ndarray, "*batch T"],
    Phi: Float[np.ndarray, "*batch steps p p"],
    Gamma: Float[np.ndarray, "*batch steps p"],
) -> tuple[Float[np.ndarray, "*batch"] | np.floating, Float[np.ndarray, "*batch"] | np.floating]:
    """Direct and indirect effect per time point: means over t of gamma_t, and of beta_t' d_t."""
    return gamma.mean(-1), (beta * state_effects(Phi, Gamma)).sum(-1).mean(-1)


def square_root(covariance: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    """S with S S' = covariance, singular ones included."""
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0))


def as_covariance(values: ArrayLike, name: str, size: int | None = None) -> Float[np.ndarray, "k k"]:
    """A symmetric positive semidefinite matrix, or a ValueError with its smallest eigenvalue."""
    matrix = as_numbers(values, name)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or (size is not None and len(matrix) != size):
        wanted = "square" if size is None else f"({size}, {size})"
        raise ValueError(f"{name} must be {wanted}, got shape {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise ValueError(f"{name} must be finite")
    level = np.abs(matrix).max(initial=0)
    if np.abs(matrix - matrix.T).max(initial=0) > 1e-8 * level:
        raise ValueError(f"{name} must be symmetric, got a difference of {np.abs(matrix - matrix.T).max():.3g}")
    smallest = np.linalg.eigvalsh(matrix).min(initial=0)
    if smallest < -1e-8 * level * len(matrix):
        raise ValueError(f"{name} must be positive semidefinite, its smallest eigenvalue is {smallest:.3g}")
    return (matrix + matrix.T) / 2


@dataclass(frozen=True, eq=False, init=False)
class LinearMDP:
    """Y_t = beta0_t + beta_t' S_t + gamma_t A_t + e_t,  S_{t+1} = phi0_t + Phi_t S_t + Gamma_t A_t + noise.

    Parameters
    ----------
    beta0, gamma : (T,) intercept and direct effect of the reward.
    beta : (T, p) slopes of the reward.
    phi0, Gamma : (T-1, p) intercept and carryover of the transition.
    Phi : (T-1, p, p) transition matrices.
    Sigma_e : (T, T) covariance of a day's reward errors.
    Q : (p, p) covariance of the state noise.
    m1, C1 : (p,) mean and (p, p) covariance of the first state.

    Raises
    ------
    ValueError: a shape does not fit, a value is not finite, or a covariance is not symmetric positive semidefinite.
    """

    beta0: Float[np.ndarray, " T"]
    beta: Float[np.ndarray, "T p"]
    gamma: Float[np.ndarray, " T"]
    phi0: Float[np.ndarray, "steps p"]
    Phi: Float[np.ndarray, "steps p p"]
    Gamma: Float[np.ndarray, "steps p"]
    Sigma_e: Float[np.ndarray, "T T"]
    Q: Float[np.ndarray, "p p"]
    m1: Float[np.ndarray, " p"]
    C1: Float[np.ndarray, "p p"]

    def __init__(
        self,
        beta0: ArrayLike,
        beta: ArrayLike,
        gamma: ArrayLike,
        phi0: ArrayLike,
        Phi: ArrayLike,
        Gamma: ArrayLike,
        Sigma_e: ArrayLike,
        Q: ArrayLike,
        m1: ArrayLike,
        C1: ArrayLike,
    ) -> None:
        slopes = as_numbers(beta, "beta")
        if slopes.ndim != 2 or len(slopes) < 1:
            raise ValueError(f"beta must have shape (T >= 1, p), got {slopes.shape}")
        T, p = slopes.shape
        shaped: dict[str, tuple[ArrayLike, tuple[int, ...]]] = {
            "beta0": (beta0, (T,)),
            "beta": (slopes, (T, p)),
            "gamma": (gamma, (T,)),
            "phi0": (phi0, (T - 1, p)),
            "Phi": (Phi, (T - 1, p, p)),
            "Gamma": (Gamma, (T - 1, p)),
            "m1": (m1, (p,)),
        }
        for name, (values, shape) in shaped.items():
            array = as_numbers(values, name)
            if array.shape != shape:
                raise ValueError(f"{name} must have shape {shape} (T = {T}, p = {p} by beta), got {array.shape}")
            if not np.isfinite(array).all():
                raise ValueError(f"{name} must be finite")
            object.__setattr__(self, name, array)
        for name, values, size in (("Sigma_e", Sigma_e, T), ("Q", Q, p), ("C1", C1, p)):
            object.__setattr__(self, name, as_covariance(values, name, size))

    @property
    def n_times(self) -> int:
        """T."""
        return len(self.gamma)

    @property
    def n_states(self) -> int:
        """p."""
        return self.beta.shape[1]

    def direct_effect(self) -> float:
        """DE = (1/T) sum_t gamma_t."""
        return float(effects(self.beta, self.gamma, self.Phi, self.Gamma)[0])

    def indirect_effect(self) -> float:
        """IE = (1/T) sum_t beta_t' d_t with the state effects d of Eq. (1)."""
        return float(effects(self.beta, self.gamma, self.Phi, self.Gamma)[1])

    def ate(self) -> float:
        """ATE = DE + IE: always treated minus never treated, per time point (a day has T times as much)."""
        return self.direct_effect() + self.indirect_effect()

    def mean_reward(
        self, states: Float[np.ndarray, "*batch T p"], actions: Int8[np.ndarray, "*batch T"]
    ) -> Float[np.ndarray, "*batch T"]:
        """Expected reward at these states under these actions."""
        return self.beta0 + (self.beta * states).sum(-1) + self.gamma * actions

    def propagate(
        self,
        first: Float[np.ndarray, "*batch p"],
        actions: Int8[np.ndarray, "*batch T"],
        noise: Float[np.ndarray, "*batch steps p"],
    ) -> Float[np.ndarray, "*batch T p"]:
        """States from the first one on, given the state noise."""
        states = np.empty((*actions.shape, self.n_states))
        states[..., 0, :] = first
        drift = self.phi0 + self.Gamma * actions[..., :-1, None] + noise
        for t in range(self.n_times - 1):
            states[..., t + 1, :] = states[..., t, :] @ self.Phi[t].T + drift[..., t, :]
        return states

    def simulate(
        self, actions: ArrayLike, seed: Seed = None, n_rep: Number | None = None
    ) -> Panel | tuple[Float[np.ndarray, "R n T p"], Int8[np.ndarray, "R n T"], Float[np.ndarray, "R n T"]]:
        """Draw an experiment, or several.

        Parameters
        ----------
        actions : (n, T) table of arms; with n_rep also (n_rep, n, T), one for each replicate.
        seed : of the noise.
        n_rep : R, number of replicates; None draws one.

        Returns
        -------
        Panel with n_rep=None, else states (R, n, T, p), actions (R, n, T) and rewards (R, n, T).
        """
        table = as_arms(actions, "actions")
        R = 1 if n_rep is None else as_integer(n_rep, "n_rep", 1)
        allowed = (2,) if n_rep is None else (2, 3)
        if table.ndim not in allowed or table.shape[-1] != self.n_times or (table.ndim == 3 and len(table) != R):
            wanted = f"(n, {self.n_times})" + (f" or ({R}, n, {self.n_times})" if n_rep is not None else "")
            raise ValueError(f"actions must have shape {wanted}, got {table.shape}")
        table = np.array(np.broadcast_to(table, (R, *table.shape[-2:])))
        rng = np.random.default_rng(seed)
        n, T, p = table.shape[1], self.n_times, self.n_states
        first = self.m1 + rng.normal(size=(R, n, p)) @ square_root(self.C1).T
        states = self.propagate(first, table, rng.normal(size=(R, n, T - 1, p)) @ square_root(self.Q).T)
        rewards = self.mean_reward(states, table) + rng.normal(size=(R, n, T)) @ square_root(self.Sigma_e).T
        return Panel(states[0], table[0], rewards[0]) if n_rep is None else (states, table, rewards)

    @classmethod
    def fit(cls, panel: Panel) -> LinearMDP:
        """Least squares at each time; covariances from residuals with n - p - 2 degrees of freedom, Q pooled over t.

        Parameters
        ----------
        panel : both arms at each time, n > p + 2 days.

        Raises
        ------
        NotIdentifiedError, ValueError: as ``OLS().fit``, or n <= p + 2, which leaves no residuals.
        """
        n, p = panel.n_days, panel.n_states
        check_arms(panel)
        if n <= p + 2:
            raise ValueError(
                f"n = {n} days leave no residuals with p = {p} states; more than p + 2 = {p + 2} are needed"
            )
        fit = fit_coefficients(panel.states[None], panel.actions[None], panel.rewards[None])
        check_rank(panel, fit.rank[0], ridge_of="OLS")
        free = n - p - 2
        e, eps = fit.reward_residuals[0], fit.state_residuals[0]
        Q = np.einsum("tjn,tkn->jk", eps, eps) / (free * max(len(eps), 1))
        first = panel.states[:, 0]
        coefficients = (fit.beta0[0], fit.beta[0], fit.gamma[0], fit.phi0[0], fit.Phi[0], fit.Gamma[0])
        C1 = np.cov(first.T, ddof=1).reshape(p, p) if p else np.zeros((0, 0))
        return cls(*coefficients, e @ e.T / free, Q, first.mean(0), C1)


def check_arms(panel: Panel) -> None:
    """Refuse a panel in which some time point has one arm only."""
    share = panel.actions.mean(0)
    for arm, missing in ((1, share == 0), (0, share == 1)):
        if missing.any():
            t = int(np.argmax(missing))
            raise NotIdentifiedError(
                f"actions: arm {arm} never occurs at time {panel.times[t]} (t = {t}), "
                f"and at {int(missing.sum())} of {panel.n_times} times; both arms are needed at each"
            )


def check_rank(panel: Panel, rank: Int[np.ndarray, " T"], ridge_of: str) -> None:
    """Refuse states that are collinear with each other, the constant or the arm."""
    wanted = panel.n_states + 1
    if (rank < wanted).any():
        t = int(np.argmax(rank < wanted))
        spread = np.ptp(panel.states[:, t], axis=0)
        level = 1e-12 * np.abs(panel.states[:, t]).max(axis=0)
        constant = "".join(f"; state {j} is constant there" for j in np.flatnonzero(spread <= level)[:1])
        raise ValueError(
            f"states are collinear at time {panel.times[t]} (t = {t}): (1, states, action) has rank {rank[t] + 1} of "
            f"{wanted + 1}{constant}; drop a column or use {ridge_of}(ridge=...) > 0"
        )


class NonlinearMDP(LinearMDP):
    """The paper's nonlinear rewards on the same linear transition.

    The mean reward at state s and arm a is, elementwise in s,
    beta0 + beta'[2 (sin(s a) + cos s)^2 + 3 s gamma a] + (a gamma + cos(a gamma))^2.
    Effects are Monte Carlo means over noisy paths with common noise in both arms.
    """

    def mean_reward(
        self, states: Float[np.ndarray, "*batch T p"], actions: Int8[np.ndarray, "*batch T"]
    ) -> Float[np.ndarray, "*batch T"]:
        a = actions.astype(np.float64)
        push = a * self.gamma
        curve = 2 * (np.sin(states * a[..., None]) + np.cos(states)) ** 2 + 3 * states * push[..., None]
        return self.beta0 + (self.beta * curve).sum(-1) + (push + np.cos(push)) ** 2

    def monte_carlo_ate(self, n_paths: Number = 20_000, seed: Seed = 0) -> tuple[float, float]:
        """ATE and its Monte Carlo standard error.

        Parameters
        ----------
        n_paths : noisy days, each run under both arms.
        seed : of the noise.
        """
        control, treated = self._paths(n_paths, seed)
        ones = np.ones(control.shape[:-1], dtype=np.int8)
        gap = (self.mean_reward(treated, ones) - self.mean_reward(control, 0 * ones)).mean(-1)
        return float(gap.mean()), float(gap.std(ddof=1) / np.sqrt(len(gap)))

    def ate(self) -> float:
        return self.monte_carlo_ate()[0]

    def direct_effect(self) -> float:
        """Mean effect of the arm on the reward itself, at the states of the control policy."""
        control, _ = self._paths(20_000, 0)
        ones = np.ones(control.shape[:-1], dtype=np.int8)
        return float((self.mean_reward(control, ones) - self.mean_reward(control, 0 * ones)).mean())

    def indirect_effect(self) -> float:
        """What is left of the ATE."""
        return self.ate() - self.direct_effect()

    def _paths(self, n_paths: Number, seed: Seed) -> tuple[np.ndarray, np.ndarray]:
        n, rng = as_integer(n_paths, "n_paths", 2), np.random.default_rng(seed)
        first = self.m1 + rng.normal(size=(n, self.n_states)) @ square_root(self.C1).T
        noise = rng.normal(size=(n, self.n_times - 1, self.n_states)) @ square_root(self.Q).T
        arms = np.zeros((n, self.n_times), dtype=np.int8)
        return self.propagate(first, arms, noise), self.propagate(first, arms + np.int8(1), noise)


def paper_mdp(
    T: Number = 48,
    p: Number = 3,
    delta: Number = 0.0,
    rho: Number = 0.5,
    errors: str = "ar",
    kind: str = "linear",
    seed: Seed = 2023,
) -> LinearMDP:
    """A draw of the paper's simulated world.

    Parameters
    ----------
    T, p : time points a day and states.
    delta : size of the carryover, mean of the entries of Gamma (0, 0.8, 1.6, 2.4 in the paper).
    rho : autocorrelation of the reward errors (0.3, 0.5, 0.7, 0.9; negative with errors="ar" only).
    errors : correlation C of the errors: "ar" rho^|t-s|; "ma" rho (T - |t-s|) / T; "exchangeable" rho off the diagonal;
        "none" rho on the diagonal. The covariance is 1.5 C + 1.
    kind : "linear", or "nonlinear" rewards.
    seed : of the coefficients.

    Returns
    -------
    LinearMDP, or NonlinearMDP.
    """
    T, p = as_integer(T, "T", 1), as_integer(p, "p", 0)
    delta, rho = as_real(delta, "delta"), as_real(rho, "rho")
    if not -1 < rho <= 1 or (rho < 0 and errors != "ar"):
        raise ValueError(f"rho must be in [0, 1], or in (-1, 1] with errors='ar'; got {rho} with errors={errors!r}")
    lag = np.abs(np.subtract.outer(np.arange(T), np.arange(T)))
    correlations = {
        "ar": lambda: rho**lag,
        "ma": lambda: (T - lag) / T * rho,
        "exchangeable": lambda: np.where(lag == 0, 1.0, rho),
        "none": lambda: rho * np.eye(T),
    }
    if errors not in correlations:
        raise ValueError(f"errors must be one of {', '.join(correlations)}, got {errors!r}")
    if kind not in ("linear", "nonlinear"):
        raise ValueError(f"kind must be 'linear' or 'nonlinear', got {kind!r}")
    rng = np.random.default_rng(seed)

    def signed(low: float, high: float, *shape: int) -> np.ndarray:
        return rng.uniform(low, high, size=shape) * rng.choice([-1.0, 1.0], size=shape)

    reach = 0.3 if kind == "linear" else 0.6
    return (LinearMDP if kind == "linear" else NonlinearMDP)(
        beta0=signed(0.5, 1.0, T),
        beta=signed(0.1, 0.3, T, p),
        gamma=rng.uniform(0.5, 0.8, size=T),
        phi0=signed(0.5, 1.0, T - 1, p),
        Phi=rng.uniform(-reach, reach, size=(T - 1, p, p)),
        Gamma=rng.normal(delta, 0.3, size=(T - 1, p)),
        Sigma_e=1.5 * correlations[errors]() + np.eye(T),
        Q=1.5 * np.eye(p),
        m1=np.zeros(p),
        C1=np.eye(p),
    )
