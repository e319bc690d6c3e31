"""Two decision problems under uncertainty: who gets which arm, and which action for which context."""

from benchopt import BaseObjective

from icml25.shared.protocols import fair_matching, risk_bandit

PROBLEMS = {"fair matching": fair_matching, "contextual risk": risk_bandit}


class Objective(BaseObjective):
    """Regret against the best that the truth allows."""

    name = "Bandits"
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
