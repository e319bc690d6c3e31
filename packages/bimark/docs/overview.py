"""Draw docs/overview.svg: bits recovered against tokens, p-values of human text, and how often a layer's vote is right.

Needs the extra ``bench``. All numbers are measured when this runs (a minute), on seeds that the benchmark doesn't report.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch

from icml25.bimark import BiMarkConfig, BiMarkDetector, partitions
from icml25.bimark.prf import context_randomness
from icml25.shared.protocols import watermark_message
from icml25.shared.tracks.watermarking.language_models import SyntheticLM
from icml25.shared.tracks.watermarking.messaging import generate

mpl.use("svg")
mpl.rcParams |= {
    "svg.hashsalt": "bimark",
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

import matplotlib.pyplot as plt  # noqa: E402

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#777777"
SEQUENCES, TOKENS = 100, 200
LENGTHS = (10, 25, 50, 75, 100, 150, 200)


def draw_world():
    settings = {
        "dataset": "figure",
        "model": "synthetic",
        "cells": "8x200",
        "sequences": SEQUENCES,
        "messages": 1,
        "null": 4000,
        "bias": 0,
        "vocab": 1024,
        "rows": 512,
    }
    public, _ = watermark_message.draw(settings, seed=1000, budget="figure")
    return public, SyntheticLM(public["table"]), torch.from_numpy(public["prompts"])


def write(model, prompts, config):
    return generate(model, prompts, torch.ones_like(prompts), TOKENS, config, watermark_message.TOP_K)


def recovered(axis, model, prompts):
    texts = None
    for bits, colour in ((8, BLUE), (16, ORANGE), (32, GREY)):
        message = "".join(map(str, np.random.default_rng(bits).integers(0, 2, bits)))
        config = BiMarkConfig("figure", message)
        texts = write(model, prompts, config)
        detector = BiMarkDetector(config, model.config.vocab_size)
        accuracy = [
            np.mean([r.bit_accuracy for r in detector.detect_batch(texts[:, :n], expected_message=message)])
            for n in LENGTHS
        ]
        axis.plot(LENGTHS, accuracy, "o-", color=colour, markersize=3, label=f"{bits} bits")
    axis.set(title="share of bits recovered", xlabel="tokens", ylim=(0, 1.02))
    axis.legend(frameon=False)
    return texts, config


def human_text(axis, public):
    p = []
    for key in np.unique(public["null_keys"]):
        detector = BiMarkDetector(BiMarkConfig(f"null {key}", None, message_bits=16), 1024)
        p += [r.p_value for r in detector.detect_batch(public["null_ids"][public["null_keys"] == key])]
    p = np.sort(p)
    share = np.arange(1, len(p) + 1) / len(p)
    axis.loglog([1e-3, 1], [1e-3, 1], "--", color=GREY, linewidth=1, label="uniform")
    axis.step(p, share, color=BLUE, label=f"{len(p)} texts, 16 bits")
    axis.set(title="human text: p-values", xlabel="p", ylabel="share with a p-value of at most p")
    axis.set(xlim=(1e-3, 1), ylim=(1e-3, 1.2))
    axis.legend(frameon=False)


def votes_by_layer(axis, texts, config):
    members = partitions(config.key_bytes, config.n_layers, 1024)
    contexts = np.concatenate([np.lib.stride_tricks.sliding_window_view(text[:-1], 2) for text in texts])
    targets = texts[:, 2:].ravel()
    position, pads = context_randomness(config.key_bytes, contexts, config.message_bits, config.n_layers)
    bit = np.array([c == "1" for c in config.message])[position]
    right = (members.T[targets] ^ pads == bit[:, None]).mean(0)
    axis.plot(range(1, config.n_layers + 1), right, "o-", color=BLUE, markersize=3)
    axis.axhline(0.5, color=GREY, linestyle="--", linewidth=1)
    axis.set(title="share of right votes per layer", xlabel="layer", ylim=(0.45, 0.85))
    axis.set_xticks(range(1, 11))


def main():
    torch.manual_seed(0)
    public, model, prompts = draw_world()
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(7.6, 2.5), layout="constrained")
    texts, config = recovered(left, model, prompts)
    human_text(middle, public)
    votes_by_layer(right, texts, config)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
