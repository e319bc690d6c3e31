"""Preference alignment: ranked answers, prompts worth keeping, the procedure at inference, and all of it together."""

from icml25.shared.problems import ProblemObjective
from icml25.shared.protocols import alignment, inference_alignment, preference_filter, preference_ranking


class Objective(ProblemObjective):
    """What a policy or a reward learned from preferences is worth by the true reward."""

    name = "Preference alignment"
    problems = {  # noqa: RUF012
        "alignment": alignment,
        "ranking": preference_ranking,
        "inference": inference_alignment,
        "filter": preference_filter,
    }
