"""Environments written in JAX: a small interface, two classics, a world that changes, adapters for gymnax and brax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

__all__ = ["ActionSpace", "CartPole", "Changing", "JaxEnv", "Pendulum", "from_brax", "from_gymnax", "mean_return"]


@dataclass(frozen=True)
class ActionSpace:
    """Actions: ``discrete`` of them, or a vector between ``low`` and ``high`` (to which a policy's samples are clipped)."""

    discrete: int | None = None
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """Number of discrete actions, or dimensions of the vector."""
        return self.discrete if self.discrete is not None else len(self.low)

    def clip(self, action: Array) -> Array:
        """An action that the environment takes."""
        return action if self.discrete is not None else jnp.clip(action, jnp.array(self.low), jnp.array(self.high))


@runtime_checkable
class JaxEnv(Protocol):
    """What the jitted path asks of an environment: pure functions of one environment, which do not reset themselves."""

    @property
    def observation_size(self) -> int:
        """Length of the observation vector."""
        ...

    @property
    def action_space(self) -> ActionSpace:
        """Its actions."""
        ...

    def reset(self, key: Array, previous: Any = None) -> tuple[Any, Array]:
        """State and observation at the start of an episode; ``previous`` is the state in which the last one ended."""
        ...

    def step(self, key: Array, state: Any, action: Array) -> tuple[Any, Array, Array, Array, Array]:
        """State, observation, reward, terminated, truncated."""
        ...


class PendulumState(NamedTuple):
    """Angle from upright (rad), angular velocity (rad/s), steps of the episode."""

    theta: Array
    theta_dot: Array
    time: Array


@dataclass(frozen=True)
class Pendulum:
    """The dynamics, reward and 200-step limit of gymnasium's Pendulum-v1, with viscous friction besides (0 there)."""

    gravity: Any = 10.0
    friction: Any = 0.0
    mass: Any = 1.0
    length: Any = 1.0
    horizon: int = 200

    observation_size = 3
    action_space = ActionSpace(low=(-2.0,), high=(2.0,))

    def reset(self, key: Array, previous: Any = None) -> tuple[PendulumState, Float[Array, " 3"]]:
        """Angle uniform on [-pi, pi], velocity on [-1, 1]."""
        theta, theta_dot = jax.random.uniform(key, (2,), minval=-1.0) * jnp.array([jnp.pi, 1.0])
        state = PendulumState(theta, theta_dot, jnp.int32(0))
        return state, self._observe(state)

    def step(
        self, key: Array, state: PendulumState, action: Float[Array, " 1"]
    ) -> tuple[PendulumState, Float[Array, " 3"], Array, Array, Array]:
        """One step of 0.05 s."""
        u = jnp.clip(action[0], -2.0, 2.0)
        angle = (state.theta + jnp.pi) % (2 * jnp.pi) - jnp.pi
        reward = -(angle**2 + 0.1 * state.theta_dot**2 + 0.001 * u**2)
        pull = 3 * self.gravity / (2 * self.length) * jnp.sin(state.theta)
        torque = 3.0 / (self.mass * self.length**2) * (u - self.friction * state.theta_dot)
        theta_dot = jnp.clip(state.theta_dot + (pull + torque) * 0.05, -8.0, 8.0)
        state = PendulumState(state.theta + theta_dot * 0.05, theta_dot, state.time + 1)
        return state, self._observe(state), reward, jnp.bool_(False), state.time >= self.horizon

    @staticmethod
    def _observe(state: PendulumState) -> Float[Array, " 3"]:
        return jnp.stack([jnp.cos(state.theta), jnp.sin(state.theta), state.theta_dot])


class CartPoleState(NamedTuple):
    """Position, velocity, angle and angular velocity (4,); steps of the episode."""

    x: Array
    time: Array


@dataclass(frozen=True)
class CartPole:
    """The dynamics, reward and 500-step limit of gymnasium's CartPole-v1."""

    gravity: Any = 9.8
    cart_mass: Any = 1.0
    pole_mass: Any = 0.1
    half_length: Any = 0.5
    force: Any = 10.0
    horizon: int = 500

    observation_size = 4
    action_space = ActionSpace(discrete=2)

    def reset(self, key: Array, previous: Any = None) -> tuple[CartPoleState, Float[Array, " 4"]]:
        """All four uniform on [-0.05, 0.05]."""
        x = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
        return CartPoleState(x, jnp.int32(0)), x

    def step(
        self, key: Array, state: CartPoleState, action: Array
    ) -> tuple[CartPoleState, Float[Array, " 4"], Array, Array, Array]:
        """One step of 0.02 s; reward 1."""
        _, x_dot, theta, theta_dot = state.x
        total, lever = self.cart_mass + self.pole_mass, self.pole_mass * self.half_length
        sin, cos = jnp.sin(theta), jnp.cos(theta)
        push = (jnp.where(action == 1, self.force, -self.force) + lever * theta_dot**2 * sin) / total
        swing = (self.gravity * sin - cos * push) / (self.half_length * (4 / 3 - self.pole_mass * cos**2 / total))
        slide = push - lever * swing * cos / total
        after = state.x + 0.02 * jnp.stack([x_dot, slide, theta_dot, swing])
        state = CartPoleState(after, state.time + 1)
        terminated = (jnp.abs(after[0]) > 2.4) | (jnp.abs(after[2]) > 12 * jnp.pi / 180)
        return state, after, jnp.float32(1.0), terminated, (state.time >= self.horizon) & ~terminated


class ChangingState(NamedTuple):
    """State of the environment inside, steps over all episodes, place in the cycle of factors."""

    inner: Any
    steps: Array
    stage: Array


@dataclass(frozen=True)
class Changing:
    """An environment of which one physical constant changes in a cycle.

    Every ``period`` steps of this copy, counted over its episodes, the constant is its original value times the next factor;
    the change applies from the next reset on.

    Parameters
    ----------
    env : a frozen dataclass such as :class:`Pendulum`.
    constant : name of the field.
    factors : multiples of the original value.
    period : steps of one copy from one change to the next; n copies take n times as many steps in all.
    """

    env: Any
    constant: str = "gravity"
    factors: tuple[float, ...] = (1.0, 0.5, 2.0, 0.25, 4.0)
    period: int = 6250

    @property
    def observation_size(self) -> int:
        """Length of the observation vector."""
        return self.env.observation_size

    @property
    def action_space(self) -> ActionSpace:
        """Its actions."""
        return self.env.action_space

    def reset(self, key: Array, previous: ChangingState | None = None) -> tuple[ChangingState, Array]:
        """Start an episode at the stage that the steps so far ask for."""
        steps = jnp.int32(0) if previous is None else previous.steps
        stage = steps // self.period % len(self.factors)
        inner, obs = self._at(stage).reset(key)
        return ChangingState(inner, steps, stage), obs

    def step(self, key: Array, state: ChangingState, action: Array) -> tuple[ChangingState, Array, Array, Array, Array]:
        """One step under the present stage's factor."""
        inner, *rest = self._at(state.stage).step(key, state.inner, action)
        return ChangingState(inner, state.steps + 1, state.stage), *rest

    def _at(self, stage: Array) -> Any:
        factor = jnp.asarray(self.factors, jnp.float32)[stage]
        return replace(self.env, **{self.constant: getattr(self.env, self.constant) * factor})


def _space(space: Any) -> ActionSpace:
    """Our description of a gymnasium or gymnax space."""
    if hasattr(space, "n"):
        return ActionSpace(discrete=int(space.n))
    low, high = (np.broadcast_to(np.asarray(bound), space.shape).ravel().tolist() for bound in (space.low, space.high))
    return ActionSpace(low=tuple(low), high=tuple(high))


@dataclass(frozen=True)
class from_gymnax:
    """A gymnax environment with its parameters, as :class:`JaxEnv`; its ``step_env`` does not reset.

    gymnax folds the time limit into ``done``: an end at ``params.max_steps_in_episode`` counts as truncation here.
    """

    env: Any
    params: Any = None

    def __post_init__(self) -> None:
        if self.params is None:
            object.__setattr__(self, "params", self.env.default_params)

    @property
    def observation_size(self) -> int:
        """Length of the observation vector."""
        return int(np.prod(self.env.observation_space(self.params).shape))

    @property
    def action_space(self) -> ActionSpace:
        """Its actions."""
        return _space(self.env.action_space(self.params))

    def reset(self, key: Array, previous: Any = None) -> tuple[Any, Array]:
        """Start an episode."""
        obs, state = self.env.reset_env(key, self.params)
        return (state, jnp.int32(0)), obs.ravel()

    def step(self, key: Array, state: Any, action: Array) -> tuple[Any, Array, Array, Array, Array]:
        """One step."""
        inner, time = state
        obs, inner, reward, done, _ = self.env.step_env(key, inner, action, self.params)
        done = jnp.asarray(done, bool)
        late = time + 1 >= self.params.max_steps_in_episode
        return (inner, time + 1), obs.ravel(), jnp.asarray(reward, jnp.float32), done & ~late, done & late


@dataclass(frozen=True)
class from_brax:
    """A bare brax environment as :class:`JaxEnv`: ``done`` terminates, ``horizon`` steps truncate."""

    env: Any
    horizon: int = 1000

    @property
    def observation_size(self) -> int:
        """Length of the observation vector."""
        return int(self.env.observation_size)

    @property
    def action_space(self) -> ActionSpace:
        """Its actions, all in [-1, 1]."""
        return ActionSpace(low=(-1.0,) * self.env.action_size, high=(1.0,) * self.env.action_size)

    def reset(self, key: Array, previous: Any = None) -> tuple[Any, Array]:
        """Start an episode."""
        state = self.env.reset(key)
        return (state, jnp.int32(0)), state.obs

    def step(self, key: Array, state: Any, action: Array) -> tuple[Any, Array, Array, Array, Array]:
        """One step."""
        inner, time = state
        inner = self.env.step(inner, action)
        done, late = inner.done > 0, time + 1 >= self.horizon
        return (inner, time + 1), inner.obs, inner.reward, done, late & ~done


def mean_return(
    env: JaxEnv, policy: Callable[[Array], Array], key: Array, *, episodes: int = 32, max_steps: int = 1000
) -> Float[Array, ""]:
    """Mean undiscounted return of episodes under a deterministic policy, jittable.

    Parameters
    ----------
    env : environment.
    policy : observations (episodes, d) to actions.
    key : PRNG key of the starts.
    episodes : number of episodes, side by side.
    max_steps : steps after which an unfinished episode is cut.
    """
    start, walk = jax.random.split(key)
    state, obs = jax.vmap(env.reset)(jax.random.split(start, episodes))

    def step(carry: Any, step_key: Array) -> tuple[Any, None]:
        state, obs, total, alive = carry
        keys = jax.random.split(step_key, episodes)
        state, obs, reward, terminated, truncated = jax.vmap(env.step)(keys, state, policy(obs))
        return (state, obs, total + alive * reward, alive & ~(terminated | truncated)), None

    carry = (state, obs, jnp.zeros(episodes), jnp.ones(episodes, bool))
    (_, _, total, _), _ = jax.lax.scan(step, carry, jax.random.split(walk, max_steps))
    return total.mean()
