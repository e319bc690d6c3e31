"""Greedy joint action of value iteration as if each agent knew the model: the best deterministic team policy."""

import numpy as np

from icml25.shared.isolated import BaseSolver, measure
from icml25.shared.protocols import networked_control


def plan(arrays, params):
    """Tables of the greedy policy, the same at all checkpoints."""
    public = {**params, **arrays}
    out = networked_control.example(public)["policies"]
    for run in range(len(out)):
        out[run] = greedy(networked_control.model(public, run), out.shape[2:])
    return {"policies": out}


def greedy(model, shape):
    """One-hot tables (N, S, A) of a joint optimum; on the grid, at the first step of an episode."""
    n, S, A = shape
    r, gamma, V = model["r"], model["gamma"], np.zeros(S)
    for _ in range(model.get("episode", 2000)):
        Q = r + gamma * (V[model["next"]] if "next" in model else model["P"] @ V)
        V = Q.max(1)
    actions = np.stack(np.unravel_index(Q.argmax(1), (A,) * n))
    return np.eye(A)[actions]


class Solver(BaseSolver):
    """Value iteration on the team's reward, by one who knows the model."""

    name = "optimum"
    sampling_strategy = "run_once"
    problems = ("networked",)

    def skip(self, problem, dataset="", **_):
        """Run where policies are compared."""
        if problem != "networked":
            return True, "plans for teams only"
        return dataset not in ("mdp", "conflict", "grid"), "not needed there"

    def set_objective(self, **problem):
        """Note arrays and numbers."""
        self.arrays = {k: v for k, v in problem.items() if isinstance(v, np.ndarray)}
        self.params = {k: v for k, v in problem.items() if isinstance(v, (int, float, str))}

    def run(self, _):
        """Plan in a process of its own."""
        self.result = measure(__file__, "plan", self.arrays, self.params)

    def get_result(self):
        """Return tables, seconds and memory."""
        return self.result
