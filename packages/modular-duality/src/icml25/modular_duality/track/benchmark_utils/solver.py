"""What all baselines of this track do: note the problem, train in a process of its own, return."""

from pathlib import Path

import numpy as np

from icml25.shared.isolated import BaseSolver, measure


class OptimizerSolver(BaseSolver):
    """The optimizer that ``name`` names, on the problems of ``solved``."""

    sampling_strategy = "run_once"
    solved = ("curve",)
    once = ()  # shown for contrast: outside the paper budget on one seed

    def skip(self, problem, budget, params, **_):
        """Leave out what no claim compares with."""
        wanted = problem in self.solved + self.once and params.get("scaling") != "depth"
        contrast = params.get("batch") == 8 or (problem in self.once and params["seed"] != 0)
        return not wanted or (contrast and budget != "paper"), "no claim compares with it"

    def set_objective(self, problem, **public):
        """Note the problem."""
        self.function = problem
        self.arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
        self.params = {"optimizer": self.name, **public["params"]}
        self.params["seed"] = int(self.params["seed"])

    def run(self, _):
        """Train."""
        file = Path(__file__).with_name("problems.py")
        self.result = measure(file, self.function, self.arrays, self.params)

    def get_result(self):
        """Return losses, matrices, seconds and memory."""
        return self.result
