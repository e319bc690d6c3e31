"""Property tests have no deadline; the theory's decoder written a second time, in numpy."""

import math

import numpy as np
from hypothesis import settings

settings.register_profile("icml25", deadline=None)
settings.load_profile("icml25")


def project(x, radius):
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True) / radius, 1)


def forward(spec, weights, tokens):
    """Logits (t, v) of tokens (t,) by the formulas of the post-norm block, one head at a time."""
    t = len(tokens)
    normalise = (
        (lambda x: project(x, spec.b_x))
        if spec.norm == "project"
        else (lambda x: spec.gain * x / np.sqrt((x**2).mean(-1, keepdims=True) + spec.rms_eps))
    )
    allowed = spec.mask_matrix[:t, :t]
    x = normalise(weights["embedding"][tokens] + weights["positions"][:t])
    width = spec.dim // spec.heads
    for layer in range(spec.n_layers):
        W = {name: weights[f"{layer}.{name}"] for name in spec.layer_shapes}
        heads = []
        for h in range(spec.heads):
            part = slice(h * width, (h + 1) * width)
            scores = (x @ W["Q"][:, part]) @ (x @ W["K"][:, part]).T / math.sqrt(width)
            scores = np.where(allowed, scores, -np.inf)
            a = np.exp(scores - scores.max(1, keepdims=True))
            heads.append(a / a.sum(1, keepdims=True) @ x @ W["V"][:, part])
        x = normalise(x + np.concatenate(heads, 1) @ W["O"])
        x = normalise(x + np.maximum(x @ W["W1"], 0) @ W["W2"])
    return x @ weights["W_out"]


def draw_weights(spec, rng, scale=1.0):
    return {name: scale * rng.standard_normal(shape) / math.sqrt(shape[0]) for name, shape in spec.shapes.items()}


def norms_of(*several):
    """Balls that hold all of these weights."""
    return {
        name: (max(np.linalg.norm(w[name], 2) for w in several), max(np.linalg.norm(w[name]) for w in several))
        for name in several[0]
    }
