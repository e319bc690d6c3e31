"""Two estimation problems with a known truth: switchback experiments, and instruments of unknown validity."""

from benchopt import BaseObjective

from icml25.shared.protocols import instruments, switchback_experiment

PROBLEMS = {"switchback": switchback_experiment, "instruments": instruments}


class Objective(BaseObjective):
    """Error of an effect estimate against the truth."""

    name = "Causal effects"
    parameters = {"budget": ["smoke"], "seed": [0]}  # noqa: RUF012
    sampling_strategy = "run_once"

    def set_data(self, problem, **settings):
        """Draw what the solvers may see, and the truth that they may not."""
        self.problem = problem
        self.public, self.truth = PROBLEMS[problem].draw(settings, seed=self.seed, budget=self.budget)

    def get_objective(self):
        """Hand out the public part."""
        return {"problem": self.problem, "budget": self.budget, "seed": self.seed, **self.public}

    def evaluate_result(self, seconds, peak_memory_mb, **result):
        """Compare with the truth."""
        metrics = PROBLEMS[self.problem].evaluate(self.public, self.truth, result)
        return {**metrics, "seconds": seconds, "peak_memory_mb": peak_memory_mb}

    def get_one_result(self):
        """Return a result of the right shape."""
        return {**PROBLEMS[self.problem].example(self.public), "seconds": 0.0, "peak_memory_mb": 0.0}
