"""Sum of the views' logits, cross-entropy."""

from pathlib import Path

from icml25.shared.isolated import BaseSolver, measure

NETWORKS = Path(__file__).parents[1] / "benchmark_utils" / "networks.py"


class Solver(BaseSolver):
    """Sum of the views' logits, cross-entropy."""

    name = "Late fusion"
    sampling_strategy = "run_once"

    def set_objective(self, views_train, y_train, views_normal, views_conflict, n_classes, budget, seed):
        """Note the problem."""
        parts = {"train": views_train, "normal": views_normal, "conflict": views_conflict}
        self.arrays = {f"{part}_{v}": view for part, views in parts.items() for v, view in enumerate(views)}
        self.arrays["y_train"] = y_train
        self.params = {"method": "late_fusion", "n_classes": n_classes, "budget": budget, "seed": int(seed)}

    def skip(self, budget, **_):
        """Keep the small budgets small."""
        return budget == "smoke", "not at the smoke budget"

    def run(self, _):
        """Train and predict in a process of its own."""
        self.result = measure(NETWORKS, "fit_predict", self.arrays, self.params)

    def get_result(self):
        """Return labels, uncertainties, seconds and memory."""
        return self.result
