"""Decentralised neural actor-critic: local TD learning, gossip of the mean critics, actors by consensual TD errors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
from jaxtyping import Array, Float

from icml25.neural_marl.actor import (
    action_probabilities,
    advantage_weights,
    agent_norms,
    direction,
    masked_logits,
    normalise,
    sample_actions,
)
from icml25.neural_marl.consensus import (
    consensus_matrix,
    mixer,
    neighbours,
    validate_consensus,
)
from icml25.neural_marl.critic import td_phase
from icml25.neural_marl.envs import NetworkedMDP, all_joint_actions, share_programs
from icml25.neural_marl.networks import (
    Critic,
    LinearActor,
    LinearCritic,
    MLPActor,
    MLPCritic,
    NeuralActor,
    output_scale,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Batch", "NeuralDAC", "TrainState"]

Schedule = Callable[[Any], Any]


class Batch(NamedTuple):
    """Consecutive transitions; the leaves of s, s_next are stacked states."""

    s: Any
    a: Any
    r: Any
    s_next: Any
    a_next: Any


class TrainState(NamedTuple):
    """All that a run carries on: a checkpoint holds these arrays."""

    t: Any
    key: Any
    s: Any
    actors: Any
    critics: Any
    centre: Any
    fixed: Any
    optimizer: Any


def default_step_size(t: Any) -> Any:
    """alpha_t = 2 / (t + 10)."""
    return 2 / (t + 10)


class NeuralDAC:
    """Agents with private rewards learn a team policy; they send messages to their neighbours only.

    Each outer step runs K TD steps per agent on the common trajectory, R rounds of gossip on the agents' mean critics,
    M samples of the restart chain (restarted with probability 1 - gamma), R rounds of gossip on the agents' TD errors, and
    one normalised policy-gradient step of each actor (Algorithms 1 and 2 of the paper).

    Parameters
    ----------
    env : jittable environment (``envs.Environment``) or what ``pettingzoo_env`` returns.
    graph : connected undirected networkx graph (Metropolis weights; agents in the order of its nodes), or a doubly
        stochastic matrix (N, N).
    width, depth : m and D of critics and actors.
    gamma : discount; None takes the environment's, which it must equal where that is given.
    critic_steps, actor_batch : K and M.
    alpha : step length of the actors, a number or a schedule t -> alpha; None is 2 / (t + 10).
    beta : step size of TD; None is 0.01, for ``param="paper"`` 0.01 / (2 m), which is the same there.
    gossip_rounds : R; 0 is no communication.
    radius : B, of the ball around the common initial point, for each layer.
    warm_start : a critic goes on from the last consensual parameters; False restarts at the initial ones (the paper).
    critic_average : gossip the mean of the K + 1 TD iterates (the paper); False takes the last.
    consensus_every : one more round of gossip on the critics after every so many TD steps (the classic form); 0 for none.
    normalize : "agent", each agent's direction to length alpha; "joint", that of all agents together; None, plain step.
    advantage : "td", r + gamma Q(s', a') - V(s). "q", Q(s, a). "sarsa", r + gamma Q(s', a') - Q(s, a), as printed, with
        the sign of ascent: mean 0 at a good critic, so it learns only while the critic lags behind the policy.
    param : "unit", the paper's network times 1 / sqrt(2 m); "paper", without; "standard", a perceptron with biases.
    symmetric_init : subtract the critic's value at its initial parameters, so that Q starts at 0.
    optimizer : optax transformation of the directions instead of alpha and ``normalize``.
    critic : "neural"; "linear", w'x on the same features; "exact", the exact gradient for the team reward, without
        samples or gossip (environments with exact methods).
    actor : "neural" or "linear" (softmax of theta'x; tabular on a NetworkedMDP); None follows the critic, linear for "exact".
    sampling : "markov", consecutive samples; "stationary", independent ones of the exact visitation (NetworkedMDP).
    continue_chain : go on from the last state at the next outer step instead of from a draw of the initial distribution.
    exact_mean_limit : V(s) is the exact mean over joint actions up to this many, else Q at one fresh draw.
    num_seeds : independent runs with seeds seed, seed + 1, ..., vectorised; states then have a leading axis.
    devices : JAX devices over which the runs are spread evenly (``jax.sharding``); None for the default one.
    seed : of initial parameters, samples and actions.

    Attributes
    ----------
    A : consensus matrix (N, N). t : outer steps done. state : ``TrainState``.

    Raises
    ------
    TypeError: a directed graph.
    ValueError: a graph that is not connected or of another size than the team, a matrix that is no consensus matrix, settings
        out of range, exact methods on a joint space above 2^20 pairs.
    """

    def __init__(
        self,
        env: Any,
        graph: nx.Graph | np.ndarray,
        *,
        width: int = 64,
        depth: int = 3,
        gamma: float | None = None,
        critic_steps: int = 10,
        actor_batch: int = 32,
        alpha: float | Schedule | None = None,
        beta: float | None = None,
        gossip_rounds: int = 10,
        radius: float = math.inf,
        warm_start: bool = True,
        critic_average: bool = True,
        consensus_every: int = 0,
        normalize: str | None = "agent",
        advantage: str = "td",
        param: str = "unit",
        symmetric_init: bool = False,
        optimizer: optax.GradientTransformation | None = None,
        critic: str = "neural",
        actor: str | None = None,
        sampling: str = "markov",
        continue_chain: bool = False,
        exact_mean_limit: int = 4096,
        num_seeds: int = 1,
        devices: Sequence[Any] | None = None,
        seed: int = 0,
    ) -> None:
        self.env = env
        self.gamma = _discount(gamma, env)
        self.A = _team_matrix(graph, env.n_agents)
        for name, value, least in (
            ("width", width, 1),
            ("depth", depth, 1),
            ("critic_steps", critic_steps, 1),
            ("actor_batch", actor_batch, 1),
            ("gossip_rounds", gossip_rounds, 0),
            ("consensus_every", consensus_every, 0),
            ("num_seeds", num_seeds, 1),
        ):
            if value < least:
                raise ValueError(f"{name} is {value}; expected at least {least}")
        for name, value, choices in (
            ("normalize", normalize, ("agent", "joint", None)),
            ("advantage", advantage, ("td", "q", "sarsa")),
            ("param", param, ("unit", "paper", "standard")),
            ("critic", critic, ("neural", "linear", "exact")),
            ("actor", actor, ("neural", "linear", None)),
            ("sampling", sampling, ("markov", "stationary")),
        ):
            if value not in choices:
                raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(repr, choices))}")
        if not radius > 0:
            raise ValueError(f"radius is {radius}; expected more than 0")
        if beta is not None and beta < 0:
            raise ValueError(f"beta is {beta}; expected at least 0")
        self.width, self.depth, self.critic_steps, self.actor_batch = width, depth, critic_steps, actor_batch
        self.alpha = default_step_size if alpha is None else alpha
        self.beta = beta if beta is not None else 0.01 / (2 * width if param == "paper" else 1)
        self.gossip_rounds, self.radius = gossip_rounds, float(radius)
        self.warm_start, self.critic_average, self.consensus_every = warm_start, critic_average, consensus_every
        self.normalize, self.advantage, self.param, self.symmetric_init = normalize, advantage, param, symmetric_init
        self.optimizer, self.critic, self.sampling = optimizer, critic, sampling
        self.actor = actor or ("neural" if critic == "neural" else "linear")
        self.continue_chain, self.exact_mean_limit = continue_chain, exact_mean_limit
        self.num_seeds, self.seed = num_seeds, seed
        self._jittable = getattr(env, "jittable", True)
        if not self._jittable and num_seeds > 1:
            raise ValueError(f"num_seeds is {num_seeds}; expected 1 for an environment that is not jittable")
        if (critic == "exact" or sampling == "stationary") and not hasattr(env, "exact"):
            raise ValueError(f"{type(env).__name__} has no exact methods; expected critic='neural', sampling='markov'")
        if critic == "exact":
            env.require_exact()
        if sampling == "stationary" and not isinstance(env, NetworkedMDP):
            raise ValueError(f"sampling is 'stationary' on {type(env).__name__}; expected a NetworkedMDP")
        self.n_agents, self.n_actions = env.n_agents, tuple(env.n_actions)
        self._mix = mixer(self.A, gossip_rounds)
        self._build_networks()
        key = jax.vmap(jax.random.key)(seed + np.arange(num_seeds)) if num_seeds > 1 else jax.random.key(seed)
        initial = jax.vmap(self._initial_state) if num_seeds > 1 else self._initial_state
        self._devices = None if devices is None else list(devices)
        if self._devices is not None and (num_seeds == 1 or not self._devices or num_seeds % len(self._devices)):
            raise ValueError(f"num_seeds is {num_seeds} for {len(self._devices)} devices; expected a multiple, above 1")
        self.state: TrainState = self._place(jax.jit(initial)(key))
        self._run = share_programs(self._scan)
        self._update_once = jax.jit(self._update)

    def _place(self, state: TrainState) -> TrainState:
        """Spread the runs over the devices."""
        if self._devices is None:
            return state
        mesh = jax.sharding.Mesh(np.array(self._devices), ("seed",))
        return jax.device_put(state, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("seed")))

    # --- networks and initial state

    def _build_networks(self) -> None:
        def probe(key: Array) -> tuple[Any, Any]:
            s = self.env.reset(key)
            return self.env.features(s, jnp.zeros(self.n_agents, jnp.int32)), self.env.state_features(s)

        key = jax.random.key(0)
        x, f = jax.jit(probe)(key) if self._jittable else probe(key)
        for name, value in (("features", x), ("state_features", f)):
            if not abs((norm := float(np.linalg.norm(value))) - 1) < 1e-3:
                raise ValueError(f"{name} of the environment have norm {norm:g}; expected 1")
        self._x, self._f = jnp.zeros_like(x), jnp.zeros_like(f)
        scale, most = output_scale(self.param, self.width), max(self.n_actions)
        if self.critic == "linear":
            self._critic: Any = LinearCritic()
        else:
            self._critic = (
                MLPCritic(self.width, self.depth) if self.param == "standard" else Critic(self.width, self.depth, scale)
            )
        if self.actor == "linear":
            self._actor: Any = LinearActor(most)
        elif self.param == "standard":
            self._actor = MLPActor(self.width, self.depth, most)
        else:
            self._actor = NeuralActor(self.width, self.depth, scale, most)

    def _initial_state(self, key: Array) -> TrainState:
        k_critic, k_actors, k_chain, k_run = jax.random.split(key, 4)
        variables = self._critic.init(k_critic, self._x)
        centre = variables["params"]
        actors = jax.vmap(lambda k: self._actor.init(k, self._f)["params"])(jax.random.split(k_actors, self.n_agents))
        return TrainState(
            t=jnp.zeros((), jnp.int32),
            key=k_run,
            s=self.env.reset(k_chain) if self._jittable else jnp.zeros(()),
            actors=actors,
            critics=self._repeat(centre),
            centre=centre,
            fixed=variables.get("fixed", {}),
            optimizer=jax.vmap(self.optimizer.init)(actors) if self.optimizer else (),
        )

    def _repeat(self, W: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.n_agents, *leaf.shape)), W)

    def _logits(self, actors: Any, f: Float[Array, "*batch d"]) -> Float[Array, "N *batch a"]:
        return masked_logits(jax.vmap(lambda theta: self._actor.apply({"params": theta}, f))(actors), self.n_actions)

    def _q(self, state: TrainState) -> Callable[[Any, Any], Any]:
        """(W, x) -> Q(x; W) with the run's fixed layers."""

        def value(W: Any, x: Any) -> Any:
            return self._critic.apply({"params": W, "fixed": state.fixed}, x)

        if self.symmetric_init:
            return lambda W, x: value(W, x) - value(state.centre, x)
        return value

    # --- samples

    def _rollout(self, key: Array, actors: Any, s: Any, restarts: Float[Array, " n"]) -> tuple[Any, Batch]:
        """Transitions from s on; after the k-th the chain restarts with probability ``restarts[k]``."""
        env, n = self.env, len(restarts)
        k_coins, k_noise, k_env = jax.random.split(key, 3)
        coins = jax.random.uniform(k_coins, (n,)) < restarts
        noise = jax.random.gumbel(k_noise, (n + 1, 2, self.n_agents, max(self.n_actions)))

        def choose(s: Any, noise: Array) -> Any:
            """a^i ~ pi^i(. | s): the largest of logits and Gumbel noise."""
            return (self._logits(actors, env.state_features(s)) + noise).argmax(-1).astype(jnp.int32)

        def move(carry: Any, inputs: Any) -> Any:
            (s, a), (keys, restart, noise) = carry, inputs
            s_next, r = env.step(keys[0], s, a)
            fresh = env.reset(keys[1])
            both = jax.tree.map(lambda *leaves: jnp.stack(leaves), s_next, fresh)
            a_next, a_fresh = jax.vmap(choose)(both, noise)
            go_on = jax.tree.map(lambda new, old: jnp.where(restart, new, old), (fresh, a_fresh), (s_next, a_next))
            return go_on, Batch(s, a, r, s_next, a_next)

        inputs = (jax.random.split(k_env, (n, 2)), coins, noise[1:])
        (s, _), batch = jax.lax.scan(move, (s, choose(s, noise[0, 0])), inputs)
        return s, batch

    def _rollout_python(self, key: Array, actors: Any, restarts: np.ndarray) -> Batch:
        """The same chain of an environment that is not jittable, from a fresh episode."""
        env, keys = self.env, iter(jax.random.split(key, 3 * len(restarts) + 2))
        rows: list[tuple[Any, ...]] = []
        s = env.reset(next(keys))
        a = self._act_once(next(keys), actors, s)
        coins = np.random.default_rng(np.asarray(jax.random.key_data(key))).random(len(restarts))
        for coin, restart in zip(coins, restarts, strict=True):
            s_next, r = env.step(next(keys), s, a)
            a_next = self._act_once(next(keys), actors, s_next)
            rows.append((s, a, r, s_next, a_next))
            if env.done or coin < restart:
                k_reset, k_act = jax.random.split(next(keys))
                s = env.reset(k_reset)
                a = self._act_once(k_act, actors, s)
            else:
                s, a = s_next, a_next
        return Batch(*(jnp.asarray(np.stack(column)) for column in zip(*rows, strict=True)))

    def _act_once(self, key: Array, actors: Any, s: Any) -> np.ndarray:
        return np.asarray(self._act(key, actors, s))

    @cached_property
    def _act(self) -> Callable[..., Any]:
        return jax.jit(lambda key, actors, s: sample_actions(key, self._logits(actors, self.env.state_features(s))))

    def _stationary(self, key: Array, actors: Any, n: int) -> Batch:
        """Independent transitions: s of the exact visitation, then a, s', a'."""
        env = self.env
        tables = action_probabilities(self._state_logits(actors))
        _, _, visitation = env.evaluate_joint(env.joint_policy(tables))
        log_visits = jnp.log(jnp.maximum(visitation, 0))

        def one(key: Array) -> Batch:
            k_s, k_a, k_step, k_next = jax.random.split(key, 4)
            s = jax.random.categorical(k_s, log_visits).astype(jnp.int32)
            a = sample_actions(k_a, jnp.log(tables[:, s]))
            s_next, r = env.step(k_step, s, a)
            return Batch(s, a, r, s_next, sample_actions(k_next, jnp.log(tables[:, s_next])))

        return jax.vmap(one)(jax.random.split(key, n))

    def _state_logits(self, actors: Any) -> Float[Array, "N S a"]:
        states = jax.tree.map(jnp.asarray, self.env.states)
        return self._logits(actors, jax.vmap(self.env.state_features)(states))

    # --- one outer step

    def _restarts(self) -> np.ndarray:
        """No restart in the critic's K steps, then probability 1 - gamma."""
        return np.repeat([0.0, 1 - self.gamma], [self.critic_steps, self.actor_batch])

    def _outer_step(self, state: TrainState, _: None = None) -> tuple[TrainState, dict[str, Any]]:
        if self.critic == "exact":
            return self._exact_step(state)
        key = jax.random.fold_in(state.key, state.t)
        k_start, k_samples, k_update = jax.random.split(key, 3)
        s = state.s
        if self.sampling == "stationary":
            batch = self._stationary(k_samples, state.actors, self.critic_steps + self.actor_batch)
        else:
            start = s if self.continue_chain else self.env.reset(k_start)
            s, batch = self._rollout(k_samples, state.actors, start, jnp.asarray(self._restarts(), jnp.zeros(()).dtype))
        return self._update(state._replace(s=s), batch, k_update)

    def _update(self, state: TrainState, batch: Batch, key: Array) -> tuple[TrainState, dict[str, Any]]:
        """Critic's and actors' updates on K + M transitions."""
        K, q = self.critic_steps, self._q(state)
        x = jax.vmap(self.env.features)(batch.s, batch.a)
        x_next = jax.vmap(self.env.features)(batch.s_next, batch.a_next)
        mean, delta, broken = td_phase(
            q,
            state.critics if self.warm_start else self._repeat(state.centre),
            state.centre,
            x[:K],
            batch.r[:K],
            x_next[:K],
            gamma=self.gamma,
            beta=self.beta,
            radius=self.radius,
            average=self.critic_average,
            mixing=jnp.asarray(self.A) if self.consensus_every else None,
            mix_every=self.consensus_every,
        )
        W = self._mix(mean)
        samples = jax.tree.map(lambda leaf: leaf[K:], batch)
        weights = self._weights(q, W, state.actors, samples, x[K:], x_next[K:], key)
        consensual = self._mix(weights.T).T
        f = jax.vmap(self.env.state_features)(samples.s)

        def log_policy(actors: Any) -> Float[Array, "N M"]:
            log_pi = jax.nn.log_softmax(self._logits(actors, f))
            return jnp.take_along_axis(log_pi, samples.a.T[:, :, None], 2)[:, :, 0]

        d, norm = direction(log_policy, state.actors, consensual)
        spread = [((w - w.mean(0)) ** 2).reshape(self.n_agents, -1).sum(1) for w in jax.tree.leaves(W)]
        record = {
            "reward": samples.r.mean(),
            "td_error": (delta**2).mean(),
            "consensus_error": jnp.sqrt(jnp.stack(spread).sum(0).mean()),
            "direction_norm": jnp.sqrt((norm**2).sum()),
            "broken": broken,
        }
        return self._step_actors(state._replace(critics=W), d, norm), record

    def _weights(
        self,
        q: Callable[[Any, Any], Any],
        W: Any,
        actors: Any,
        samples: Batch,
        x: Float[Array, "M d"],
        x_next: Float[Array, "M d"],
        key: Array,
    ) -> Float[Array, "M N"]:
        """delta^i_l of step 4, before gossip."""

        def values(x: Array) -> Array:
            return jnp.moveaxis(jax.vmap(q, (0, None))(W, x), 0, -1)  # (..., N)

        v_here = None
        if self.advantage == "td":
            logits = self._logits(actors, jax.vmap(self.env.state_features)(samples.s))
            if math.prod(self.n_actions) <= self.exact_mean_limit:
                joint, pi = self._joint(action_probabilities(logits))
                every = jax.vmap(lambda s: jax.vmap(lambda a: self.env.features(s, a))(joint))(samples.s)
                v_here = jnp.einsum("ma,man->mn", pi, values(every))
            else:
                fresh = jnp.stack(
                    [
                        sample_actions(k, logit)
                        for k, logit in zip(jax.random.split(key, self.n_agents), logits, strict=True)
                    ],
                    1,
                )
                v_here = values(jax.vmap(self.env.features)(samples.s, fresh))
        return advantage_weights(self.advantage, samples.r, values(x), values(x_next), v_here, self.gamma)

    def _joint(self, pi: Float[Array, "N M a"]) -> tuple[Any, Float[Array, "M A"]]:
        """All joint actions (A, N), and their probabilities."""
        actions = all_joint_actions(self.n_actions)
        joint = jnp.stack([pi[i][:, actions[:, i]] for i in range(self.n_agents)])
        return jnp.asarray(actions), joint.prod(0)

    def _exact_step(self, state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """The direction's expectation under the exact Q of the team reward and the exact visitation: (1 - gamma) grad J."""
        logits = self._state_logits(state.actors)
        tables = action_probabilities(logits)
        pi = self.env.joint_policy(tables)
        _, Q, visitation = self.env.evaluate_joint(pi)
        weighted = visitation[:, None] * pi * (Q - (pi * Q).sum(1, keepdims=True))
        weighted = weighted.reshape(-1, *self.n_actions)
        most = max(self.n_actions)
        own = []
        for i, n in enumerate(self.n_actions):
            others = tuple(j + 1 for j in range(self.n_agents) if j != i)
            own.append(jnp.pad(weighted.sum(others), ((0, 0), (0, most - n))))
        w = jnp.stack(own)  # (N, S, a): visitation, own policy and the mean advantage over the others' actions

        def surrogate(actors: Any) -> Array:
            log_pi = jax.nn.log_softmax(self._state_logits(actors))
            return (w * jnp.where(jnp.isfinite(log_pi), log_pi, 0.0)).sum()

        d = jax.grad(surrogate)(state.actors)
        norm = agent_norms(d)
        none = jnp.full((), jnp.nan)
        record = {
            "reward": none,
            "td_error": none,
            "consensus_error": none,
            "direction_norm": jnp.sqrt((norm**2).sum()),
            "broken": jnp.full(self.n_agents, self.critic_steps),
        }
        return self._step_actors(state, d, norm), record

    def _step_actors(self, state: TrainState, d: Any, norm: Float[Array, " N"]) -> TrainState:
        """theta^i + alpha_t d^i / ||d^i||, or the optimiser's step (optax descends, so it gets -d)."""
        if self.optimizer:
            updates, memory = jax.vmap(self.optimizer.update)(
                jax.tree.map(jnp.negative, d), state.optimizer, state.actors
            )
            return state._replace(t=state.t + 1, actors=optax.apply_updates(state.actors, updates), optimizer=memory)
        alpha = self.alpha(state.t) if callable(self.alpha) else self.alpha
        step = normalise(d, norm, self.normalize)
        actors = jax.tree.map(lambda theta, delta: theta + (alpha * delta).astype(theta.dtype), state.actors, step)
        return state._replace(t=state.t + 1, actors=actors)

    def _scan(self, state: TrainState, length: int) -> tuple[TrainState, dict[str, Any]]:
        """``length`` outer steps; means of what is logged, and ``broken`` of each step."""

        def run(state: TrainState) -> tuple[TrainState, dict[str, Any]]:
            state, records = jax.lax.scan(self._outer_step, state, length=length)
            return state, {k: v if k == "broken" else v.mean() for k, v in records.items()}

        return jax.vmap(run)(state) if self.num_seeds > 1 else run(state)

    def _scan_python(self, state: TrainState, length: int) -> tuple[TrainState, dict[str, Any]]:
        """The same for an environment that is not jittable."""
        rows = []
        for _ in range(length):
            k_samples, k_update = jax.random.split(jax.random.fold_in(state.key, state.t))
            batch = self._rollout_python(k_samples, state.actors, self._restarts())
            state, record = self._update_once(state, batch, k_update)
            rows.append(record)
        records = {k: jnp.stack([row[k] for row in rows]) for k in rows[0]}
        return state, {k: v if k == "broken" else v.mean() for k, v in records.items()}

    # --- training

    @property
    def t(self) -> int:
        """Outer steps done."""
        return int(np.ravel(self.state.t)[0])

    @property
    def floats_per_step(self) -> int:
        """Numbers that a real network would send in an outer step, over all its links in both directions."""
        if self.critic == "exact":
            return 0
        links = int(((self.A > 0) & ~np.eye(self.n_agents, dtype=bool)).sum())
        parameters = sum(leaf.size for leaf in jax.tree.leaves(self._one(0).centre))
        rounds = self.gossip_rounds * (parameters + self.actor_batch)
        if self.consensus_every:
            rounds += self.critic_steps // self.consensus_every * parameters
        return links * rounds

    def train(
        self, T: int, *, log_every: int | None = None, callback: Callable[[dict[str, Any]], None] | None = None
    ) -> pd.DataFrame:
        """Run T outer steps; a second call continues where the first ended.

        Parameters
        ----------
        T : outer steps.
        log_every : outer steps from row to row; None makes 50 rows. It does not change what is learned.
        callback : called with each row.

        Returns
        -------
        One row per logged t (and seed, where ``num_seeds`` > 1): t; J, exact where the environment can tell, else the mean
        reward of the actors' samples / (1 - gamma); gap = J* - J; and since the row before td_error (root mean square),
        consensus_error (root mean square over agents of the critics' distance from their mean, after gossip),
        direction_norm; floats_sent so far.

        Raises
        ------
        FloatingPointError: a critic was not finite, naming agent, t and k. The state is that before the row.
        """
        import pandas as pd

        every = max(1, T // 50) if log_every is None else log_every
        for name, value in (("T", T), ("log_every", every)):
            if value < 1:
                raise ValueError(f"{name} is {value}; expected at least 1")
        optimum = self.env.optimal()[0] if self._exact_J else math.nan
        rows: list[dict[str, Any]] = []

        def log(record: dict[str, Any]) -> None:
            for k, J in enumerate(self._values(record)):
                mean = {name: float(np.ravel(record[name])[k]) if record else math.nan for name in _LOGGED}
                row = {"seed": self.seed + k} if self.num_seeds > 1 else {}
                row |= {"t": self.t, "J": J, "gap": optimum - J, **mean, "floats_sent": self.t * self.floats_per_step}
                row["td_error"] = math.sqrt(row["td_error"])
                rows.append(row)
                if callback:
                    callback(row)

        if self.t == 0:
            log({})
        done = 0
        while done < T:
            length = min(every, T - done)
            run = self._run if self._jittable else self._scan_python
            state, record = run(self.state, length)
            self._check_finite(np.asarray(record["broken"]), float(np.sum(record["direction_norm"])))
            self.state, done = state, done + length
            log(record)
        return pd.DataFrame(rows)

    @property
    def _exact_J(self) -> bool:
        return bool(getattr(self.env, "has_exact", False))

    def _values(self, record: dict[str, Any]) -> list[float]:
        """J of each seed's present policy."""
        if self._exact_J:
            return [self.env.exact(self.policy_tables(k))[0] for k in range(self.num_seeds)]
        if not record:
            return [math.nan] * self.num_seeds
        return (np.ravel(record["reward"]) / (1 - self.gamma)).tolist()

    def _check_finite(self, broken: np.ndarray, total: float) -> None:
        steps = broken.reshape(self.num_seeds, -1, self.n_agents)  # seeds, t, agents
        if (bad := steps < self.critic_steps).any():
            t = int(np.argmax(bad.any((0, 2))))
            seed, agent = np.argwhere(bad[:, t])[0]
            k = steps[seed, t, agent]
            which = f" of seed {self.seed + seed}" if self.num_seeds > 1 else ""
            raise FloatingPointError(
                f"critic of agent {agent}{which} is not finite at t = {self.t + t}, k = {k}; try a smaller beta or radius"
            )
        if not math.isfinite(total):
            raise FloatingPointError(f"actors' direction is not finite between t = {self.t} and the next row")

    # --- what was learned

    def _one(self, index: int) -> TrainState:
        if not 0 <= index < self.num_seeds:
            raise ValueError(f"index is {index}; expected 0 to {self.num_seeds - 1}")
        return jax.tree.map(lambda leaf: leaf[index], self.state) if self.num_seeds > 1 else self.state

    @property
    def critics(self) -> Any:
        """Trained parameters of the critics, axis 0 the agent (after the seed, where ``num_seeds`` > 1)."""
        return self.state.critics

    @property
    def fixed(self) -> Any:
        """H and b of the critics, common to all agents."""
        return self.state.fixed

    @property
    def actors(self) -> list[Any]:
        """Parameters of the actors, one pytree per agent."""
        if self.num_seeds > 1:
            return [jax.tree.map(lambda leaf: leaf[:, i], self.state.actors) for i in range(self.n_agents)]  # noqa: B023
        return [jax.tree.map(lambda leaf: leaf[i], self.state.actors) for i in range(self.n_agents)]  # noqa: B023

    def policy(self, s: Any, index: int = 0) -> list[Float[Array, " a"]]:
        """pi^i(. | s) of each agent; ``index`` picks a run where ``num_seeds`` > 1."""
        pi = action_probabilities(self._logits(self._one(index).actors, self.env.state_features(s)))
        return [pi[i, :n] for i, n in enumerate(self.n_actions)]

    def policy_tables(self, index: int = 0) -> list[Float[np.ndarray, "S a"]]:
        """pi^i(. | s) at all states of a finite environment."""
        pi = np.asarray(self._tables(self._one(index).actors))
        return [pi[i, :, :n] for i, n in enumerate(self.n_actions)]

    @cached_property
    def _tables(self) -> Callable[..., Any]:
        return jax.jit(lambda actors: action_probabilities(self._state_logits(actors)))

    def q_values(self, s: Any, a: Any, index: int = 0) -> Float[Array, " N"]:
        """Q(s, a) of each agent's critic."""
        state = self._one(index)
        q = self._q(state)
        return jax.vmap(q, (0, None))(state.critics, self.env.features(s, a))

    def act(self, key: Array, s: Any, index: int = 0) -> Any:
        """Draw the joint action (N,)."""
        return self._act(key, self._one(index).actors, s)

    def sample(self, n: int, seed: int = 0, index: int = 0) -> dict[str, Any]:
        """n consecutive transitions of the restart chain under the present policy, from the initial distribution.

        Returns
        -------
        dict: s, a (n, N), r (n, N), s_next (the true next state, before any restart), a_next.
        """
        key, actors = jax.random.key(seed), self._one(index).actors
        if not self._jittable:
            return self._rollout_python(key, actors, np.full(n, 1 - self.gamma))._asdict()
        k_start, k_chain = jax.random.split(key)
        restarts = jnp.full(n, 1 - self.gamma)
        return jax.jit(self._rollout)(k_chain, actors, self.env.reset(k_start), restarts)[1]._asdict()

    def evaluate(
        self, episodes: int = 100, horizon: int | None = None, seed: int = 0, index: int = 0
    ) -> dict[str, float | np.ndarray]:
        """Mean over simulated episodes.

        Parameters
        ----------
        horizon : steps of an episode; None takes the environment's, else 3 / (1 - gamma).

        Returns
        -------
        dict: return (discounted sum of the team reward over the episode) and its standard error return_se, reward (team
        reward per step), agent_rewards (N,) per step.
        """
        steps = horizon or getattr(self.env, "horizon", None) or math.ceil(3 / (1 - self.gamma))
        actors, keys = self._one(index).actors, jax.random.split(jax.random.key(seed), episodes)
        if self._jittable:

            def play(key: Array) -> Array:
                k_start, k_chain = jax.random.split(key)
                return self._rollout(k_chain, actors, self.env.reset(k_start), jnp.zeros(steps))[1].r

            r = np.asarray(jax.jit(jax.vmap(play))(keys))  # (episodes, steps, N)
        else:
            r = np.stack([np.asarray(self._rollout_python(key, actors, np.zeros(steps)).r) for key in keys])
        returns = r.mean(2) @ self.gamma ** np.arange(steps)
        se = returns.std(ddof=1) / math.sqrt(episodes) if episodes > 1 else math.nan
        agents = r.mean((0, 1))
        return {
            "return": float(returns.mean()),
            "return_se": float(se),
            "reward": float(agents.mean()),
            "agent_rewards": agents,
        }

    # --- checkpoints

    def _settings(self) -> dict[str, Any]:
        names = (
            "width depth gamma critic_steps actor_batch beta gossip_rounds radius warm_start critic_average consensus_every "
            "normalize advantage param symmetric_init critic actor sampling continue_chain exact_mean_limit num_seeds seed"
        )
        settings = {name: getattr(self, name) for name in names.split()}
        settings["alpha"] = "schedule" if callable(self.alpha) else self.alpha
        settings["optimizer"] = self.optimizer is not None
        return {**settings, "A": self.A.tolist(), "n_actions": list(self.n_actions)}

    def save(self, path: str | Path) -> None:
        """Write the state of the run (safetensors); a schedule and an optimiser are not part of it, but its memory is."""
        from safetensors.numpy import save_file

        arrays = {name: np.array(leaf, order="C") for name, leaf in _named_leaves(self.state).items()}
        save_file(arrays, path, {"settings": json.dumps(self._settings())})

    def load(self, path: str | Path) -> NeuralDAC:
        """Take up a saved run in an object of the same settings; on a jittable environment it continues bit for bit.

        Raises
        ------
        ValueError: naming the setting or array that differs.
        """
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as file:
            saved = json.loads(file.metadata()["settings"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        for name, value in self._settings().items():
            if saved.get(name) != json.loads(json.dumps(value)):
                raise ValueError(f"{name} is {value} here, {saved.get(name)} in {path}")
        here = _named_leaves(self.state)
        for name, leaf in here.items():
            if name not in arrays or arrays[name].shape != leaf.shape or arrays[name].dtype != leaf.dtype:
                raise ValueError(f"{path} has no array {name} of shape {leaf.shape} and dtype {leaf.dtype}")
        leaves, structure = jax.tree.flatten(self.state)
        restored = [
            jax.random.wrap_key_data(jnp.asarray(array)) if _is_key(leaf) else jnp.asarray(array)
            for leaf, array in zip(leaves, (arrays[name] for name in here), strict=True)
        ]
        self.state = self._place(jax.tree.unflatten(structure, restored))
        return self


_LOGGED = ("td_error", "consensus_error", "direction_norm")


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named_leaves(state: TrainState) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {
        jax.tree_util.keystr(path): np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        for path, leaf in leaves
    }


def _discount(gamma: float | None, env: Any) -> float:
    own = getattr(env, "gamma", None)
    chosen = float((0.99 if own is None else own) if gamma is None else gamma)
    if own is not None and chosen != own:
        raise ValueError(f"gamma is {chosen}, that of the environment {own}; expected the same")
    if not 0 <= chosen < 1:
        raise ValueError(f"gamma is {chosen}; expected a number in [0, 1)")
    return chosen


def _team_matrix(graph: nx.Graph | np.ndarray, n_agents: int) -> np.ndarray:
    """Consensus matrix of a graph, or the matrix itself once it is checked."""
    if isinstance(graph, nx.Graph):
        if len(graph) != n_agents:
            neighbours(graph)
            raise ValueError(f"graph has {len(graph)} nodes, the environment {n_agents} agents")
        return consensus_matrix(graph)
    A = validate_consensus(graph)
    if len(A) != n_agents:
        raise ValueError(f"A is for {len(A)} agents, the environment has {n_agents}")
    return A
