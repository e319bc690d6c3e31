"""Logistic regression on the concatenated views (scikit-learn), its C by cross-validation on the training rows."""

from benchmark_utils import concatenated
from benchmark_utils.solver import ViewsSolver

WEIGHTS = (0.1, 1.0, 10.0, 100.0)


def warm_up():
    """Load what the clock should not see."""
    fit_predict(*concatenated.tiny_problem())


def fit_predict(arrays, params):
    """Choose C, train and decide both test sets."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    folds = StratifiedKFold(3, shuffle=True, random_state=params["seed"])
    search = GridSearchCV(LogisticRegression(max_iter=2000), {"C": WEIGHTS}, cv=folds)
    return concatenated.fit_predict(search, arrays, params)


class Solver(ViewsSolver):
    """Logistic regression on the concatenated views."""

    name = "Logistic regression"
    file = __file__
