"""Language models made efficient: how close to the float model are the outputs, and at what size and speed?

Methods are known by their outputs only. Perplexity, divergence, agreement and ratios are computed here.
"""

from itertools import pairwise

import numpy as np
from benchmark_utils import models
from benchmark_utils.evaluation import PROMPT
from benchopt import BaseObjective

from icml25.shared.isolated import measure


def log_softmax(logits):
    """Log-probabilities in float64."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def divergence(logits, others):
    """Mean over tokens of KL(p || q), in nat; infinite when q is not finite."""
    if not np.isfinite(others).all():
        return float("inf")
    p, q = log_softmax(logits), log_softmax(others)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def perplexity(logits, ids):
    """exp of the mean negative log-likelihood of each next token."""
    logp = log_softmax(logits)[..., :-1, :]
    picked = np.take_along_axis(logp, np.broadcast_to(ids, logits.shape[:-1])[..., 1:, None], -1)
    return float(np.exp(-picked.mean()))


class Objective(BaseObjective):
    """Language models made efficient."""

    name = "LM efficiency"
    parameters = {"budget": ["smoke"], "seed": [0]}  # noqa: RUF012
    sampling_strategy = "run_once"

    def set_data(self, problem, **settings):
        """Make the float models of this seed, or find them in the cache."""
        self.problem = problem
        self.models, self.arrays, self.truth = models.prepare({"problem": problem, **settings}, self.seed, measure)

    def get_objective(self):
        """Hand out folders of models by kind, and tokens; held-out tokens are inputs only."""
        public = {"problem": self.problem, "budget": self.budget, "seed": self.seed, "models": self.models}
        return {**public, **self.arrays}

    def evaluate_result(self, seconds, peak_memory_mb, **result):
        """Compare with the float models."""
        out = {"seconds": seconds, "peak_memory_mb": peak_memory_mb}
        ids = self.arrays["held_out"]
        if "logits" in result:
            truth, logits = self.truth["held_out"], result["logits"]
            if self.problem == "bytes":  # elsewhere tokens are random
                out["perplexity"] = perplexity(logits, ids)
                out["perplexity_ratio"] = out["perplexity"] / perplexity(truth, ids)
            out["kl"] = divergence(truth, logits)
            out["agreement"] = float((truth.argmax(-1) == logits.argmax(-1)).mean())
        if "decoded" in result:  # of the first model
            decoded = result["decoded"]
            part = slice(PROMPT, PROMPT + decoded.shape[1])
            out["decode_kl"] = divergence(self.truth["held_out"][0][: len(decoded), part], decoded)
            out["state_kl"] = divergence(result["logits"][0][: len(decoded), part], decoded)
        if "reloaded" in result:
            again = result["reloaded"]
            out["reload_error"] = float(np.abs(result["logits"][:1, : again.shape[1]] - again).max())
        if "group_errors" in result:
            out["group_error"] = float(np.mean(result["group_errors"]))
        if "model_bytes" in result:
            out["bytes"] = float(result["model_bytes"])
            out["bytes_ratio"] = result["model_bytes"] / (2 * int(self.truth["parameters"]))
        if "small_bytes" in result:
            out["small_bytes_ratio"] = result["small_bytes"] / (2 * int(self.truth["parameters"]))
        if "state_bytes" in result:
            out["state_ratio"] = result["state_bytes"] / (result["float_state_bytes"] / 2)
        if "stages" in result:
            steps = [divergence(self.truth["held_out"], logits) for logits in result["stages"]]
            out["step_worst"] = max(b / a for a, b in pairwise(steps))
            out["step_total"] = steps[-1] / steps[0]
            for name in [name for name in result if name.startswith("without_")]:
                out[name] = steps[-1] / divergence(self.truth["held_out"], result[name])
        for split, column in (("validation", "choice_gap"), ("held_out", "choice_gap_test")):
            if f"choices_{split}" in result:
                choices = result[f"choices_{split}"]
                pairs = [list(zip(self.truth[split], logits, strict=True)) for logits in choices]
                own, *others, none = (np.array([divergence(p, q) for p, q in of_choice]) for of_choice in pairs)
                out[column] = float((own - np.minimum(*others)).mean())  # against the better one for each model
                if split == "held_out":
                    out["choice_ratio"] = own.sum() / none.sum()
        if "generated" in result:
            first, again, new = result["before"], result["after"], result["generated"]
            same = [np.array_equal(a, b) and np.isfinite(a).all() for a, b in zip(first, again, strict=True)]
            fit = [((row >= 0) & (row < first.shape[-1])).all() for row in new]
            out["modes_passed"] = float(sum(a and b for a, b in zip(same, fit, strict=True)))
        for name in ("prefill_us", "decode_us", "scan_ratio", "scan_ratio_narrow", "scan_growth"):
            if name in result:
                out[name] = float(result[name])
        return out

    def get_one_result(self):
        """Return a result of the right shape."""
        out = {"seconds": 0.0, "peak_memory_mb": 0.0}
        return out | ({"logits": self.truth["held_out"]} if "held_out" in self.truth else {})
