"""TMC with a pseudo-view of all features (Han et al., TPAMI 2022)."""

from benchmark_utils.solver import ViewsSolver


class Solver(ViewsSolver):
    """TMC with a pseudo-view of all features (Han et al., TPAMI 2022)."""

    name = "ETMC"
    settings = {"method": "etmc"}  # noqa: RUF012

    def skip(self, budget, **_):
        """Keep the small budgets small."""
        return budget != "paper", "ECML stands for evidential methods at the small budgets"
