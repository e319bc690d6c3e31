"""The other bounds on the class of the problem "bounds": what every baseline's process runs."""

import math

import numpy as np

from benchmark_utils.classes import bounded_class
from icml25.ntp_bounds import hoeffding, massart, norm_based, parameter_counting

CHECKPOINTS = 100


def warm_up():
    """Load what the clock should not see."""
    bounded_class({"vocab": 4, "seed_of_norms": 0})


def _checkpoints(spec, n, delta):
    """Finitely many decoders, fixed beforehand: Massart's bound for losses as large as they may be."""
    B = spec.loss_range
    return min(2 * massart(np.full((CHECKPOINTS, 1), B / 2)) / math.sqrt(n) + hoeffding(n, B, delta), B)


def _held_out(spec, n, delta):
    """One decoder on sequences that it was not trained on."""
    return min(hoeffding(n, spec.loss_range, delta), spec.loss_range)


KINDS = {
    "parameter counting": parameter_counting,
    "norm-based": norm_based,
    "Massart": _checkpoints,
    "held-out": _held_out,
}


def bounds(arrays, params):
    """The bound that ``params["kind"]`` names, at each number of sequences (half powers of ten are rounded)."""
    spec = bounded_class(params)
    kind = KINDS[params["kind"]]
    return {"bound": np.array([kind(spec, round(n), params["delta"]) for n in arrays["n_sequences"]])}
