"""Draw overview.svg: measured gaps beside the bound's trend, and bounds of one class of decoders against N.

The decoders are trained as in the track at its quick budget, on seeds that no claim reports.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from icml25.ntp_bounds import DecoderSpec, bound, hoeffding, log_cover, measure_gap, parameter_counting
from icml25.ntp_bounds.sources import prose
from icml25.ntp_bounds.track.benchmark_utils.classes import bounded_class

SEEDS = range(1000, 1003)
BLUE, ORANGE, GREY, GREEN = "#0072B2", "#D55E00", "#999999", "#009E73"
BASE = {"n_sequences": 128, "seq_len": 32, "dim": 32, "steps": 400}
vocab = prose().vocab


def gaps(name, values, tokens=False):
    steps = [BASE["steps"] * BASE["seq_len"] // value if tokens else BASE["steps"] for value in values]
    sizes = [BASE | {name: value, "steps": step} for value, step in zip(values, steps, strict=True)]
    return np.array([[measure_gap(**size, seed=seed).gap for seed in SEEDS] for size in sizes])


def trend(name, values):
    """sqrt(log N(eps) / n), eps = 0.1 nat, of decoders of these sizes."""
    out = []
    for value in values:
        size = BASE | {name: value}
        spec = DecoderSpec.random(vocab, size["dim"], 2, 4 * size["dim"], 1, size["seq_len"])
        out.append(np.sqrt(log_cover(spec, 0.1 * np.sqrt(size["seq_len"] / 2)) / size["n_sequences"]))
    return np.array(out)


plt.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "ntp-bounds"})
figure, axes = plt.subplots(1, 4, figsize=(9.4, 2.9), layout="constrained", width_ratios=[1, 1, 1, 1.25])
panels = [
    ("n_sequences", (32, 128, 512), "sequences N"),
    ("dim", (8, 32, 128), "parameters"),
    ("seq_len", (8, 32, 128), "length m"),
]
for axis, (name, values, label) in zip(axes, panels, strict=False):
    found, foretold = gaps(name, values), trend(name, values)
    print(name, values, found.mean(1).round(3), (foretold / foretold[1]).round(3))
    x = values
    if name == "dim":
        x = [DecoderSpec.random(vocab, d, 2, 4 * d, 1, BASE["seq_len"]).n_params for d in values]
    mean = found.mean(1)
    axis.errorbar(
        x, mean, yerr=[mean - found.min(1), found.max(1) - mean], c=BLUE, marker="o", ms=4, capsize=2, label="gap"
    )
    if name == "seq_len":
        again = gaps(name, values, tokens=True).mean(1)
        print("at equal tokens", again.round(3))
        axis.plot(x, again, c=ORANGE, marker="s", ms=4, label="gap, equal tokens seen")
    axis.plot(x, foretold / foretold[1] * mean[1], c=GREY, ls="--", label="trend of the bound, scaled")
    axis.set(xscale="log", xlabel=label, ylim=(min(0, mean.min()) - 0.2, None))
    axis.set_xticks(x, [f"{value / 1000:.3g}k" if value >= 1000 else str(value) for value in x])
    axis.minorticks_off()
axes[0].set(ylabel="test - train loss (nat)")

spec = bounded_class({"vocab": 64, "seed_of_norms": 1000})
sizes = [round(n) for n in 10.0 ** np.arange(1, 15.1, 0.5)]
lines = [
    ("Frobenius metric", BLUE, "-", lambda n: bound(spec, n).gap),
    ("token metric", GREEN, "--", lambda n: bound(spec, n, metric="token").gap),
    ("parameter counting", GREY, ":", lambda n: parameter_counting(spec, n)),
    ("one model, held out", ORANGE, "-.", lambda n: min(hoeffding(n, spec.loss_range), spec.loss_range)),
]
for label, colour, style, kind in lines:
    axes[3].plot(sizes, [kind(n) for n in sizes], c=colour, ls=style, label=label)
axes[3].axhline(np.log(64), c="black", lw=0.8, ls="--")
axes[3].text(1e15, np.log(64) * 1.08, "log v", ha="right", va="bottom")
axes[3].set(xscale="log", yscale="log", xlabel="sequences N", ylabel="bound on the gap (nat)", ylim=(1e-3, 30))
for axis in axes:
    axis.spines[["top", "right"]].set_visible(False)
handles, labels = (left + right for left, right in zip(*(a.get_legend_handles_labels() for a in axes[2:]), strict=True))
figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=4, fontsize=7)
figure.savefig(Path(__file__).with_name("overview.svg"), metadata={"Date": None})
