"""Draw docs/overview.svg: loss and passkeys against length as the quick budget measured them, and FoPE's kernel.

``icml25 run fope`` first; the argument is its results folder (default: icml25-results/quick). Lines are means over seeds, bands
their range.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch

from icml25.fope import FopeConfig, FourierPositionEmbedding

results = Path(sys.argv[1] if len(sys.argv) > 1 else "icml25-results/quick")
rows = pd.concat(pd.read_parquet(file) for file in sorted((results / "length-generalization").glob("*.parquet")))
rows = rows[rows["dataset_name"] == "markov_passkey[length=64]"]

plt.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "fope"})
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(7.6, 2.6), layout="constrained")
times = (1, 2, 4, 8)
lengths = [64 * m for m in times]
lines = [
    ("RoPE", "RoPE", "", "#D55E00", "o"),
    ("RoPE + YaRN", "RoPE", "_yarn", "#E69F00", "s"),
    ("ALiBi", "ALiBi", "", "#999999", "^"),
    ("clipping alone", "fope[variant=clip]", "", "#009E73", "v"),
    ("FoPE", "fope[variant=fope]", "", "#0072B2", "D"),
]
for label, solver, reading, colour, mark in lines:
    found = rows[rows["solver_name"] == solver]
    for axes, metric in ((left, "loss"), (middle, "passkey")):
        columns = [f"{metric}_{m}{reading if m > 1 else ''}" for m in times]  # within L all readings are one
        values = found[columns].dropna()  # YaRN reads one seed
        axes.plot(lengths, values.mean(), mark + "-", c=colour, ms=4, label=label if axes is left else None)
        axes.fill_between(lengths, values.min(), values.max(), color=colour, alpha=0.15, lw=0)
left.set(ylabel="loss (nat per token)", title="Loss, trained at 64 tokens")
middle.set(ylabel="share found", title="Passkeys found", ylim=(-0.03, 1.05))
for axes in (left, middle):
    axes.axvline(64, color="black", lw=0.8, ls=":")
    axes.set(xscale="log", xlabel="tokens read")
    axes.set_xticks(lengths, lengths)
    axes.minorticks_off()

embedding = FourierPositionEmbedding(64, 8, FopeConfig(512, sigma=0.6))
distance, pair = torch.arange(400), 6
cos, sin = (t[0, 0, :, pair] for t in embedding.tables(distance))
right.plot(distance, cos * cos[0] + sin * sin[0], c="#56B4E9", lw=1, label="one draw, sigma 0.6")
right.plot(distance, embedding.expected_kernel(distance)[:, pair], c="black", lw=0.8, ls="--", label="expected")
right.set(xlabel="distance", ylabel="c(n) c(0) + s(n) s(0)", title="A pair's share in the score", xlim=(0, 200))
for axes in (left, middle, right):
    axes.spines[["top", "right"]].set_visible(False)
figure.legend(frameon=False, loc="outside lower center", ncols=4)
figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
