"""Dempster's rule on Dirichlet evidence (Han et al., ICLR 2021)."""

from benchmark_utils.solver import ViewsSolver


class Solver(ViewsSolver):
    """Dempster's rule on Dirichlet evidence (Han et al., ICLR 2021)."""

    name = "TMC"
    settings = {"method": "tmc"}  # noqa: RUF012

    def skip(self, budget, **_):
        """Keep the small budgets small."""
        return budget != "paper", "ECML stands for evidential methods at the small budgets"
