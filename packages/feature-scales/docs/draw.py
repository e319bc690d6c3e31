"""Draws overview.svg: theory and experiment along chi, for a linear and an erf network."""

from dataclasses import replace
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

from icml25.feature_scales import TwoLayer, anneal, ising_task, langevin

STYLES = {"nngp": "C7:", "tree": "C1-", "one_loop": "C0-", "rescaling": "C2--", "exact": "k-"}
LABELS = {
    "nngp": "NNGP",
    "tree": "tree (adaptation)",
    "one_loop": "one loop",
    "rescaling": "rescaling",
    "exact": "exact",
}


def curves(axes, net, X, y, levels):
    chis = np.geomspace(1, net.width, 9).tolist()
    for level in levels:
        values = [theory.train_discrepancy for theory in anneal(net, X, y, chis, level)]
        axes.semilogx(chis, values, STYLES[level], label=LABELS[level])
    for chi in chis[::2]:
        chain = {"ensembles": 20, "steps": 4000, "burn_in": 1000, "eps": 0.02, "method": "mala"}
        samples = langevin(replace(net, chi=chi), X, y, jax.random.key(0), **chain)
        each = (y * (y - samples.f_train_chains)).mean(1)
        axes.errorbar(chi, each.mean(), 1.96 * each.std(ddof=1) / 20**0.5, fmt="o", color="C3", ms=4, capsize=2)
    axes.plot([], [], "o", color="C3", ms=4, label="Langevin, 95%")
    axes.set(xlabel="chi", title=f"{net.phi}, N = {net.width}, P = {len(y)}, D = {X.shape[1]}")
    axes.legend(frameon=False, fontsize=8)


def main():
    plt.rcParams["svg.hashsalt"] = "icml25"
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    X, y = ising_task(jax.random.key(1000), 40, 40, 0.15)
    curves(left, TwoLayer(50, "linear", 0.5, 0.5, 1.0), X, y, ["nngp", "tree", "one_loop", "rescaling", "exact"])
    left.set_ylabel("train discrepancy y (y - f)")
    X, y = ising_task(jax.random.key(1001), 20, 20, 0.2)
    curves(right, TwoLayer(50, "erf", 1.0, 1.0, 0.3), X, y, ["nngp", "tree", "one_loop", "rescaling"])
    figure.savefig(Path(__file__).with_name("overview.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
