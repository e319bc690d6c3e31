"""Gradient boosted trees on the concatenated views (scikit-learn): what one would try first."""

from icml25.shared.isolated import BaseSolver, measure

ITERATIONS = 100
FEATURES_PER_SPLIT = 0.1


def warm_up():
    """Load what the clock should not see."""
    import numpy as np

    views = {f"{part}_0": np.arange(40.0).reshape(40, 1) for part in ("train", "normal", "conflict")}
    fit_predict({"y_train": np.arange(40) // 20, **views}, {"seed": 0, "n_classes": 2})


def fit_predict(arrays, params):
    """Train on one table, decide both test sets; the uncertainty is the entropy in units of log K."""
    import numpy as np
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    n_views = sum(name.startswith("train_") for name in arrays)
    table = {
        part: np.hstack([arrays[f"{part}_{v}"] for v in range(n_views)]) for part in ("train", "normal", "conflict")
    }
    model = HistGradientBoostingClassifier(
        max_iter=ITERATIONS, max_features=FEATURES_PER_SPLIT, random_state=params["seed"]
    )
    with threadpool_limits(1):  # like the networks
        model.fit(table["train"], arrays["y_train"])
    out = {}
    for part in ("normal", "conflict"):
        p = model.predict_proba(table[part])
        out[f"label_{part}"] = p.argmax(1)
        out[f"uncertainty_{part}"] = -(p * np.log(np.maximum(p, 1e-300))).sum(1) / np.log(params["n_classes"])
    return out


class Solver(BaseSolver):
    """Gradient boosted trees on the concatenated views."""

    name = "Boosted trees"
    sampling_strategy = "run_once"

    def skip(self, budget, **_):
        """Keep the smoke budget small."""
        return budget == "smoke", "not at the smoke budget"

    def set_objective(self, views_train, y_train, views_normal, views_conflict, n_classes, budget, seed):
        """Note the problem."""
        parts = {"train": views_train, "normal": views_normal, "conflict": views_conflict}
        self.arrays = {f"{part}_{v}": view for part, views in parts.items() for v, view in enumerate(views)}
        self.arrays["y_train"] = y_train
        self.params = {"n_classes": n_classes, "seed": int(seed)}

    def run(self, _):
        """Train and predict in a process of its own."""
        self.result = measure(__file__, "fit_predict", self.arrays, self.params)

    def get_result(self):
        """Return labels, uncertainties, seconds and memory."""
        return self.result
