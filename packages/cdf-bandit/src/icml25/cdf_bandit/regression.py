"""Functional regression of a conditional CDF (Algorithm 1)."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from icml25.cdf_bandit.basis import check_basis, check_domain, chunks, invert_mixture, mixture_cdf
from icml25.cdf_bandit.checks import (
    check_actions,
    check_contexts,
    check_integer,
    check_number,
    check_numbers,
    check_outcomes,
)
from icml25.cdf_bandit.measure import Measure, interval
from icml25.cdf_bandit.operator import (
    FLOOR,
    design_kernel,
    distinct,
    estimate_decay,
    legendre_functions,
    moment_vector,
    outcome_measure,
    spectrum,
    symmetric_form,
)
from icml25.cdf_bandit.utility import evaluate_utility

RIDGE = 1e-12  # of the largest eigenvalue: picks the least norm among ties, and moves u by less than 1e-5 in the norm of U_D


def truncated_least_squares(
    eigenvalues: Float[np.ndarray, " G"],
    vectors: Float[np.ndarray, "G G"],
    moment: Float[np.ndarray, " G"],
    rank: int,
) -> Float[np.ndarray, " G"]:
    """theta_D = sum over k <= N of <e_k, b> / lambda_k e_k: least squares within span(e_1..e_N) (Thm 3.4).

    Parameters
    ----------
    eigenvalues, vectors : of U_D/n in coordinates where the inner product is Euclidean.
    moment : b_D/n in the same coordinates.
    rank : N.

    Returns
    -------
    (G,)
    """
    kept = vectors[:, :rank]
    return kept @ (kept.T @ moment / eigenvalues[:rank])


def project(
    t: Float[np.ndarray, " G"],
    root: Float[np.ndarray, "R G"],
    d: Float[np.ndarray, " G"],
    norm_bound: float | None = None,
) -> Float[np.ndarray, " G"]:
    """Nearest element of C in the U_D norm: argmin |root (u - t)|^2 over u >= 0, d'u = 1, |u| <= B (step 4).

    With d'u = 1 the target is root (u - t) = M u, M = root (I - t d'), which is homogeneous in u: the minimiser of
    |M u|^2 + (d'u - 1)^2 over u >= 0 has the right direction, and scaling it to d'u = 1 solves the program exactly. A small
    ridge picks the least norm among ties, a larger one, found by bisection, keeps the ball (|u| falls as it grows).

    Parameters
    ----------
    t : what to project, in coordinates where the L2(nu) norm is Euclidean.
    root : a square root of U_D/n, root' root = U_D/n.
    d : square roots of the weights of nu, so that d'u is the mass of u.
    norm_bound : B, or None for no ball.

    Returns
    -------
    (G,)
    """
    ball = np.inf if norm_bound is None else max(norm_bound, 1 / np.linalg.norm(d))
    if (t >= -1e-12).all() and abs(d @ t - 1) <= 1e-10 and np.linalg.norm(t) <= ball * (1 + 1e-12):
        return t  # in C
    from scipy.optimize import nnls

    M = root - np.outer(root @ t, d)
    size = float(np.linalg.norm(root, 2)) or 1.0

    def solve(ridge: float) -> Float[np.ndarray, " G"]:
        rows = np.vstack([M / size, np.sqrt(ridge) * np.eye(len(t)), d])
        u, _ = nnls(rows, np.concatenate([np.zeros(len(rows) - 1), [1.0]]))
        return u / (d @ u)

    u = solve(RIDGE)
    if np.linalg.norm(u) <= ball:
        return u
    low, high = np.log(RIDGE), np.log(RIDGE)
    while np.linalg.norm(u := solve(float(np.exp(high)))) > ball * (1 + 1e-9) and high < 60:
        low, high = high, high + 3
    for _ in range(50):
        middle = (low + high) / 2
        v = solve(float(np.exp(middle)))
        if np.linalg.norm(v) > ball:
            low = middle
        else:
            high, u = middle, v
    return u


class CDFRegressor(BaseEstimator):
    """Regression of the CDF of an outcome on context and action: F(x,a,s) = integral theta(w) phi(x,a,w,s) d nu(w).

    Algorithm 1: least squares for theta within the leading eigenspaces of the design operator, then projection onto the
    densities C in the norm of the whole operator.

    Parameters
    ----------
    basis : phi, see ``LogisticBasis`` and ``CallableBasis``.
    n_actions : A.
    measure : nu on Omega, default ``interval(0, 1, n_w)``.
    normalize : scale nu and the outcome's measure to mass 1, which the threshold takes for granted.
    decay : gamma in (0, 1], 1.0 when the order is unknown (Cor. 4.3), or "auto" to estimate it (``estimate_decay``).
    n_w : nodes in Omega when measure is None; Legendre functions for Galerkin.
    n_s : Gauss-Legendre nodes in the outcome's domain.
    method : "quadrature" (Algorithm 3) or "galerkin".
    norm_bound : B, bound on the L2(nu) norm of theta, or None for no ball.
    truncate : keep the eigenvalues above n^(-2/(gamma+2)) only.
    project : project onto C (step 4).
    clip : move outcomes outside the domain to its ends instead of refusing them.
    chunk_bytes : size of the basis tensor held at a time.

    Attributes
    ----------
    theta_ : (G,) weights at the nodes.
    theta_unprojected_ : (G,) theta_D.
    nodes_, weights_ : (G,) or (G, d), and (G,): nu.
    eigenvalues_ : (G,) of U_D/n, largest first.
    eigenfunctions_ : (G, G) their values at the nodes, one per column.
    rank_, threshold_, decay_ : N, eps* and gamma.
    n_samples_ : n.

    Source: Algorithm 1, Thm 3.4, Thm 3.6, appendix F.
    """

    def __init__(
        self,
        basis: Any,
        n_actions: int,
        *,
        measure: Measure | None = None,
        normalize: bool = True,
        decay: float | int | str = 1.0,
        n_w: int = 64,
        n_s: int = 64,
        method: str = "quadrature",
        norm_bound: float | int | None = None,
        truncate: bool = True,
        project: bool = True,
        clip: bool = False,
        chunk_bytes: int = 2**20,
    ) -> None:
        self.basis = basis
        self.n_actions = n_actions
        self.measure = measure
        self.normalize = normalize
        self.decay = decay
        self.n_w = n_w
        self.n_s = n_s
        self.method = method
        self.norm_bound = norm_bound
        self.truncate = truncate
        self.project = project
        self.clip = clip
        self.chunk_bytes = chunk_bytes

    def fit(self, X: ArrayLike, actions: ArrayLike, y: ArrayLike) -> "CDFRegressor":
        """Fit to data, forgetting what was seen before.

        Parameters
        ----------
        X : (n, d) contexts.
        actions : (n,) integers in 0..A-1.
        y : (n,) outcomes in the basis's domain.

        Returns
        -------
        self

        Raises
        ------
        TypeError, ValueError: naming the argument, what it was and what was expected; or the x, a, w where the basis is
            not a CDF.
        """
        nu = self._measure()
        size = len(nu.weights)
        return self._add(nu, np.zeros((size, size)), np.zeros(size), 0, None, X, actions, y)

    def partial_fit(self, X: ArrayLike, actions: ArrayLike, y: ArrayLike) -> "CDFRegressor":
        """Add data to what was seen: the sums behind U_D and b_D are additive, so nothing is approximated.

        Parameters
        ----------
        X, actions, y : as for fit.

        Returns
        -------
        self

        Raises
        ------
        TypeError, ValueError: as for fit.
        """
        if not hasattr(self, "_kernel"):
            return self.fit(X, actions, y)
        self._measure()  # settings may have changed
        return self._add(*self._statistics(), X, actions, y)

    def fresh(self) -> "CDFRegressor":
        """A copy with the same settings that has seen nothing.

        Returns
        -------
        CDFRegressor
        """
        return type(self)(**self.get_params(deep=False))

    def _statistics(self) -> tuple[Measure, Float[np.ndarray, "G G"], Float[np.ndarray, " G"], int, int]:
        return self._nu, self._kernel, self._moment, self.n_samples_, self.n_features_in_

    def _add(
        self,
        nu: Measure,
        kernel: Float[np.ndarray, "G G"],
        moment: Float[np.ndarray, " G"],
        n: int,
        n_features: int | None,
        X: ArrayLike,
        actions: ArrayLike,
        y: ArrayLike,
    ) -> "CDFRegressor":
        """Solve with these data on top of the statistics; whatever is refused leaves the model as it was."""
        x = check_contexts(X, n_features)
        a = check_actions(actions, len(x), check_integer(self.n_actions, "n_actions", 1))
        check_basis(self.basis, x, a, nu.points)
        outcome = check_outcomes(y, len(x), check_domain(self.basis.domain), self.clip)
        m = self._outcomes()
        return self._solve(
            nu,
            kernel + design_kernel(self.basis, x, a, nu.points, m, self.chunk_bytes),
            moment + moment_vector(self.basis, x, a, outcome, nu.points, m, self.chunk_bytes),
            n + len(x),
            x.shape[1],
        )

    def _measure(self) -> Measure:
        check_integer(self.n_w, "n_w", 1)
        check_integer(self.chunk_bytes, "chunk_bytes", 1)
        if self.method not in ("quadrature", "galerkin"):
            raise ValueError(f"method must be 'quadrature' or 'galerkin', got {self.method!r}")
        if self.measure is not None and not isinstance(self.measure, Measure):
            raise TypeError(f"measure must be made by interval, box or atoms, got {self.measure!r}")
        if isinstance(self.decay, str):
            if self.decay != "auto":
                raise ValueError(f"decay must be in (0, 1] or 'auto', got {self.decay!r}")
        else:
            check_number(self.decay, "decay", 0, 1)
        # Galerkin's coefficients are integrals of phi: twice as many nodes as functions
        measure = self.measure or interval(0, 1, self.n_w * (1 if self.method == "quadrature" else 2))
        if self.normalize:
            measure = measure.normalized()
        if self.norm_bound is not None:
            check_number(self.norm_bound, "norm_bound", 0, np.inf)
            if self.norm_bound < (least := 1 / np.sqrt(measure.mass)) * (1 - 1e-12):
                raise ValueError(
                    f"norm_bound={self.norm_bound:g} leaves no density: the L2(nu) norm of one is at least {least:g}"
                )
        return measure

    def _outcomes(self) -> Measure:
        return outcome_measure(check_domain(self.basis.domain), check_integer(self.n_s, "n_s", 1), self.normalize)

    def _functions(self, measure: Measure) -> Float[np.ndarray, "G R"] | None:
        return None if self.method == "quadrature" else legendre_functions(measure, self.n_w)

    def _solve(
        self,
        nu: Measure,
        kernel: Float[np.ndarray, "G G"],
        moment: Float[np.ndarray, " G"],
        n: int,
        n_features: int,
    ) -> "CDFRegressor":
        """Steps 1 to 4 of Algorithm 1; attributes are set last."""
        d = np.sqrt(nu.weights)
        eigenvalues, vectors = spectrum(symmetric_form(kernel / n, nu, self._functions(nu)))
        if not eigenvalues[0] > 0:
            raise ValueError(
                "the design operator is zero: the basis has phi = 0 inside the domain for all w and all data"
            )
        decay = estimate_decay(eigenvalues, n) if isinstance(self.decay, str) else float(self.decay)
        threshold = float(n ** (-2 / (decay + 2)))
        least = max(threshold if self.truncate else 0.0, FLOOR * eigenvalues[0])
        rank = max(1, int((eigenvalues >= least).sum()))
        unprojected = t = self._least_squares(eigenvalues, vectors, d * moment / n, rank)
        root = np.sqrt(eigenvalues)[:, None] * vectors.T
        if self.project:
            t = project(t, root, d, None if self.norm_bound is None else float(self.norm_bound))
        self._nu, self._kernel, self._moment, self._root = nu, kernel, moment, root * d
        self.n_samples_, self.n_features_in_ = n, n_features
        self.decay_, self.threshold_, self.rank_ = decay, threshold, rank
        self.theta_unprojected_, self.theta_ = unprojected / d, t / d
        self.nodes_, self.weights_ = nu.points, nu.weights
        self.eigenvalues_, self.eigenfunctions_ = eigenvalues, vectors / d[:, None]
        return self

    def _least_squares(
        self,
        eigenvalues: Float[np.ndarray, " G"],
        vectors: Float[np.ndarray, "G G"],
        moment: Float[np.ndarray, " G"],
        rank: int,
    ) -> Float[np.ndarray, " G"]:
        return truncated_least_squares(eigenvalues, vectors, moment, rank)

    def theta(self, w: ArrayLike) -> Float[np.ndarray, " n"]:
        """theta between the nodes, by piecewise Lagrange interpolation.

        Parameters
        ----------
        w : (n,) points of Omega, an interval.

        Returns
        -------
        (n,)

        Raises
        ------
        NotFittedError, ValueError: not fitted, or w outside, or nu is not an interval.
        """
        check_is_fitted(self, "theta_")
        return self._nu.interpolate(self.theta_, w)

    def design_error(self, theta_true: Callable[..., Any] | ArrayLike) -> float:
        """Distance of theta_ from the truth in the norm of U_D/n.

        It is the root of the integrated squared CDF error, averaged over the contexts and actions seen.

        Parameters
        ----------
        theta_true : function of the nodes, or (G,) values at the nodes.

        Returns
        -------
        float

        Raises
        ------
        NotFittedError, ValueError: not fitted, or a wrong shape.
        """
        check_is_fitted(self, "theta_")
        given: Any = theta_true
        values = check_numbers(given(self.nodes_) if callable(given) else given, "theta_true", ndim=1)
        if values.shape != self.theta_.shape:
            raise ValueError(f"theta_true has shape {values.shape}, expected {self.theta_.shape} like nodes_")
        return float(np.linalg.norm(self._root @ (self.theta_ - values)))

    def error_bound(self, delta: float | int = 0.05, norm: float | int | None = None) -> float:
        """E_D of Thm 3.6: bounds |theta_ - theta*| in the norm of U_D (sqrt(n) design_error) with probability 1 - delta.

        Parameters
        ----------
        delta : in (0, 1), default 0.05.
        norm : B, bound on the L2(nu) norm of the truth; None takes norm_bound, or max(1, norm of theta_).

        Returns
        -------
        float

        Raises
        ------
        NotFittedError, ValueError: not fitted, or delta or norm out of range.
        """
        check_is_fitted(self, "theta_")
        delta = check_number(delta, "delta", 0, 1, open_high=True)
        norm = self._norm() if norm is None else check_number(norm, "norm", 0, np.inf)
        n, kept = self.n_samples_, self.eigenvalues_[: self.rank_]
        noise = np.sqrt(2 * (2 * np.log(1 / delta) + np.log1p(n * kept).sum()))
        return float(noise + n ** (self.decay_ / (self.decay_ + 2)) * norm)

    def data_free_bound(
        self, delta: float | int = 0.05, norm: float | int | None = None, s0: float | int | None = None
    ) -> float:
        """E of Lemma 3.7: 2 sqrt(log(1/delta)) + (2 sqrt(s0 log(1+n)) + B) n^(gamma/(gamma+2)).

        Parameters
        ----------
        delta, norm : as for error_bound.
        s0 : bound on sum_k tau_k^gamma; None takes the sum of lambda_k^gamma.

        Returns
        -------
        float

        Raises
        ------
        NotFittedError, ValueError: not fitted, or delta, norm or s0 out of range.
        """
        check_is_fitted(self, "theta_")
        delta = check_number(delta, "delta", 0, 1, open_high=True)
        norm = self._norm() if norm is None else check_number(norm, "norm", 0, np.inf)
        positive = self.eigenvalues_[self.eigenvalues_ > FLOOR * self.eigenvalues_[0]]
        s0 = float((positive**self.decay_).sum()) if s0 is None else check_number(s0, "s0", 0, np.inf)
        n = self.n_samples_
        rate = n ** (self.decay_ / (self.decay_ + 2))
        return float(2 * np.sqrt(np.log(1 / delta)) + (2 * np.sqrt(s0 * np.log1p(n)) + norm) * rate)

    def _norm(self) -> float:
        norm = np.sqrt(self.weights_ @ self.theta_**2)
        return max(1.0, float(norm)) if self.norm_bound is None else float(self.norm_bound)

    def eigenvalues(self, X: ArrayLike, actions: ArrayLike) -> tuple[Float[np.ndarray, " R"], float]:
        """Eigenvalues of U_D/n for these contexts and actions, and its trace; needs no fit.

        Parameters
        ----------
        X, actions : as for fit.

        Returns
        -------
        (R,) eigenvalues, largest first; and the trace (1/n) sum of the integral of phi^2, which they approach from below
            in Galerkin's method.

        Raises
        ------
        TypeError, ValueError: as for fit.
        """
        measure = self._measure()
        x = check_contexts(X)
        a = check_actions(actions, len(x), check_integer(self.n_actions, "n_actions", 1))
        check_basis(self.basis, x, a, measure.points)
        kernel = design_kernel(self.basis, x, a, measure.points, self._outcomes(), self.chunk_bytes) / len(x)
        functions = self._functions(measure)
        values, _ = spectrum(symmetric_form(kernel, measure, functions))
        return values[: None if functions is None else functions.shape[1]], float(measure.weights @ np.diag(kernel))

    def _rows(self, X: ArrayLike) -> Float[np.ndarray, "n d"]:
        check_is_fitted(self, "theta_")
        return check_contexts(X, self.n_features_in_)

    def _cdf(
        self, x: Float[np.ndarray, "n d"], a: Int[np.ndarray, " n"], s: Float[np.ndarray, "*n S"]
    ) -> Float[np.ndarray, "n S"]:
        F = mixture_cdf(self.basis, x, a, self.nodes_, self.weights_ * self.theta_, s, self.chunk_bytes)
        return np.clip(F, 0.0, 1.0) if self.project else F

    def predict_cdf(self, X: ArrayLike, actions: ArrayLike, s: ArrayLike) -> Float[np.ndarray, "n S"]:
        """The conditional CDF at points s.

        Parameters
        ----------
        X : (n, d) contexts.
        actions : (n,) integers.
        s : (S,) or (n, S) points in the unit of the outcome; below the domain the CDF is 0, above it 1.

        Returns
        -------
        (n, S), nondecreasing in s and in [0, 1] (unless ``project=False``).

        Raises
        ------
        NotFittedError, TypeError, ValueError: not fitted, or bad arguments.
        """
        x = self._rows(X)
        a = check_actions(actions, len(x), self.n_actions)
        points = np.atleast_1d(check_numbers(s, "s"))
        if points.ndim > 2 or (points.ndim == 2 and len(points) != len(x)):
            raise ValueError(f"s must be (S,) or (n, S) with n={len(x)}, got shape {points.shape}")
        lo, hi = self.basis.domain
        F = self._cdf(x, a, np.clip(points, lo, hi))
        return np.where(points < lo, 0.0, np.where(points >= hi, 1.0, F))

    def predict_utility(self, X: ArrayLike, utility: Callable[..., Any]) -> Float[np.ndarray, "n A"]:
        """Utility of the predicted distribution of every action.

        Parameters
        ----------
        X : (n, d) contexts.
        utility : u(F, s, m), see ``Utility``.

        Returns
        -------
        (n, A)

        Raises
        ------
        NotFittedError, TypeError, ValueError: not fitted, or bad arguments, or the utility returned a wrong shape or NaN.
        """
        x = self._rows(X)
        s = interval(*check_domain(self.basis.domain), self.n_s)
        A = self.n_actions
        out = np.empty((len(x), A))
        for block in chunks(len(x), 8 * max(A, x.shape[1]), self.chunk_bytes):
            first, which = distinct(x[block])
            contexts, values = x[block][first], np.empty((len(first), A))
            for part in chunks(len(first), 8 * A * self.n_s, self.chunk_bytes):
                rows = contexts[part]
                F = self._cdf(np.repeat(rows, A, axis=0), np.tile(np.arange(A), len(rows)), s.points)
                values[part] = evaluate_utility(utility, F, s.points, s.weights).reshape(-1, A)
            out[block] = values[which]
        return out

    def sample(
        self, X: ArrayLike, actions: ArrayLike, size: int, seed: int | np.random.Generator | None = None
    ) -> Float[np.ndarray, "n size"]:
        """Draw outcomes from the predicted distributions.

        Parameters
        ----------
        X, actions : contexts (n, d) and actions (n,).
        size : draws per row.
        seed : integer, generator or None.

        Returns
        -------
        (n, size), in the unit of the outcome.

        Raises
        ------
        NotFittedError, TypeError, ValueError: not fitted, bad arguments, or ``project=False``, which is no distribution.
        """
        x = self._rows(X)
        a = check_actions(actions, len(x), self.n_actions)
        if not self.project:
            raise ValueError("sample needs project=True: without projection the fit is no distribution")
        levels = np.random.default_rng(seed).random((len(x), check_integer(size, "size", 1)))
        return invert_mixture(self.basis, x, a, self.nodes_, self.weights_ * self.theta_, levels)
