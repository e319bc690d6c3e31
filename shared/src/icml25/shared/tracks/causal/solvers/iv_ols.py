"""Ordinary least squares of the outcome on the treatment: ignores confounding."""

import numpy as np

from icml25.shared.isolated import BaseSolver, measure


def estimate(arrays, params):
    """Fit every replicate at every size."""
    Z, x, y, sizes = arrays["Z"], arrays["x"], arrays["y"], arrays["sizes"]
    effect = np.empty((len(sizes), len(Z)))
    for k, n in enumerate(sizes):
        for r in range(len(Z)):
            design = [x[r, :n], np.ones(n)]
            if "W" in arrays:
                design += list(arrays["W"][r, :n].T)
            effect[k, r] = np.linalg.lstsq(np.column_stack(design), y[r, :n], rcond=None)[0][0]
    return {"support": np.zeros((len(sizes), len(Z), Z.shape[2]), dtype=bool), "effect": effect}


class Solver(BaseSolver):
    """Naive regression, no instrument."""

    name = "OLS"
    sampling_strategy = "run_once"
    problems = ("instruments",)

    def skip(self, problem, budget, dataset="", **_):
        """Run where instruments are candidates; small budgets have time for two data sets."""
        if problem != "instruments":
            return True, "the treatment is not confounded there"
        return budget != "paper" and dataset not in ("case1", "growth"), "left out of this budget"

    def set_objective(self, **problem):
        """Note the arrays."""
        self.arrays = {k: problem[k] for k in ("Z", "x", "y", "W", "sizes") if k in problem}

    def run(self, _):
        """Estimate in a process of its own."""
        self.result = measure(__file__, "estimate", self.arrays)

    def get_result(self):
        """Return effects, seconds and memory."""
        return self.result
