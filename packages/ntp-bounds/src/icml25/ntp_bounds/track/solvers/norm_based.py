"""Leading term of a norm-based cover in the manner of Edelman et al. (2022): a trend."""

from benchmark_utils.solver import BoundSolver


class Solver(BoundSolver):
    """Leading term of a norm-based cover in the manner of Edelman et al. (2022): a trend."""

    name = "norm-based"
    kind = "norm-based"
