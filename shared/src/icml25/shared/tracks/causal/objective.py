"""Two estimation problems with a known truth: switchback experiments, and instruments of unknown validity."""

from icml25.shared.problems import ProblemObjective
from icml25.shared.protocols import instruments, switchback_experiment


class Objective(ProblemObjective):
    """Error of an effect estimate against the truth."""

    name = "Causal effects"
    problems = {"switchback": switchback_experiment, "instruments": instruments}  # noqa: RUF012
