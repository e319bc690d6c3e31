"""Four approximations of the same field theory, and the exact answer for linear networks.

p(y) is the integral over imaginary j of exp S(j), S(j) = -j.y + kappa |j|^2/2 + W(j), with
W(j) = N ln E_{h ~ N(0, C)} exp((a/2) (j.phi(h))^2), C = (g_v/D) X X^T, a = g_w/(chi N). The dual vector <j> is the
discrepancy <y - f>/kappa, and the outputs fluctuate like a Gaussian process with kernel W''.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Real

import numpy as np
import scipy.optimize
from jaxtyping import Float
from numpy.typing import ArrayLike

from icml25.feature_scales.adaptation import Neuron, Solution
from icml25.feature_scales.exact import ExactPosterior, quadrature
from icml25.feature_scales.kernels import kernel
from icml25.feature_scales.model import ConvergenceError, TwoLayer, as_floats, as_points, as_targets, check_network
from icml25.feature_scales.spectrum import Spectrum, Values

__all__ = ["Theory", "anneal", "solve"]

LEVELS = ("nngp", "tree", "one_loop", "rescaling", "exact")
MOST_POINTS = 200  # of the nonlinear one-loop level


@dataclass(frozen=True, eq=False)
class Theory:
    """What one level says of a network trained on (X, y).

    Attributes
    ----------
    net, X, y, level : what was solved.
    scale : the kernel's scale Q; g_w/chi (nngp), the root of the level's equation, the posterior mean of |w|^2 (exact),
        or (g_w/chi) j^T K j / j^T K_0 j of an adapted nonlinear kernel. chi Q/g_w is the ratio to the prior.
    dual : j (P,), mean discrepancy <y - f> over the noise.
    free_energy : the level's -ln p(y) - (P/2) ln 2 pi; "nngp" and "tree" leave out the determinants, as F(Sigma) does,
        "rescaling" leaves out the fluctuations of Q, "one_loop" is right up to O(1/N) for a given P.
    residual : how far the level's equation is from solved, relative to its terms.
    iterations : of the solver, 0 for closed forms.
    """

    net: TwoLayer
    X: Float[np.ndarray, "P D"]
    y: Float[np.ndarray, " P"]
    level: str
    scale: float
    dual: Float[np.ndarray, " P"]
    free_energy: float
    residual: float = 0.0
    iterations: int = 0
    posterior: ExactPosterior | None = field(default=None, repr=False)
    adapted: _Adapted | None = field(default=None, repr=False)

    @property
    def converged(self) -> bool:
        """Whether the stationarity holds to 1e-6 (``solve`` raises where it does not)."""
        return self.residual <= 1e-6

    def mean(self, X_test: ArrayLike) -> Float[np.ndarray, " T"]:
        """Mean output (T,) at X_test (T, D)."""
        points = self._points(X_test)
        if self.posterior is not None:
            return self.posterior.predict(points)
        if self.adapted is not None:
            return self.adapted.mean(self, points)
        return self.scale * self._prior_kernel(points, self.X) @ self.dual

    predict = mean

    @property
    def train_discrepancy(self) -> float:
        """Mean over the training set of y <y - f> = noise y.j/P."""
        return float(self.net.effective()[1] * self.y @ self.dual / len(self.y))

    def test_discrepancy(self, X_test: ArrayLike, y_test: ArrayLike) -> float:
        """Mean of y <y - f> over X_test (T, D), y_test (T,)."""
        points = self._points(X_test)
        targets = as_targets("y_test", y_test, len(points))
        return float(targets @ (targets - self.mean(points)) / len(targets))

    def weight_covariance(self) -> Float[np.ndarray, "D D"]:
        """Second moment (D, D) of a row of V.

        "nngp" and "rescaling" keep the prior g_v/D; "tree" adds the learned direction (Q/N) Z^T j j^T Z, Z = (g_v/D) X,
        or is the adapted Sigma; the linear "one_loop" adds the fluctuations of j: j j^T - (noise + Q C)^{-1}.
        """
        D = self.X.shape[1]
        prior = self.net.g_v / D * np.eye(D)
        if self.posterior is not None:
            return self.posterior.weight_covariance()
        if self.adapted is not None:
            return self.adapted.weight_covariance(self.net)
        if self.level in ("nngp", "rescaling"):
            return prior
        Z = self.net.g_v / D * self.X
        moment = np.outer(self.dual, self.dual)
        if self.level == "one_loop":
            _, noise = self.net.effective()
            C = self._prior_kernel(self.X, self.X)
            moment -= np.linalg.inv(noise * np.eye(len(C)) + self.scale * C)
        return prior + self.scale / self.net.width * Z.T @ moment @ Z

    def hidden_kernel(self, X_test: ArrayLike | None = None) -> Float[np.ndarray, "T T"]:
        """Mean of (1/N) sum_i h_i h_i^T (T, T), the preactivations' kernel, at X_test (T, D) or the training inputs."""
        points = self.X if X_test is None else self._points(X_test)
        return points @ self.weight_covariance() @ points.T

    def output_covariance(self, X_test: ArrayLike | None = None) -> Float[np.ndarray, "T T"]:
        """Covariance of the outputs (T, T) at X_test (T, D) or the training inputs: that of a process with kernel W''.

        W'' = Q K_0 for "nngp" and "rescaling"; linear "tree" and "one_loop" add (2/N) f f^T, f = Q C j.
        """
        points = self.X if X_test is None else self._points(X_test)
        if self.posterior is not None:
            return self.posterior.output_covariance(points)
        if self.adapted is not None:
            second = self.adapted.curvature(self, points)
        else:
            everywhere = np.concatenate([self.X, points])
            second = self.scale * self._prior_kernel(everywhere, everywhere)
            if self.level in ("tree", "one_loop"):
                f = self.mean(everywhere)
                second += 2 / self.net.width * np.outer(f, f)
        P = len(self.X)
        noisy = self.net.effective()[1] * np.eye(P) + second[:P, :P]
        covariance = second[P:, P:] - second[P:, :P] @ np.linalg.solve(noisy, second[:P, P:])
        return (covariance + covariance.T) / 2

    def _prior_kernel(self, X: Float[np.ndarray, "A D"], X2: Float[np.ndarray, "B D"]) -> Float[np.ndarray, "A B"]:
        return kernel(self.net.phi, X, self.net.g_v / X.shape[1], X2)

    def _points(self, X_test: ArrayLike) -> Float[np.ndarray, "T D"]:
        return as_points("X_test", X_test, self.X.shape[1])


@dataclass(frozen=True)
class _Adapted:
    """The adapted Gaussian weights of a nonlinear network: L L^T on the inputs' span (basis), the prior elsewhere."""

    tree: Solution
    solution: Solution
    basis: Float[np.ndarray, "D r"]

    def weight_covariance(self, net: TwoLayer) -> Float[np.ndarray, "D D"]:
        D, r = self.basis.shape
        return net.g_v / D * (np.eye(D) + self.basis @ (self.solution.covariance - np.eye(r)) @ self.basis.T)

    def mean(self, theory: Theory, points: Float[np.ndarray, "T D"]) -> Float[np.ndarray, " T"]:
        if theory.level == "tree":
            K = kernel(theory.net.phi, points, self.weight_covariance(theory.net), theory.X)
            return theory.net.effective()[0] * K @ theory.dual
        neuron, j, theta = self._with(theory, points)
        first, second = neuron.response(j, theta)
        P = len(theory.X)
        return (first - neuron.fluctuation(j, theta, second[:P, :P]))[P:]

    def curvature(self, theory: Theory, points: Float[np.ndarray, "T D"]) -> Float[np.ndarray, "A A"]:
        neuron, j, theta = self._with(theory, points)
        return neuron.response(j, theta)[1]

    def _with(self, theory: Theory, points: Float[np.ndarray, "T D"]) -> tuple[Neuron, np.ndarray, np.ndarray]:
        """The same neuron on a basis that spans the points as well; they come after X, with j = 0."""
        beyond = _row_space(points - points @ self.basis @ self.basis.T, np.abs(points).max())
        basis = np.concatenate([self.basis, beyond], axis=1)
        everywhere = np.concatenate([theory.X, points])
        neuron = Neuron(theory.net, np.sqrt(theory.net.g_v / len(basis)) * everywhere @ basis)
        theta = neuron.prior()
        r = len(self.solution.theta)
        theta[:r, :r] = self.solution.theta
        return neuron, np.concatenate([self.solution.dual, np.zeros(len(points))]), theta


def solve(
    net: TwoLayer,
    X: ArrayLike,
    y: ArrayLike,
    level: str,
    *,
    init: Theory | None = None,
    tol: float = 1e-10,
) -> Theory:
    """Solve one level of the theory.

    Parameters
    ----------
    net : the network.
    X : (P, D) training inputs.
    y : (P,) targets.
    level : "nngp", the lazy limit: kernel (g_w/chi) K_0.
        "tree", the saddle point in j: kernel adaptation; exact when chi = N grows.
        "one_loop", the saddle point with its Gaussian fluctuations (nonlinear: at most 200 points).
        "rescaling", the saddle point in Q: kernel rescaling, one number, with the trace that the fluctuations of j leave.
            With relu the single Q on all of K_0 is a simplification: the published theory for functions that are not odd
            has a second order parameter.
        "exact", linear networks only.
    init : solution of the same level at another chi, to start from where several branches exist (see ``anneal``).
    tol : tolerance of ln Q, and of the gradient of F/N for nonlinear adaptation; at most 1e-6.

    Returns
    -------
    Theory

    Raises
    ------
    ValueError: unknown level, shapes that do not fit, NaN, more than 200 points at the nonlinear one-loop level.
    TypeError: net is not a TwoLayer, init not a Theory, X or y not of real numbers.
    NotImplementedError: "exact" with a nonlinear network.
    ConvergenceError: an equation has no root within reach, or its solver stopped early.
    """
    points = as_points("X", X)
    targets = as_targets("y", y, len(points))
    _check(net, level, len(points))
    if not isinstance(tol, Real) or not 0 < tol <= 1e-6:
        raise ValueError(f"tol={tol!r}; expected above 0 and at most 1e-6")
    if init is not None and not isinstance(init, Theory):
        raise TypeError(f"init={init!r}; expected a Theory")
    return _solve(net, points, targets, level, init, tol, _spectrum(net, points, targets, level))


def anneal(net: TwoLayer, X: ArrayLike, y: ArrayLike, chis: ArrayLike, level: str) -> list[Theory]:
    """Solve a level along increasing chi, each from the solution before it (Alg. 1); one decomposition serves all.

    Parameters
    ----------
    net : the network; its own chi is replaced.
    X : (P, D) training inputs.
    y : (P,) targets.
    chis : increasing values.
    level : as in ``solve``.

    Returns
    -------
    one Theory per chi

    Raises
    ------
    ValueError: chis is empty or does not increase; and as ``solve``.
    """
    scalings = as_floats("chis", chis)
    if scalings.ndim != 1 or len(scalings) == 0 or (np.diff(scalings) <= 0).any():
        raise ValueError(f"chis={chis!r}; expected increasing values, at least one")
    points = as_points("X", X)
    targets = as_targets("y", y, len(points))
    _check(net, level, len(points))
    spectrum = _spectrum(net, points, targets, level)
    theories: list[Theory] = []
    for chi in scalings.tolist():
        last = theories[-1] if theories else None
        theories.append(_solve(replace(net, chi=chi), points, targets, level, last, 1e-10, spectrum))
    return theories


def _check(net: TwoLayer, level: str, points: int) -> None:
    check_network(net)
    if level not in LEVELS:
        raise ValueError(f"level={level!r}; expected one of {', '.join(LEVELS)}")
    if level == "exact" and net.phi != "linear":
        raise NotImplementedError(f"level 'exact' needs phi='linear', got phi={net.phi!r}; use langevin")
    if level == "one_loop" and net.phi != "linear" and points > MOST_POINTS:
        raise ValueError(f"X has {points} points; level 'one_loop' of {net.phi} takes at most 200: use level='tree'")


def _spectrum(net: TwoLayer, X: Float[np.ndarray, "P D"], y: Float[np.ndarray, " P"], level: str) -> Spectrum | None:
    if net.phi == "linear":
        return Spectrum.of_inputs(np.sqrt(net.g_v / X.shape[1]) * X, y)
    if level in ("tree", "one_loop"):
        return None
    return Spectrum.of_kernel(kernel(net.phi, X, net.g_v / X.shape[1]), y)


def _solve(
    net: TwoLayer,
    X: Float[np.ndarray, "P D"],
    y: Float[np.ndarray, " P"],
    level: str,
    init: Theory | None,
    tol: float,
    spectrum: Spectrum | None,
) -> Theory:
    if init is not None and (init.level != level or init.net.phi != net.phi or init.X.shape != X.shape):
        raise ValueError(
            f"init is of level {init.level!r}, phi {init.net.phi!r} and X {init.X.shape}; expected the same"
        )
    variance, noise = net.effective()
    if spectrum is None:
        return _finite(_adapt(net, X, y, level, init, tol))
    if level == "exact":
        posterior = quadrature(net, X, y, spectrum)
        Q, s = posterior.q_grid, spectrum
        dual = s.U @ (posterior.q_weights @ (s.b / (noise + Q[:, None] * s.lam))) + s.rest / noise
        scale = float(posterior.q_weights @ Q)
        return _finite(Theory(net, X, y, level, scale, dual, -posterior.log_evidence, posterior=posterior))
    near = None if init is None else init.net.chi * init.scale / net.chi
    equation = _Equations(net, spectrum)
    Q = variance if level == "nngp" else getattr(equation, level)(tol, near)
    dual = spectrum.dual(Q, noise)
    values = equation.free_energy(level, Q), equation.residual(level, Q)
    return _finite(Theory(net, X, y, level, Q, dual, *values))


def _finite(theory: Theory) -> Theory:
    """The same, but an error where rounding or overflow leaves no solution."""
    values = (theory.scale, theory.free_energy, np.abs(theory.dual).max())
    if not theory.converged or not np.isfinite(values).all():
        Q, F, _ = values
        raise ConvergenceError(f"level {theory.level!r}: Q = {Q:.4g}, F = {F:.4g}, residual {theory.residual:.2g}")
    return theory


@dataclass(frozen=True)
class _Equations:
    """The scalar equations for Q; C stands for K_0 where the network is not linear."""

    net: TwoLayer
    spectrum: Spectrum

    def tree_gap(self, Q: Values) -> Values:
        """Q times [chi/g_w - j^T C j/N - 1/Q]; increasing in Q, so that there is one root, at g_w/chi or above."""
        variance, noise = self.net.effective()
        return Q / variance - Q * self.spectrum.energy(Q, noise) / self.net.width - 1

    def rescaling_gap(self, Q: Values) -> Values:
        """Q times [chi/g_w + (tr[C (noise + Q C)^{-1}] - j^T C j)/N - 1/Q]."""
        return self.tree_gap(Q) + Q * self.spectrum.trace(Q, self.net.effective()[1]) / self.net.width

    def one_loop_gap(self, Q: Values) -> Values:
        """1 - Q_tree/Q (1 - (Q_tree/N) tr[C (noise + Q_tree C)^{-1}]) with Q_tree = (g_w/chi)/(1 - a j^T C j) at j(Q)."""
        variance, noise = self.net.effective()
        tree = variance / (1 - variance / self.net.width * self.spectrum.energy(Q, noise))
        return 1 - tree / Q * (1 - tree / self.net.width * self.spectrum.trace(tree, noise))

    def tree(self, tol: float, near: float | None) -> float:
        variance, _ = self.net.effective()
        low = high = np.log(variance) - 1
        while self._at(self.tree_gap, high) < 0:
            low, high = high, high + 2
        return float(np.exp(_root(self.tree_gap, low, high, tol)))

    def rescaling(self, tol: float, near: float | None) -> float:
        """Below tree level, since the trace is positive, and above where 1/Q outweighs the largest trace."""
        variance, noise = self.net.effective()
        low = 1 / (1 / variance + self.spectrum.lam.sum() / (noise * self.net.width))
        high = self.tree(tol, None)
        return _nearest_root(self.rescaling_gap, low * (1 - 1e-9), high * (1 + 1e-9), near, tol)

    def one_loop(self, tol: float, near: float | None) -> float:
        """Below tree level, and above where a j^T C j reaches one."""
        variance, noise = self.net.effective()
        tree, low = self.tree(tol, None), 1e-8 * variance
        bound = lambda Q: variance / self.net.width * self.spectrum.energy(Q, noise) - 1  # noqa: E731
        if bound(low) > 0:
            low = np.exp(_root(bound, np.log(low), np.log(tree), tol)) * (1 + 1e-9)
        return _nearest_root(self.one_loop_gap, low, tree * (1 + 1e-9), near, tol)

    def residual(self, level: str, Q: float) -> float:
        if level == "nngp":
            return 0.0
        variance, noise = self.net.effective()
        terms = 1 + Q / variance + Q * self.spectrum.energy(Q, noise) / self.net.width
        return float(abs(self._at(getattr(self, f"{level}_gap"), np.log(Q))) / terms)

    def free_energy(self, level: str, Q: float) -> float:
        variance, noise = self.net.effective()
        s, N = self.spectrum, self.net.width
        if level == "nngp":
            return float(s.fit(Q, noise)) / 2
        if level == "rescaling":
            prior = N / 2 * (Q / variance - np.log(Q / variance) - 1)
            return float(prior + (s.log_det(Q, noise) + s.fit(Q, noise)) / 2)
        j, energy = s.dual(Q, noise), float(s.energy(Q, noise))
        y = s.U @ s.b + s.rest
        action = -j @ y + noise * j @ j / 2 - N / 2 * np.log1p(-variance / N * energy)
        if level == "tree":
            return float(-action)
        tree = variance / (1 - variance / N * energy)  # W''(j) = Q_tree C + (2/N) f f^T, f = Q_tree C j
        fit = tree**2 * float(((s.lam * s.b / (noise + Q * s.lam)) ** 2 / (noise + tree * s.lam)).sum())
        return float(-action + (s.log_det(tree, noise) + np.log1p(2 / N * fit)) / 2)

    @staticmethod
    def _at(gap: Callable, t: float) -> float:
        return float(gap(np.exp(t)))


def _root(gap: Callable, low: float, high: float, tol: float) -> float:
    """Root ln Q between two signs of the gap."""
    return scipy.optimize.root_scalar(lambda t: float(gap(np.exp(t))), bracket=(low, high), xtol=tol).root


def _nearest_root(gap: Callable, low: float, high: float, near: float | None, tol: float) -> float:
    """Root in [low, high]: the closest to ``near`` in ln Q, or the highest, which continues tree level."""
    t = np.linspace(np.log(low), np.log(high), 513)
    values = np.concatenate([gap(np.exp(block)) for block in np.array_split(t, 8)])
    [changes] = np.nonzero((values[:-1] < 0) & (values[1:] >= 0) | (values[:-1] >= 0) & (values[1:] < 0))
    if len(changes) == 0:
        raise ConvergenceError(
            f"no root for Q in [{low:.4g}, {high:.4g}]; the smallest relative residual is {np.abs(values).min():.2g}"
        )
    roots = [_root(gap, t[i], t[i + 1], tol) for i in changes]
    return float(np.exp(roots[-1] if near is None else min(roots, key=lambda root: abs(root - np.log(near)))))


def _adapt(
    net: TwoLayer,
    X: Float[np.ndarray, "P D"],
    y: Float[np.ndarray, " P"],
    level: str,
    init: Theory | None,
    tol: float,
) -> Theory:
    variance, _ = net.effective()
    basis = _row_space(X, np.abs(X).max())
    if not basis.size:  # inputs of zeros: any direction serves
        basis = np.eye(X.shape[1], 1)
    neuron = Neuron(net, np.sqrt(net.g_v / X.shape[1]) * X @ basis)
    start = neuron.prior() if init is None or init.adapted is None else init.adapted.tree.theta
    tree = neuron.saddle_point(y, start, tol)
    solution = tree if level == "tree" else neuron.one_loop(y, tree, tol)
    adapted, j = _Adapted(tree, solution, basis), solution.dual
    energy = j @ kernel(net.phi, X, adapted.weight_covariance(net)) @ j
    prior = j @ kernel(net.phi, X, net.g_v / X.shape[1]) @ j
    scale = float(variance * energy / prior) if prior > 0 else variance
    values = (solution.free_energy, solution.residual, solution.iterations)
    return Theory(net, X, y, level, scale, j, *values, adapted=adapted)


def _row_space(X: Float[np.ndarray, "P D"], size: float) -> Float[np.ndarray, "D r"]:
    """Orthonormal basis of the span of the rows, those being zero that are so to rounding of ``size``."""
    _, singular, rows = np.linalg.svd(X, full_matrices=False)
    return rows[singular > np.finfo(float).eps * max(X.shape) * np.sqrt(X.size) * size].T
