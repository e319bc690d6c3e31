"""Draw docs/overview.svg: p-values where nothing is forged, power against length, and what forged text looks like."""

import itertools
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from icml25.shared.protocols import watermark_forgery
from icml25.spoof_detect import HashColors, NgramReference, SpoofTest, bench

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#777777"
LENGTHS = [1000, 250, 500, 2000, 4000]
KEYS = 4
TESTS = 16_000


def null_p_values(source: str, test: str) -> tuple[np.ndarray, int]:
    settings = {"question": "null", "source": source, "h": 1, "length": 400, "tests": TESTS}
    public, _ = watermark_forgery.draw(settings, seed=11, budget="quick")
    arrays = {name: value for name, value in public.items() if isinstance(value, np.ndarray)}
    return np.sort(bench.null_p_values(arrays, {**public, "test": test.lower()})["p_values"]), len(public["texts"])


def verdicts(h: int) -> dict[str, dict[int, dict[str, float]]]:
    """Per writer, length and test: share rejected at 1%."""
    settings = {"question": "forgery", "h": h, "length": 1000, "lengths": LENGTHS, "keys": KEYS}
    settings |= {"genuine": 80, "forged": 60, "held_out": 1}
    public, truth = watermark_forgery.draw(settings, seed=11, budget="quick")
    reference = NgramReference.from_token_ids(public["reference"], h + 1, public["vocab_size"])
    of_key = {key: SpoofTest(HashColors(key, h), reference) for key in np.unique(public["keys"]).tolist()}
    found: dict[str, dict[int, dict[str, float]]] = {}
    for total in LENGTHS:
        rows = []
        for texts in public[f"tests_{total}"]:
            spoof_test = of_key[int(public["keys"][texts[0]])]
            suspects, again = public["suspects"][texts, :total], public["reprompted"][texts, : total - 32]
            p = spoof_test.standard(suspects).p_value, spoof_test.reprompting(suspects, reprompted=again).p_value
            rows.append((str(truth["writer"][texts[0]]), *p))
        for writer in ("genuine", "distillation", "stealing"):
            p = np.array([row[1:] for row in rows if row[0] == writer])
            found.setdefault(writer, {})[total] = dict(
                zip(("Standard", "Reprompting"), (p <= 0.01).mean(axis=0), strict=True)
            )
    bins = [0, 1, 2, 3, 6, 12, np.inf]
    for writer in ("genuine", "distillation", "stealing"):
        of = truth["writer"] == writer
        entered = [test.sequences(public["suspects"][of & (public["keys"] == key)])[:2] for key, test in of_key.items()]
        x, y = np.concatenate(entered, axis=1)
        n = np.expm1(y).round()
        found[writer]["rates"] = [x[(n >= low) & (n < high)].mean() for low, high in itertools.pairwise(bins)]
    return found


plt.rcParams.update({"font.size": 7.5, "axes.titlesize": 8, "legend.fontsize": 7, "axes.spines.top": False})
plt.rcParams.update({"axes.spines.right": False, "svg.hashsalt": "spoof-detect"})
figure, axes = plt.subplots(1, 4, figsize=(9.6, 2.5), layout="constrained")

grid = np.logspace(-3, 0, 91)
for source, color, label in (("stdlib", BLUE, "people's text"), ("other_key", ORANGE, "another key's")):
    for test, style in (("Standard", "-"), ("Reprompting", "--")):
        p, texts = null_p_values(source, test)
        share = np.searchsorted(p, grid, side="right") / TESTS
        axes[0].plot(grid, np.where(share > 0, share, np.nan), style, color=color, label=f"{label} ({texts}), {test}")
axes[0].plot([1e-3, 1], [1e-3, 1], color=GREY, linewidth=0.8)
axes[0].set(
    xscale="log", yscale="log", xlim=(1e-3, 1), ylim=(1e-3, 1), xlabel="p", ylabel="share of tests with a smaller p"
)
axes[0].set_title("No forgery: p uniform or larger\n(16,000 tests a line, on so many texts)")
axes[0].legend(frameon=False, fontsize=5.5, loc="lower right", handlelength=1.6)

by_h = {h: verdicts(h) for h in (2, 1)}
for axis, (h, found) in zip(axes[1:3], by_h.items(), strict=True):
    for writer, color in (("distillation", BLUE), ("stealing", ORANGE), ("genuine", GREY)):
        for test, style in (("Standard", "-"), ("Reprompting", "--")):
            lengths = sorted(LENGTHS)
            rate = [found[writer][total][test] for total in lengths]
            axis.plot(lengths, rate, style, color=color, marker="o", markersize=3, label=f"{writer}, {test}")
    axis.set(
        xscale="log",
        xticks=sorted(LENGTHS),
        xlabel="tokens tested",
        ylim=(-0.03, 1.03),
        title=f"Called forged at 1%, h = {h}",
    )
    axis.set_xticklabels([str(v) for v in sorted(LENGTHS)])
    axis.minorticks_off()
axes[1].legend(frameon=False, fontsize=5.5, loc="center right")

labels = ["0", "1", "2", "3-5", "6-11", "12+"]
for writer, color in (("distillation", BLUE), ("stealing", ORANGE), ("genuine", GREY)):
    axes[3].plot(labels, by_h[2][writer]["rates"], color=color, marker="o", markersize=3, label=writer)
axes[3].set(xlabel="count of the 3-gram in the reference", ylabel="green rate", title="What the tests see, h = 2")
axes[3].legend(frameon=False)
figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
