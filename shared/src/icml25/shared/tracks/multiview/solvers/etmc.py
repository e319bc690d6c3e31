"""TMC with a pseudo-view of all features (Han et al., TPAMI 2022)."""

from pathlib import Path

from icml25.shared.isolated import BaseSolver, measure

NETWORKS = Path(__file__).parents[1] / "benchmark_utils" / "networks.py"


class Solver(BaseSolver):
    """TMC with a pseudo-view of all features (Han et al., TPAMI 2022)."""

    name = "ETMC"
    sampling_strategy = "run_once"

    def set_objective(self, views_train, y_train, views_normal, views_conflict, n_classes, budget, seed):
        """Note the problem."""
        parts = {"train": views_train, "normal": views_normal, "conflict": views_conflict}
        self.arrays = {f"{part}_{v}": view for part, views in parts.items() for v, view in enumerate(views)}
        self.arrays["y_train"] = y_train
        self.params = {"method": "etmc", "n_classes": n_classes, "budget": budget, "seed": int(seed)}

    def skip(self, budget, **_):
        """Keep the small budgets small."""
        return budget != "paper", "ECML stands for evidential methods at the small budgets"

    def run(self, _):
        """Train and predict in a process of its own."""
        self.result = measure(NETWORKS, "fit_predict", self.arrays, self.params)

    def get_result(self):
        """Return labels, uncertainties, seconds and memory."""
        return self.result
