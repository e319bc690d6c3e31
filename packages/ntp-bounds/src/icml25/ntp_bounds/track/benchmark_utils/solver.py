"""What all baselines of this track do: note the class, bound in a process of its own, return."""

from pathlib import Path

from icml25.shared.isolated import BaseSolver, measure


class BoundSolver(BaseSolver):
    """The bound that ``kind`` names."""

    sampling_strategy = "run_once"
    kind = ""

    def skip(self, problem, seed=0, **_):
        """Only bounds, and once: nothing is random."""
        if problem != "bounds":
            return True, "only bounds"
        return (True, "nothing is random") if seed else (False, None)

    def set_objective(self, problem, budget, seed, n_sequences, **params):
        """Note the class."""
        self.arrays, self.params = {"n_sequences": n_sequences}, params | {"kind": self.kind}

    def run(self, _):
        """Evaluate the bounds."""
        self.result = measure(Path(__file__).with_name("baselines.py"), "bounds", self.arrays, self.params)

    def get_result(self):
        """Return bounds, seconds and memory."""
        return self.result
