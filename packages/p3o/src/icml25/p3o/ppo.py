"""Proximal policy optimisation, and plastic PPO's iteration around it (Alg. 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from icml25.p3o.distributions import Distribution
from icml25.p3o.envs import ActionSpace, JaxEnv
from icml25.p3o.metrics import dormant_units, saturated_units
from icml25.p3o.networks import MLP, Actor, functional
from icml25.p3o.optim import l2_to_init, per_entry_adam, reset_moments
from icml25.p3o.sbp import Plasticity, no_event

__all__ = ["Learner", "Moments", "Settings", "TrainState", "Transition", "Walk", "gae", "ppo_loss", "rollout"]

PROBED = 1024  # states, at most, on which dormant and saturated units are counted


def gae(
    rewards: Float[Array, " L *n"],
    values: Float[Array, " L *n"],
    last_value: Float[Array, "*n"],
    terminated: Bool[Array, " L *n"],
    truncated: Bool[Array, " L *n"],
    final_values: Float[Array, " L *n"],
    gamma: float | Float[Array, ""] = 0.99,
    lam: float | Float[Array, ""] = 0.95,
) -> tuple[Float[Array, " L *n"], Float[Array, " L *n"]]:
    """Generalised advantage estimation.

    A_t = delta_t + gamma lam A_{t+1} within an episode, delta_t = r_t + gamma V(s_{t+1}) - V(s_t); V(s_{t+1}) is 0 after
    termination and the value of the final observation after truncation.

    Parameters
    ----------
    rewards, values : r_t and V(s_t), (L,) or (L, N).
    last_value : value of the observation after the last step.
    terminated, truncated : how the episode ended at step t, if it did.
    final_values : value of the final observation; read where truncated.
    gamma, lam : discount, and decay of the estimator.

    Returns
    -------
    advantages, returns : returns = advantages + values.
    """
    following = jnp.concatenate([values[1:], last_value[None]])
    following = jnp.where(terminated, 0.0, jnp.where(truncated, final_values, following))
    delta = rewards + gamma * following - values

    def back(advantage: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        delta_t, ended = at
        advantage = delta_t + gamma * lam * jnp.where(ended, 0.0, advantage)
        return advantage, advantage

    ended = terminated | truncated
    _, advantages = jax.lax.scan(back, jnp.zeros_like(last_value), (delta, ended), reverse=True)
    return advantages, advantages + values


class Moments(NamedTuple):
    """Count, mean and variance of what has been seen."""

    count: Array
    mean: Array
    var: Array

    @staticmethod
    def start(shape: tuple[int, ...] = ()) -> Moments:
        """Mean 0 and variance 1, with next to no weight."""
        return Moments(jnp.float32(1e-4), jnp.zeros(shape), jnp.ones(shape))

    def update(self, x: Float[Array, " B *d"]) -> Moments:
        """Add a batch (the parallel algorithm of Chan et al.)."""
        n = x.shape[0]
        total, delta = self.count + n, x.mean(0) - self.mean
        spread = self.var * self.count + x.var(0) * n + delta**2 * self.count * n / total
        return Moments(total, self.mean + delta * n / total, spread / total)

    def standardise(self, x: Float[Array, "*B d"]) -> Float[Array, "*B d"]:
        """Subtract the mean, divide by the standard deviation, clip to [-10, 10]."""
        return jnp.clip((x - self.mean) * jax.lax.rsqrt(self.var + 1e-8), -10.0, 10.0)


class Transition(NamedTuple):
    """Arrays (L, N, ...) of a rollout, of jax or numpy; ``final_obs`` is the observation after the step, before any reset."""

    obs: Any
    action: Any
    log_prob: Any
    value: Any
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any


class TrainState(NamedTuple):
    """All that training changes, but for the environments."""

    params: Any
    opt_state: Any
    plasticity: Any
    obs_stats: Moments
    return_stats: Moments
    running_return: Array
    iteration: Array


@dataclass(frozen=True)
class Settings:
    """Numbers of PPO; see :class:`icml25.p3o.P3O`."""

    n_steps: int
    num_envs: int
    num_minibatches: int
    n_epochs: int
    learning_rate: float
    gamma: float
    gae_lambda: float
    clip_range: float
    vf_coef: float
    ent_coef: float
    max_grad_norm: float
    hidden: tuple[int, ...]
    log_std: str
    adam_count: str
    normalize_observations: bool
    normalize_rewards: bool
    layer_norm: bool
    l2_init: float

    @property
    def batch_size(self) -> int:
        """Environment steps of one iteration."""
        return self.n_steps * self.num_envs


def ppo_loss(
    dist: Distribution,
    value: Float[Array, " B"],
    action: Array,
    old_log_prob: Float[Array, " B"],
    advantage: Float[Array, " B"],
    target: Float[Array, " B"],
    *,
    clip_range: float,
    vf_coef: float,
    ent_coef: float,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Clipped surrogate -min(r A, clip(r, 1 - eps, 1 + eps) A), value error and entropy bonus, on a minibatch.

    Advantages are normalised here. Returns the loss and its parts.
    """
    log_ratio = dist.log_prob(action) - old_log_prob
    ratio = jnp.exp(log_ratio)
    A = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy = -jnp.minimum(ratio * A, jnp.clip(ratio, 1 - clip_range, 1 + clip_range) * A).mean()
    error = ((value - target) ** 2).mean()
    entropy = dist.entropy().mean()
    loss = policy + vf_coef * error - ent_coef * entropy
    parts = {
        "loss": loss,
        "policy_loss": policy,
        "value_loss": error,
        "entropy": entropy,
        "approx_kl": (ratio - 1 - log_ratio).mean(),
        "clip_fraction": (jnp.abs(ratio - 1) > clip_range).mean(),
    }
    return loss, parts


class Learner:
    """Pure functions of training: everything but the environments.

    Parameters
    ----------
    settings : numbers of PPO.
    observation_size : length of the observation vector.
    action_space : actions.
    plasticity : what renews the actor's units, or None.
    """

    def __init__(
        self,
        settings: Settings,
        observation_size: int,
        action_space: ActionSpace,
        plasticity: Plasticity | None,
    ):
        self.settings, self.plasticity, self.observation_size = settings, plasticity, observation_size
        kind = settings.log_std if action_space.discrete is None else None
        common: dict[str, Any] = {"hidden": settings.hidden, "layer_norm": settings.layer_norm}
        self.init_actor, self.apply_actor = functional(
            lambda rngs: Actor(observation_size, actions=action_space.size, log_std=kind, rngs=rngs, **common)
        )
        self.init_critic, self.apply_critic = functional(
            lambda rngs: MLP(observation_size, outputs=1, rngs=rngs, **common)
        )
        adam = per_entry_adam if settings.adam_count == "per_entry" else optax.adam
        steps = [optax.clip_by_global_norm(settings.max_grad_norm), adam(settings.learning_rate, eps=1e-5)]
        self.optimizer = optax.chain(*([l2_to_init(settings.l2_init)] if settings.l2_init else []), *steps)

    def init(self, key: Array) -> TrainState:
        """State before training."""
        actor_key, critic_key = jax.random.split(key)
        params = {"actor": self.init_actor(actor_key), "critic": self.init_critic(critic_key)}
        return TrainState(
            params=params,
            opt_state=self.optimizer.init(params),
            plasticity=self.plasticity.init(params["actor"]) if self.plasticity else (),
            obs_stats=Moments.start((self.observation_size,)),
            return_stats=Moments.start(),
            running_return=jnp.zeros(self.settings.num_envs),
            iteration=jnp.int32(0),
        )

    def normalize(self, state: TrainState, obs: Float[Array, "*B d"]) -> Float[Array, "*B d"]:
        """Observations as the networks see them."""
        return state.obs_stats.standardise(obs) if self.settings.normalize_observations else obs

    def policy(self, state: TrainState, obs: Float[Array, "*B d"]) -> Distribution:
        """The actor's distribution over actions."""
        return self.apply_actor(state.params["actor"], self.normalize(state, obs))[0]

    def value(self, params: Any, x: Float[Array, "*B d"]) -> Float[Array, "*B"]:
        """The critic's value of normalised observations."""
        return self.apply_critic(params["critic"], x)[0][..., 0]

    def act(self, key: Array, state: TrainState, obs: Float[Array, "N d"]) -> tuple[Array, Array, Array]:
        """Sampled actions, their log probabilities, and the values."""
        x = self.normalize(state, obs)
        dist = self.apply_actor(state.params["actor"], x)[0]
        action = dist.sample(key)
        return action, dist.log_prob(action), self.value(state.params, x)

    def update(
        self, key: Array, state: TrainState, batch: Transition, last_obs: Float[Array, "N d"]
    ) -> tuple[TrainState, dict[str, Array]]:
        """One iteration after its rollout: advantages, PPO's epochs, then an event of plasticity when it is due.

        Distillation sees this rollout's states under the statistics that the rollout used; the old log probabilities belong
        to the policy before the reset and are not used again.
        """
        s = self.settings
        epoch_key, event_key = jax.random.split(key)
        x = self.normalize(state, batch.obs)
        rewards, running, return_stats = self._scale_rewards(state, batch)
        final_values = self.value(state.params, self.normalize(state, batch.final_obs))
        last_value = self.value(state.params, self.normalize(state, last_obs))
        advantages, targets = gae(
            rewards, batch.value, last_value, batch.terminated, batch.truncated, final_values, s.gamma, s.gae_lambda
        )
        data = jax.tree.map(
            lambda a: a.reshape(s.batch_size, *a.shape[2:]), (x, batch.action, batch.log_prob, advantages, targets)
        )
        params, opt_state, parts = self._epochs(epoch_key, state.params, state.opt_state, data)
        t = state.iteration + 1
        state, params, opt_state, event = self._event(event_key, t, state, params, opt_state, data[0])
        _, hidden = self.apply_actor(params["actor"], data[0][:: max(1, s.batch_size // PROBED)])
        row = {
            **{name: value.mean() for name, value in parts.items()},
            **event,
            "dormant": jnp.concatenate([dormant_units(h) for h in hidden]).mean(),
            "saturated": jnp.concatenate([saturated_units(h) for h in hidden]).mean(),
            "weight_norm": optax.tree.norm(params["actor"]),
            "bad_observation": ~(jnp.isfinite(batch.obs).all() & jnp.isfinite(batch.final_obs).all()),
            "bad_reward": ~jnp.isfinite(batch.reward).all(),
            "bad_loss": ~jnp.isfinite(parts["loss"]).all(),
        }
        state = state._replace(
            params=params,
            opt_state=opt_state,
            obs_stats=state.obs_stats.update(batch.obs.reshape(s.batch_size, -1)),
            return_stats=return_stats,
            running_return=running,
            iteration=t,
        )
        return state, row

    def _scale_rewards(self, state: TrainState, batch: Transition) -> tuple[Array, Array, Moments]:
        """Rewards over the standard deviation of discounted returns, with the running return and its new moments."""

        def step(running: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
            reward, ended = at
            running = self.settings.gamma * running + reward
            return jnp.where(ended, 0.0, running), running

        if not self.settings.normalize_rewards:
            return batch.reward, state.running_return, state.return_stats
        ended = batch.terminated | batch.truncated
        running, returns = jax.lax.scan(step, state.running_return, (batch.reward, ended))
        stats = state.return_stats.update(returns.ravel())
        return batch.reward * jax.lax.rsqrt(stats.var + 1e-8), running, stats

    def _epochs(self, key: Array, params: Any, opt_state: Any, data: Any) -> tuple[Any, Any, dict[str, Array]]:
        s = self.settings

        def minibatch(carry: tuple[Any, Any], rows: Array) -> tuple[tuple[Any, Any], dict[str, Array]]:
            params, opt_state = carry
            x, action, log_prob, advantage, target = jax.tree.map(lambda a: a[rows], data)

            def loss(params: Any) -> tuple[Array, dict[str, Array]]:
                dist = self.apply_actor(params["actor"], x)[0]
                weights = {"clip_range": s.clip_range, "vf_coef": s.vf_coef, "ent_coef": s.ent_coef}
                return ppo_loss(dist, self.value(params, x), action, log_prob, advantage, target, **weights)

            (_, parts), grads = jax.value_and_grad(loss, has_aux=True)(params)
            updates, opt_state = self.optimizer.update(grads, opt_state, params)
            parts["grad_norm"] = optax.tree.norm(grads)
            return (optax.apply_updates(params, updates), opt_state), parts

        def epoch(carry: tuple[Any, Any], epoch_key: Array) -> tuple[tuple[Any, Any], dict[str, Array]]:
            order = jax.random.permutation(epoch_key, s.batch_size).reshape(s.num_minibatches, -1)
            return jax.lax.scan(minibatch, carry, order)

        (params, opt_state), parts = jax.lax.scan(epoch, (params, opt_state), jax.random.split(key, s.n_epochs))
        return params, opt_state, parts

    def _event(
        self, key: Array, t: Array, state: TrainState, params: Any, opt_state: Any, x: Array
    ) -> tuple[TrainState, Any, Any, dict[str, Array]]:
        """Regenerate units of the actor when iteration t is due; the critic is left alone."""
        if self.plasticity is None:
            return state, params, opt_state, {}
        plasticity = self.plasticity

        def event() -> Any:
            memory, actor, mask, info = plasticity.regenerate(
                key, t, state.plasticity, params["actor"], self.apply_actor, x
            )
            whole = {"actor": mask, "critic": jax.tree.map(lambda p: jnp.zeros(p.shape, bool), params["critic"])}
            return memory, {**params, "actor": actor}, reset_moments(opt_state, whole), info

        def nothing() -> Any:
            return state.plasticity, params, opt_state, no_event(jax.eval_shape(event)[3])

        due = t % plasticity.reset_every == 0
        memory, params, opt_state, info = jax.lax.cond(due, event, nothing)
        return state._replace(plasticity=memory), params, opt_state, {"event": due, **info}


class Walk(NamedTuple):
    """The environments between two rollouts: states, observations, and the running episodes' returns and lengths."""

    state: Any
    obs: Array
    returns: Array
    lengths: Array


def rollout(
    learner: Learner, env: JaxEnv, action_space: ActionSpace, key: Array, state: TrainState, walk: Walk
) -> tuple[Walk, Transition, dict[str, Array]]:
    """L steps of N environments, which start anew where an episode ended.

    Returns
    -------
    walk, batch, row : the row has the mean return and length of the episodes that ended (NaN without any), and their number.
    """
    N = learner.settings.num_envs
    act_key, env_key = jax.random.split(key)

    def step(walk: Walk, at: Array) -> tuple[Walk, Any]:
        action, log_prob, value = learner.act(jax.random.fold_in(act_key, at), state, walk.obs)
        step_key, reset_key = jax.random.split(jax.random.fold_in(env_key, at))
        keys = jax.random.split(step_key, N)
        inner, obs, reward, terminated, truncated = jax.vmap(env.step)(keys, walk.state, action_space.clip(action))
        ended = terminated | truncated
        returns, lengths = walk.returns + reward, walk.lengths + 1
        fresh, first = jax.vmap(env.reset)(jax.random.split(reset_key, N), inner)
        new = Walk(
            *_choose(ended, (fresh, first, jnp.zeros(N), jnp.zeros(N, jnp.int32)), (inner, obs, returns, lengths))
        )
        transition = Transition(walk.obs, action, log_prob, value, reward, terminated, truncated, obs)
        return new, (transition, jnp.where(ended, returns, 0.0), jnp.where(ended, lengths, 0), ended)

    walk, (batch, returns, lengths, ended) = jax.lax.scan(step, walk, jnp.arange(learner.settings.n_steps))
    episodes = ended.sum()
    row = {"return": returns.sum() / episodes, "length": lengths.sum() / episodes, "episodes": episodes}
    return walk, batch, row


def _choose(ended: Array, first: Any, second: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(ended.reshape(-1, *[1] * (a.ndim - 1)), a, b), first, second)


def start_walk(env: JaxEnv, num_envs: int, key: Array) -> Walk:
    """Environments at the start of their first episodes."""
    state, obs = jax.vmap(env.reset)(jax.random.split(key, num_envs))
    return Walk(state, obs, jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32))


def train(
    learner: Learner, env: JaxEnv, action_space: ActionSpace, capacity: int
) -> Callable[[Array, TrainState, Walk, Array], tuple[TrainState, Walk, dict[str, Array]]]:
    """``run(key, state, walk, n)``: n <= capacity iterations as one program, with a log of ``capacity`` rows.

    n is dynamic, so that any split of a training into runs is the same program and gives the same bits.
    """

    def iteration(key: Array, state: TrainState, walk: Walk) -> tuple[TrainState, Walk, dict[str, Array]]:
        rollout_key, update_key = jax.random.split(jax.random.fold_in(key, state.iteration))
        walk, batch, episodes = rollout(learner, env, action_space, rollout_key, state, walk)
        state, row = learner.update(update_key, state, batch, walk.obs)
        return state, walk, episodes | row

    def run(key: Array, state: TrainState, walk: Walk, n: Array) -> tuple[TrainState, Walk, dict[str, Array]]:
        shapes = jax.eval_shape(iteration, key, state, walk)[2]
        log = jax.tree.map(lambda row: jnp.zeros((capacity, *row.shape), row.dtype), shapes)

        def body(i: Array, carry: Any) -> Any:
            state, walk, log = carry
            state, walk, row = iteration(key, state, walk)
            return state, walk, jax.tree.map(lambda rows, new: rows.at[i].set(new), log, row)

        return jax.lax.fori_loop(0, n, body, (state, walk, log))

    return run
