"""Kept prompts by their metrics, and trained policies by quantile and size: draws the picture of the README."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from icml25.rip import RIPFilter
from icml25.shared.protocols import preference_filter as protocol

SETTINGS = {"question": "world", "bad": 0.5, "N": 16, "d": 16, "k": 8}
mpl.rcParams |= {"svg.hashsalt": "rip", "svg.fonttype": "path", "axes.spines.top": False, "axes.spines.right": False}
public, truth = protocol.draw(SETTINGS, seed=1000, budget="quick")
scores, lengths, bad = public["scores"], public["lengths"], truth["bad"]
fig, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
rip = RIPFilter(0.5).fit_arrays(scores, lengths)
worst, gap = scores.min(1), np.ptp(scores, axis=1)
for which, color, label in ((~bad, "tab:blue", "clean prompts"), (bad, "tab:red", "corrupted prompts")):
    axes[0].plot(worst[which][:600], gap[which][:600], ".", color=color, markersize=3, label=label)
axes[0].axvline(rip.thresholds_["rejected_reward"], color="black", linewidth=1)
axes[0].axhline(rip.thresholds_["gap"], color="black", linewidth=1)
axes[0].set(xlabel="rejected reward", ylabel="reward gap", title="kept: lower right")
axes[0].legend(frameon=False, fontsize=8)

quantiles = np.linspace(0, 0.8, 9)
supports = [RIPFilter(q).fit_arrays(scores, lengths).support_arrays(scores, lengths) for q in quantiles]
columns = [protocol.evaluate(public, truth, {"keep": keep}) for keep in supports]
axes[1].plot(quantiles, [c["kept_share"] for c in columns], label="kept")
axes[1].plot(quantiles, [c["bad_share"] for c in columns], label="corrupted among the kept")
axes[1].set(xlabel="quantile of every rule", ylabel="share", title="purity", ylim=(0, 1))
axes[1].legend(frameon=False, fontsize=8)

rng = np.random.default_rng(0)
sizes = [25, 50, 100, 200, 400, 800, 1500]
choices = {"RIP": supports[5], "no filter": np.ones(len(bad), dtype=bool), "large gaps": gap >= np.median(gap)}
for name, keep in choices.items():
    order = rng.permutation(np.flatnonzero(keep))
    rewards = []
    for size in sizes:
        subset = np.zeros(len(bad), dtype=bool)
        subset[order[:size]] = True
        rewards.append(protocol.evaluate(public, truth, {"keep": subset})["filter_reward"])
    axes[2].plot(sizes, rewards, label=name)
axes[2].set(xscale="log", xlabel="prompts trained on", ylabel="true reward after DPO", title="policies")
axes[2].legend(frameon=False, fontsize=8)
fig.savefig(Path(__file__).with_name("overview.svg"), metadata={"Date": None})
