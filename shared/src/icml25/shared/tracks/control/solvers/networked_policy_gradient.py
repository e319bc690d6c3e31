"""Exact centralised policy gradient on the team's reward: tabular softmax, no samples, no critic."""

import numpy as np

from icml25.shared.isolated import BaseSolver, measure
from icml25.shared.protocols import networked_control


def ascend(arrays, params):
    """Plain gradient ascent with a constant step from the uniform policy, one step per outer step."""
    public = {**params, **arrays}
    out = networked_control.example(public)["policies"]
    for run in range(len(out)):
        model, theta = networked_control.model(public, run), np.zeros(out.shape[2:])
        wanted = {int(t): c for c, t in enumerate(public["steps"])}
        for t in range(int(public["steps"][-1]) + 1):
            tables = np.exp(theta - theta.max(2, keepdims=True))
            tables /= tables.sum(2, keepdims=True)
            if t in wanted:
                out[run, wanted[t]] = tables
            theta += params["step"] * gradient(model, tables)
    return {"policies": out}


def gradient(model, tables):
    """grad J (N, S, A) by the policy gradient theorem."""
    n, S, A = tables.shape
    pi = tables[0]
    for table in tables[1:]:
        pi = (pi[:, :, None] * table[:, None, :]).reshape(S, -1)
    system = np.eye(S) - model["gamma"] * np.einsum("sa,sat->st", pi, model["P"])
    V = np.linalg.solve(system, (pi * model["r"]).sum(1))
    visits = np.linalg.solve(system.T, model["rho"])
    advantage = model["r"] + model["gamma"] * model["P"] @ V - V[:, None]
    weighted = (visits[:, None] * pi * advantage).reshape(S, *(A,) * n)
    return np.stack([weighted.sum(tuple(j + 1 for j in range(n) if j != i)) for i in range(n)])


class Solver(BaseSolver):
    """Policy gradient of a centre that knows the model."""

    name = "exact policy gradient"
    sampling_strategy = "run_once"
    problems = ("networked",)
    parameters = {"step": [1.0]}  # noqa: RUF012

    def skip(self, problem, dataset="", **_):
        """Run on tables of transitions."""
        if problem != "networked":
            return True, "plans for teams only"
        return dataset not in ("mdp", "conflict"), "needs a table of transitions"

    def set_objective(self, **problem):
        """Note arrays and numbers."""
        self.arrays = {k: v for k, v in problem.items() if isinstance(v, np.ndarray)}
        self.params = {k: v for k, v in problem.items() if isinstance(v, (int, float, str))} | {"step": self.step}

    def run(self, _):
        """Ascend in a process of its own."""
        self.result = measure(__file__, "ascend", self.arrays, self.params)

    def get_result(self):
        """Return tables, seconds and memory."""
        return self.result
