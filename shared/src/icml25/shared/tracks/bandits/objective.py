"""Two decision problems under uncertainty: who gets which arm, and which action for which context."""

from icml25.shared.problems import ProblemObjective
from icml25.shared.protocols import fair_matching, risk_bandit


class Objective(ProblemObjective):
    """Regret against the best that the truth allows."""

    name = "Bandits"
    problems = {"fair matching": fair_matching, "contextual risk": risk_bandit}  # noqa: RUF012
