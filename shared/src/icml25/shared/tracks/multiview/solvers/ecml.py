"""Conflictive opinion aggregation of Dirichlet evidence (Xu et al., AAAI 2024)."""

from benchmark_utils.solver import ViewsSolver


class Solver(ViewsSolver):
    """Conflictive opinion aggregation of Dirichlet evidence (Xu et al., AAAI 2024)."""

    name = "ECML"
    settings = {"method": "ecml"}  # noqa: RUF012
