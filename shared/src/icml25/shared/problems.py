"""The objective of a track that poses several problems, each drawn and evaluated by a module of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from benchopt import BaseObjective

__all__ = ["Problem", "ProblemObjective"]


class Problem(Protocol):
    """A module of ``protocols`` that draws data with a known truth and evaluates results against it."""

    def draw(self, settings: dict[str, Any], *, seed: int, budget: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what solvers may see, and the truth that they may not."""
        ...

    def evaluate(self, public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
        """Return the columns of the result table."""
        ...

    def example(self, public: dict[str, Any]) -> dict[str, Any]:
        """Return a result of the right shape."""
        ...


class ProblemObjective(BaseObjective):
    """A subclass in the track's ``objective.py`` sets ``name`` and ``problems``; its data sets return ``problem``."""

    parameters = {"budget": ["smoke"], "seed": [0]}  # noqa: RUF012
    sampling_strategy = "run_once"
    problems: ClassVar[Mapping[str, Problem]]
    budget: str  # benchopt sets parameters as attributes
    seed: int

    def set_data(self, problem, **settings):
        """Draw what the solvers may see, and the truth that they may not."""
        self.problem = problem
        self.public, self.truth = self.problems[problem].draw(settings, seed=self.seed, budget=self.budget)

    def get_objective(self):
        """Hand out the public part."""
        return {"problem": self.problem, "budget": self.budget, "seed": self.seed, **self.public}

    def evaluate_result(self, seconds, peak_memory_mb, **result):
        """Compare with the truth."""
        metrics = self.problems[self.problem].evaluate(self.public, self.truth, result)
        return {**metrics, "seconds": seconds, "peak_memory_mb": peak_memory_mb}

    def get_one_result(self):
        """Return a result of the right shape."""
        return {**self.problems[self.problem].example(self.public), "seconds": 0.0, "peak_memory_mb": 0.0}
