"""Environments in JAX against gymnasium, the changing world, adapters, and Cycle Friction."""

from types import SimpleNamespace
from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml25.p3o import CycleFriction
from icml25.p3o.envs import CartPole, Changing, JaxEnv, Pendulum, from_brax, from_gymnax, mean_return

KEY = jax.random.key(0)


def test_pendulum_is_gymnasiums():
    theirs = gymnasium.make("Pendulum-v1")
    theirs.reset(seed=0)
    env, rng = Pendulum(), np.random.default_rng(0)
    state, _ = env.reset(KEY)
    state = state._replace(theta=jnp.float32(2.5), theta_dot=jnp.float32(-1.0))
    theirs.unwrapped.state = np.array([2.5, -1.0])
    step = jax.jit(env.step)
    for t in range(200):
        action = rng.uniform(-2.5, 2.5, 1).astype(np.float32)
        state, obs, reward, terminated, truncated = step(KEY, state, action)
        expected, wanted, *ends, _ = theirs.step(np.clip(action, -2, 2))
        if t < 40:  # before rounding grows
            assert np.allclose(obs, expected, atol=2e-3) and reward == pytest.approx(wanted, abs=1e-2)
        assert [bool(terminated), bool(truncated)] == ends
    assert truncated


def test_cartpole_is_gymnasiums():
    theirs = gymnasium.make("CartPole-v1")
    start, _ = theirs.reset(seed=0)
    env = CartPole()
    state, _ = env.reset(KEY)
    state = state._replace(x=jnp.asarray(start))
    step = jax.jit(env.step)
    for t in range(500):
        action = t % 3 == 0
        state, obs, reward, terminated, truncated = step(KEY, state, jnp.int32(action))
        expected, wanted, *ends, _ = theirs.step(int(action))
        assert np.allclose(obs, expected, atol=1e-4) and reward == wanted
        assert [bool(terminated), bool(truncated)] == ends
        if terminated:
            break
    assert terminated and t > 5
    short = CartPole(horizon=1)
    state, _ = short.reset(KEY)
    assert [bool(x) for x in short.step(KEY, state, jnp.int32(0))[3:]] == [False, True]


def test_starts():
    states, _ = jax.vmap(Pendulum().reset)(jax.random.split(KEY, 4000))
    assert abs(float(states.theta.std()) - np.pi / np.sqrt(3)) < 0.05
    assert float(jnp.abs(states.theta_dot).max()) <= 1 and float(states.theta_dot.std()) == pytest.approx(
        0.577, abs=0.02
    )


def test_the_world_changes_at_the_next_reset():
    env = Changing(Pendulum(), "gravity", (1.0, 3.0), period=4)
    assert isinstance(env, JaxEnv) and env.action_space.size == 1
    step = jax.jit(env.step)
    state, _ = env.reset(KEY)
    for _ in range(5):
        before = state
        state, *_ = step(KEY, state, jnp.zeros(1))
    assert int(state.steps) == 5 and int(state.stage) == 0
    plain = Pendulum().step(KEY, before.inner, jnp.zeros(1))[0]
    assert state.inner.theta_dot == pytest.approx(float(plain.theta_dot), rel=1e-5)
    state, _ = env.reset(KEY, state)
    assert int(state.stage) == 1 and int(state.steps) == 5
    heavy = Pendulum(gravity=30.0).step(KEY, state.inner, jnp.zeros(1))[0]
    after, *_ = step(KEY, state, jnp.zeros(1))
    assert after.inner.theta_dot == pytest.approx(float(heavy.theta_dot), rel=1e-5)
    for _ in range(4):
        state, *_ = step(KEY, state, jnp.zeros(1))
    assert int(env.reset(KEY, state)[0].stage) == 0  # the cycle begins again


def test_mean_return_stops_at_the_end_of_an_episode():
    never = mean_return(CartPole(horizon=7), lambda obs: jnp.zeros(len(obs), jnp.int32), KEY, episodes=3, max_steps=30)
    assert never == 7
    cut = mean_return(CartPole(), lambda obs: jnp.zeros(len(obs), jnp.int32), KEY, episodes=3, max_steps=4)
    assert cut == 4


class Inner(NamedTuple):
    x: jax.Array
    time: jax.Array


class GymnaxLike:
    """The parts of gymnax's interface that the adapter calls."""

    default_params = SimpleNamespace(max_steps_in_episode=3)

    def observation_space(self, params):
        return SimpleNamespace(shape=(1,))

    def action_space(self, params):
        return SimpleNamespace(n=2)

    def reset_env(self, key, params):
        return jnp.zeros(1), Inner(jnp.float32(0), jnp.int32(0))

    def step_env(self, key, state, action, params):
        state = Inner(state.x + action, state.time + 1)
        done = (state.x > 1) | (state.time >= params.max_steps_in_episode)
        return state.x[None], state, state.x, done, {}


class BraxState(NamedTuple):
    obs: jax.Array
    reward: jax.Array
    done: jax.Array


class BraxLike:
    """The parts of brax's interface that the adapter calls."""

    observation_size, action_size = 1, 2

    def reset(self, key):
        return BraxState(jnp.zeros(1), jnp.float32(0), jnp.float32(0))

    def step(self, state, action):
        obs = state.obs + action[0]
        return BraxState(obs, obs[0], (obs[0] > 1).astype(jnp.float32))


@pytest.mark.parametrize("env", [from_gymnax(GymnaxLike()), from_brax(BraxLike(), horizon=3)], ids=["gymnax", "brax"])
def test_adapters(env):
    discrete = env.action_space.discrete is not None
    one = jnp.int32(1) if discrete else jnp.ones(2)
    assert env.observation_size == 1 and env.action_space.size == 2 and isinstance(env, JaxEnv)
    state, _ = env.reset(KEY)
    state, obs, reward, *ends = env.step(KEY, state, one)
    assert obs.tolist() == [1.0] and reward == 1 and not any(ends)
    state, _, _, terminated, truncated = env.step(KEY, state, one)
    assert terminated and not truncated
    state, _ = env.reset(KEY)
    for _ in range(3):
        state, _, _, terminated, truncated = env.step(KEY, state, 0 * one)
    assert truncated and not terminated


class Slope(gymnasium.Env):
    """A stand-in for a MuJoCo environment: two geoms with friction."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1), gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.model = SimpleNamespace(geom_friction=np.array([[1.0, 0.1, 0.2], [0.5, 0.1, 0.2]]))

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}


def check_friction(env, model):
    original = model.geom_friction.copy()
    wrapped = CycleFriction(env, (1.0, 0.5, 2.0), period=3)
    seen = []
    for _ in range(5):
        wrapped.reset(seed=0)
        before = model.geom_friction[:, 0] / original[:, 0]
        for _ in range(2):
            wrapped.step(wrapped.action_space.sample())
        assert np.array_equal(before, model.geom_friction[:, 0] / original[:, 0])  # not within an episode
        seen.append(before.tolist())
    assert np.allclose(seen, np.array([1, 1, 0.5, 2.0, 2.0])[:, None])
    assert np.array_equal(model.geom_friction[:, 1:], original[:, 1:])


def test_cycle_friction():
    env = Slope()
    check_friction(env, env.model)
    with pytest.raises(TypeError, match="MuJoCo"):
        CycleFriction(gymnasium.make("CartPole-v1"))
    with pytest.raises(ValueError, match="factors"):
        CycleFriction(Slope(), (1.0, 0.0))
    with pytest.raises(ValueError, match="period"):
        CycleFriction(Slope(), period=0)


def test_cycle_friction_on_mujoco():
    pytest.importorskip("mujoco")
    env = gymnasium.make("Hopper-v5")
    check_friction(env, env.unwrapped.model)
