"""What all baselines of this track do: note the problem, predict in a process of its own, return."""

from pathlib import Path

import numpy as np

from icml25.shared.isolated import BaseSolver, measure


class PromptSolver(BaseSolver):
    """Predicts each query's label from its own context, by the function that ``method`` names; nothing is trained."""

    sampling_strategy = "run_once"
    method = ""
    compared = ()  # problems where a claim compares with it

    def skip(self, problem, budget, seed=0, **_):
        """Once where no claim compares with it."""
        if problem not in ("regression", "probes"):
            return True, "only predicts"
        if budget != "paper" and seed and problem not in self.compared:
            return True, "one seed outside the paper budget"
        return False, None

    def set_objective(self, problem, budget, seed, **public):
        """Note the problem."""
        self.arrays = {name: value for name, value in public.items() if isinstance(value, np.ndarray)}
        self.params = {"method": self.method, "problem": problem, "noise": float(public.get("noise", 0.0))}

    def run(self, _):
        """Predict."""
        self.result = measure(Path(__file__).with_name("baselines.py"), "fit", self.arrays, self.params)

    def get_result(self):
        """Return predictions, seconds and memory."""
        return self.result
