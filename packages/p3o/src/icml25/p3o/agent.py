"""P3O and PPO with the names of stable-baselines3: learn, predict, save, load."""

from __future__ import annotations

import inspect
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from icml25.p3o.envs import ActionSpace, JaxEnv, _space, from_brax, from_gymnax
from icml25.p3o.networks import gains
from icml25.p3o.ppo import Learner, Settings, TrainState, Transition, start_walk, train
from icml25.p3o.sbp import SBP, Plasticity

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["P3O", "PPO"]

CAPACITY = 256  # iterations of the jitted path between two looks at the log
MISSED = 0.2  # share of events whose distillation may stop above the threshold without a warning


class P3O:
    """Plastic PPO: PPO whose actor is renewed a block of units at a time and distilled back to its policy (Alg. 2).

    Parameters
    ----------
    env : gymnasium id, class or function that makes an environment, environment, or vector environment with same-step
        autoreset; or an environment written in JAX (:class:`icml25.p3o.envs.JaxEnv`, gymnax, brax), which is trained in one
        compiled program.
    reset_rate : share of each hidden layer renewed at an event, in (0, 1]; None is plain PPO.
    reset_every : iterations (of num_envs * n_steps environment steps) from one event to the next.
    distill_threshold : tau, mean alpha-DKL over the rollout's states (nats) at which inner distillation stops.
    alpha : weight of KL(teacher || student), in [0, 1].
    distill_lr, distill_epochs : inner distillation by Adam on minibatches of 64, epochs at most; 0 epochs leaves it out.
    outgoing : weights that leave a renewed unit: "reinit", "zero" or "keep".
    order : "cycle", "random" or "utility", see :class:`icml25.p3o.SBP`.
    log_std : "head" (state dependent) or "free" (a parameter, which distillation leaves alone); of Gaussian policies.
    adam_count : "per_entry" (bias correction counts each entry's own steps) or "global".
    n_steps, num_envs : steps of each environment per iteration, and environments; num_envs None is 8, for an environment or
        vector environment the number there is.
    num_minibatches, n_epochs, learning_rate, gamma, gae_lambda, clip_range, vf_coef, ent_coef, max_grad_norm : PPO's.
    hidden : widths of the tanh layers of the actor, and of the critic.
    normalize_observations, normalize_rewards : by running moments, as MuJoCo tasks want; fixed within an iteration.
    layer_norm : LayerNorm before each activation.
    l2_init : coefficient of the squared distance from the initial parameters, added to the gradient.
    plasticity : another method in place of cycle reset and distillation, see :mod:`icml25.p3o.baselines`.
    num_seeds : train that many seeds side by side, seed, seed + 1, ...; environments in JAX only.
    seed : of weights, actions and environments.

    Raises
    ------
    ValueError: a number out of its range, or minibatches that do not divide n_steps * num_envs; it names the argument.
    TypeError: an environment or a space of another kind.
    """

    def __init__(
        self,
        env: Any,
        *,
        reset_rate: float | None = 0.1,
        reset_every: int = 20,
        distill_threshold: float = 0.01,
        alpha: float = 0.4,
        distill_lr: float = 3e-3,
        distill_epochs: int = 20,
        outgoing: str = "reinit",
        order: str = "cycle",
        log_std: str = "head",
        adam_count: str = "per_entry",
        n_steps: int = 2048,
        num_envs: int | None = None,
        num_minibatches: int = 32,
        n_epochs: int = 10,
        learning_rate: float = 3e-4,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: float = 0.2,
        vf_coef: float = 0.5,
        ent_coef: float = 0.0,
        max_grad_norm: float = 0.5,
        hidden: Sequence[int] = (256, 256),
        normalize_observations: bool = True,
        normalize_rewards: bool = True,
        layer_norm: bool = False,
        l2_init: float = 0.0,
        plasticity: Plasticity | None = None,
        num_seeds: int | None = None,
        seed: int = 0,
    ):
        given = {k: v for k, v in locals().items() if k not in ("self", "env", "plasticity")}
        self.settings: dict[str, Any] = given | {"hidden": tuple(hidden)}
        for name in ("num_envs", "num_seeds"):
            if given[name] is not None and given[name] < 1:
                raise ValueError(f"{name} must be at least 1, got {given[name]}")
        self.env = _environment(env, num_envs)
        self.jitted = not hasattr(self.env, "single_observation_space")
        if not self.jitted and num_seeds is not None:
            raise ValueError("num_seeds needs an environment written in JAX; train gymnasium seeds one by one")
        self.num_envs = (num_envs or 8) if self.jitted else self.env.num_envs
        self.num_seeds, self.seed = num_seeds, seed
        numbers: dict[str, Any] = {
            k: self.settings[k] for k in inspect.signature(Settings).parameters if k in self.settings
        }
        self._check(numbers | {"num_envs": self.num_envs})
        ppo = Settings(**{**numbers, "num_envs": self.num_envs})
        if self.jitted:
            self.action_space: ActionSpace = self.env.action_space
            self.observation_shape: tuple[int, ...] = (self.env.observation_size,)
        else:
            self.action_space, self.observation_shape = _spaces(self.env)
        size = math.prod(self.observation_shape)
        batch = ppo.batch_size
        self._named = plasticity is None  # the settings say it all
        if plasticity is None and reset_rate is not None:
            gain = gains(ppo.hidden, 0.01)
            steps = distill_epochs * (batch // min(64, batch))
            plasticity = SBP(
                reset_rate,
                reset_every,
                distill_threshold,
                "dkl",
                alpha,
                outgoing,
                order,
                steps,
                learning_rate=distill_lr,
                initializers=gain,
            )
        self.plasticity = plasticity
        key = (ppo, self.env if self.jitted else None, size, self.action_space, plasticity, num_seeds)
        try:
            programs = _programs(*key)
        except TypeError as error:
            if "unhashable" not in str(error):
                raise
            programs = _programs.__wrapped__(*key)
        self.learner, self._run, self._act, self._update, self._predict = programs
        self._start()

    @staticmethod
    def _check(s: Mapping[str, Any]) -> None:
        for name in ("n_steps", "num_minibatches", "n_epochs"):
            if s[name] < 1:
                raise ValueError(f"{name} must be at least 1, got {s[name]}")
        if not s["learning_rate"] > 0:
            raise ValueError(f"learning_rate must be positive, got {s['learning_rate']}")
        if not s["clip_range"] > 0:
            raise ValueError(f"clip_range must be positive, got {s['clip_range']}")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= s[name] <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {s[name]}")
        for name, options in (("log_std", ("head", "free")), ("adam_count", ("per_entry", "global"))):
            if s[name] not in options:
                raise ValueError(f"{name} must be one of {', '.join(options)}, got {s[name]!r}")
        batch = s["n_steps"] * s["num_envs"]
        if batch % s["num_minibatches"]:
            raise ValueError(
                f"num_minibatches must divide n_steps * num_envs = {batch}, got {s['num_minibatches']} minibatches"
            )
        if len(s["hidden"]) == 0 or min(s["hidden"]) < 1:
            raise ValueError(f"hidden must be widths of at least one layer, got {s['hidden']}")

    def _start(self) -> None:
        """Weights and environments at the start, and the compiled programs."""

        def start(seed: int) -> tuple[jax.Array, TrainState, Any]:
            run_key, weight_key, env_key = jax.random.split(jax.random.key(seed), 3)
            walk = start_walk(self.env, self.num_envs, env_key) if self.jitted else ()
            return run_key, self.learner.init(weight_key), walk

        starts = [start(self.seed + i) for i in range(self.num_seeds or 1)]
        if self.num_seeds is None:
            [(self._key, self.state, self._walk)] = starts
        else:
            self._key, self.state, self._walk = jax.tree.map(lambda *a: jnp.stack(a), *starts)
        if not self.jitted:
            self._obs: Any = None
            self._returns: Any = None
            self._lengths: Any = None

    @property
    def step(self) -> int:
        """Environment steps so far (of each seed)."""
        return int(np.ravel(self.state.iteration)[0]) * self.learner.settings.batch_size

    @property
    def cycles(self) -> int:
        """Completed cycles of resets: how often every hidden unit was renewed."""
        resets = getattr(self.state.plasticity, "resets", None)
        return 0 if resets is None else min(int(jnp.min(layer)) for layer in resets)

    def learn(
        self, total_timesteps: int, callback: Callable[[dict[str, Any]], Any] | None = None, *, progress: bool = False
    ) -> pd.DataFrame:
        """Train for at least ``total_timesteps`` further environment steps (of each seed), in whole iterations.

        Parameters
        ----------
        total_timesteps : environment steps.
        callback : called after each iteration with its row (arrays with several seeds); training stops when it returns False.
        progress : whether to print a line now and then.

        Returns
        -------
        pandas.DataFrame, one row per iteration (and seed): step, return and length (means over the episodes that ended, NaN
        without any), episodes, losses, entropy, approx_kl, clip_fraction, grad_norm, dormant, saturated, weight_norm; with
        resets event, kl_after_reset, distance (after distillation), distill_steps, distill_epochs, distill_converged.

        Raises
        ------
        FloatingPointError: an observation, reward or loss is not finite; it names the iteration.
        """
        if total_timesteps < 1:
            raise ValueError(f"total_timesteps must be at least 1, got {total_timesteps}")
        left = math.ceil(total_timesteps / self.learner.settings.batch_size)
        rows: list[dict[str, Any]] = []
        while left:
            if self.jitted:
                n = 1 if callback else min(left, CAPACITY)
                self.state, self._walk, log = self._run(self._key, self.state, self._walk, jnp.int32(n))
                axis = 0 if self.num_seeds is None else 1
                log = {name: np.take(np.asarray(value), np.arange(n), axis) for name, value in log.items()}
                new = [{name: np.take(value, i, axis)[()] for name, value in log.items()} for i in range(n)]
            else:
                n, new = 1, [self._gymnasium_iteration()]
            done = int(np.ravel(self.state.iteration)[0]) - n
            for number, row in enumerate(new, done + 1):
                _refuse_nan(row, number)
                rows.append({"step": number * self.learner.settings.batch_size, **row})
            left -= n
            if progress:
                print(f"step {rows[-1]['step']}: return {np.mean(rows[-1]['return']):.4g}", flush=True)
            if callback and callback(rows[-1]) is False:
                break
        self._warn_of_missed()
        return self._frame(rows)

    def predict(self, observation: Any, deterministic: bool = False, *, member: int = 0) -> np.ndarray:
        """Actions for one observation or a batch.

        Parameters
        ----------
        observation : one observation of the environment's shape, or a batch (B, ...).
        deterministic : the distribution's mode instead of a sample.
        member : which of several seeds acts.

        Returns
        -------
        numpy array of an action, or of B actions, within the action space's bounds.
        """
        obs = np.asarray(observation, np.float32)
        single = obs.ndim == len(self.observation_shape)
        shape = self.observation_shape if single else (len(obs), *self.observation_shape)
        if obs.shape != shape:
            raise ValueError(f"observation must be of shape {self.observation_shape} or a batch, got {obs.shape}")
        if not np.isfinite(obs).all():
            raise FloatingPointError("observation is not finite")
        state = self.state if self.num_seeds is None else jax.tree.map(lambda a: a[member], self.state)
        self._draws = getattr(self, "_draws", 0) + 1
        key = jax.random.fold_in(jax.random.key(self.seed), self._draws)
        action = self._predict(
            key, state, obs.reshape(-1, math.prod(self.observation_shape)), deterministic=deterministic
        )
        return np.asarray(action[0] if single else action)

    def save(self, path: str | Path) -> None:
        """Write weights, optimiser, statistics and environments in JAX to one safetensors file, settings in its header."""
        from safetensors.numpy import save_file

        if not self._named:
            raise TypeError(f"an agent with a plasticity of its own cannot be saved: {type(self.plasticity).__name__}")
        save_file(self._arrays(), path, {"settings": json.dumps(self.settings)})

    @classmethod
    def load(cls, path: str | Path, env: Any, **changes: Any) -> P3O:
        """Read a file of :meth:`save`.

        Training goes on bit for bit as if it had not stopped; environments of gymnasium, which cannot be stored, start anew.

        Parameters
        ----------
        path : the file.
        env : environment, as for the constructor.
        changes : settings that shall differ.
        """
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as file:
            settings: dict[str, Any] = json.loads(file.metadata()["settings"]) | changes
            agent = P3O(env, **settings)
            expected = agent._arrays()
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        wrong = sorted(name for name in stored.keys() | expected.keys() if _kind(stored, name) != _kind(expected, name))
        if wrong:
            raise ValueError(f"{path} does not fit these settings and this environment: {', '.join(wrong[:3])}")
        agent._put(stored)
        return agent

    def _trees(self) -> Any:
        return {"state": self.state, "walk": self._walk}

    def _arrays(self) -> dict[str, np.ndarray]:
        return {_path(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(self._trees())}

    def _put(self, arrays: Mapping[str, np.ndarray]) -> None:
        trees = jax.tree.map_with_path(lambda path, _: jnp.asarray(arrays[_path(path)]), self._trees())
        self.state, self._walk = trees["state"], trees["walk"]

    def _gymnasium_iteration(self) -> dict[str, Any]:
        """A rollout of the vector environment in numpy, and one compiled update."""
        L, N = self.learner.settings.n_steps, self.num_envs
        if self._obs is None:
            seed = int(np.random.SeedSequence([self.seed, self.step]).generate_state(1)[0] % 2**31)
            obs, _ = self.env.reset(seed=seed)
            self._obs, self._returns, self._lengths = self._flat(obs), np.zeros(N), np.zeros(N, np.int64)
        steps, ended_returns, ended_lengths = [], [], []
        for t in range(L):
            action, clipped, log_prob, value = self._act(self._key, np.int32(t), self.state, self._obs)
            obs, reward, terminated, truncated, info = self.env.step(np.asarray(clipped))
            ended = terminated | truncated
            obs = self._flat(obs)
            final = obs
            if ended.any():
                final = obs.copy()
                final[ended] = self._flat(np.stack([o for o, e in zip(info["final_obs"], ended, strict=True) if e]))
            self._returns += reward
            self._lengths += 1
            ended_returns += self._returns[ended].tolist()
            ended_lengths += self._lengths[ended].tolist()
            self._returns[ended] = self._lengths[ended] = 0
            reward = np.asarray(reward, np.float32)
            steps.append((self._obs, action, log_prob, value, reward, terminated, truncated & ~terminated, final))
            self._obs = obs
        batch = Transition(*(np.stack([np.asarray(a) for a in arrays]) for arrays in zip(*steps, strict=True)))
        self.state, row = self._update(self._key, self.state, batch, self._obs)
        mean = partial(np.mean, dtype=np.float64)
        episodes = {
            "return": mean(ended_returns) if ended_returns else np.nan,
            "length": mean(ended_lengths) if ended_lengths else np.nan,
            "episodes": len(ended_returns),
        }
        return episodes | {name: np.asarray(value)[()] for name, value in row.items()}

    def _flat(self, obs: Any) -> np.ndarray:
        return np.asarray(obs, np.float32).reshape(len(obs), -1)

    def _frame(self, rows: list[dict[str, Any]]) -> pd.DataFrame:
        import pandas as pd

        if self.num_seeds is None:
            frame = pd.DataFrame(rows)
        else:
            parts = [
                pd.DataFrame([{k: v if k == "step" else v[i] for k, v in row.items()} for row in rows]).assign(
                    seed=self.seed + i
                )
                for i in range(self.num_seeds)
            ]
            frame = pd.concat(parts, ignore_index=True)
        frame = frame.drop(columns=["bad_observation", "bad_reward", "bad_loss"])
        if "distill_steps" in frame:
            batch = self.learner.settings.batch_size
            frame["distill_epochs"] = frame["distill_steps"] / (batch // min(64, batch))
        return frame

    def _warn_of_missed(self) -> None:
        memory = self.state.plasticity
        if not isinstance(self.plasticity, SBP) or self.plasticity.max_steps == 0:
            return
        events, missed = int(jnp.sum(memory.events)), int(jnp.sum(memory.missed))
        if missed > MISSED * events:
            warnings.warn(
                f"distillation did not reach distill_threshold at {missed} of {events} events; raise distill_epochs or the "
                "threshold, or lower reset_rate",
                stacklevel=3,
            )


class PPO(P3O):
    """PPO: :class:`P3O` with ``reset_rate=None``; the other arguments are the same."""

    def __init__(self, env: Any, **settings: Any):
        super().__init__(env, reset_rate=None, **settings)


@lru_cache(maxsize=16)
def _programs(
    settings: Settings,
    env: Any,
    observation_size: int,
    action_space: ActionSpace,
    plasticity: Plasticity | None,
    num_seeds: int | None,
) -> tuple[Learner, Any, Any, Any, Any]:
    """Learner and compiled functions run, act, update and predict; agents that differ in their seed alone share them."""
    learner = Learner(settings, observation_size, action_space, plasticity)
    run = train(learner, env, action_space, CAPACITY) if env is not None else None
    if run is not None:
        run = jax.jit(run if num_seeds is None else jax.vmap(run, (0, 0, 0, None)))

    @jax.jit
    def act(key: jax.Array, t: jax.Array, state: TrainState, obs: jax.Array) -> Any:  # the jitted path's keys
        rollout_key, _ = jax.random.split(jax.random.fold_in(key, state.iteration))
        act_key, _ = jax.random.split(rollout_key)
        action, log_prob, value = learner.act(jax.random.fold_in(act_key, t), state, obs)
        return action, action_space.clip(action), log_prob, value

    @jax.jit
    def update(key: jax.Array, state: TrainState, batch: Transition, last_obs: jax.Array) -> Any:
        _, update_key = jax.random.split(jax.random.fold_in(key, state.iteration))
        return learner.update(update_key, state, batch, last_obs)

    @partial(jax.jit, static_argnames="deterministic")
    def predict(key: jax.Array, state: TrainState, obs: jax.Array, deterministic: bool) -> jax.Array:
        dist = learner.policy(state, obs)
        return action_space.clip(dist.mode() if deterministic else dist.sample(key))

    return learner, run, act, update, predict


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _kind(arrays: Mapping[str, np.ndarray], name: str) -> Any:
    return (arrays[name].shape, arrays[name].dtype) if name in arrays else None


def _refuse_nan(row: Mapping[str, Any], iteration: int) -> None:
    for name in ("observation", "reward", "loss"):
        if np.any(row[f"bad_{name}"]):
            raise FloatingPointError(f"{name} is not finite in iteration {iteration}")


def _environment(env: Any, num_envs: int | None) -> Any:
    """A vector environment of gymnasium, or an environment in JAX."""
    if hasattr(env, "step_env"):
        return from_gymnax(env)
    if hasattr(env, "observation_size") and hasattr(env, "action_size"):
        return from_brax(env)
    if isinstance(env, JaxEnv):
        return env
    import gymnasium
    from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

    if isinstance(env, VectorEnv):
        if env.metadata.get("autoreset_mode") is not AutoresetMode.SAME_STEP:
            raise ValueError("env must reset in the same step: autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP")
        if num_envs not in (None, env.num_envs):
            raise ValueError(f"num_envs is {num_envs}, but env has {env.num_envs}")
        return env
    if isinstance(env, gymnasium.Env):
        if num_envs not in (None, 1):
            raise ValueError(
                f"num_envs is {num_envs}, but env is one environment; pass its class or a function instead"
            )
        makers: list[Callable[[], Any]] = [lambda: env]
    elif isinstance(env, str):
        makers = [lambda: gymnasium.make(env)] * (num_envs or 8)
    elif callable(env):
        makers = [env] * (num_envs or 8)
    else:
        raise TypeError(f"env must be a gymnasium id, environment, or one written in JAX; got {type(env).__name__}")
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)


def _spaces(env: Any) -> tuple[ActionSpace, tuple[int, ...]]:
    from gymnasium.spaces import Box, Discrete

    space, action = env.single_observation_space, env.single_action_space
    if not isinstance(space, Box):
        raise TypeError(f"observation space must be a Box, got {space}; flatten it with a wrapper")
    if isinstance(action, Discrete):
        if action.start != 0:
            raise TypeError(f"discrete actions must start at 0, got {action}")
    elif not isinstance(action, Box) or len(action.shape) != 1:
        raise TypeError(f"action space must be a Discrete or a Box of one axis, got {action}")
    return _space(action), space.shape
