"""The exact posterior against a brute-force integral and its own draws."""

import pickle

import jax
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats

from icml25.feature_scales import TwoLayer, exact_posterior, solve
from icml25.feature_scales.exact import log_density
from icml25.feature_scales.theory import _Equations

RNG = np.random.default_rng(0)
X, Y, X_TEST = RNG.standard_normal((6, 4)), RNG.standard_normal(6), RNG.standard_normal((3, 4))
NET = TwoLayer(5, "linear", g_w=1.3, g_v=0.8, noise=0.2, chi=2.0)


def test_one_neuron_and_one_point_by_brute_force():
    net = TwoLayer(1, "linear", g_w=1.3, g_v=0.8, noise=0.2, chi=2.0)
    x, y, at = 1.5, 0.9, -0.7
    variance, noise = net.effective()
    assert (variance, noise) == (0.65, 0.1)

    grid = np.linspace(-9, 9, 1201)  # the trapezoidal rule converges exponentially
    v, w = np.meshgrid(grid, grid)
    prior = scipy.stats.norm.pdf(v, scale=np.sqrt(0.8)) * scipy.stats.norm.pdf(w, scale=np.sqrt(variance))
    density = prior * scipy.stats.norm.pdf(y - w * v * x, scale=np.sqrt(noise)) * (grid[1] - grid[0]) ** 2

    def integral(of):
        return (of(v, w) * density).sum()

    evidence = integral(lambda v, w: 1.0)
    found = exact_posterior(net, [[x]], [y])
    mean = integral(lambda v, w: w * v) / evidence
    square = integral(lambda v, w: (w * v) ** 2) / evidence
    assert found.log_evidence == pytest.approx(np.log(evidence) + np.log(2 * np.pi) / 2, rel=1e-7)
    assert found.mean[0] == pytest.approx(x * mean, rel=1e-7)
    assert found.cov[0, 0] == pytest.approx(x**2 * (square - mean**2), rel=1e-7)
    assert found.predict([[at]])[0] == pytest.approx(at * mean, rel=1e-7)
    assert found.output_covariance([[at]])[0, 0] == pytest.approx(at**2 * (square - mean**2), rel=1e-7)
    assert found.weight_covariance()[0, 0] == pytest.approx(integral(lambda v, w: v**2) / evidence, rel=1e-7)


def test_density_integrates_to_one():
    found = exact_posterior(NET, X, Y)
    assert found.q_weights.sum() == pytest.approx(1)
    density = log_density(NET, found.spectrum)
    total, _ = scipy.integrate.quad(lambda q: np.exp(density(np.array([q]))[0]), 0, 40, epsabs=1e-14, limit=200)
    assert np.log(total) == pytest.approx(found.log_evidence, rel=1e-8)


def test_rescaling_is_the_mode_of_the_density_of_ln_q_with_n_over_two():
    found = exact_posterior(NET, X, Y)
    mode = scipy.optimize.minimize_scalar(
        lambda t: -(log_density(NET, found.spectrum)(np.array([np.exp(t)]))[0] + t),
        bounds=(-4, 4),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert solve(NET, X, Y, "rescaling").scale == pytest.approx(np.exp(mode.x), rel=1e-6)


def test_train_and_test_moments_agree_at_the_training_inputs():
    found = exact_posterior(NET, X, Y)
    np.testing.assert_allclose(found.predict(X), found.mean, rtol=1e-10)
    np.testing.assert_allclose(found.output_covariance(X), found.cov, atol=1e-12)
    theory = solve(NET, X, Y, "exact")
    np.testing.assert_allclose(Y - found.mean, NET.effective()[1] * theory.dual, atol=1e-12)
    np.testing.assert_allclose(theory.mean(X_TEST), found.predict(X_TEST), rtol=1e-12)


def test_moments_of_draws():
    found, n = exact_posterior(NET, X, Y), 200_000
    f = found.sample(jax.random.key(0), n)
    error = np.sqrt(np.diag(found.cov) / n)
    np.testing.assert_array_less(abs(f.mean(0) - found.mean), 4 * error)
    np.testing.assert_allclose(np.cov(f.T), found.cov, atol=6 * found.cov.max() / np.sqrt(n))


def test_moments_of_drawn_networks():
    found, n = exact_posterior(NET, X, Y), 100_000
    V, w = found.sample_weights(jax.random.key(1), n)
    assert V.shape == (n, 5, 4) and w.shape == (n, 5)
    f = np.einsum("nk,nkd,pd->np", w, V, X)
    np.testing.assert_array_less(abs(f.mean(0) - found.mean), 4 * np.sqrt(np.diag(found.cov) / n))
    np.testing.assert_allclose(np.cov(f.T), found.cov, atol=6 * found.cov.max() / np.sqrt(n))
    squares = np.einsum("nkd,nke->nde", V, V) / 5
    np.testing.assert_array_less(abs(squares.mean(0) - found.weight_covariance()), 4.5 * squares.std(0) / np.sqrt(n))


def test_few_features_and_many_points_use_the_smaller_gram_matrix():
    rng = np.random.default_rng(1)
    tall, y = rng.standard_normal((9, 2)), rng.standard_normal(9)
    wide = np.concatenate([tall, np.zeros((9, 8))], axis=1)  # the same points and the same g_v/D
    few = exact_posterior(TwoLayer(5, "linear", 1.0, 0.4, 0.2), tall, y)
    many = exact_posterior(TwoLayer(5, "linear", 1.0, 2.0, 0.2), wide, y)
    assert len(few.spectrum.lam) == len(many.spectrum.lam) == 2
    assert few.log_evidence == pytest.approx(many.log_evidence, rel=1e-10)
    np.testing.assert_allclose(few.cov, many.cov, atol=1e-12)


def test_equations_by_matrix_algebra():
    C = 0.2 * X @ X.T
    found = exact_posterior(NET, X, Y)
    s, noise, Q = found.spectrum, 0.1, 0.7
    A = noise * np.eye(6) + Q * C
    j = np.linalg.solve(A, Y)
    assert s.trace(np.array(Q), noise) == pytest.approx(np.trace(np.linalg.solve(A, C)))
    assert s.energy(np.array(Q), noise) == pytest.approx(j @ C @ j)
    assert s.fit(np.array(Q), noise) == pytest.approx(Y @ j)
    assert s.log_det(np.array(Q), noise) == pytest.approx(np.linalg.slogdet(A)[1])
    np.testing.assert_allclose(s.dual(Q, noise), j)
    gap = Q * (2 / 1.3 + (np.trace(np.linalg.solve(A, C)) - j @ C @ j) / 5 - 1 / Q)
    assert _Equations(NET, s).rescaling_gap(np.array(Q)) == pytest.approx(gap)


def test_determinism_and_pickling():
    found = exact_posterior(NET, X, Y)
    again = pickle.loads(pickle.dumps(found))
    key = jax.random.key(5)
    np.testing.assert_array_equal(found.sample(key, 3), again.sample(key, 3))


@pytest.mark.parametrize("n", [0, True])
def test_bad_numbers_of_draws(n):
    found = exact_posterior(NET, X, Y)
    for draw in (found.sample, found.sample_weights):
        with pytest.raises(ValueError, match=f"n={n}"):
            draw(jax.random.key(0), n)


def test_only_linear_networks():
    with pytest.raises(NotImplementedError, match="phi='erf'"):
        exact_posterior(TwoLayer(5, "erf", 1.0, 1.0, 1.0), X, Y)
