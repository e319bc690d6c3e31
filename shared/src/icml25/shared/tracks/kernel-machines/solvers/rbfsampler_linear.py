"""scikit-learn's RBFSampler, materialised, with the linear model of the same loss and no bias."""

from icml25.shared.isolated import BaseSolver, measure

REGRESSION = ("squared", "epsilon_insensitive")


def warm_up():
    """Load what the clock should not see."""
    import numpy as np

    X, y = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32), np.arange(40) % 2
    for loss in (*REGRESSION, "squared_hinge", "logistic"):
        fit_predict(
            {"X_train": X, "y_train": y, "X_test": X},
            {"loss": loss, "gamma": 0.5, "n_features": 8, "C": 1.0, "seed": 0},
        )


def fit_predict(arrays, params):
    """Train on the random features of all rows at once."""
    from sklearn.kernel_approximation import RBFSampler
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import LinearSVC, LinearSVR

    loss, C = params["loss"], params["C"]
    linear = {
        "squared": lambda: Ridge(alpha=1 / C, fit_intercept=False, solver="cholesky"),
        "epsilon_insensitive": lambda: LinearSVR(C=C, epsilon=0.1, fit_intercept=False, max_iter=20_000),
        "squared_hinge": lambda: LinearSVC(C=C / 2, fit_intercept=False, max_iter=20_000),
        "logistic": lambda: OneVsRestClassifier(LogisticRegression(C=C, fit_intercept=False, max_iter=2_000)),
    }[loss]()
    sampler = RBFSampler(gamma=params["gamma"], n_components=params["n_features"], random_state=params["seed"])
    linear.fit(sampler.fit_transform(arrays["X_train"]), arrays["y_train"])
    test = sampler.transform(arrays["X_test"])
    out = {"prediction": linear.predict(test)}
    if hasattr(linear, "decision_function"):
        out["score"] = linear.decision_function(test)
    return out


class Solver(BaseSolver):
    """RBFSampler and Ridge, LinearSVR, LinearSVC or LogisticRegression."""

    name = "RBFSampler+linear"
    sampling_strategy = "run_once"
    parameters = {"loss": ["squared", "epsilon_insensitive", "squared_hinge", "logistic"]}  # noqa: RUF012

    def skip(self, task, X_train, conditioning, budget, **_):
        """Leave out losses of the other task, and the slow ones on large data or a small budget."""
        if (self.loss in REGRESSION) != (task == "regression"):
            return True, f"{self.loss} is not for {task}"
        if conditioning:
            return True, "counts no kernel products"
        slow = self.loss in ("epsilon_insensitive", "logistic")
        return slow and (len(X_train) > 5_000 or budget != "paper"), "takes too long on this data or budget"

    def set_objective(self, X_train, y_train, X_test, gamma, n_features, C_squared, C_margin, seed, **_):
        """Note the problem."""
        self.arrays = {"X_train": X_train, "y_train": y_train, "X_test": X_test}
        C = C_squared if self.loss in REGRESSION else C_margin
        self.params = {"loss": self.loss, "gamma": gamma, "n_features": n_features, "C": C, "seed": int(seed)}

    def run(self, _):
        """Train and predict in a process of its own."""
        self.result = measure(__file__, "fit_predict", self.arrays, self.params)

    def get_result(self):
        """Return predictions, seconds and memory."""
        return self.result
