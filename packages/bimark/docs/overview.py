"""Draw docs/overview.svg: bits recovered against tokens, right votes per layer, and what each scheme's text loses.

Needs the extra ``bench``. All numbers are measured when this runs (a minute or two), by the benchmark's protocol on a seed
that it doesn't report.
"""

import importlib.util
from functools import partial
from pathlib import Path

import matplotlib as mpl
import numpy as np

from icml25.bimark import bench, context_randomness, partitions
from icml25.shared import registry
from icml25.shared.protocols import watermark_message as protocol
from icml25.shared.tracks.watermarking.messaging import Scheme, measure_messages

mpl.use("svg")
mpl.rcParams |= {
    "svg.hashsalt": "bimark",
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

import matplotlib.pyplot as plt  # noqa: E402

COLOURS = {8: "#0072b2", 16: "#d55e00", 32: "#777777"}
LENGTHS = (25, 50, 100, 200)
SETTINGS = {
    "dataset": "figure",
    "model": "synthetic",
    "cells": "8x200+32x200+16x200",
    "sequences": 100,
    "messages": 10,
    "null": 0,
    "bias": 0,
    "vocab": 4096,
    "rows": 512,
}


class Plain(Scheme):
    multi_bit = False

    def config(self, key, message):
        return None

    def reader(self, key, bits, vocab_size):
        return None


def rival(name):
    file = registry.tracks()["watermarking"].folder / "solvers" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.scheme


def measure():
    public, truth = protocol.draw(SETTINGS, seed=1000, budget="figure")
    arrays = {name: value for name, value in public.items() if isinstance(value, np.ndarray)}
    params = {name: value for name, value in public.items() if name not in arrays} | {"seed": 1000}
    schemes = {
        "none": Plain,
        "BiMark": bench.scheme,
        "SynthID": partial(rival("synthid"), 20),
        "MPAC, 1": partial(rival("mpac"), 1.0),
        "MPAC, 2": partial(rival("mpac"), 2.0),
        "KGW, 2": rival("kgw"),
    }
    results = {name: measure_messages(arrays, params, scheme) for name, scheme in schemes.items()}
    return public, results, {name: protocol.evaluate(public, truth, result) for name, result in results.items()}


def recovered(axis, scores):
    for bits, colour in COLOURS.items():
        for scheme, style in (("BiMark", "o-"), ("MPAC, 2", "s--"), ("MPAC, 1", "^:")):
            accuracy = [scores[scheme][f"bit_accuracy_b{bits}_t{length}"] for length in LENGTHS]
            axis.plot(LENGTHS, accuracy, style, color=colour, markersize=3, linewidth=1)
    for bits, colour in COLOURS.items():
        axis.plot([], [], color=colour, label=f"{bits} bits")
    for style, scheme in (("o-", "BiMark"), ("s--", "MPAC, bias 2"), ("^:", "MPAC, bias 1")):
        axis.plot([], [], style, color="black", markersize=3, linewidth=1, label=scheme)
    axis.set(title="share of bits recovered", xlabel="tokens", ylim=(0, 1.02), xticks=LENGTHS)
    axis.legend(frameon=False, ncols=2, fontsize=7)


def votes_by_layer(axis, public, texts):
    """Share of right votes; Algorithm 2 with a known message, without the rule on repeated contexts."""
    right, layers = [], 10
    for text, place in zip(texts, np.arange(len(texts)) % SETTINGS["messages"], strict=True):
        key, message = f"key {public['keys_b16'][place]}".encode(), public["messages_b16"][place]
        contexts = np.lib.stride_tricks.sliding_window_view(text[:-1], 2)
        position, pads = context_randomness(key, contexts, 16, layers)
        in_v1 = partitions(key, layers, SETTINGS["vocab"]).T[text[2:]]
        right.append(in_v1 ^ pads == message[position, None])
    axis.plot(range(1, layers + 1), np.mean(right, axis=(0, 1)), "o-", color=COLOURS[8], markersize=3)
    axis.axhline(0.5, color=COLOURS[32], linestyle="--", linewidth=1)
    axis.set(title="share of right votes per layer", xlabel="layer", ylim=(0.45, 0.85), xticks=range(1, layers + 1))


def losses(axis, public, results):
    gaps = []
    for result in results.values():
        log_probs, expected = protocol.reference(public, result["tokens_b16"])
        gaps.append((log_probs - expected).mean(1))
    boxes = axis.boxplot(gaps, widths=0.6, showfliers=False, showmeans=True, meanprops={"markersize": 4})
    for name in ("boxes", "medians", "whiskers", "caps"):
        for line in boxes[name]:
            line.set(color=COLOURS[8])
    axis.axhline(0, color=COLOURS[32], linestyle="--", linewidth=1)
    axis.set_xticks(range(1, len(results) + 1), results, rotation=35, ha="right")
    axis.set(title="log-probability against sampling", ylabel="nats per token, texts of 200")


def main():
    public, results, scores = measure()
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(8.4, 2.7), layout="constrained")
    recovered(left, scores)
    votes_by_layer(middle, public, results["BiMark"]["tokens_b16"])
    losses(right, public, results)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
