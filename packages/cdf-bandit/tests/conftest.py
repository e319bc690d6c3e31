"""The environments of the tests."""

import numpy as np
import pytest

from icml25.cdf_bandit import CallableBasis, LogisticBasis, MixtureEnvironment, atoms

A = 5


def sine(x, a, w):
    return 0.5 + 0.45 * np.sin(2 * np.pi * (0.5 * w + x[:, :1] + a[:, None] / A))


def beta22(w):
    return 6 * w * (1 - w)


def uniform_contexts(n, rng):
    return rng.random((n, 1))


def step_cdf(x, a, w, s):
    s = s[:, None, :] if s.ndim == 2 else s[None, None, :]
    return np.broadcast_to((s >= w[None, :, None]).astype(float), (len(x), len(w), s.shape[-1]))


def step_tail(x, a, w, y):
    return 1 - np.maximum(y[:, None], w)


def powers_cdf(x, a, w, s):
    """phi_1 = s, phi_2 = s^2: the parameter is the power."""
    s = s[:, None, :] if s.ndim == 2 else s[None, None, :]
    return np.broadcast_to(s ** w[None, :, None], (len(x), len(w), s.shape[-1]))


@pytest.fixture
def basis():
    return LogisticBasis(sine, 0.08)


@pytest.fixture
def environment(basis):
    return MixtureEnvironment(basis, beta22, uniform_contexts, A, seed=0)


@pytest.fixture
def step_basis():
    return CallableBasis(step_cdf, tail_integral=step_tail)


@pytest.fixture
def powers():
    """The two atoms with nu = (1, 1) of the closed forms."""
    return {
        "basis": CallableBasis(powers_cdf),
        "n_actions": 1,
        "measure": atoms([1.0, 2.0], [1.0, 1.0]),
        "normalize": False,
    }


@pytest.fixture
def data(environment):
    rng = np.random.default_rng(1)
    X = environment.context(600, rng)
    actions = rng.integers(A, size=600)
    return X, actions, environment.reward(X, actions, rng)
