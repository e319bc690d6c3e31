"""P3O, PPO and other ways to stay plastic on the track control, problem "continual"."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

EVERY = 10  # iterations from one event to the next, on the pendulum
PENDULUM: dict[str, Any] = {  # chosen on seeds 1000 and above, for plain PPO
    "n_steps": 128,
    "num_minibatches": 16,
    "learning_rate": 1e-3,
    "gamma": 0.95,
    "hidden": (64, 64),
    "normalize_observations": False,
}
CARTPOLE: dict[str, Any] = {
    "n_steps": 128,
    "num_minibatches": 4,
    "learning_rate": 1e-3,
    "gamma": 0.98,
    "hidden": (64, 64),
    "normalize_observations": False,
    "normalize_rewards": False,
}
COMPARED = ("PPO", "P3O", "PPO+Cycle")  # what the claims are about
SHOWN = ("PPO+ReDo", "PPO+CBP", "PPO+ShrinkPerturb", "PPO+Reset")  # beside them, outside the paper budget once
METHODS = {
    "PPO": {},
    "P3O": {"reset_rate": 0.1},
    "P3O keep": {"reset_rate": 0.1, "outgoing": "keep"},
    "PPO+Cycle": {"reset_rate": 0.1, "distill_epochs": 0},
    "PPO+ReDo": {"plasticity": "redo"},
    "PPO+CBP": {"plasticity": "cbp"},
    "PPO+ShrinkPerturb": {"plasticity": "shrink"},
    "PPO+Reset": {"plasticity": "reset"},
    "PPO+LayerNorm": {"layer_norm": True},
    "PPO+L2Init": {"l2_init": 1e-4},
}


def warm_up() -> None:
    """Import what the clock should not see; what one seed compiles, the next ones load from the run's cache."""
    import jax
    import pandas  # noqa: F401

    import icml25.p3o  # noqa: F401

    if folder := os.environ.get("BENCHOPT_CACHE"):
        jax.config.update("jax_compilation_cache_dir", str(Path(folder) / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def make_agent(env: Any, method: str, seed: int, settings: dict[str, Any], every: int = EVERY) -> Any:
    """An agent of one of METHODS; all share PPO's loop and settings, and most have events every so many iterations."""
    from icml25.p3o import P3O
    from icml25.p3o.baselines import ContinualBackprop, PlainReset, ReDo, ShrinkPerturb
    from icml25.p3o.networks import gains

    options: dict[str, Any] = {"reset_rate": None, "reset_every": every} | METHODS[method]
    initializers = gains(settings["hidden"], 0.01)
    steps = settings.get("n_epochs", 10) * settings["num_minibatches"]
    plasticities: dict[str, Callable[[], Any]] = {
        "redo": lambda: ReDo(initializers=initializers),
        "cbp": lambda: ContinualBackprop(steps=steps, initializers=initializers),
        "shrink": lambda: ShrinkPerturb(0.8, every, initializers),
        "reset": lambda: PlainReset(4 * every, initializers),
    }
    if "plasticity" in options:
        options["plasticity"] = plasticities[options["plasticity"]]()
    return P3O(env, seed=seed, **settings | options)


def curve(log: Any, spans: int = 20) -> dict[str, np.ndarray]:
    """Mean returns and numbers of episodes in equal spans of the run, a row per seed."""
    returns, episodes = [], []
    for _, rows in log.groupby("seed") if "seed" in log else [(0, log)]:
        parts = np.array_split(np.arange(len(rows)), min(spans, len(rows)))
        count = rows["episodes"].to_numpy(np.float64)
        total = np.nan_to_num(rows["return"].to_numpy(np.float64)) * count
        episodes.append([count[p].sum() for p in parts])
        returns.append([total[p].sum() / count[p].sum() if count[p].sum() else np.nan for p in parts])
    return {"returns": np.array(returns), "episodes": np.array(episodes)}


def changing(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Train on the pendulum whose gravity changes."""
    from icml25.p3o.envs import Changing, Pendulum

    factors = tuple(arrays["factors"].tolist())
    env = Changing(Pendulum(), "gravity", factors, params["period"] // params["num_envs"])
    settings = PENDULUM | {
        "num_envs": params["num_envs"],
        "num_seeds": params["replicates"],
        "n_epochs": params["epochs"],
    }
    agent = make_agent(env, params["method"], 100 * params["seed"], settings)
    log = agent.learn(params["steps"])
    out: dict[str, Any] = curve(log)
    out |= {"dormant": log["dormant"].mean(), "saturated": log["saturated"].mean()}
    out["weight_norm"] = log.groupby("step")["weight_norm"].mean().iloc[-1]
    if params["method"].startswith("P3O"):
        events = log[log["event"]]
        out["within_threshold"] = events["distill_converged"].mean()
        out["distill_epochs"] = events["distill_epochs"].mean()
    return out | {"cycles": agent.cycles}


def stationary(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Train on gymnasium's CartPole-v1."""
    agent = make_agent("CartPole-v1", params["method"], params["seed"], CARTPOLE | {"num_envs": params["num_envs"]})
    return curve(agent.learn(params["steps"]))


def events(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """P3O on the plain pendulum, its policy judged before each reset, after it, and after distillation."""
    import jax

    from icml25.p3o import PPO, SBP
    from icml25.p3o.envs import Pendulum, mean_return
    from icml25.p3o.networks import gains

    env = Pendulum()

    @dataclass(frozen=True)
    class Judged(SBP):
        """SBP that also plays 32 episodes with each of the three actors, from the same starts."""

        def regenerate(self, key: Any, t: Any, state: Any, params: Any, apply_fn: Any, batch: Any) -> Any:
            out = super().regenerate(key, t, state, params, apply_fn, batch)
            bare = SBP(self.reset_rate, initializers=self.initializers, max_steps=0)
            reset = bare.regenerate(key, t, state, params, apply_fn, batch)[1]

            def play(actor: Any) -> Any:
                def policy(obs: Any) -> Any:
                    return apply_fn(actor, obs)[0].mode()

                return mean_return(env, policy, jax.random.fold_in(key, 7), episodes=32, max_steps=env.horizon)

            info = {"before": play(params), "reset": play(reset), "after": play(out[1])}
            return *out[:3], out[3] | info

    settings = PENDULUM | {"num_envs": params["num_envs"]}
    epoch = settings["n_steps"] * params["num_envs"] // 64
    judged = Judged(reset_every=EVERY, max_steps=20 * epoch, initializers=gains(settings["hidden"], 0.01))
    agent = PPO(env, plasticity=judged, seed=params["seed"], **settings)
    log = agent.learn(params["steps"])
    log = log[log["event"]]
    resets = agent.state.plasticity.resets
    return {name: log[name].to_numpy(np.float64) for name in ("before", "reset", "after", "distance")} | {
        "threshold": judged.threshold,
        "unit_resets": np.concatenate([np.asarray(layer) for layer in resets]),
        "cycles": len(log) // judged.K,
        "events": len(log),
    }


def digits(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Train one classifier on the tasks in turn, with SBP or without."""
    import jax
    import jax.numpy as jnp
    import optax

    from icml25.p3o import SBP, per_entry_adam
    from icml25.p3o.networks import MLP, functional, gains

    X, y = jnp.asarray(arrays["X"]), jnp.asarray(arrays["y"])
    widths = (128, 128, 128)
    init, apply = functional(lambda rngs: MLP(64, widths, 10, activation=jax.nn.relu, rngs=rngs))
    tx = per_entry_adam(1e-3)
    # an event every 50 steps, a cycle in 500: set by hand, no grid was searched
    sbp = SBP(0.1, 50, 0.02, "kl", max_steps=200, learning_rate=1e-3, initializers=gains(widths, 1.0))

    def step(carry: Any, at: Any) -> tuple[Any, Any]:
        network, opt_state, memory, t, key, inputs = carry
        x, label = inputs[at], y[at]

        def loss(network: Any) -> tuple[Any, Any]:
            logits, _ = apply(network, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean(), logits

        (_, logits), grads = jax.value_and_grad(loss, has_aux=True)(network)
        updates, opt_state = tx.update(grads, opt_state)
        network, t = optax.apply_updates(network, updates), t + 1
        if params["method"] == "P3O":
            memory, network, opt_state, _ = sbp.step(
                jax.random.fold_in(key, t), t, memory, network, opt_state, apply, inputs
            )
        return (network, opt_state, memory, t, key, inputs), (logits.argmax(-1) == label).mean()

    @jax.jit
    def task(carry: Any, pixels: Any, rows: Any) -> tuple[Any, Any]:
        carry, accuracy = jax.lax.scan(step, (*carry, X[:, pixels]), rows)
        return carry[:-1], accuracy

    key = jax.random.key(params["seed"])
    network = init(key)
    carry: Any = (network, tx.init(network), sbp.init(network), jnp.int32(0), key)
    accuracies = []
    for pixels, rows in zip(arrays["pixels"], arrays["rows"], strict=True):
        carry, accuracy = task(carry, pixels, rows)
        accuracies.append(np.asarray(accuracy))
    out = {"accuracy": np.array(accuracies), "weight_norm": float(optax.tree.norm(carry[0]))}
    return out | {"missed_events": int(carry[2].missed), "events": int(carry[2].events)}


def speed(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Steps per second in turns in one process; each loop has run once before, so that compilation is not counted."""
    import jax
    import torch
    from stable_baselines3 import PPO as Trusted
    from stable_baselines3.common.env_util import make_vec_env

    from icml25.p3o.envs import CartPole

    torch.set_num_threads(1)
    small = {"n_steps": 128, "batch_size": 256, "n_epochs": 10, "learning_rate": 1e-3, "gamma": 0.98}
    network = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}}
    vector = make_vec_env("CartPole-v1", params["num_envs"])
    trusted = Trusted("MlpPolicy", vector, policy_kwargs=network, device="cpu", **small)
    gymnasium = make_agent("CartPole-v1", "PPO", params["seed"], CARTPOLE | {"num_envs": params["num_envs"]})
    jitted = {"num_envs": 64, "n_epochs": 4}
    loops: dict[str, Callable[[], Any]] = {
        "sb3": lambda: trusted.learn(params["steps"]),
        "gymnasium": lambda: gymnasium.learn(params["steps"]),
    }
    agents = {m: make_agent(CartPole(), m, params["seed"], CARTPOLE | jitted, every=20) for m in ("PPO", "P3O")}
    iterations = 20 if params["steps"] >= 4096 else 1
    long = iterations * 64 * 128
    loops |= {name: (lambda agent=agent: agent.learn(long)) for name, agent in agents.items()}
    peer = plain_ppo(CartPole(), CARTPOLE | jitted, iterations, jax.random.key(params["seed"]))
    loops["peer"] = lambda: jax.block_until_ready(peer())
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for repeat in range(params["repeats"] + 1):
        for name, loop in loops.items():
            start = time.perf_counter()
            loop()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    rate = {
        name: (params["steps"] if name in ("sb3", "gymnasium") else long) / np.median(s) for name, s in seconds.items()
    }
    return {
        "steps_per_second": rate["PPO"],
        "steps_per_second_sb3": rate["sb3"],
        "steps_per_second_gymnasium": rate["gymnasium"],
        "gymnasium_over_sb3": rate["gymnasium"] / rate["sb3"],
        "sbp_over_ppo": rate["P3O"] / rate["PPO"],
        "ppo_over_peer": rate["PPO"] / rate["peer"],
    }


def plain_ppo(env: Any, settings: dict[str, Any], iterations: int, key: Any) -> Callable[[], Any]:
    """PPO in one jitted scan and nothing besides (after PureJaxRL): optax's Adam, every end of an episode terminal, no log.

    Returns a function that trains for ``iterations`` and gives the last carry, and how many episodes ended in each.
    """
    import jax
    import jax.numpy as jnp
    import optax

    L, N, M = settings["n_steps"], settings["num_envs"], settings["num_minibatches"]
    gamma, widths = settings["gamma"], settings["hidden"]
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(settings["learning_rate"], eps=1e-5))

    def network(key: Any, outputs: int, gain: float) -> list[tuple[Any, Any]]:
        sizes, keys = [env.observation_size, *widths, outputs], jax.random.split(key, len(widths) + 1)
        scales = [2**0.5] * len(widths) + [gain]
        draw = jax.nn.initializers.orthogonal
        return [
            (draw(scale)(k, (m, n)), jnp.zeros(n))
            for k, scale, m, n in zip(keys, scales, sizes[:-1], sizes[1:], strict=True)
        ]

    def forward(layers: Any, x: Any) -> Any:
        for kernel, bias in layers[:-1]:
            x = jnp.tanh(x @ kernel + bias)
        return x @ layers[-1][0] + layers[-1][1]

    def loss(params: Any, batch: Any) -> Any:
        x, action, old, advantage, target = batch
        log_p = jax.nn.log_softmax(forward(params[0], x))
        ratio = jnp.exp(jnp.take_along_axis(log_p, action[:, None], 1)[:, 0] - old)
        A = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        surrogate = jnp.minimum(ratio * A, jnp.clip(ratio, 0.8, 1.2) * A).mean()
        return 0.5 * ((forward(params[1], x)[:, 0] - target) ** 2).mean() - surrogate

    def iteration(carry: Any, key: Any) -> Any:
        params, opt_state, state, obs = carry
        roll_key, epoch_key = jax.random.split(key)

        def step(carry: Any, key: Any) -> Any:
            state, obs = carry
            act_key, step_key, reset_key = jax.random.split(key, 3)
            log_p, value = jax.nn.log_softmax(forward(params[0], obs)), forward(params[1], obs)[:, 0]
            action = jax.random.categorical(act_key, log_p)
            after = jax.vmap(env.step)(jax.random.split(step_key, N), state, action)
            done, fresh = after[3] | after[4], jax.vmap(env.reset)(jax.random.split(reset_key, N))
            new = jax.tree.map(lambda a, b: jnp.where(done.reshape(-1, *[1] * (a.ndim - 1)), a, b), fresh, after[:2])
            return new, (obs, action, jnp.take_along_axis(log_p, action[:, None], 1)[:, 0], value, after[2], done)

        def back(carry: Any, at: Any) -> Any:
            advantage, following = carry
            value, reward, done = at
            advantage = reward - value + jnp.where(done, 0.0, gamma * (following + 0.95 * advantage))
            return (advantage, value), advantage

        def minibatch(carry: Any, rows: Any) -> Any:
            params, opt_state = carry
            updates, opt_state = tx.update(jax.grad(loss)(params, jax.tree.map(lambda a: a[rows], data)), opt_state)
            return (optax.apply_updates(params, updates), opt_state), None

        def epoch(carry: Any, key: Any) -> Any:
            return jax.lax.scan(minibatch, carry, jax.random.permutation(key, L * N).reshape(M, -1))

        (state, obs), (x, action, log_p, value, reward, done) = jax.lax.scan(
            step, (state, obs), jax.random.split(roll_key, L)
        )
        last = forward(params[1], obs)[:, 0]
        _, advantage = jax.lax.scan(back, (jnp.zeros(N), last), (value, reward, done), reverse=True)
        data = jax.tree.map(lambda a: a.reshape(L * N, *a.shape[2:]), (x, action, log_p, advantage, advantage + value))
        learned, _ = jax.lax.scan(epoch, (params, opt_state), jax.random.split(epoch_key, settings["n_epochs"]))
        return (*learned, state, obs), done.sum()

    keys = jax.random.split(key, 4)
    params = network(keys[0], env.action_space.size, 0.01), network(keys[1], 1, 1.0)
    carry = (params, tx.init(params), *jax.vmap(env.reset)(jax.random.split(keys[2], N)))
    run = jax.jit(lambda carry, keys: jax.lax.scan(iteration, carry, keys))
    return lambda: run(carry, jax.random.split(keys[3], iterations))


class Solver(BaseSolver):
    """PPO's loop with one way to stay plastic, or none."""

    name = "p3o"
    sampling_strategy = "run_once"
    problems = ("continual",)
    parameters = {"method": list(METHODS)}  # noqa: RUF012

    def skip(self, problem: str, budget: str, kind: str = "", seed: int = 0, **_: Any) -> tuple[bool, str | None]:
        """Leave out what a budget has no time for, and methods that a kind of data set does not compare."""
        if problem != "continual":
            return True, "trains one agent"
        methods = {
            "changing": tuple(METHODS) if budget == "paper" else COMPARED + (SHOWN if seed == 0 else ()),
            "stationary": ("PPO",),
            "events": ("P3O",),
            "digits": ("P3O", "PPO"),
            "speed": ("P3O",),
        }[kind]
        if budget == "smoke" and self.method != "P3O" and kind != "stationary":
            return True, "one method will do"
        return self.method not in methods, "left out of this data set and budget"

    def set_objective(self, problem: str, budget: str, **public: Any) -> None:
        """Note the world's settings, and the digits."""
        self.kind = public.pop("kind")
        self.arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
        numbers = {key: value for key, value in public.items() if key not in self.arrays}
        self.params = {k: int(v) if isinstance(v, (int, np.integer)) else v for k, v in numbers.items()}
        self.params["method"] = self.method
        if budget != "paper" and self.method in SHOWN:
            self.params["replicates"] = 1

    def run(self, _: Any) -> None:
        """Train in a process of its own."""
        self.result = measure(__file__, self.kind, self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return curves or accuracies, with seconds and memory."""
        return self.result
