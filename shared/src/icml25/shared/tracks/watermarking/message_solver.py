"""What the solvers of the problem "message" share: note the problem, measure, return."""

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

__all__ = ["MessageSolver"]


class MessageSolver(BaseSolver):
    """Runs ``write_and_read(arrays, params)`` of ``file`` in a process of its own; its own parameters are in params."""

    sampling_strategy = "run_once"
    problems = ("message",)
    file = __file__
    only_synthetic = False

    def skip(self, problem, model="", **_):
        """Other problems, and models that would take hours."""
        if problem != "message":
            return True, "carries no messages there"
        return self.only_synthetic and model != "synthetic", "takes too long with a real vocabulary"

    def set_objective(self, **problem):
        """Note arrays and numbers."""
        self.arrays = {k: v for k, v in problem.items() if isinstance(v, np.ndarray)}
        self.params = {k: v for k, v in problem.items() if isinstance(v, (int, float, str))}
        self.params |= {name: getattr(self, name) for name in self.parameters}

    def run(self, _):
        """Write and read."""
        self.result = measure(self.file, "write_and_read", self.arrays, self.params)

    def get_result(self):
        """Return tokens, decoded bits, p-values, seconds and memory."""
        return self.result
