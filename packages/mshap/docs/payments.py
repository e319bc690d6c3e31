"""Reciprocity and data per mechanism on the rotated digits, and data gain against the number of agents: payments.svg."""

import importlib.util
from pathlib import Path

import matplotlib as mpl
import numpy as np

import icml25.mshap
from icml25.mshap import FLGame, LinearFractional, MShap, NoPayment, PowerLaw, WelfareBG

mpl.use("svg")
mpl.rcParams |= {
    "svg.hashsalt": "mshap",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

import matplotlib.pyplot as plt  # noqa: E402

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
ALPHA, BETA, GAMMA = 0.5, 0.4, 5e-4


def digits_games():
    """The benchmark's games: accuracies that FedAvg reaches on digits rotated by 10, 90 and 180 degrees, fitted."""
    file = Path(icml25.mshap.__file__).parent / "track" / "objective.py"
    spec = importlib.util.spec_from_file_location("payments_objective", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for seed in SEEDS:
        W, _ = module.fitted_game(seed, 12, 110, 4)
        gamma = np.random.default_rng([seed, 1]).uniform(0, 1e-3, 12)
        yield FLGame(LinearFractional(W), gamma, np.full(12, 110.0))


def main():
    """Solve and draw."""
    mechanisms = {"no payments": NoPayment(), "cost-based": WelfareBG(0.8), "Shapley": MShap()}
    solved = [{name: game.solve(m) for name, m in mechanisms.items()} for game in digits_games()]
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.7), layout="constrained")
    x, width = np.arange(3), 0.38
    for offset, field, label, colour in (
        (-1, "reciprocity", "reciprocity", "#2a6f97"),
        (1, "data_share", "data given / owned", "#f4a259"),
    ):
        values = np.array([[getattr(eq[name], field) for name in mechanisms] for eq in solved])
        left.bar(x + offset * width / 2, values.mean(0), width, label=label, color=colour)
        left.plot(np.repeat(x + offset * width / 2, len(SEEDS)), values.T.ravel(), ".", color="0.2", markersize=3)
    left.set_xticks(x, mechanisms)
    left.set_ylim(0, 1.3)
    left.set_title("rotated digits, 12 agents", fontsize=9)
    left.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")
    n = 2 ** np.arange(1, 7)
    gain = []
    for k in n.tolist():
        game = FLGame(PowerLaw(ALPHA, BETA), np.full(k, GAMMA), np.full(k, 1e4))
        gain.append((game.solve(MShap()).contributions.sum() + 1) / (game.solve(NoPayment()).contributions.sum() + 1))
    right.loglog(n, gain, "o-", color="#2a6f97", markersize=4, label="Shapley payments")
    right.loglog(n, n ** (1 / (BETA + 1)), "--", color="0.4", label=r"bound $n^{1/(\beta+1)}$")
    right.set_xticks(n, n)
    right.minorticks_off()
    right.set_xlabel("equal agents n")
    right.set_title("data over data without payments", fontsize=9)
    right.legend(frameon=False, fontsize=8)
    figure.savefig(HERE / "payments.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
