"""LIBSVM through scikit-learn: SVC and SVR with the exact kernel."""

from icml25.shared.isolated import BaseSolver, measure

ROWS = 5_000


def warm_up():
    """Load what the clock should not see."""
    import numpy as np

    X = np.random.default_rng(0).normal(size=(40, 2))
    for classes in (False, True):
        fit_predict(
            {"X_train": X, "y_train": np.arange(40) % 2, "X_test": X}, {"gamma": 0.5, "C": 1.0, "classes": classes}
        )


def fit_predict(arrays, params):
    """Train and predict."""
    from sklearn.svm import SVC, SVR

    if not params["classes"]:
        model = SVR(C=params["C"], epsilon=0.1, gamma=params["gamma"]).fit(arrays["X_train"], arrays["y_train"])
        return {"prediction": model.predict(arrays["X_test"])}
    model = SVC(C=params["C"], gamma=params["gamma"]).fit(arrays["X_train"], arrays["y_train"])
    return {"prediction": model.predict(arrays["X_test"]), "score": model.decision_function(arrays["X_test"])}


class Solver(BaseSolver):
    """Support vector machine or regression by LIBSVM."""

    name = "LIBSVM"
    sampling_strategy = "run_once"

    def skip(self, X_train, conditioning, **_):
        """Leave out large data: LIBSVM grows faster than the square of the rows."""
        if conditioning:
            return True, "counts no kernel products"
        return len(X_train) > ROWS, f"more than {ROWS} rows"

    def set_objective(self, X_train, y_train, X_test, task, gamma, C_squared, C_margin, **_):
        """Note the problem."""
        self.arrays = {"X_train": X_train, "y_train": y_train, "X_test": X_test}
        classes = task != "regression"
        self.params = {"gamma": gamma, "C": C_margin if classes else C_squared, "classes": classes}

    def run(self, _):
        """Train and predict in a process of its own."""
        self.result = measure(__file__, "fit_predict", self.arrays, self.params)

    def get_result(self):
        """Return predictions, seconds and memory."""
        return self.result
