"""One metric of the scored answers instead of several: the half on one side of its median is kept."""

import numpy as np

from icml25.shared.isolated import BaseSolver, measure


def keep(arrays, params):
    """The half by one metric."""
    scores, lengths, rule = arrays["scores"], arrays["lengths"], params["rule"]
    best, worst = scores.max(1), scores.min(1)
    metric = {
        "chosen reward": best,
        "rejected reward": worst,
        "rejected length": np.take_along_axis(lengths, scores.argmin(1)[:, None], 1)[:, 0],
        "small gap": worst - best,
        "large gap": best - worst,
    }[rule]
    return {"keep": metric >= np.median(metric)}


class Solver(BaseSolver):
    """The better half by one metric."""

    name = "one metric"
    sampling_strategy = "run_once"
    problems = ("filter",)
    parameters = {"rule": ["chosen reward", "rejected reward", "rejected length", "small gap", "large gap"]}  # noqa: RUF012

    def skip(self, problem, question="", **_):
        """Run where prompts are given."""
        return problem != "filter" or question != "world", "filters given prompts"

    def set_objective(self, scores=None, lengths=None, **_):
        """Note the problem."""
        self.arrays = {"scores": scores, "lengths": lengths}

    def run(self, _):
        """Choose in a process of its own."""
        self.result = measure(__file__, "keep", self.arrays, {"rule": self.rule})

    def get_result(self):
        """Return the choice, seconds and memory."""
        return self.result
