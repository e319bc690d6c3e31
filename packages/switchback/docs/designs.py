"""Four designs as timelines, and the RMSE of three estimators against the span, into designs.svg."""

import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np

from icml25.switchback import DRL, LSTD, OLS, Design, OverlapWarning, paper_mdp

mpl.use("svg")
mpl.rcParams.update(
    {"svg.hashsalt": "icml25-switchback", "font.size": 8, "axes.spines.top": False, "axes.spines.right": False}
)
import matplotlib.pyplot as plt  # noqa: E402

SPANS, DAYS, TIMES, REPLICATES = (1, 3, 6, 12, 24, 48), 32, 48, 200
CELLS = (
    ("weak carryover,\npositive correlation (0.9)", 0.0, 0.9),
    ("weak carryover,\nnegative correlation (-0.5)", 0.0, -0.5),
    ("strong carryover,\npositive correlation (0.5)", 2.4, 0.5),
)
ESTIMATORS = (("OLS", OLS(), "#1b6ca8"), ("LSTD", LSTD(), "#e07b39"), ("DRL", DRL(), "#4f9d69"))


def rmse(estimator, world, span):
    """Root mean squared error over replicates with new coins."""
    rng = np.random.default_rng(span)
    tables = np.stack([Design("AT", span).draw(DAYS, TIMES, rng) for _ in range(REPLICATES)])
    error = estimator.estimate(*world.simulate(tables, seed=rng, n_rep=REPLICATES)) - world.ate()
    return np.sqrt(np.mean(error**2))


def main():
    """Draw."""
    warnings.simplefilter("ignore", OverlapWarning)
    figure, axes = plt.subplots(1, 4, figsize=(9.2, 2.6), layout="constrained", width_ratios=[1.25, 1, 1, 1])
    designs = (("AD", Design("AD")), ("AT(12)", Design("AT", 12)), ("AT(3)", Design("AT", 3)), ("UR", Design("UR")))
    gap = np.full((1, TIMES), np.nan)
    rows = np.concatenate([np.concatenate([design.draw(4, TIMES, seed=1), gap]) for _, design in designs])
    arms = mpl.colors.ListedColormap(["#d9dee3", "#1b6ca8"])
    axes[0].imshow(rows, cmap=arms, aspect="auto", interpolation="nearest", extent=(0, TIMES, len(rows), 0))
    axes[0].set(yticks=[5 * k + 2 for k in range(4)], yticklabels=[name for name, _ in designs])
    axes[0].set(
        xlabel="half-hour of the day", title="four days of each design\n(blue: treated)", xticks=[0, 12, 24, 36, 48]
    )
    axes[0].tick_params(left=False)
    axes[0].spines["left"].set_visible(False)
    for axis, (title, delta, rho) in zip(axes[1:], CELLS, strict=True):
        world = paper_mdp(TIMES, 3, delta=delta, rho=rho)
        for name, estimator, color in ESTIMATORS:
            axis.plot(
                SPANS, [rmse(estimator, world, span) for span in SPANS], "o-", color=color, label=name, ms=3, lw=1.2
            )
        axis.set(xscale="log", title=title, xlabel="points between switches", xticks=SPANS, ylim=(0, None))
        axis.set_xticklabels([*SPANS[:-1], "AD"])
        axis.minorticks_off()
    axes[1].set_ylabel("RMSE of the ATE")
    axes[1].legend(frameon=False)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
