"""Draw overview.svg: what is left of the distance from the optimum, by outer step, and disagreement by round of gossip."""

from pathlib import Path

import matplotlib as mpl
import networkx as nx
import numpy as np

mpl.use("svg")
import matplotlib.pyplot as plt

from icml25.neural_marl import GridSpread, NetworkedMDP, NeuralDAC, consensus_matrix, gossip, mixing_rate

mpl.rcParams.update(
    {"svg.hashsalt": "neural-marl", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
)
fig, axes = plt.subplots(1, 3, figsize=(9.6, 2.9))

ax = axes[0]
for seed in range(4):
    env = NetworkedMDP.random(3, 6, 2, additive=True, seed=1000 + seed)
    for normalize, color in (("agent", "C0"), ("joint", "C1")):
        log = NeuralDAC(env, nx.cycle_graph(3), critic="exact", normalize=normalize).train(3000, log_every=50)
        log = log[log["t"] > 0]
        ax.loglog(
            log["t"], log["gap"], lw=1, color=color, alpha=0.8, label="" if seed else f"normalised by {normalize}"
        )
t = np.array([100, 3000])
ax.loglog(t, 30 / t, "k--", lw=1)
ax.set(xlabel="outer step", ylabel="J* - J", title="exact critics, four MDPs (dashed 1/t)")
ax.legend(frameon=False)

ax = axes[1]
env = GridSpread(2, 5, 3, gamma=0.9, seed=1000)
for label, color in (("td", "C0"), ("sarsa", "C2"), ("q", "C1")):
    algo = NeuralDAC(env, nx.complete_graph(2), width=32, alpha=0.03, beta=0.1, advantage=label, seed=1000)
    log = algo.train(1500, log_every=100)
    ax.plot(log["t"], log["gap"] / log["gap"].iloc[0], color=color, label=label)
ax.set(xlabel="outer step", ylabel="distance from optimum / start", title="5 x 3 grid, two agents, by weight")
ax.legend(frameon=False)

ax = axes[2]
x = np.random.default_rng(1000).normal(size=(34, 200))
for name, graph in (
    ("ring of 34", nx.cycle_graph(34)),
    ("karate club", nx.karate_club_graph()),
    ("star", nx.star_graph(33)),
):
    A = consensus_matrix(graph)
    errors = [np.linalg.norm(y - y.mean(0)) for y in (gossip(x, A, k) for k in range(41))]
    ax.semilogy(np.array(errors) / errors[0], label=f"{name}, $\\sigma_2$ = {mixing_rate(A):.3f}")
ax.set(
    ylim=(3e-3, 1.3), xlabel="rounds of gossip", ylabel="disagreement / start", title="consensus, Metropolis weights"
)
ax.legend(frameon=False)

fig.tight_layout()
fig.savefig(Path(__file__).with_name("overview.svg"), metadata={"Date": None})
