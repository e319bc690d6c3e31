"""Regret against log T, mean and 95% interval over 40 runs: DFE and other max-min fair learners, into regret.svg."""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

from icml25.dfe import DFE, ExploreThenCommit, MaxMinBandit, PacketRandomMatching, PhasedCUCB, UniformMatching, simulate

MEANS = [  # six players, eight arms: the max-min experiment of the simulator of Shi et al. (2021)
    [0.45, 0.49, 0.59, 0.17, 0.37, 0.86, 0.94, 0.98],
    [0.39, 0.25, 0.4, 0.6, 0.24, 0.54, 0.43, 0.67],
    [0.39, 0.33, 0.8, 0.01, 0.12, 0.2, 0.61, 0.77],
    [0.95, 0.22, 0.24, 0.88, 0.2, 0.12, 0.29, 0.3],
    [0.69, 0.89, 0.25, 0.59, 0.43, 0.18, 0.01, 0.84],
    [0.97, 0.15, 0.89, 0.16, 0.09, 0.57, 0.61, 0.19],
]
HORIZON, RUNS = 10**6, 40
POLICIES = {
    "uniform matching": (UniformMatching(), 1, "#999999"),
    "random matching in packets": (PacketRandomMatching(c1=50, c2=5), 16, "#b58900"),
    "explore (250 a pair), then commit": (ExploreThenCommit(250), RUNS, "#6c71c4"),
    "explore (500 a pair), then commit": (ExploreThenCommit(500), RUNS, "#9aa0dd"),
    "DFE, messages by collision": (DFE(communication="collision"), RUNS, "#cb4b16"),
    "DFE, free messages": (DFE(), RUNS, "#0a7f5a"),
    "phased CUCB (centralised)": (PhasedCUCB(), 16, "#333333"),
}

plt.rcParams.update({"svg.hashsalt": "dfe", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
points = np.unique(np.geomspace(100, HORIZON, 60).astype(int))
for name, (policy, runs, colour) in POLICIES.items():
    regret = simulate(policy, MaxMinBandit(MEANS), HORIZON, runs, seed=1, checkpoints=points).regret
    mean, half = regret.mean(0), 1.96 * regret.std(0, ddof=min(1, runs - 1)) / np.sqrt(runs)
    axes.plot(points, mean, color=colour, label=name, lw=2 if name.startswith("DFE") else 1.2)
    axes.fill_between(points, mean - half, mean + half, color=colour, alpha=0.2, lw=0)
axes.set(xscale="log", xlabel="rounds T (log scale)", ylabel="max-min regret", ylim=(0, 12_500), xlim=(100, HORIZON))
axes.legend(frameon=False, fontsize=8, loc="upper left")
figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
