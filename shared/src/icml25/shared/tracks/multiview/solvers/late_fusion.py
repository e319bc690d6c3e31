"""Sum of the views' logits, cross-entropy."""

from benchmark_utils.solver import ViewsSolver


class Solver(ViewsSolver):
    """Sum of the views' logits, cross-entropy."""

    name = "Late fusion"
    settings = {"method": "late_fusion"}  # noqa: RUF012

    def skip(self, budget, **_):
        """Keep the small budgets small."""
        return budget == "smoke", "not at the smoke budget"
