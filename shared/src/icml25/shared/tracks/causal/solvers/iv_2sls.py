"""Two-stage least squares on all candidates, by linearmodels."""

import numpy as np

from icml25.shared.isolated import BaseSolver, measure


def warm_up():
    """Load what the clock should not see."""
    import linearmodels.iv  # noqa: F401


def estimate(arrays, params):
    """Fit every replicate at every size."""
    from linearmodels.iv import IV2SLS

    Z, x, y, sizes = arrays["Z"], arrays["x"], arrays["y"], arrays["sizes"]
    effect = np.empty((len(sizes), len(Z)))
    for k, n in enumerate(sizes):
        for r in range(len(Z)):
            unit = (
                y[r, :n].std() / x[r, :n].std()
            )  # in units of one: linearmodels takes x of 1e6 beside 1 for collinear
            exogenous = np.ones((n, 1))
            if "W" in arrays:
                exogenous = np.column_stack([exogenous, arrays["W"][r, :n]])
            dependent, endogenous, instruments = (v / v.std(0) for v in (y[r, :n], x[r, :n], Z[r, :n]))
            fit = IV2SLS(dependent, exogenous, endogenous, instruments).fit(cov_type="unadjusted")
            effect[k, r] = fit.params["endog"] * unit
    return {"support": np.ones((len(sizes), len(Z), Z.shape[2]), dtype=bool), "effect": effect}


class Solver(BaseSolver):
    """Two-stage least squares that takes every candidate for valid."""

    name = "2SLS all"
    sampling_strategy = "run_once"
    problems = ("instruments",)

    def skip(self, problem, budget, dataset="", **_):
        """Run where instruments are candidates; small budgets have time for two data sets."""
        if problem != "instruments":
            return True, "selects no instruments there"
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
