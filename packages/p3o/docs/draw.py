"""Draw docs/overview.svg: returns on the pendulum of changing gravity, and each event's KL (seed 1000)."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from icml25.p3o.bench import PENDULUM, make_agent
from icml25.p3o.envs import Changing, Pendulum

STEPS, PERIOD, ENVS, SEEDS = 204_800, 40_960, 16, 2
factors = (1.0, 0.5, 0.25, 0.75, 0.1)
env = Changing(Pendulum(), "gravity", factors, PERIOD // ENVS)

plt.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "p3o"})
figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 2.5), layout="constrained", width_ratios=(2, 1))
for method, colour in (("PPO+Cycle", "#E69F00"), ("PPO", "#56B4E9"), ("P3O", "#000000")):
    agent = make_agent(env, method, 1000, PENDULUM | {"num_envs": ENVS, "num_seeds": SEEDS})
    log = agent.learn(STEPS)
    curves = (
        log.pivot_table(index="step", columns="seed", values="return").interpolate().rolling(3, min_periods=1).mean()
    )
    left.plot(curves.index, curves.mean(axis=1), c=colour, lw=1.2, label=method)
    left.fill_between(curves.index, curves.min(axis=1), curves.max(axis=1), color=colour, alpha=0.15, lw=0)
    if method == "P3O":
        events = log[log["event"]].groupby("step")[["kl_after_reset", "distance"]].mean()
        left.plot(events.index, np.full(len(events), left.get_ylim()[0]), "|", c="k", ms=5)
        right.semilogy(events.index, events["kl_after_reset"], "^", c="#E69F00", ms=4, label="after the reset")
        right.semilogy(events.index, events["distance"], "v", c="k", ms=4, label="after distillation")
for number, factor in enumerate(factors):
    left.axvline(number * PERIOD, c="0.8", lw=0.7, zorder=0)
    left.text(number * PERIOD, left.get_ylim()[1], f" gravity x {factor:g}", fontsize=6, va="bottom")
right.axhline(0.01, c="0.6", lw=0.7, ls=":")
left.set(xlabel="environment steps", ylabel="return of an episode")
right.set(xlabel="environment steps", ylabel="alpha-DKL over the rollout (nats)")
left.legend(frameon=False, loc="lower right")
right.legend(frameon=False)
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_name("overview.svg"), metadata={"Date": None})
