"""Environments: a team sees state and joint action, each agent gets a reward of its own.

An environment has ``n_agents``, ``n_actions`` (a tuple), ``gamma``, ``reset(key) -> s``, ``step(key, s, a) -> (s', r (N,))``,
``features(s, a)`` and ``state_features(s)`` of Euclidean norm 1, all of them jittable unless ``jittable`` is False.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

__all__ = ["Environment", "GridSpread", "GridState", "NetworkedMDP", "PettingZooEnv", "pettingzoo_env"]

MAX_PAIRS = 2**20  # state-action pairs that the exact methods take


class Environment(Protocol):
    """What the algorithm needs of an environment; a state is any pytree of arrays."""

    n_agents: int
    n_actions: tuple[int, ...]
    gamma: float

    def reset(self, key: Any) -> Any:
        """Draw s ~ rho."""
        ...

    def step(self, key: Any, s: Any, a: Any) -> tuple[Any, Any]:
        """Draw s' ~ P(. | s, a) and return it with the rewards (N,)."""
        ...

    def features(self, s: Any, a: Any) -> Any:
        """Feature x of state and joint action, ||x||_2 = 1."""
        ...

    def state_features(self, s: Any) -> Any:
        """Feature of the state alone, of norm 1."""
        ...


def share_programs(f: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.jit`` of f(tree, *static) that takes the arrays f closes over (an environment's) as arguments, not as constants.

    Environments of one shape then compile to one program, which JAX's persistent cache keeps for all of them.
    """
    programs: dict[tuple[Any, ...], Callable[[Any], Any]] = {}

    def compiled(tree: Any, *static: Any) -> Callable[[Any], Any]:
        closed, out = jax.make_jaxpr(lambda tree: f(tree, *static), return_shape=True)(tree)
        constants, structure = jax.device_put(closed.consts), jax.tree.structure(out)
        run = jax.jit(lambda constants, leaves: jax.core.eval_jaxpr(closed.jaxpr, constants, *leaves))
        return lambda tree: jax.tree.unflatten(structure, run(constants, jax.tree.leaves(tree)))

    def call(tree: Any, *static: Any) -> Any:
        if static not in programs:
            programs[static] = compiled(tree, *static)
        return programs[static](tree)

    return call


def one_hot(index: Any, n: int) -> Array:
    """Rows of the identity."""
    return jax.nn.one_hot(index, n)


def _draw(key: Any, p: Float[Array, " S"]) -> Int[Array, ""]:
    """Index of probability p, by its cumulative distribution."""
    cdf = jnp.cumsum(p)
    return jnp.minimum((jax.random.uniform(key, dtype=p.dtype) * cdf[-1] >= cdf).sum(), len(p) - 1).astype(jnp.int32)


def all_joint_actions(n_actions: tuple[int, ...]) -> Int[np.ndarray, "A N"]:
    """Row-major: agent 0 slowest."""
    return np.stack(np.unravel_index(np.arange(math.prod(n_actions)), n_actions), 1).astype(np.int32)


class _Finite:
    """Exact methods of an environment with few states and joint actions."""

    n_agents: int
    n_actions: tuple[int, ...]
    n_states: int
    gamma: float

    @property
    def n_joint_actions(self) -> int:
        """Size of the joint action space."""
        return math.prod(self.n_actions)

    @property
    def has_exact(self) -> bool:
        """Whether the exact methods take a space of this size."""
        return self.n_states * self.n_joint_actions <= MAX_PAIRS

    def require_exact(self) -> None:
        """Raise ValueError when the joint space is too big for exact methods."""
        if not self.has_exact:
            pairs = self.n_states * self.n_joint_actions
            raise ValueError(
                f"the joint space has {pairs} state-action pairs; exact methods take at most {MAX_PAIRS} (sampling still works)"
            )

    @cached_property
    def joint_actions(self) -> Int[np.ndarray, "A N"]:
        """All joint actions, row-major: agent 0 slowest."""
        return all_joint_actions(self.n_actions)

    def joint_policy(self, tables: Float[Array, "N S a"]) -> Float[Array, "S A"]:
        """pi(a|s) = prod_i pi^i(a^i|s); tables of agents with fewer actions are padded."""
        joint = jnp.ones((self.n_states, 1), tables.dtype)
        for i, n in enumerate(self.n_actions):
            joint = (joint[:, :, None] * tables[i, :, None, :n]).reshape(self.n_states, -1)
        return joint

    def tables(self, policy: Sequence[Any] | Any) -> Float[np.ndarray, "N S a"]:
        """A list over agents of (S, |A_i|) tables as one padded array, checked.

        Raises
        ------
        ValueError: naming the agent and what is wrong with its table.
        """
        if len(policy) != self.n_agents:
            raise ValueError(f"policy has {len(policy)} tables for {self.n_agents} agents")
        out = np.zeros((self.n_agents, self.n_states, max(self.n_actions)))
        for i, (table, n) in enumerate(zip(policy, self.n_actions, strict=True)):
            table = np.asarray(table, dtype=np.float64)
            if table.shape != (self.n_states, n):
                raise ValueError(f"policy[{i}] has shape {table.shape}; expected {(self.n_states, n)}")
            if not (table >= 0).all() or (np.abs(table.sum(1) - 1) > 1e-4).any():
                raise ValueError(f"policy[{i}] has rows that are no probabilities")
            out[i, :, :n] = table
        return out

    def exact(self, policy: Sequence[Any]) -> tuple[float, Float[np.ndarray, "S A"], Float[np.ndarray, " S"]]:
        """Value of a joint policy for the team reward, in float64.

        Parameters
        ----------
        policy : list over agents of (S, |A_i|) probability tables.

        Returns
        -------
        J, Q (S, A_joint), visitation (S,) = (1 - gamma) sum_t gamma^t P(s_t = s), which sums to 1.

        Raises
        ------
        ValueError: a malformed policy, or a joint space above 2^20 pairs.
        """
        self.require_exact()
        tables = self.tables(policy)
        with jax.enable_x64(True):
            J, Q, visitation = self._exact64(jnp.asarray(tables))
            return float(J), np.asarray(Q), np.asarray(visitation)

    @cached_property
    def _exact64(self) -> Any:
        return share_programs(lambda tables: self.evaluate_joint(self.joint_policy(tables)))

    def evaluate_joint(self, pi: Any) -> Any:
        """J, Q and visitation of a joint policy (S, A), in its dtype; jittable."""
        raise NotImplementedError


class NetworkedMDP(_Finite):
    """A finite MDP with a reward for each agent.

    Parameters
    ----------
    P : (S, A_joint, S) transition probabilities; the joint action index is row-major over agents, agent 0 slowest
        (``numpy.ravel_multi_index``).
    R : (N, S, A_joint) rewards.
    rho : (S,) initial distribution.
    gamma : discount in [0, 1).
    n_actions : actions of each agent; default the N-th root of A_joint for all.

    Raises
    ------
    ValueError: naming the index of a row that does not sum to 1, of a NaN, or the shapes.
    """

    def __init__(self, P: Any, R: Any, rho: Any, gamma: float, n_actions: Sequence[int] | None = None) -> None:
        self.P, self.R, self.rho = (np.asarray(x, dtype=np.float64) for x in (P, R, rho))
        self.gamma = float(gamma)
        if self.P.ndim != 3 or self.P.shape[0] != self.P.shape[2]:
            raise ValueError(f"P has shape {self.P.shape}; expected (S, A, S)")
        S, A, _ = self.P.shape
        if self.R.ndim != 3 or self.R.shape[1:] != (S, A) or not len(self.R):
            raise ValueError(f"R has shape {self.R.shape}; expected (N, {S}, {A})")
        if self.rho.shape != (S,):
            raise ValueError(f"rho has shape {self.rho.shape}; expected ({S},)")
        bad = ~(self.P >= 0).all(2) | ~(np.abs(self.P.sum(2) - 1) <= 1e-6)
        if bad.any():
            s, a = np.argwhere(bad)[0]
            raise ValueError(f"P[{s}, {a}] is no distribution: it sums to {self.P[s, a].sum():.6g}")
        if not np.isfinite(self.R).all():
            i, s, a = np.argwhere(~np.isfinite(self.R))[0]
            raise ValueError(f"R[{i}, {s}, {a}] is {self.R[i, s, a]}; expected finite rewards")
        if not (self.rho >= 0).all() or not abs(self.rho.sum() - 1) <= 1e-6:
            raise ValueError(f"rho is no distribution: it sums to {self.rho.sum():.6g}")
        _check_gamma(self.gamma)
        self.n_agents, self.n_states = len(self.R), S
        if n_actions is None:
            n_actions = (round(A ** (1 / self.n_agents)),) * self.n_agents
        self.n_actions = tuple(int(n) for n in n_actions)
        if len(self.n_actions) != self.n_agents or self.n_joint_actions != A:
            raise ValueError(f"n_actions is {self.n_actions} for {self.n_agents} agents and {A} joint actions")

    @classmethod
    def random(
        cls,
        n_agents: int,
        n_states: int,
        n_actions: int,
        additive: bool = True,
        seed: int | np.random.Generator = 0,
        gamma: float = 0.9,
    ) -> NetworkedMDP:
        """Rewards U[0, 4], transition rows Dirichlet(0.5), uniform initial state.

        Parameters
        ----------
        additive : r^i depends on agent i's own action only (the team reward is additive); else on the joint action.
        """
        rng = np.random.default_rng(seed)
        joint = n_actions**n_agents
        P = rng.dirichlet(np.full(n_states, 0.5), (n_states, joint))
        if additive:
            own = rng.uniform(0, 4, (n_agents, n_states, n_actions))
            actions = np.stack(np.unravel_index(np.arange(joint), (n_actions,) * n_agents))
            R = np.stack([own[i][:, actions[i]] for i in range(n_agents)])
        else:
            R = rng.uniform(0, 4, (n_agents, n_states, joint))
        return cls(P, R, np.full(n_states, 1 / n_states), gamma, (n_actions,) * n_agents)

    @property
    def states(self) -> Int[np.ndarray, " S"]:
        """All states."""
        return np.arange(self.n_states, dtype=np.int32)

    def reset(self, key: Any) -> Any:
        """Draw s ~ rho."""
        return _draw(key, jnp.asarray(self.rho))

    def joint_index(self, a: Int[Array, " N"]) -> Int[Array, ""]:
        """Row-major index of a joint action."""
        strides = np.cumprod((1, *self.n_actions[:0:-1]))[::-1].astype(np.int32)
        return (a * strides).sum()

    def step(self, key: Any, s: Any, a: Any) -> tuple[Any, Any]:
        """Draw s' ~ P(. | s, a) and return it with R[:, s, a]."""
        index = self.joint_index(a)
        return _draw(key, jnp.asarray(self.P)[s, index]), jnp.asarray(self.R)[:, s, index]

    def features(self, s: Any, a: Any) -> Any:
        """One-hot of (s, joint action)."""
        return one_hot(s * self.n_joint_actions + self.joint_index(a), self.n_states * self.n_joint_actions)

    def state_features(self, s: Any) -> Any:
        """One-hot of s."""
        return one_hot(s, self.n_states)

    def evaluate_joint(self, pi: Any) -> Any:
        """V = (I - gamma P_pi)^-1 r_pi, Q = rbar + gamma P V, visitation = (1 - gamma) (I - gamma P_pi')^-1 rho."""
        P, r, rho = (jnp.asarray(x, pi.dtype) for x in (self.P, self.R.mean(0), self.rho))
        P_pi = jnp.einsum("sa,sat->st", pi, P)
        system = jnp.eye(self.n_states, dtype=pi.dtype) - self.gamma * P_pi
        V = jnp.linalg.solve(system, (pi * r).sum(1))
        visitation = (1 - self.gamma) * jnp.linalg.solve(system.T, rho)
        return rho @ V, r + self.gamma * P @ V, visitation

    def optimal(self, tol: float = 1e-12) -> tuple[float, Float[np.ndarray, " S"]]:
        """J* and V* (S,) of the team reward over joint policies, by value iteration.

        Raises
        ------
        ValueError: a joint space above 2^20 pairs.
        """
        self.require_exact()
        r, V = self.R.mean(0), np.zeros(self.n_states)
        while True:
            updated = (r + self.gamma * self.P @ V).max(1)
            if np.abs(updated - V).max() <= tol * max(1.0, np.abs(updated).max()):
                return float(self.rho @ updated), updated
            V = updated


def _check_gamma(gamma: float) -> None:
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma is {gamma}; expected a number in [0, 1)")


class GridState(NamedTuple):
    """Cells of the agents (row-major, row 0 on top), and the step within the episode, which agents do not see."""

    cells: Int[Array | np.ndarray, "*batch N"]
    t: Int[Array | np.ndarray, "*batch"]


class GridSpread(_Finite):
    """Agents on a grid cover as many landmarks: the grid variant of Simple Spread.

    Actions are up, down, left, right, stay; walls block, agents may overlap. The team reward is minus the sum over
    landmarks of the L1 distance to the nearest agent, after the move. All agents go to random cells every ``reset_every`` steps.

    Parameters
    ----------
    n_agents : N, also the number of landmarks.
    width, height : cells.
    reset_every : steps of an episode.
    private : r^i = -N times the distance of landmark i to its nearest agent (the mean is the team reward); else all
        agents get the team reward.
    landmarks : distinct cells (x, y); None draws them by ``seed``.
    gamma : discount in [0, 1).

    Raises
    ------
    ValueError: sizes below 1, landmarks that are not N distinct cells of the grid, gamma outside [0, 1).
    """

    def __init__(
        self,
        n_agents: int = 2,
        width: int = 13,
        height: int = 5,
        reset_every: int = 10,
        private: bool = True,
        landmarks: Sequence[tuple[int, int]] | None = None,
        gamma: float = 0.99,
        seed: int | np.random.Generator = 0,
    ) -> None:
        for name, value in (("n_agents", n_agents), ("width", width), ("height", height), ("reset_every", reset_every)):
            if value < 1:
                raise ValueError(f"{name} is {value}; expected at least 1")
        _check_gamma(gamma)
        cells = width * height
        if n_agents > cells:
            raise ValueError(f"{n_agents} landmarks do not fit on {cells} cells")
        if landmarks is None:
            chosen = np.random.default_rng(seed).choice(cells, n_agents, replace=False)
        else:
            chosen = np.array([y * width + x for x, y in landmarks if 0 <= x < width and 0 <= y < height], dtype=int)
            if len(landmarks) != n_agents or len(set(chosen.tolist())) != n_agents:
                raise ValueError(f"landmarks is {list(landmarks)}; expected {n_agents} distinct cells of the grid")
        self.n_agents, self.width, self.height, self.reset_every = n_agents, width, height, reset_every
        self.private, self.gamma = private, float(gamma)
        self.n_actions, self.n_states, self.horizon = (5,) * n_agents, cells**n_agents, reset_every
        x, y = np.arange(cells) % width, np.arange(cells) // width
        self.landmarks = [(int(c % width), int(c // width)) for c in chosen]
        steps = [(0, -1), (0, 1), (-1, 0), (1, 0), (0, 0)]
        self._move = np.stack(
            [np.clip(y + dy, 0, height - 1) * width + np.clip(x + dx, 0, width - 1) for dx, dy in steps], 1
        ).astype(np.int32)
        self._distance = np.abs(x[:, None] - x[chosen]) + np.abs(y[:, None] - y[chosen])

    @cached_property
    def states(self) -> GridState:
        """All joint positions, agent 0 slowest, at the start of an episode."""
        cells = np.unravel_index(np.arange(self.n_states), (self.width * self.height,) * self.n_agents)
        return GridState(np.stack(cells, 1).astype(np.int32), np.zeros(self.n_states, np.int32))

    def reset(self, key: Any) -> GridState:
        """Send all agents to random cells."""
        cells = jax.random.randint(key, (self.n_agents,), 0, self.width * self.height, jnp.int32)
        return GridState(cells, jnp.zeros((), jnp.int32))

    def rewards(self, cells: Int[Array, "*batch N"]) -> Float[Array, "*batch N"]:
        """Rewards of the agents on these cells."""
        nearest = jnp.asarray(self._distance, jnp.zeros(()).dtype)[cells].min(-2)  # over agents: (..., landmarks)
        if self.private:
            return -self.n_agents * nearest
        return jnp.broadcast_to(-nearest.sum(-1, keepdims=True), nearest.shape)

    def step(self, key: Any, s: GridState, a: Any) -> tuple[GridState, Any]:
        """Move, pay, and begin a new episode after ``reset_every`` steps."""
        cells = jnp.asarray(self._move)[s.cells, a]
        moved = GridState(cells, s.t + 1)
        over = moved.t == self.reset_every
        s_next = jax.tree.map(lambda new, old: jnp.where(over, new, old), self.reset(key), moved)
        return s_next, self.rewards(cells)

    def _coordinates(self, s: GridState) -> list[Array]:
        column = one_hot(s.cells % self.width, self.width)
        return [column.ravel(), one_hot(s.cells // self.width, self.height).ravel()]

    def features(self, s: GridState, a: Any) -> Any:
        """One-hot columns, rows and actions of the agents."""
        return jnp.concatenate([*self._coordinates(s), one_hot(a, 5).ravel()]) / np.sqrt(3 * self.n_agents)

    def state_features(self, s: GridState) -> Any:
        """One-hot columns and rows of the agents."""
        return jnp.concatenate(self._coordinates(s)) / np.sqrt(2 * self.n_agents)

    @cached_property
    def _transitions(self) -> tuple[np.ndarray, np.ndarray]:
        """Next joint position (S, A) before a reset, and the team reward (S, A) of being there."""
        cells = self.states.cells
        shape = (self.width * self.height,) * self.n_agents
        moved = [self._move[cells[:, i, None], self.joint_actions[:, i]] for i in range(self.n_agents)]
        after = np.asarray(np.ravel_multi_index(moved, shape), np.int32)
        team = -self._distance[cells].min(1).sum(1).astype(np.float64)
        return after, team[after]

    def evaluate_joint(self, pi: Any) -> Any:
        """J, Q and visitation over positions; Q is the mean over the steps of an episode, weighted by their visitation."""
        after, reward = (jnp.asarray(x) for x in self._transitions)
        reward, gamma, H = reward.astype(pi.dtype), self.gamma, self.reset_every
        rho = jnp.full(self.n_states, 1 / self.n_states, pi.dtype)

        def backward(V: Array, _: None) -> tuple[Array, Array]:
            Q = reward + gamma * V[after]
            return (pi * Q).sum(1), V

        first, later = jax.lax.scan(backward, jnp.zeros(self.n_states, pi.dtype), length=H)
        J = rho @ first / (1 - gamma**H)  # an episode's value, and gamma^H of the next ones'
        left = gamma ** jnp.arange(H, dtype=pi.dtype)  # of later[k]: the next episode is k steps away

        def forward(d: Array, V: Array) -> tuple[Array, tuple[Array, Array]]:
            Q = reward + gamma * V[after]
            return jnp.zeros_like(d).at[after].add(gamma * d[:, None] * pi), (d, d[:, None] * Q)

        values = (later + J * left[:, None])[::-1]  # V_{tau+1}, tau = 0..H-1
        _, (d, weighted) = jax.lax.scan(forward, rho, values)
        visits = d.sum(0)
        return J, weighted.sum(0) / visits[:, None], visits * (1 - gamma) / (1 - gamma**H)

    def optimal(self) -> tuple[float, Float[np.ndarray, " S"]]:
        """J* and V* (S,) at the start of an episode, by dynamic programming over its steps (which the optimum may see).

        Raises
        ------
        ValueError: a joint space above 2^20 pairs.
        """
        self.require_exact()
        after, reward = self._transitions
        V = np.zeros(self.n_states)
        for _ in range(self.reset_every):
            V = (reward + self.gamma * V[after]).max(1)
        end = self.gamma**self.reset_every
        J = float(V.mean() / (1 - end))
        return J, V + end * J


class PettingZooEnv:
    """A parallel PettingZoo environment: rewards kept per agent, state = concatenated observations.

    The state lives in the wrapped environment, so ``step`` takes it from there; ``done`` says that the episode has ended
    and the next call should be ``reset``.
    """

    jittable = False

    def __init__(self, parallel_env: Any, gamma: float = 0.99) -> None:
        _check_gamma(gamma)
        self.env, self.gamma = parallel_env, float(gamma)
        self.agents = list(parallel_env.possible_agents)
        self.n_agents = len(self.agents)
        spaces = [parallel_env.action_space(agent) for agent in self.agents]
        for agent, space in zip(self.agents, spaces, strict=True):
            if not hasattr(space, "n"):
                raise ValueError(f"action space of {agent} is {space}; expected Discrete")
        self.n_actions = tuple(int(space.n) for space in spaces)
        self.done = True

    def _state(self, observations: dict[Any, Any]) -> Float[np.ndarray, " d"]:
        return np.concatenate([np.ravel(observations[agent]) for agent in self.agents]).astype(np.float32)

    def reset(self, key: Any) -> Float[np.ndarray, " d"]:
        """Begin an episode, seeded by the key."""
        seed = int(jax.random.bits(key, dtype=jnp.uint32) >> 1)
        self.done = False
        return self._state(self.env.reset(seed=seed)[0])

    def step(self, key: Any, s: Any, a: Any) -> tuple[Any, Any]:
        """Act; ``key`` and ``s`` are not used."""
        actions = {agent: int(x) for agent, x in zip(self.agents, np.asarray(a), strict=True)}
        observations, rewards, ended, cut, _ = self.env.step(actions)
        self.done = not self.env.agents or any(ended.values()) or any(cut.values())
        return self._state(observations), np.array([rewards[agent] for agent in self.agents], np.float32)

    def features(self, s: Any, a: Any) -> Any:
        """Observations and one-hot actions, scaled to norm 1."""
        return _unit(jnp.concatenate([s, *(one_hot(a[i], n) for i, n in enumerate(self.n_actions))]))

    def state_features(self, s: Any) -> Any:
        """Observations and a constant, scaled to norm 1."""
        return _unit(jnp.concatenate([s, jnp.ones(1)]))


def _unit(x: Array) -> Array:
    return x / jnp.linalg.norm(x)


def pettingzoo_env(parallel_env: Any, gamma: float = 0.99) -> PettingZooEnv:
    """Adapt a parallel PettingZoo environment with discrete actions (extra ``mpe`` installs mpe2's).

    Training steps it in Python; each outer step begins a new episode, and an episode that ends is followed by another.

    Raises
    ------
    ValueError: an action space that is not Discrete.
    """
    return PettingZooEnv(parallel_env, gamma)
