"""Correct selection and error of the effect against the rows: draws pictures for the README."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from icml25.cat_iv import best_subsets, make_anlce, pair_scores, two_stage_least_squares
from icml25.cat_iv.baselines import Selection, oracle, sargan_min, sisvive, tsht, tsls_all

ROWS, DRAWS, FAMILIES = (200, 500, 1000, 2000, 4000), 50, ("Uniform", "Gaussian", "Exponential")


def cat(Z: np.ndarray, x: np.ndarray, y: np.ndarray) -> Selection:
    support = np.isin(np.arange(5), best_subsets(pair_scores(Z, x, y), 2)[0][0])
    return Selection(support, two_stage_least_squares(Z[:, support], x, y))


METHODS = {
    "CAT": (cat, "tab:red", "-"),
    "TSHT": (tsht, "tab:blue", "-"),
    "sisVIVE": (sisvive, "tab:green", "-"),
    "smallest Sargan": (lambda Z, x, y: sargan_min(Z, x, y, 2), "tab:orange", "-"),
    "2SLS, all candidates": (tsls_all, "gray", "--"),
    "2SLS, valid ones": (oracle, "black", ":"),
}

correct = {name: np.zeros((len(FAMILIES), len(ROWS), DRAWS)) for name in METHODS}
error = {name: np.zeros((len(ROWS), DRAWS)) for name in METHODS}
for f, k, r in np.ndindex(len(FAMILIES), len(ROWS), DRAWS):
    s = make_anlce(ROWS[k], noise=FAMILIES[f], seed=np.random.default_rng([5000, f, k, r]))
    order = np.random.default_rng([5001, f, k, r]).permutation(5)  # ties go to the first candidate
    Z, valid = s.Z[:, order], s.valid[order]
    for name, (method, *_) in METHODS.items():
        found = method(Z, s.x, s.y, valid) if method is oracle else method(Z, s.x, s.y)
        correct[name][f, k, r] = (found.support == valid).all()
        if FAMILIES[f] == "Uniform":
            error[name][k, r] = np.nan_to_num(found.effect) - s.beta  # no answer: effect 0

mpl.rcParams |= {"svg.hashsalt": "cat-iv", "svg.fonttype": "path", "axes.spines.top": False, "axes.spines.right": False}
fig, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained")
for name, (_, color, style) in METHODS.items():
    if not name.startswith("2SLS"):
        for f, ax in enumerate(axes[:3]):
            ax.plot(ROWS, correct[name][f].mean(1), style, color=color, marker="o", markersize=4)
    rmse = np.sqrt((error[name] ** 2).mean(1))
    axes[3].plot(ROWS, rmse, style, color=color, marker="o", markersize=4, label=name)
for ax, family in zip(axes, FAMILIES, strict=False):
    ax.set(title=f"valid pair found, {family}", ylim=(-0.03, 1.03), xlabel="rows")
axes[3].set(title="RMSE of the effect, Uniform", yscale="log", xlabel="rows")
for ax in axes:
    ax.set_xscale("log")
    ax.set_xticks(ROWS, [str(n) for n in ROWS])
    ax.minorticks_off()
    ax.title.set_fontsize(10)
    ax.grid(alpha=0.25)
legend = axes[3].get_legend_handles_labels()
fig.legend(*legend, loc="outside lower center", ncol=6, frameon=False)
fig.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
