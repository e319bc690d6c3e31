"""Size against divergence of the schemes on random Mamba2 models with uneven activations: python docs/overview.py."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.special import log_softmax

from icml25.quamba2.bench import _of_scheme
from icml25.quamba2.track.benchmark_utils.models import profiled_mamba2

NAMES = {
    "rtn": "rounding W8A8",
    "quamba": "Quamba W8A8",
    "w8a8": "Quamba2 W8A8",
    "w4a8": "Quamba2 W4A8",
    "w4a16": "Quamba2 W4A16",
}
COLOURS = {
    "rtn": "#999999",
    "quamba": "#E69F00",
    "w8a8": "#0072B2",
    "w4a8": "#009E73",
    "w4a16": "#CC79A7",
}
MARKERS = dict(zip(NAMES, "sDo^v", strict=True))


def measure(seed):
    model = profiled_mamba2(seed)
    tokens = np.random.default_rng(seed).integers(0, 256, (16, 128))
    arrays = {"calibration": tokens[:8], "validation": tokens[8:12]}
    held_out = torch.from_numpy(tokens[12:])
    with torch.inference_mode():
        truth = log_softmax(model(held_out, use_cache=False).logits.double().numpy(), -1)
    rows = {}
    for scheme in NAMES:
        small = _of_scheme(model, scheme, arrays)
        with torch.inference_mode():
            other = log_softmax(small(held_out, use_cache=False).logits.double().numpy(), -1)
        kl = (np.exp(truth) * (truth - other)).sum(-1).mean()
        rows[scheme] = small.footprint()["total"] / (2 * model.num_parameters()), kl
    return rows


if __name__ == "__main__":
    draws = [measure(seed) for seed in (5000, 5001)]
    plt.rcParams.update({"font.size": 9, "svg.fonttype": "none"})
    figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
    for scheme, label in NAMES.items():
        points = np.array([draw[scheme] for draw in draws])
        axis.scatter(*points.T, s=28, color=COLOURS[scheme], marker=MARKERS[scheme], label=label)
    axis.set(yscale="log", xlabel="bytes / 16-bit model", ylabel="KL to the float model (nat per token)")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.savefig(Path(__file__).with_suffix(".svg"))
