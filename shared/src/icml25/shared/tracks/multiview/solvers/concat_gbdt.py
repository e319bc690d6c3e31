"""Gradient boosted trees on the concatenated views (scikit-learn): what one would try first."""

from benchmark_utils import concatenated
from benchmark_utils.solver import ViewsSolver

ITERATIONS = 100
FEATURES_PER_SPLIT = 0.1


def warm_up():
    """Load what the clock should not see."""
    fit_predict(*concatenated.tiny_problem())


def fit_predict(arrays, params):
    """Train and decide both test sets."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    seed = params["seed"]
    trees = HistGradientBoostingClassifier(max_iter=ITERATIONS, max_features=FEATURES_PER_SPLIT, random_state=seed)
    return concatenated.fit_predict(trees, arrays, params)


class Solver(ViewsSolver):
    """Gradient boosted trees on the concatenated views."""

    name = "Boosted trees"
    file = __file__

    def skip(self, budget, **_):
        """Keep the smoke budget small."""
        return budget == "smoke", "not at the smoke budget"
