"""Small networks and environments, compiled once per module."""

import atexit
import os
import shutil
import tempfile

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # the workers of one session share what they compile
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="icml25-p3o-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 " + os.environ.get("XLA_FLAGS", "")  # compiles faster

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml25.p3o.envs import Pendulum
from icml25.p3o.networks import MLP, Actor, functional

KEY = jax.random.key(0)
PLAIN = {
    "num_envs": 4,
    "n_steps": 32,
    "num_minibatches": 4,
    "n_epochs": 2,
    "hidden": (16, 16),
    "learning_rate": 1e-3,
    "reset_every": 2,
}
SMALL = PLAIN | {"reset_rate": 0.25}


class JaxPendulum(gymnasium.Env):
    """Our pendulum behind gymnasium's interface, every episode from the same start."""

    observation_space = gymnasium.spaces.Box(-8, 8, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)
    inner = Pendulum(horizon=24)
    _step = staticmethod(jax.jit(inner.step))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, obs = start(self.inner)
        return np.asarray(obs), {}

    def step(self, action):
        self.state, obs, reward, terminated, truncated = self._step(KEY, self.state, jnp.asarray(action))
        return np.asarray(obs), float(reward), bool(terminated), bool(truncated), {}


def start(env):
    state, _ = env.reset(KEY)
    state = state._replace(theta=jnp.float32(3.0), theta_dot=jnp.float32(0.5))
    return state, env._observe(state)


class FixedStart(Pendulum):
    def reset(self, key, previous=None):
        return start(Pendulum())


@pytest.fixture(scope="session")
def mlp():
    """init, apply of 5 -> 12 -> 9 -> 3."""
    return functional(lambda rngs: MLP(5, (12, 9), 3, rngs=rngs))


@pytest.fixture(scope="session")
def gaussian_actor():
    """init, apply of a policy with 4 observations, 2 actions."""
    return functional(lambda rngs: Actor(4, (32, 32), 2, log_std="head", rngs=rngs))
