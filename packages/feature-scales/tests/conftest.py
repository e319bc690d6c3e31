"""Property tests have no deadline: the first call of a compiled function may take long on a busy machine."""

import jax
import pytest
from hypothesis import settings

from icml25.feature_scales import TwoLayer, ising_task, solve

settings.register_profile("icml25", deadline=None)
settings.load_profile("icml25")


@pytest.fixture(scope="session")
def ising():
    """Twenty training and five test points with a clear signal."""
    X, y = ising_task(jax.random.key(0), 25, 20, 0.2)
    return X[:20], y[:20], X[20:], y[20:]


@pytest.fixture(scope="session")
def erf_net():
    return TwoLayer(50, "erf", g_w=1.0, g_v=1.0, noise=0.3)


@pytest.fixture(scope="session")
def small():
    """Six points for the nonlinear one-loop level."""
    X, y = ising_task(jax.random.key(3), 8, 5, 0.3)
    return X[:6] + 0.1, y[:6], X[6:]


@pytest.fixture(scope="session")
def one_loop(small):
    X, y, _ = small
    return solve(TwoLayer(8, "erf", g_w=1.0, g_v=1.0, noise=0.3), X, y, "one_loop")
