"""Two problems of control: one agent whose world keeps changing, and a team that talks over a graph."""

from icml25.shared.problems import ProblemObjective
from icml25.shared.protocols import continual_control, networked_control


class Objective(ProblemObjective):
    """Returns under change, and a team's distance from the optimal policy."""

    name = "Control"
    problems = {"continual": continual_control, "networked": networked_control}  # noqa: RUF012
