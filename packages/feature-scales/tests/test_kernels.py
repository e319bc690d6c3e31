"""Kernels against Monte Carlo and known special cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from icml25.feature_scales import kernel
from icml25.feature_scales.kernels import gaussian_moment

PHI = {"linear": lambda h: h, "erf": scipy.special.erf, "relu": lambda h: np.maximum(h, 0)}


@pytest.mark.parametrize("phi", PHI)
def test_kernel_is_the_gaussian_moment(phi):
    rng = np.random.default_rng(0)
    X, X2 = rng.standard_normal((3, 4)), rng.standard_normal((2, 4))
    root = rng.standard_normal((4, 4)) / 2
    v = rng.standard_normal((10**6, 4)) @ root.T
    hidden = [PHI[phi](v @ points.T) for points in (X, X2)]
    products = hidden[0][:, :, None] * hidden[1][:, None, :]
    error = products.std(0) / 1000
    np.testing.assert_array_less(abs(kernel(phi, X, root @ root.T, X2) - products.mean(0)), 5 * error)


@pytest.mark.parametrize("phi", PHI)
def test_a_number_stands_for_the_identity_and_one_input_for_two(phi):
    X = np.random.default_rng(0).standard_normal((4, 3))
    np.testing.assert_allclose(kernel(phi, X, 0.7), kernel(phi, X, 0.7 * np.eye(3), X), rtol=1e-14)


def test_relu_kernel_at_equal_opposite_and_zero_inputs():
    X = np.array([[1.0, 2.0], [1.0, 2.0], [-1.0, -2.0], [0.0, 0.0]])
    expected = np.zeros((4, 4))
    expected[:2, :2], expected[2, 2] = 2.5, 2.5
    np.testing.assert_allclose(kernel("relu", X, 1.0), expected, atol=1e-6)


@pytest.mark.parametrize("phi", ["erf", "relu"])
def test_gradients_are_finite_with_duplicates_and_zeros(phi):
    with jax.enable_x64(True):
        H = jnp.asarray([[1.0, 2.0], [1.0, 2.0], [-1.0, -2.0], [0.0, 0.0], [0.5, 1.0]])

        def total(root):
            preactivations = H @ root
            variance = (preactivations**2).sum(1)
            return gaussian_moment(phi, preactivations @ preactivations.T, variance, variance).sum()

        assert jnp.isfinite(jax.grad(total)(jnp.eye(2))).all()
        assert jnp.isfinite(jax.hessian(total)(jnp.eye(2))).all()


def test_relu_gradient_by_finite_differences():
    X = np.random.default_rng(1).standard_normal((4, 3))
    with jax.enable_x64(True):
        H = jnp.asarray(X)

        def total(scale):
            preactivations = H * scale
            variance = (preactivations**2).sum(1)
            return gaussian_moment("relu", preactivations @ preactivations.T, variance, variance).sum()

        scale = jnp.asarray([1.0, 0.7, 1.3])
        found = jax.grad(total)(scale)
        for k in range(3):
            step = 1e-6 * jnp.eye(3)[k]
            numeric = (total(scale + step) - total(scale - step)) / 2e-6
            assert float(found[k]) == pytest.approx(float(numeric), rel=1e-6)


def test_float64_inside_and_the_users_precision_outside():
    X = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    assert kernel("erf", X, 1.0).dtype == np.float64
    np.testing.assert_array_equal(kernel("erf", jnp.asarray(X), 1.0), kernel("erf", X.astype(float), 1.0))
    assert jnp.ones(2).dtype == jnp.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tanh", np.ones((2, 2)), 1.0), "phi='tanh'"),
        (("erf", np.ones(2), 1.0), r"X has shape \(2,\)"),
        (("erf", np.ones((2, 2)), np.eye(3)), "Sigma has shape"),
        (("erf", np.ones((2, 2)), np.nan), "Sigma holds NaN"),
        (("erf", np.ones((2, 2)), -1.0), "Sigma is not"),
        (("relu", np.ones((2, 2)), -np.eye(2)), "Sigma is not"),
        (("erf", np.ones((2, 2)), np.array([[1.0, 0.5], [0.0, 1.0]])), "Sigma is not"),
        (("erf", np.ones((2, 2)), 1.0, np.ones((2, 3))), "X2 has 3 features"),
        (("erf", np.full((2, 2), np.nan), 1.0), "X holds NaN"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        kernel(*arguments)
