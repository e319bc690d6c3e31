"""Draw docs/overview.svg: training loss by learning rate at three widths (seed 1000), and what schedules do to singular values."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from icml25.modular_duality import SCHEDULES
from icml25.modular_duality.track import objective
from icml25.modular_duality.track.benchmark_utils import problems
from icml25.modular_duality.track.benchmark_utils.optimizers import GRIDS

plt.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "modular-duality"})
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(7.6, 2.5), layout="constrained")
colours = {32: "#56B4E9", 64: "#0072B2", 128: "#000000"}
for axes, name, title in ((left, "modular-duality", "Modular duality"), (middle, "Adam", "Adam")):
    public, _ = objective.Transfer.draw({"scaling": "width"}, seed=1000, budget="quick")
    arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
    arrays["sizes"] = np.array(list(colours))
    found = problems.transfer(arrays, public["params"] | {"optimizer": name})
    for width, loss in zip(colours, found["loss"], strict=True):
        axes.loglog(GRIDS[name][:4], loss, "o-", ms=3, c=colours[width], label=f"width {width}")
    axes.set(title=title, xlabel="learning rate")
left.set(ylabel="training loss after 150 steps")
left.legend(frameon=False)
for name, colour in (("six_step", "#0072B2"), ("quintic", "#009E73"), ("cubic", "#E69F00"), ("muon", "#D55E00")):
    sigma = start = np.geomspace(1e-4, 1, 500)
    for a, b, c in SCHEDULES[name]:
        sigma = a * sigma + b * sigma**3 + c * sigma**5
    right.semilogx(start, sigma, c=colour, lw=1, label=f"{name}, {len(SCHEDULES[name])} steps")
right.set(title="Singular values", xlabel="before (share of the Frobenius norm)", ylabel="after")
right.legend(frameon=False, loc="lower right")
for axes in (left, middle, right):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_name("overview.svg"), metadata={"Date": None})
