"""Every prompt is kept; where prompts are written, after the example of any eight (Self-Instruct)."""

import numpy as np

from icml25.shared.isolated import BaseSolver, measure


def keep(arrays, params):
    """All."""
    if params["question"] == "world":
        return {"keep": np.ones(len(arrays["scores"]), bool)}
    rng = np.random.default_rng(params["seed"])
    P, M = len(arrays["scores"]), params["written"]
    shots = np.stack([rng.choice(P, 8, replace=False) for _ in range(M)])
    return {"shots": shots, "keep": np.ones(M, bool)}


class Solver(BaseSolver):
    """No filter."""

    name = "no filter"
    sampling_strategy = "run_once"
    problems = ("filter",)

    def skip(self, problem, **_):
        """Run on this problem."""
        return problem != "filter", "filters prompts"

    def set_objective(self, scores=None, lengths=None, **params):
        """Note the problem."""
        self.arrays = {"scores": scores, "lengths": lengths}
        self.params = {k: v for k, v in params.items() if isinstance(v, (int, float, str))}

    def run(self, _):
        """Choose in a process of its own."""
        self.result = measure(__file__, "keep", self.arrays, self.params)

    def get_result(self):
        """Return the choice, seconds and memory."""
        return self.result
