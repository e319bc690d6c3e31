"""What the baselines of this track do: load the float model, change it, let it be evaluated."""

from icml25.shared.isolated import BaseSolver, measure


class BaselineSolver(BaseSolver):
    """Runs ``run`` of the solver's own file on the trained model."""

    sampling_strategy = "run_once"
    file = __file__

    def skip(self, problem, **_):
        """Only trained models have text to predict."""
        return problem != "bytes", f"{problem} has no text to predict"

    def set_objective(self, models, held_out, **_):
        """Note the problem."""
        self.models, self.held_out = models, held_out

    def run(self, _):
        """Evaluate in a process of its own."""
        self.result = measure(self.file, "evaluated", {"held_out": self.held_out}, {"models": self.models})

    def get_result(self):
        """Return outputs, bytes, times and memory."""
        return self.result
