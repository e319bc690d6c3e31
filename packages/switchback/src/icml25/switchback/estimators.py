"""The average treatment effect by least squares, by temporal differences, and doubly robust."""

from __future__ import annotations

import inspect
import warnings
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float
from numpy.polynomial import legendre
from numpy.typing import ArrayLike

from icml25.switchback.designs import Design, Number, Seed, as_design, as_integer, as_real
from icml25.switchback.mdp import check_arms, check_rank, effects, fit_coefficients
from icml25.switchback.panel import Panel, as_arms, as_numbers, clusters
from icml25.switchback.regression import regress

__all__ = ["DRL", "LSTD", "OLS", "OverlapWarning", "UnstableLSTDWarning"]

DAYS_PER_COLUMN = 5  # below, resamples of pairs are too often nearly collinear for the bootstrap
CHUNK = 2**22  # numbers (32 MB) that a chunk of replicates may take: small chunks stay in the caches
MAX_ROWS = 64


Estimator = TypeVar("Estimator", bound="_Estimator")


class UnstableLSTDWarning(UserWarning):
    """Pooled LSTD iterates a matrix whose spectral radius is above one: the value explodes with the horizon."""


class OverlapWarning(UserWarning):
    """Some density ratio is so large that a single observation decides the estimate."""


class _Estimator:
    """What the estimators share: parameters, fitting, replicates in batches, resampling."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name, those of a nested estimator as ``value__name``."""
        params = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        if deep:
            for name, value in list(params.items()):
                if isinstance(value, _Estimator):
                    params |= {f"{name}__{key}": item for key, item in value.get_params().items()}
        return params

    def set_params(self: Estimator, **params: Any) -> Estimator:
        """Set parameters by name.

        Raises
        ------
        ValueError: there is no parameter of that name.
        """
        for key, value in params.items():
            name, _, nested = key.partition("__")
            if name not in inspect.signature(type(self)).parameters:
                raise ValueError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {list(self.get_params(False))}"
                )
            if nested:
                if not isinstance(inner := getattr(self, name), _Estimator):
                    raise ValueError(f"{name} is {inner!r}, so {key!r} cannot be set; set {name} first")
                inner.set_params(**{nested: value})
            else:
                setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = {k: v for k, v in self.get_params(deep=False).items() if v is not defaults[k].default}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in changed.items())})"

    def fit(self: Estimator, panel: Panel) -> Estimator:
        """Estimate from one experiment.

        Parameters
        ----------
        panel : both arms at each time point.

        Returns
        -------
        self, with ``ate_`` per time point and the estimator's other results.

        Raises
        ------
        NotIdentifiedError: some time point has one arm only.
        ValueError: too few days, collinear states, or a parameter out of range.
        TypeError: panel is not a Panel.
        """
        if not isinstance(panel, Panel):
            raise TypeError(f"panel must be a Panel, got {type(panel).__name__}; see Panel and Panel.from_frame")
        self._validate()
        check_arms(panel)
        out = self._check(panel, self._core(panel.states[None], panel.actions[None], panel.rewards[None]))
        if not np.isfinite(out["ate"][0]):
            raise ValueError(f"the estimate of {self} is {out['ate'][0]}: its values or density ratios overflow")
        self.ate_ = float(out["ate"][0])
        self.panel_ = panel
        self._keep(out)
        return self

    def estimate(self, states: ArrayLike, actions: ArrayLike, rewards: ArrayLike) -> Float[np.ndarray, " R"]:
        """ATE of each of R replicates at once, in chunks of a few dozen megabytes.

        Parameters
        ----------
        states : (R, n, T, p).
        actions : (R, n, T) of 0 and 1.
        rewards : (R, n, T).

        Returns
        -------
        (R,), NaN where a replicate does not identify the effect.
        """
        S, Y = as_numbers(states, "states", copy=False), as_numbers(rewards, "rewards", copy=False)
        A = as_arms(actions, "actions")
        if S.ndim != 4 or A.shape != S.shape[:3] or Y.shape != S.shape[:3]:
            raise ValueError(
                f"states (R, n, T, p), actions and rewards (R, n, T) do not fit: {S.shape}, {A.shape}, {Y.shape}"
            )
        if min(S.shape[1:3]) < 1:
            raise ValueError(f"states (R, n, T, p) must have n >= 1 days and T >= 1 times, got shape {S.shape}")
        if not (np.isfinite(S).all() and np.isfinite(Y).all()):
            raise ValueError("states and rewards must be finite")
        self._validate()
        return self._estimate(S, A, Y)[0]

    def std_error(self, method: str | None = None, n_boot: Number = 200, seed: Seed = None) -> float:
        """Standard error of ``ate_``, from pairs of complementary days (single days where there are none).

        Parameters
        ----------
        method : "bootstrap" resamples pairs, "jackknife" leaves one out at a time. None is the jackknife below five days for
            each regressor (OLS: n < 5 (p + 2); LSTD and DRL: n < 10 (1 + features of the states)), where resamples of pairs
            are nearly collinear and the bootstrap's error too large (it warns), and the bootstrap from there on.
        n_boot : resamples of the bootstrap, at least 2.
        seed : of the bootstrap.

        Raises
        ------
        ValueError: method is unknown, there are fewer than two pairs, or most resamples do not identify the effect.
        """
        return float(resampled_errors(self, self._panel(), method, n_boot, seed)[0])

    def conf_int(
        self, level: Number = 0.95, method: str | None = None, n_boot: Number = 200, seed: Seed = None
    ) -> tuple[float, float]:
        """Normal confidence interval of the ATE.

        Parameters
        ----------
        level : coverage, in (0, 1).
        method, n_boot, seed : as in ``std_error``.
        """
        if not 0 < as_real(level, "level") < 1:
            raise ValueError(f"level must be in (0, 1), got {level!r}")
        half = NormalDist().inv_cdf((1 + float(level)) / 2) * self.std_error(method, n_boot, seed)
        return self.ate_ - half, self.ate_ + half

    def _panel(self) -> Panel:
        if not hasattr(self, "panel_"):
            raise ValueError(f"this {type(self).__name__} is not fitted yet; call fit(panel) first")
        return self.panel_

    def _estimate(self, S: np.ndarray, A: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ATE and indirect effect of each replicate, NaN where it is not identified."""
        R, n, T, p = S.shape
        chunk = max(1, CHUNK // (n * T * (2 * p + 2) * self._copies(A)))
        ate, indirect = np.empty(R), np.full(R, np.nan)
        for start in range(0, R, chunk):
            part = slice(start, start + chunk)
            out = self._core(S[part], A[part], Y[part])
            share = A[part].mean(1)
            both = ((share > 0) & (share < 1)).all(1)
            identified = both & self._identified(out, n, p)
            ate[part] = np.where(identified, out["ate"], np.nan)
            if "indirect" in out:
                indirect[part] = np.where(identified, out["indirect"], np.nan)
        return ate, indirect

    def _validate(self) -> None:
        raise NotImplementedError

    def _core(self, S: np.ndarray, A: np.ndarray, Y: np.ndarray) -> dict[str, Any]:
        raise NotImplementedError

    def _check(self, panel: Panel, out: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def _identified(self, out: dict[str, Any], n: int, p: int) -> np.ndarray:
        raise NotImplementedError

    def _keep(self, out: dict[str, Any]) -> None:
        raise NotImplementedError

    def _columns(self, p: int, T: int) -> Number:
        """Coefficients that the days of one time point determine, in both arms."""
        raise NotImplementedError

    def _copies(self, A: np.ndarray) -> int:
        """Arrays of the size of the data that a replicate takes."""
        return 4


def resampled_errors(
    estimator: _Estimator, panel: Panel, method: str | None, n_boot: Number, seed: Seed
) -> tuple[float, float]:
    """Standard errors of the ATE and of the indirect effect over pairs of complementary days."""
    groups = clusters(panel.actions)
    G = len(groups)
    if G < 2:
        raise ValueError(f"standard errors need at least 2 pairs of days, got {G}")
    columns = estimator._columns(panel.n_states, panel.n_times)
    few = panel.n_days < DAYS_PER_COLUMN * columns
    if method is None:
        method = "jackknife" if few else "bootstrap"
    elif method == "bootstrap" and few:
        warnings.warn(
            f"{panel.n_days} days are fewer than {DAYS_PER_COLUMN} for each of {columns:g} regressors: resamples are nearly "
            "collinear and the bootstrap's error is too large; use method='jackknife'",
            stacklevel=4,
        )
    if method == "bootstrap":
        B = as_integer(n_boot, "n_boot", 2)
        picks = np.random.default_rng(seed).integers(G, size=(B, G))
    elif method == "jackknife":
        picks = np.array([[g for g in range(G) if g != left] for left in range(G)])
    else:
        raise ValueError(f"method must be 'bootstrap' or 'jackknife', got {method!r}")
    by_size: dict[int, list[np.ndarray]] = {}  # a chunk of replicates has one number of days
    for pick in picks:
        days = np.concatenate([groups[g] for g in pick])
        by_size.setdefault(len(days), []).append(days)
    found = []
    for size, samples in by_size.items():
        step = max(1, CHUNK // (size * panel.n_times * (panel.n_states + 2)))
        for start in range(0, len(samples), step):
            days = np.array(samples[start : start + step])
            found.append(estimator._estimate(panel.states[days], panel.actions[days], panel.rewards[days]))
    draws = np.concatenate([np.stack(pair, axis=1) for pair in found])
    kept = draws[np.isfinite(draws[:, 0])]
    if len(kept) < len(draws):
        what = f"{len(draws) - len(kept)} of {len(draws)} {method} samples do not identify the effect (too few different days)"
        if len(kept) < max(2, len(draws) / 2) or method == "jackknife":
            raise ValueError(f"{what}; use more days, fewer states or ridge > 0")
        warnings.warn(f"{what} and are left out", stacklevel=4)
    if method == "bootstrap":
        error = kept.std(axis=0, ddof=1)
    else:
        error = np.sqrt((G - 1) / G * ((kept - kept.mean(0)) ** 2).sum(0))
    return float(error[0]), float(error[1])


class OLS(_Estimator):
    """Least squares at each time point, and the state-effect recursion (1).

    Y_t on (1, S_t, A_t) gives beta_t, gamma_t; S_{t+1} on the same gives Phi_t, Gamma_t. Then ATE = DE + IE with
    DE = mean_t gamma_t, IE = mean_t beta_t' d_t, d_1 = 0, d_{t+1} = Phi_t d_t + Gamma_t.

    Parameters
    ----------
    ridge : weight of the squared coefficients, the intercepts apart; default 0, which needs n >= p + 2 days.

    Attributes
    ----------
    ate_, direct_effect_, indirect_effect_ : per time point.
    coefficients_ : dict of beta0, beta, gamma, phi0, Phi, Gamma.
    """

    def __init__(self, ridge: Number = 0.0) -> None:
        self.ridge = ridge

    def _validate(self) -> None:
        _non_negative(self.ridge, "ridge")

    def _core(self, S: np.ndarray, A: np.ndarray, Y: np.ndarray) -> dict[str, Any]:
        fit = fit_coefficients(S, A, Y, ridge=float(self.ridge), residuals=False)
        direct, indirect = effects(fit.beta, fit.gamma, fit.Phi, fit.Gamma)
        return {"ate": direct + indirect, "direct": direct, "indirect": indirect, "fit": fit}

    def _check(self, panel: Panel, out: dict[str, Any]) -> dict[str, Any]:
        n, p = panel.n_days, panel.n_states
        if self.ridge == 0 and n < p + 2:
            raise ValueError(
                f"n = {n} days are too few for p = {p} states: OLS needs n >= p + 2 = {p + 2} at each time "
                f"(first at t = 0, time {panel.times[0]}), or ridge > 0"
            )
        check_rank(panel, out["fit"].rank[0], ridge_of="OLS")
        return out

    def _identified(self, out: dict[str, Any], n: int, p: int) -> np.ndarray:
        return (out["fit"].rank == p + 1).all(1) & (n >= p + 2 or self.ridge > 0)

    def _columns(self, p: int, T: int) -> Number:
        return p + 2

    def _keep(self, out: dict[str, Any]) -> None:
        self.direct_effect_, self.indirect_effect_ = float(out["direct"][0]), float(out["indirect"][0])
        names = ("beta0", "beta", "gamma", "phi0", "Phi", "Gamma")
        self.coefficients_ = {name: getattr(out["fit"], name)[0] for name in names}


class _Basis:
    """Features of a state at each time, without the constant: scaled by the days that it is made from.

    Degree 1 by time standardises; Legendre polynomials take the range of each state at each time to [0, 1].
    """

    def __init__(self, S: np.ndarray, degree: int, time_degree: int, minmax: bool) -> None:
        self.degree, self.time_degree, self.minmax = degree, time_degree, minmax
        if minmax:
            self.low = S.min(axis=1, keepdims=True)
            width = S.max(axis=1, keepdims=True) - self.low
        else:
            self.low = S.mean(axis=1, keepdims=True)
            width = S.std(axis=1, keepdims=True)
        self.width = np.where(width > 0, width, np.inf)  # a constant column is scaled to 0

    def __call__(self, S: np.ndarray) -> np.ndarray:
        R, n, T, p = S.shape
        x = (S - self.low) / self.width
        if self.minmax:
            x = x.clip(0, 1)
        parts = [_legendre(x, self.degree).reshape(R, n, T, p * self.degree)]
        if self.time_degree:
            t = np.arange(1, T + 1) / T
            parts.append(np.broadcast_to(_legendre(t, self.time_degree), (R, n, T, self.time_degree)))
        return np.concatenate(parts, axis=-1)


def _legendre(x: np.ndarray, degree: int) -> np.ndarray:
    """P_1 .. P_degree on a last axis."""
    return legendre.legvander(x, degree)[..., 1:]


class LSTD(_Estimator):
    """Least-squares temporal differences: the value of always treating and of never treating.

    V^a_t(s) = phi_t(s)' theta^a_t from the rows of arm a. pooling="none": theta_t regresses Y_t + V_{t+1}(S_{t+1}) on
    phi_t(S_t), backwards in t. pooling="time": one regression over all times (the paper's code), theta = sum_{j<T} M^j b
    with M = S0^-1 S1, b = S0^-1 r, of rewards less their mean over all days at each time (which both arms' values get back:
    without it a constant added to the rewards would change the estimate). ATE = (mean V^1_1 - mean V^0_1) / T.

    Parameters
    ----------
    degree : of the polynomials in each state; 0 leaves the constant alone. Default 1.
    time_degree : of the Legendre polynomials in t/T, with pooling="time" only (the paper's code: degree 5, time_degree 3).
    pooling : "none" (default; consistent when coefficients change over time) or "time".
    ridge : weight of the squared coefficients; None is 0 without pooling and 1e-6 trace(S0) / q with it.

    Attributes
    ----------
    ate_ : per time point.
    values_ : arm -> (n, T), V^a_t at the states of each day.
    spectral_radius_ : arm -> radius of M, with pooling="time".
    """

    def __init__(
        self, degree: Number = 1, time_degree: Number = 0, pooling: str = "none", ridge: Number | None = None
    ) -> None:
        self.degree = degree
        self.time_degree = time_degree
        self.pooling = pooling
        self.ridge = ridge

    def _validate(self) -> None:
        as_integer(self.degree, "degree", 0)
        as_integer(self.time_degree, "time_degree", 0)
        if self.pooling not in ("none", "time"):
            raise ValueError(f"pooling must be 'none' or 'time', got {self.pooling!r}")
        if self.pooling == "none" and self.time_degree:
            raise ValueError(f"time_degree must be 0 with pooling='none', got {self.time_degree!r}")
        if self.ridge is not None:
            _non_negative(self.ridge, "ridge")

    def _core(self, S: np.ndarray, A: np.ndarray, Y: np.ndarray) -> dict[str, Any]:
        theta, basis, out = self._learn(S, A, Y)
        values = self._value(theta, basis(S))
        ate = (values[1][:, :, 0] - values[0][:, :, 0]).mean(1) / Y.shape[2]
        return {"ate": ate, "values": values, **out}

    def _learn(self, S: np.ndarray, A: np.ndarray, Y: np.ndarray) -> tuple[dict[int, np.ndarray], _Basis, dict]:
        """Coefficients (R, T, q) of each arm, the constant's last."""
        pooled = self.pooling == "time"
        basis = _Basis(S, int(self.degree), int(self.time_degree), minmax=pooled or int(self.degree) > 1)
        F = basis(S)
        learn = self._pooled if pooled else self._by_time
        learned = {a: learn(F, np.equal(A, a), Y) for a in (0, 1)}
        theta, found = ({a: pair[i] for a, pair in learned.items()} for i in (0, 1))
        if pooled:
            _warn_if_unstable(max(float(np.nan_to_num(radius).max()) for radius in found.values()), A)
            return theta, basis, {"radius": found, "full": np.isfinite(found[0] + found[1])}
        full = [(rank == F.shape[-1]).all(1) | bool(self.ridge) for rank in found.values()]
        return theta, basis, {"rank": found, "full": full[0] & full[1]}

    def _value(self, theta: dict[int, np.ndarray], F: np.ndarray) -> dict[int, np.ndarray]:
        return {a: np.einsum("rntk,rtk->rnt", F, th[..., :-1]) + th[:, None, :, -1] for a, th in theta.items()}

    def _by_time(self, F: np.ndarray, chosen: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        R, _n, T, k = F.shape
        fit = regress([F], Y, k, arm=chosen, ridge=float(self.ridge or 0))
        theta = np.zeros((R, T, k + 1))
        after = np.zeros((R, k + 1))  # theta_{T+1} = 0
        for t in reversed(range(T)):
            slope = fit.coef[:, t, 0] + np.einsum("rj,rjk->rk", after[:, :k], fit.coef[:, t, 1:])
            level = fit.intercept[:, t, 0] + (after[:, :k] * fit.intercept[:, t, 1:]).sum(1) + after[:, k]
            after = theta[:, t] = np.concatenate([slope, level[:, None]], axis=1)
        return theta, fit.rank

    def _pooled(self, F: np.ndarray, chosen: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        R, n, T, k = F.shape
        phi = np.concatenate([F, np.ones((R, n, T, 1))], axis=-1)
        level = Y.mean(1)
        mine = phi * chosen[..., None]
        flat = mine.reshape(R, n * T, k + 1).swapaxes(1, 2)
        S0 = flat @ phi.reshape(R, n * T, k + 1)
        S1 = mine[:, :, :-1].reshape(R, -1, k + 1).swapaxes(1, 2) @ phi[:, :, 1:].reshape(R, -1, k + 1)
        r = flat @ (Y - level[:, None]).reshape(R, n * T, 1)
        ridge = 1e-6 * np.trace(S0, axis1=1, axis2=2) / (k + 1) if self.ridge is None else np.full(R, float(self.ridge))
        S0 = S0 + ridge[:, None, None] * np.diag(np.r_[np.ones(k), 0.0])
        unit = np.sqrt(np.maximum(np.einsum("rii->ri", S0), np.finfo(float).tiny))
        S0 = S0 / unit[:, :, None] / unit[:, None]
        singular = np.linalg.eigvalsh(S0)[:, 0] < 1e-13
        S0[singular] = np.eye(k + 1)
        solved = np.linalg.solve(S0, np.concatenate([S1, r], axis=-1) / unit[:, :, None]) / unit[:, :, None]
        M, b = solved[..., :-1], solved[..., -1:]
        theta = np.zeros((R, T, k + 1))
        v = np.zeros_like(b)
        for t in reversed(range(T)):  # Horner: after j + 1 steps v = sum_{i<=j} M^i b, the value of j + 1 points to go
            v = b + M @ v
            theta[:, t] = v[..., 0]
        theta[..., -1] += np.cumsum(level[:, ::-1], axis=1)[:, ::-1]
        radius = np.abs(np.linalg.eigvals(M)).max(axis=1)
        return theta, np.where(singular, np.nan, radius)

    def _check(self, panel: Panel, out: dict[str, Any]) -> dict[str, Any]:
        if self.pooling == "time":
            if not out["full"][0]:
                raise ValueError(f"the features of pooled {self} are collinear; use a larger ridge")
            return out
        q = panel.n_states * int(self.degree) + 1
        for a in (0, 1):
            rows = (panel.actions == a).sum(0)
            t = int(np.argmin(rows))
            if not self.ridge and rows[t] < q:
                raise ValueError(
                    f"arm {a} has {rows[t]} of n = {panel.n_days} days at time {panel.times[t]} (t = {t}), fewer than the "
                    f"{q} features of p = {panel.n_states} states; use a lower degree or ridge > 0"
                )
            rank = out["rank"][a][0] + 1
            if not self.ridge and (rank < q).any():
                t = int(np.argmax(rank < q))
                raise ValueError(
                    f"states are collinear at time {panel.times[t]} (t = {t}) in arm {a}: the features have rank "
                    f"{rank[t]} of {q}; drop a column, lower the degree or use LSTD(ridge=...) > 0"
                )
        return out

    def _identified(self, out: dict[str, Any], n: int, p: int) -> np.ndarray:
        return out["full"] & np.isfinite(out["ate"])

    def _columns(self, p: int, T: int) -> Number:
        pooled = self.pooling == "time"
        return 2 * (p * int(self.degree) + int(self.time_degree) + 1) / (T if pooled else 1)

    def _keep(self, out: dict[str, Any]) -> None:
        self.values_ = {a: value[0] for a, value in out["values"].items()}
        if "radius" in out:
            self.spectral_radius_ = {a: float(radius[0]) for a, radius in out["radius"].items()}

    def _copies(self, A: np.ndarray) -> int:
        return 4 * max(1, int(self.degree))


class DRL(_Estimator):
    """Double reinforcement learning: values corrected by density ratios of the states.

    psi^a_i = V^a_1(S_i1) + sum_t w^a_it {Y_it + V^a_{t+1}(S_i,t+1) - V^a_t(S_it)}, ATE = mean_i (psi^1_i - psi^0_i) / T,
    w^a_it = 1(A_it = a) p^a_t(S_it) / sum_c P(row c) 1(c_t = a) p^c_t(S_it): p^c_t is the state's density when the day
    follows the row c, Gaussian with the moments of the fitted linear model.

    Parameters
    ----------
    value : LSTD that learns V; None is LSTD().
    density : "gaussian".
    smooth : "none", or "local" for transitions smoothed over t by local quadratics (bandwidths by leave-one-out).
    clip : largest ratio; None (default) clips nothing.
    self_normalize : divide the ratios by their mean over days at each time. Default False.
    cross_fit : folds of neighbouring pairs of days; V and w of a fold are learnt on the others. Default 1, none.
    design : Design whose rows a day can get, and every day of the table must have; None (default) takes the rows of the table itself, as is done for designs with
        more than 64 rows. Of a table with more than 64 different rows the mixture is replaced by one Gaussian with its moments.

    Attributes
    ----------
    ate_ : per time point.
    values_, ratios_ : arm -> (n, T).
    ess_ : arm -> (T,) effective number of days, (sum w)^2 / sum w^2.
    """

    def __init__(
        self,
        value: LSTD | None = None,
        density: str = "gaussian",
        smooth: str = "none",
        clip: Number | None = None,
        self_normalize: bool = False,
        cross_fit: Number = 1,
        design: Design | None = None,
    ) -> None:
        self.value = value
        self.density = density
        self.smooth = smooth
        self.clip = clip
        self.self_normalize = self_normalize
        self.cross_fit = cross_fit
        self.design = design

    def _validate(self) -> None:
        self._lstd()._validate()
        if self.design is not None:
            as_design(self.design, "design")
        if self.density != "gaussian":
            raise ValueError(f"density must be 'gaussian', got {self.density!r}")
        if self.smooth not in ("none", "local"):
            raise ValueError(f"smooth must be 'none' or 'local', got {self.smooth!r}")
        if self.clip is not None and not as_real(self.clip, "clip") > 0:
            raise ValueError(f"clip must be positive or None, got {self.clip!r}")
        as_integer(self.cross_fit, "cross_fit", 1)

    def _lstd(self) -> LSTD:
        if not isinstance(self.value, (LSTD, type(None))):
            raise TypeError(f"value must be an LSTD or None, got {self.value!r}")
        return self.value or LSTD()

    def _core(self, S: np.ndarray, A: np.ndarray, Y: np.ndarray) -> dict[str, Any]:
        R, n, T, _p = S.shape
        folds = int(self.cross_fit)
        pair = np.arange(n) // 2
        if folds > pair[-1] + 1:
            raise ValueError(f"cross_fit = {folds} folds are more than the {pair[-1] + 1} pairs of n = {n} days")
        rows, probs = self._rows(A)
        values = {a: np.empty((R, n, T)) for a in (0, 1)}
        ratios = {a: np.empty((R, n, T)) for a in (0, 1)}
        full = np.ones(R, dtype=bool)
        out: dict[str, Any] = {}
        for fold in range(folds):
            test = pair % folds == fold
            train = ~test if folds > 1 else test
            data = (S[:, train], A[:, train], Y[:, train])
            theta, basis, out = self._lstd()._learn(*data)
            for a, value in self._lstd()._value(theta, basis(S[:, test])).items():
                values[a][:, test] = value
            for a, ratio in self._ratios(data, S[:, test], A[:, test], rows, probs).items():
                ratios[a][:, test] = ratio
            full &= out["full"]
        ess = {}
        for a, w in ratios.items():
            total = w.sum(1)
            ess[a] = total**2 / np.maximum((w**2).sum(1), np.finfo(float).tiny)
        largest = {a: w.max(1) for a, w in ratios.items()}
        _warn_of_overlap(largest, ess)
        for a in ratios:
            if self.clip is not None:
                ratios[a] = np.minimum(ratios[a], float(self.clip))
            if self.self_normalize:
                ratios[a] = ratios[a] / np.maximum(ratios[a].mean(1, keepdims=True), np.finfo(float).tiny)
        psi = {}
        for a, V in values.items():
            after = np.concatenate([V[:, :, 1:], np.zeros((R, n, 1))], axis=2)
            psi[a] = V[:, :, 0] + (ratios[a] * (Y + after - V)).sum(2)
        ate = (psi[1] - psi[0]).mean(1) / T
        return {**out, "ate": ate, "values": values, "ratios": ratios, "ess": ess, "full": full}

    def _rows(self, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows (R, K, T) that a day can get and their probabilities (R, K); rows that pad have probability 0."""
        R, n, T = A.shape
        if self.design is not None and not (allowed := self.design.allows(A)).all():
            day = int(np.argwhere(~allowed)[0, 1])
            raise ValueError(
                f"design = {self.design} never draws the arms of day {day} (of {n}): {A[~allowed][0][:12]}.."
            )
        if self._n_rows(T) <= MAX_ROWS and self.design is not None:
            rows, probs = self.design.rows_and_probs(T)
            return np.broadcast_to(rows, (R, *rows.shape)), np.broadcast_to(probs, (R, len(probs)))
        found = [np.unique(table, axis=0, return_counts=True) for table in A]
        K = max(len(rows) for rows, _ in found)
        rows, probs = np.zeros((R, K, T), dtype=np.int8), np.zeros((R, K))
        for r, (table, counts) in enumerate(found):
            rows[r, : len(table)], probs[r, : len(table)] = table, counts / n
        return rows, probs

    def _n_rows(self, T: int) -> Number:
        """Rows that the design has, as far as it is given."""
        return np.inf if self.design is None else 2.0 ** (self.design.coins(T)[0][-1] + 1)

    def _ratios(
        self,
        data: tuple[np.ndarray, np.ndarray, np.ndarray],
        S: np.ndarray,
        A: np.ndarray,
        rows: np.ndarray,
        probs: np.ndarray,
    ) -> dict[int, np.ndarray]:
        """w^a of the days (S, A), from the moments fitted to ``data``."""
        R, _n, T, p = S.shape
        K = rows.shape[1]
        centre, root = _common_scale(data[0])
        data = (_rescale(data[0], centre, root), *data[1:])
        S = _rescale(S, centre, root)
        fit = fit_coefficients(*data)
        phi0, Phi, Gamma = fit.phi0, fit.Phi, fit.Gamma
        if self.smooth == "local":
            phi0, Phi, Gamma = (_smooth_over_time(series) for series in (phi0, Phi, Gamma))
        N = data[0].shape[1]
        eps = fit.state_residuals
        Q = np.einsum("rtjn,rtkn->rjk", eps, eps) / (max(N - p - 2, 1) * max(T - 1, 1))
        first = data[0][:, :, 0]
        arms = np.concatenate([rows, np.zeros((R, 1, T)), np.ones((R, 1, T))], axis=1)  # the last two: never, always

        means = np.empty((R, K + 2, T, p))
        means[:, :, 0] = first.mean(1)[:, None]
        covariance = np.empty((R, T, p, p))
        gap = first - first.mean(1, keepdims=True)
        covariance[:, 0] = np.einsum("rnj,rnk->rjk", gap, gap) / (N - 1)
        with np.errstate(over="ignore", invalid="ignore"):  # an explosive transition: no finite ratios
            for t in range(T - 1):
                drift = phi0[:, None, t] + arms[:, :, t, None] * Gamma[:, None, t]
                means[:, :, t + 1] = means[:, :, t] @ Phi[:, t].swapaxes(1, 2) + drift
                covariance[:, t + 1] = Phi[:, t] @ covariance[:, t] @ Phi[:, t].swapaxes(1, 2) + Q

        ratios = {}
        for a in (0, 1):
            weight = probs[:, :, None] * (rows == a)  # (R, K, T): P(row = c) 1(c_t = a)
            target = _log_density(S, means[:, [K + a]], covariance)[:, 0]
            if K <= MAX_ROWS:
                each = _log_density(S, means[:, :K], covariance)
                with np.errstate(divide="ignore"):
                    behaviour = _log_sum_exp(each + np.log(weight)[:, :, None])
            else:
                share = weight.sum(1)
                of_row = weight / np.maximum(share, np.finfo(float).tiny)[:, None]
                centre = np.einsum("rkt,rktj->rtj", of_row, means[:, :K])
                away = means[:, :K] - centre[:, None]
                spread = np.einsum("rkt,rkti,rktj->rtij", of_row, away, away)
                with np.errstate(divide="ignore"):
                    behaviour = _log_density(S, centre[:, None], covariance + spread)[:, 0] + np.log(share)[:, None]
            with np.errstate(over="ignore", invalid="ignore"):
                ratios[a] = np.where(a == A, np.exp(target - behaviour), 0.0)
        return ratios

    def _check(self, panel: Panel, out: dict[str, Any]) -> dict[str, Any]:
        if self.cross_fit == 1:
            self._lstd()._check(panel, out)
        elif not out["full"][0]:
            raise ValueError(
                f"some of the {self.cross_fit} folds has too few days or collinear states; use fewer folds or ridge"
            )
        return out

    def _identified(self, out: dict[str, Any], n: int, p: int) -> np.ndarray:
        return out["full"] & np.isfinite(out["ate"])

    def _columns(self, p: int, T: int) -> Number:
        return self._lstd()._columns(p, T)

    def _keep(self, out: dict[str, Any]) -> None:
        self.values_ = {a: value[0] for a, value in out["values"].items()}
        self.ratios_ = {a: ratio[0] for a, ratio in out["ratios"].items()}
        self.ess_ = {a: ess[0] for a, ess in out["ess"].items()}

    def _copies(self, A: np.ndarray) -> int:
        rows = self._n_rows(A.shape[-1])
        if rows > MAX_ROWS and len(A):
            rows = len(np.unique(A[0], axis=0))
        return self._lstd()._copies(A) + (int(rows) if rows <= MAX_ROWS else 0)


def _warn_if_unstable(radius: float, A: np.ndarray) -> None:
    T = A.shape[-1]
    if radius > 1 + 1e-6 and T * np.log(radius) > np.log(1e3):
        length = T / (np.abs(np.diff(A, axis=-1)).sum(-1).mean() + 1)
        warnings.warn(
            f"pooled LSTD is unstable: spectral radius {radius:.3g} over T = {T} points, under a design with a switch "
            f"every {length:.3g} points; use pooling='none' or longer spans",
            UnstableLSTDWarning,
            stacklevel=5,
        )


def _warn_of_overlap(largest: dict[int, np.ndarray], ess: dict[int, np.ndarray]) -> None:
    for a, ratio in largest.items():
        r, t = np.unravel_index(np.argmax(np.nan_to_num(ratio, posinf=np.inf)), ratio.shape)
        if ratio[r, t] > 1e6:
            warnings.warn(
                f"the largest density ratio of arm {a} is {ratio[r, t]:.3g} at t = {t}, where {ess[a][r, t]:.3g} days are "
                "effective: the design hardly visits the states of that arm; use clip= or a design with longer spans",
                OverlapWarning,
                stacklevel=4,
            )


def _common_scale(S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (R, p) and triangular root (R, p, p) of the covariance within times, one for all times.

    Ratios of densities do not depend on an affine map of the states, but the rounding of nearly collinear ones does.
    """
    R, n, T, p = S.shape
    within = (S - S.mean(1, keepdims=True)).reshape(R, n * T, p)
    root = np.linalg.qr(within, mode="r") / np.sqrt(n * T)
    pivots, sizes = np.abs(np.diagonal(root, axis1=1, axis2=2)), np.linalg.norm(root, axis=1)
    root[(pivots <= 1e-14 * sizes).any(1)] = np.eye(p)  # collinear: left to the fit, which names what is wrong
    return S.mean((1, 2)), root


def _rescale(S: np.ndarray, centre: np.ndarray, root: np.ndarray) -> np.ndarray:
    R, n, T, p = S.shape
    gap = (S - centre[:, None, None]).reshape(R, n * T, p)
    return np.linalg.solve(root.swapaxes(1, 2), gap.swapaxes(1, 2)).swapaxes(1, 2).reshape(R, n, T, p)


def _log_density(S: np.ndarray, means: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Gaussian log densities (R, K, n, T) of S (R, n, T, p) at means (R, K, T, p), up to the constant (2 pi)^(-p/2)."""
    p = S.shape[-1]
    if p == 0:
        return np.zeros((*means.shape[:2], *S.shape[1:3]))
    finite = np.asarray(np.isfinite(covariance).all((-2, -1)))
    variance = np.where(finite[..., None], np.diagonal(covariance, axis1=-2, axis2=-1), 1)
    unit = np.sqrt(np.where(variance > 0, variance, 1))
    correlation = np.where(finite[..., None, None], covariance, np.eye(p)) / unit[..., None] / unit[..., None, :]
    values, vectors = np.linalg.eigh(correlation)
    values = np.maximum(values, 1e-12)  # nearly collinear states: rounding makes the least eigenvalues
    whiten = (vectors / np.sqrt(values)[..., None, :]).swapaxes(-1, -2) / unit[..., None, :]
    origin = means[:, :1]
    whitened = np.einsum("rtjk,rntk->rntj", whiten, S - origin[:, 0, None])
    centres = np.einsum("rtjk,rctk->rctj", whiten, means - origin)
    distance = ((whitened[:, None] - centres[:, :, None]) ** 2).sum(-1)
    logdet = 0.5 * np.log(values).sum(-1) + np.log(unit).sum(-1)
    return np.where(finite[:, None, None], -0.5 * distance - logdet[:, None, None], np.nan)


def _log_sum_exp(x: np.ndarray) -> np.ndarray:
    """log sum exp over axis 1; -inf where all are."""
    top = x.max(1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    return np.log(np.exp(x - top).sum(1)) + top[:, 0]


def _smooth_over_time(series: Float[np.ndarray, "R steps *rest"]) -> Float[np.ndarray, "R steps *rest"]:
    """Local quadratic fit in t with a Gaussian kernel; each series has the bandwidth with the least leave-one-out error."""
    T1 = series.shape[1]
    if T1 < 5:
        return series
    flat = np.moveaxis(series, 1, 0).reshape(T1, -1)
    lag = np.subtract.outer(np.arange(T1), np.arange(T1)).astype(np.float64)
    best, error = flat.copy(), np.full(flat.shape[1], np.inf)
    for bandwidth in np.geomspace(1.5, T1, 8):
        kernel = np.exp(-0.5 * (lag / bandwidth) ** 2)
        powers = np.stack([np.ones_like(lag), -lag / bandwidth, (lag / bandwidth) ** 2])  # in (s - t) / bandwidth
        moments = np.einsum("its,jts,ts->tij", powers, powers, kernel)
        hat = np.einsum("tj,jts,ts->ts", np.linalg.inv(moments)[:, 0], powers, kernel)
        fitted = hat @ flat
        left_out = (((flat - fitted) / (1 - np.diag(hat))[:, None]) ** 2).mean(0)
        better = left_out < error
        best[:, better], error[better] = fitted[:, better], left_out[better]
    return np.moveaxis(best.reshape(T1, series.shape[0], *series.shape[2:]), 0, 1)


def _non_negative(value: object, name: str) -> None:
    if as_real(value, name) < 0:
        raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")
