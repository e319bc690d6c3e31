"""Draw docs/overview.svg: loss against length of the track's decoder, and FoPE's kernel, drawn and expected.

The models are trained as in the track at its quick budget, on a seed that no claim reports.
"""

import importlib.util
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import icml25.fope
from icml25.fope import FopeConfig, FourierPositionEmbedding
from icml25.fope.bench import train_and_read

TRACK = Path(icml25.fope.__file__).parent / "track"
sys.path.insert(0, str(TRACK))
from benchmark_utils import baselines  # noqa: E402

spec = importlib.util.spec_from_file_location("length_generalization", TRACK / "objective.py")
track = importlib.util.module_from_spec(spec)
spec.loader.exec_module(track)
public, _ = track.Reading.draw({"corpus": "markov_passkey", "length": 64}, seed=100, budget="quick")
arrays = {name: value for name, value in public.items() if isinstance(value, np.ndarray)}
params = {"size": "quick", "seed": 100, "length": 64, "vocabulary": public["vocabulary"], "batch_size": 32}

plt.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "fope"})
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(7.6, 2.6), layout="constrained")
lines = [
    ("RoPE", {"position": "rope"}, "#D55E00", "o"),
    ("ALiBi", {"position": "alibi"}, "#999999", "^"),
    ("FoPE", {"variant": "fope"}, "#0072B2", "D"),
]
for label, settings, colour, mark in lines:
    fit = train_and_read if "variant" in settings else baselines.fit
    readings = ["yarn"] if label == "RoPE" else []
    found = fit(arrays, params | {"readings": readings} | settings)
    row = track.Reading.evaluate(public, {}, found)
    print(label, {name: round(value, 3) for name, value in row.items()})
    lengths = [64 * m for m in track.READ_AT]
    readings = [("", label, colour, mark)] + [("_yarn", "RoPE + YaRN", "#E69F00", "s")] * (label == "RoPE")
    for end, name, shade, sign in readings:
        for axes, metric in ((left, "loss"), (middle, "passkey")):
            values = [row.get(f"{metric}_{m}{end}", row[f"{metric}_{m}"]) for m in track.READ_AT]
            axes.plot(lengths, values, sign + "-", c=shade, ms=4, label=name if axes is left else None)
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
figure.legend(frameon=False, loc="outside lower center", ncols=6)
figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
