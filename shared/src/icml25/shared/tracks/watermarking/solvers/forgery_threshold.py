"""A mean per token, unusual for the owner's text: thresholds calibrated on held-out genuine texts of the same key."""

import numpy as np

from icml25.shared.isolated import BaseSolver, measure


def warm_up():
    """Load what the clock should not see."""
    import scipy.special  # noqa: F401


def p_values(arrays, _):
    """Two-sided normal p-values of each test's mean, with mean and spread of the held-out texts."""
    from scipy.special import ndtr

    out = {}
    for total in arrays["lengths"].tolist():
        tests = arrays[f"tests_{total}"]
        mean = np.nanmean(arrays["suspects"][:, :total], axis=1)[tests].mean(axis=1)
        p, keys = np.ones(len(tests)), arrays["keys"][tests[:, 0]]
        for key in np.unique(keys):
            held_out = np.nanmean(arrays["held_out"][arrays["held_out_keys"] == key, :total], axis=1)
            spread = held_out.std(ddof=1) * np.sqrt(1 / tests.shape[1] + 1 / len(held_out))
            p[keys == key] = 2 * ndtr(-np.abs(mean[keys == key] - held_out.mean()) / spread)
        out[f"p_values_{total}"] = p
    return out


class Solver(BaseSolver):
    """Text is called forged when its log-probability under the owner's model, or its green rate, is unusual."""

    name = "Threshold"
    sampling_strategy = "run_once"
    problems = ("forgery",)
    parameters = {"statistic": ["perplexity", "green rate"]}  # noqa: RUF012

    def skip(self, problem, question="", unavailable=None, **_):
        """Run where forged texts are looked for."""
        if problem != "forgery" or question != "forgery":
            return True, "needs genuine text to calibrate on"
        return unavailable is not None, unavailable

    def set_objective(self, **problem):
        """Note what is averaged, and the tests."""
        of = {"perplexity": "log_probs", "green rate": "colors"}[self.statistic]
        kept = ("lengths", "keys", "held_out_keys")
        self.arrays = {k: v for k, v in problem.items() if k in kept or k.startswith("tests_")}
        self.arrays |= {"suspects": problem[f"suspect_{of}"], "held_out": problem[f"held_out_{of}"]}

    def run(self, _):
        """Judge in a process of its own."""
        self.result = measure(__file__, "p_values", self.arrays)

    def get_result(self):
        """Return p-values, seconds and memory."""
        return self.result
