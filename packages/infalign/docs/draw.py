"""Win rate against KL by transformation, and raw against calibrated rewards: draws the picture of the README."""

import math
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from icml25.infalign import BestOf, Calibrator, Standard, WorstOf, exponential, identity, logarithm, tradeoff

KLS = np.linspace(0.02, 1.5, 30)
CURVES = {
    "best possible": (None, "black", ":"),
    "u (calibration alone, IPO)": (identity(), "tab:gray", "-"),
    "log u (best-of-N distillation)": (logarithm(math.inf), "tab:green", "-"),
    "exp(10u)": (exponential(10), "tab:red", "-"),
    "-exp(-10u)": (exponential(-10), "tab:blue", "-"),
}

mpl.rcParams |= {
    "svg.hashsalt": "infalign",
    "svg.fonttype": "path",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
fig, axes = plt.subplots(1, 5, figsize=(13, 3.1), layout="constrained")
procedures = {"one sample": Standard(), "best of 4": BestOf(4), "worst of 4 (jailbreak)": WorstOf(4)}
for ax, (title, procedure) in zip(axes, procedures.items(), strict=False):
    for name, (transform, color, style) in CURVES.items():
        rates = tradeoff(transform, procedure, KLS)["win_rate"]
        ax.plot(KLS, rates, style, color=color, label=name, linewidth=1.5, zorder=3 if style == ":" else 2)
    ax.set(title=title, xlabel="KL to the base policy (nats)", ylim=(0.5, 1))
axes[0].set_ylabel("win rate over the base policy")

rng = np.random.default_rng(1)
location, scale = 2 * rng.normal(size=(4, 1)), np.exp(rng.normal(size=(4, 1)))
noise = np.where(np.arange(4)[:, None] % 2, rng.normal(size=(4, 2000)), rng.exponential(size=(4, 2000)))
reward = location + scale * noise
keys = [f"prompt {x}" for x in range(4)]
calibrator = Calibrator.fit(keys, reward[:, :200])
calibrated = calibrator.calibrate(np.repeat(keys, 1800).tolist(), reward[:, 200:].ravel()).reshape(4, 1800)
for ax, values, title, n in (
    (axes[3], reward, "reward, four prompts", 60),
    (axes[4], calibrated, "calibrated by 200 rollouts", 12),
):
    bins = np.linspace(np.quantile(values, 0.002), np.quantile(values, 0.998), n)
    for row in values:
        ax.hist(row, bins=bins, density=True, histtype="step", linewidth=1.3)
    ax.set(title=title, yticks=[])
axes[4].set(xlim=(0, 1), ylim=(0, 2))
for ax in axes:
    ax.title.set_fontsize(10)
    ax.grid(alpha=0.25)
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncol=5, frameon=False)
fig.savefig(Path(__file__).with_name("overview.svg"), metadata={"Date": None})
