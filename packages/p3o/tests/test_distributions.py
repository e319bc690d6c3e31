"""alpha-DKL against closed forms, Monte Carlo and SciPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from icml25.p3o import Categorical, Gaussian, alpha_dkl

A = Gaussian(jnp.array([[0.3, -1.0]]), jnp.array([[0.2, -0.4]]))
B = Gaussian(jnp.array([[0.1, -0.5]]), jnp.array([[-0.1, 0.3]]))
P = Categorical(jnp.array([[1.0, -0.5, 0.2]]))
Q = Categorical(jnp.array([[0.3, 0.8, -1.0]]))


def closed(a, b):
    m1, s1, m2, s2 = (np.asarray(x, np.float64) for x in (a.mean, np.exp(a.log_std), b.mean, np.exp(b.log_std)))
    return (np.log(s2 / s1) + (s1**2 + (m1 - m2) ** 2) / (2 * s2**2) - 0.5).sum(-1)


def discrete(p, q):
    p, q = (np.exp(np.asarray(x.logits, np.float64)) for x in (p, q))
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    return stats.entropy(p, q, axis=-1)


@pytest.mark.parametrize(("a", "b", "formula"), [(A, B, closed), (P, Q, discrete)], ids=["gaussian", "categorical"])
def test_ends_are_the_closed_forms(a, b, formula):
    assert np.allclose(alpha_dkl(a, b, 1.0), formula(a, b), rtol=1e-5)
    assert np.allclose(alpha_dkl(a, b, 0.0), formula(b, a), rtol=1e-5)
    assert np.allclose(alpha_dkl(a, b, 0.3), 0.3 * formula(a, b) + 0.7 * formula(b, a), rtol=1e-5)
    assert np.allclose(alpha_dkl(a, b, 0.5), alpha_dkl(b, a, 0.5), rtol=1e-6)
    assert abs(float(alpha_dkl(a, b, 0.9)[0] - alpha_dkl(b, a, 0.9)[0])) > 1e-3
    assert alpha_dkl(a, a, 0.4)[0] == 0


@pytest.mark.parametrize(("a", "b"), [(A, B), (P, Q)], ids=["gaussian", "categorical"])
def test_monte_carlo(a, b):
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (400_000, x.shape[-1])), a)
    action = many.sample(jax.random.key(1))
    log_ratio = np.asarray(a.log_prob(action) - b.log_prob(action), np.float64)
    assert log_ratio.mean() == pytest.approx(float(a.kl(b)[0]), rel=0.01)
    assert -np.asarray(a.log_prob(action), np.float64).mean() == pytest.approx(float(a.entropy()[0]), rel=0.01)


def test_densities_are_scipys():
    x = np.array([[0.7, -0.2]])
    expected = stats.norm.logpdf(x, np.asarray(A.mean), np.exp(np.asarray(A.log_std))).sum(-1)
    assert np.allclose(A.log_prob(jnp.asarray(x, jnp.float32)), expected, rtol=1e-5)
    entropy = stats.norm.entropy(scale=np.exp(np.asarray(A.log_std))).sum(-1)
    assert np.allclose(A.entropy(), entropy, rtol=1e-5)
    assert np.allclose(P.log_prob(jnp.array([2])), jax.nn.log_softmax(P.logits)[:, 2])
    assert A.mode() is A.mean and P.mode().tolist() == [0]


@given(st.lists(st.floats(-3, 3), min_size=8, max_size=8), st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_never_negative_and_positive_when_they_differ(values, alpha):
    m1, s1, m2, s2 = np.array(values, np.float32).reshape(4, 1, 2)
    distance = float(alpha_dkl(Gaussian(m1, s1), Gaussian(m2, s2), alpha)[0])
    assert distance >= 0
    if max(np.abs(m1 - m2).max(), np.abs(s1 - s2).max()) > 0.05:
        assert distance > 0
    shifted = float(alpha_dkl(Categorical(m1), Categorical(m1 + 5), alpha)[0])
    assert abs(shifted) < 1e-5  # logits are known up to a constant


def test_alpha_is_idle_while_sigma_is_shared():
    mean, log_std = jnp.array([[0.2, 0.5]]), jnp.array([0.1, -0.3])
    teacher = Gaussian(jnp.array([[0.0, 1.0]]), jnp.broadcast_to(log_std, (1, 2)))

    def gap(mean, log_std, alpha):
        return alpha_dkl(teacher, Gaussian(mean, jnp.broadcast_to(log_std, mean.shape)), alpha).sum()

    values = [gap(mean, log_std, alpha) for alpha in (0.0, 0.4, 1.0)]
    assert np.allclose(values, ((mean - teacher.mean) ** 2 / 2 * jnp.exp(-2 * log_std)).sum(), rtol=1e-5)
    slopes = [jax.grad(gap)(mean, log_std, alpha) for alpha in (0.0, 1.0)]
    assert np.allclose(slopes[0], slopes[1], rtol=1e-5)
    # of log sigma the forward divergence has the slope -dm^2 / s^2, the backward one 0
    gaps = np.asarray((mean - teacher.mean) ** 2 * jnp.exp(-2 * log_std))[0]
    assert np.allclose(jax.grad(gap, 1)(mean, log_std, 1.0), -gaps, atol=1e-5)
    assert np.allclose(jax.grad(gap, 1)(mean, log_std, 0.0), 0, atol=1e-5)


def test_bad_input():
    with pytest.raises(ValueError, match="alpha"):
        alpha_dkl(A, B, 1.2)
    with pytest.raises(TypeError, match="Gaussian"):
        alpha_dkl(A, P, 0.5)
    assert math.isfinite(float(alpha_dkl(A, B, 0.5)[0]))
