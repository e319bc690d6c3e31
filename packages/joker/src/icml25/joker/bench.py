"""Joker on the track "kernel-machines"."""

from __future__ import annotations

from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

REGRESSION = ("squared", "huber", "epsilon_insensitive")
LOSSES = {
    ("smoke", "exact"): ("huber", "logistic"),
    ("smoke", "features"): ("squared", "squared_hinge"),
    ("quick", "exact"): ("squared", "huber", "epsilon_insensitive", "squared_hinge", "hinge", "logistic"),
    ("quick", "features"): ("squared", "squared_hinge"),
}
EXACT_ROWS = 5_000
EXACT_TOL, FEATURES_TOL = 1e-3, 1e-2


def warm_up() -> None:
    """Load what the clock should not see, thread pools included."""
    X = np.random.default_rng(0).normal(size=(1200, 4)).astype(np.float32)
    arrays = {"X_train": X, "y_train": X[:, 0], "X_test": X}
    for n_features in (None, 16):
        options = {"n_features": n_features, "max_epochs": 1}
        fit_predict(arrays, {"loss": "squared", "gamma": 0.1, "C": 1.0, "seed": 0, "options": options})


def fit_predict(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Train to the duality gap asked for and predict."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning

    from icml25.joker import JokerClassifier, JokerRegressor

    kind = JokerRegressor if params["loss"] in REGRESSION else JokerClassifier
    options = {"C": params["C"], "gamma": params["gamma"], "random_state": params["seed"], "device": "cpu"}
    model = kind(params["loss"], **options, **params["options"])
    if isinstance(model, JokerRegressor):
        model.set_params(center_y=False)  # the targets are standardised
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the gap is a column of the results
        model.fit(arrays["X_train"], arrays["y_train"])
    last = model.history_[-1]
    out = {
        "duality_gap": model.duality_gap_,
        "relative_gap": model.relative_gap_,
        "epochs": float(model.n_epochs_),
        "tr_iterations": float(last["tr_iterations"]),
        "cg_products": float(last["products"]),
    }
    if isinstance(model, JokerClassifier):
        score = model.decision_function(arrays["X_test"])
        label = (score > 0).astype(int) if score.ndim == 1 else score.argmax(1)
        return {"prediction": model.classes_[label], "score": score, **out}
    return {"prediction": model.predict(arrays["X_test"]), **out}


class Solver(BaseSolver):
    """Joker with the exact kernel on small data, and with random features."""

    name = "Joker"
    sampling_strategy = "run_once"
    parameters = {  # noqa: RUF012
        "loss": ["squared", "huber", "epsilon_insensitive", "squared_hinge", "hinge", "logistic"],
        "kernel": ["exact", "features"],
    }

    def skip(
        self, task: str, X_train: np.ndarray, conditioning: bool, budget: str, **_: Any
    ) -> tuple[bool, str | None]:
        """Leave out losses of the other task, and what the budget has no time for."""
        if (self.loss in REGRESSION) != (task == "regression"):
            return True, f"{self.loss} is not for {task}"
        if conditioning:
            return self.loss != "squared" or self.kernel != "exact", "exact kernel ridge regression counts products"
        if self.kernel == "exact" and (len(X_train) > EXACT_ROWS or task == "multiclass"):
            return True, "the exact kernel is for small data of one column"
        return budget != "paper" and self.loss not in LOSSES[budget, self.kernel], "left out of this budget"

    def set_objective(
        self,
        X_train: np.ndarray,
        y_train: np.ndarray,
        X_test: np.ndarray,
        gamma: float,
        n_features: int,
        C_squared: float,
        C_margin: float,
        conditioning: bool,
        seed: int,
        **_: Any,
    ) -> None:
        """Note the problem."""
        self.arrays = {"X_train": X_train, "y_train": y_train, "X_test": X_test}
        if self.kernel == "exact":  # one block: its trust-region subproblem is the whole dual
            options: dict[str, Any] = {"block_size": len(X_train), "tol": EXACT_TOL}
            if conditioning:
                options |= {"max_tr_iter": 1, "max_epochs": 1000}  # look at the gap after each CG run
        else:
            options = {"n_features": n_features, "tol": FEATURES_TOL, "max_epochs": 200, "check_every": 2}
        C = C_squared if self.loss in REGRESSION else C_margin
        self.params = {"loss": self.loss, "gamma": gamma, "C": C, "seed": int(seed), "options": options}

    def run(self, _: Any) -> None:
        """Train and predict in a process of its own."""
        self.result = measure(__file__, "fit_predict", self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return predictions, seconds, memory and the certificate."""
        return self.result
