"""Langevin sampling against the exact posterior of linear networks."""

import jax
import numpy as np
import pytest

from icml25.feature_scales import TwoLayer, exact_posterior, ising_task, langevin, teacher_task
from icml25.feature_scales.langevin import _effective_size, _split_rhat

NET = TwoLayer(6, "linear", g_w=1.0, g_v=1.0, noise=0.5, chi=2.0)


@pytest.fixture(scope="module")
def task():
    X, y = teacher_task(jax.random.key(0), 7, 3)
    return X[:5], y[:5], X[5:]


@pytest.fixture(scope="module")
def samples(task):
    X, y, X_test = task
    run = lambda method, eps: langevin(  # noqa: E731
        NET, X, y, jax.random.key(1), ensembles=64, steps=8000, burn_in=1000, eps=eps, method=method, X_test=X_test
    )
    return {"euler": run("euler", 0.005), "mala": run("mala", 0.05)}


@pytest.mark.parametrize("method", ["euler", "mala"])
def test_linear_networks_against_the_exact_posterior(samples, task, method):
    X, y, X_test = task
    found, exact = samples[method], exact_posterior(NET, X, y)
    error = found.f_train_chains.std(0, ddof=1) / 8
    np.testing.assert_array_less(abs(found.f_train_mean - exact.mean), 4 * error)
    error = found.f_test_chains.std(0, ddof=1) / 8
    np.testing.assert_array_less(abs(found.f_test_mean - exact.predict(X_test)), 4 * error)
    bias = 0.03 if method == "mala" else 0.06  # the discretisation widens the distribution
    size = np.abs(exact.cov).max()
    np.testing.assert_allclose(found.f_train_cov, exact.cov, atol=bias * size)
    np.testing.assert_allclose(found.f_test_cov, exact.output_covariance(X_test), rtol=0.1, atol=bias * size)
    np.testing.assert_allclose(found.weight_covariance, exact.weight_covariance(), atol=0.03)
    hidden = X @ found.weight_covariance @ X.T
    np.testing.assert_allclose(found.hidden_kernel, hidden, rtol=1e-10)
    assert found.rhat.max() < 1.05 and found.ess.min() > 1000
    assert found.acceptance == 1 if method == "euler" else 0.5 < found.acceptance < 1


def test_start_from_exact_draws_is_stationary(task):
    X, y, _ = task
    chain = {"ensembles": 400, "steps": 40, "burn_in": 0, "thin": 10, "method": "mala"}
    with pytest.warns(UserWarning, match="R-hat"):  # four draws per chain
        found = langevin(NET, X, y, jax.random.key(2), start="exact", **chain)
    exact = exact_posterior(NET, X, y)
    error = found.f_train_chains.std(0, ddof=1) / 20
    np.testing.assert_array_less(abs(found.f_train_mean - exact.mean), 4 * error)
    np.testing.assert_allclose(found.weight_covariance, exact.weight_covariance(), atol=0.06)


def test_same_key_same_samples(task):
    X, y, _ = task
    run = lambda seed: langevin(NET, X, y, jax.random.key(seed), ensembles=40, steps=200, burn_in=200)  # noqa: E731
    one, two, other = run(0), run(0), run(1)
    np.testing.assert_array_equal(one.f_train_mean, two.f_train_mean)
    assert (one.f_train_mean != other.f_train_mean).any()
    assert one.f_test_mean is None and one.f_test_cov is None and one.f_test_chains is None


def test_diagnostics_of_known_processes():
    rng = np.random.default_rng(0)
    independent = rng.standard_normal((1000, 8, 2))
    assert _split_rhat(independent).max() < 1.01
    np.testing.assert_allclose(_effective_size(independent), 8000, rtol=0.1)
    process = np.zeros((4000, 8, 1))
    for t in range(1, 4000):  # autocorrelation time (1 + 0.8)/(1 - 0.8) = 9
        process[t] = 0.8 * process[t - 1] + rng.standard_normal((8, 1))
    np.testing.assert_allclose(_effective_size(process), 4000 * 8 / 9, rtol=0.15)
    assert _split_rhat(independent + np.arange(8)[:, None]).min() > 1.5


def test_diagnostics_of_constant_outputs():
    constant = np.zeros((100, 4, 1))
    assert _split_rhat(constant) <= 1 and _effective_size(constant) == 400
    assert _split_rhat(constant + np.arange(4)[:, None]) == np.inf  # every chain stuck elsewhere
    X, y = np.array([[1.0, 0.5], [0.0, 0.0]]), np.array([1.0, -1.0])
    found = langevin(NET, X, y, jax.random.key(0), ensembles=40, steps=2000)
    assert found.f_train_mean[1] == 0 and found.rhat[1] <= 1 and found.ess[1] == 8000


def test_warning_when_chains_disagree(task):
    X, y, _ = task
    with pytest.warns(UserWarning, match=r"R-hat is \d"):
        langevin(NET, X, y, jax.random.key(0), ensembles=4, steps=8, burn_in=0, thin=1, eps=1e-4)


def test_divergence_is_an_error():
    X, y = ising_task(jax.random.key(0), 20, 20, 0.2)
    with pytest.raises(FloatingPointError, match=r"eps=3\.0"):
        langevin(TwoLayer(6, "linear", 1.0, 1.0, 1e-3), X, y, jax.random.key(0), ensembles=4, steps=200, eps=3.0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"ensembles": 0}, ValueError, "ensembles=0"),
        ({"steps": 0}, ValueError, "steps=0"),
        ({"steps": 30}, ValueError, "leave 3 draws"),
        ({"burn_in": -1}, ValueError, "burn_in=-1"),
        ({"burn_in": True}, ValueError, "burn_in=True"),
        ({"thin": 0}, ValueError, "thin=0"),
        ({"eps": 0.0}, ValueError, r"eps=0\.0"),
        ({"method": "hmc"}, ValueError, "method='hmc'"),
        ({"start": "zero"}, ValueError, "start='zero'"),
        ({"X_test": np.ones((2, 4))}, ValueError, "X_test has 4 features"),
    ],
)
def test_bad_input(task, changes, error, message):
    X, y, _ = task
    with pytest.raises(error, match=message):
        langevin(NET, X, y, jax.random.key(0), **changes)


def test_exact_start_of_nonlinear_networks_is_refused(task):
    X, y, _ = task
    with pytest.raises(NotImplementedError, match="phi='relu'"):
        langevin(TwoLayer(6, "relu", 1.0, 1.0, 0.5), X, y, jax.random.key(0), start="exact")
