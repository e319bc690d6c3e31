"""scikit-learn's KernelRidge: the exact kernel by a Cholesky factorisation."""

from icml25.shared.isolated import BaseSolver, measure

ROWS = 5_000


def warm_up():
    """Load what the clock should not see."""
    import numpy as np

    X = np.random.default_rng(0).normal(size=(40, 2))
    fit_predict({"X_train": X, "y_train": X[:, 0], "X_test": X}, {"gamma": 0.5, "C": 1.0, "classes": False})


def fit_predict(arrays, params):
    """Train and predict; classes are one-vs-rest columns of -1 and +1."""
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.preprocessing import LabelBinarizer

    y, binarizer = arrays["y_train"], LabelBinarizer(neg_label=-1)
    targets = binarizer.fit_transform(y).astype(float) if params["classes"] else y
    model = KernelRidge(alpha=1 / params["C"], kernel="rbf", gamma=params["gamma"]).fit(arrays["X_train"], targets)
    values = model.predict(arrays["X_test"])
    if not params["classes"]:
        return {"prediction": values}
    if values.shape[1] == 1:
        return {"prediction": binarizer.classes_[(values[:, 0] > 0).astype(int)], "score": values[:, 0]}
    return {"prediction": binarizer.classes_[values.argmax(1)], "score": values}


class Solver(BaseSolver):
    """Kernel ridge regression, and classification by regression on -1 and +1."""

    name = "KernelRidge"
    sampling_strategy = "run_once"

    def skip(self, X_train, conditioning, **_):
        """Leave out large data: the kernel matrix is held."""
        if conditioning:
            return True, "counts no kernel products"
        return len(X_train) > ROWS, f"more than {ROWS} rows"

    def set_objective(self, X_train, y_train, X_test, task, gamma, C_squared, **_):
        """Note the problem."""
        self.arrays = {"X_train": X_train, "y_train": y_train, "X_test": X_test}
        self.params = {"gamma": gamma, "C": C_squared, "classes": task != "regression"}

    def run(self, _):
        """Train and predict in a process of its own."""
        self.result = measure(__file__, "fit_predict", self.arrays, self.params)

    def get_result(self):
        """Return predictions, seconds and memory."""
        return self.result
