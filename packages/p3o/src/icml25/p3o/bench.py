"""P3O, PPO and other ways to stay plastic on the track control, problem "continual"."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
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
    """Import what the clock should not see."""
    import pandas  # noqa: F401

    import icml25.p3o  # noqa: F401


def make_agent(env: Any, method: str, seed: int, settings: dict[str, Any], every: int = EVERY) -> Any:
    """An agent of one of METHODS; all share PPO's loop and settings, and most have events every so many iterations."""
    from icml25.p3o import P3O
    from icml25.p3o.baselines import ContinualBackprop, PlainReset, ReDo, ShrinkPerturb
    from icml25.p3o.networks import gains

    options: dict[str, Any] = {"reset_rate": None, "reset_every": every} | METHODS[method]
    initializers = gains(settings["hidden"], 0.01)
    steps = settings.get("n_epochs", 10) * settings["num_minibatches"]
    plasticities: dict[str, Callable[[], Any]] = {
        "redo": lambda: ReDo(every, initializers=initializers),
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
    # chosen on seed 1000: an event every 50 steps, a cycle in 500
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
    long = 40 * 64 * 128 if params["steps"] > 4096 else 64 * 128
    loops |= {name: (lambda agent=agent: agent.learn(long)) for name, agent in agents.items()}
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
    }


class Solver(BaseSolver):
    """PPO's loop with one way to stay plastic, or none."""

    name = "p3o"
    sampling_strategy = "run_once"
    problems = ("continual",)
    parameters = {"method": list(METHODS)}  # noqa: RUF012

    def skip(self, problem: str, budget: str, kind: str = "", **_: Any) -> tuple[bool, str | None]:
        """Leave out what a budget has no time for, and methods that a kind of data set does not compare."""
        if problem != "continual":
            return True, "trains one agent"
        methods = {
            "changing": tuple(METHODS) if budget == "paper" else ("PPO", "P3O", "PPO+Cycle"),
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

    def run(self, _: Any) -> None:
        """Train in a process of its own."""
        self.result = measure(__file__, self.kind, self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return curves or accuracies, with seconds and memory."""
        return self.result
