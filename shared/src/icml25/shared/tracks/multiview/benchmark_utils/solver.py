"""What all solvers of this track do: note the problem, measure, return."""

from pathlib import Path

from icml25.shared.isolated import BaseSolver, measure

NETWORKS = Path(__file__).with_name("networks.py")


class ViewsSolver(BaseSolver):
    """Train and predict by ``fit_predict`` of ``file``, with ``settings`` beside the problem's own parameters."""

    sampling_strategy = "run_once"
    file = NETWORKS
    settings = {}  # noqa: RUF012

    def set_objective(self, views_train, y_train, views_normal, views_conflict, n_classes, budget, seed):
        """Note the problem."""
        parts = {"train": views_train, "normal": views_normal, "conflict": views_conflict}
        self.arrays = {f"{part}_{v}": view for part, views in parts.items() for v, view in enumerate(views)}
        self.arrays["y_train"] = y_train
        self.params = {**self.settings, "n_classes": n_classes, "budget": budget, "seed": int(seed)}

    def run(self, _):
        """Train and predict in a process of its own."""
        self.result = measure(self.file, "fit_predict", self.arrays, self.params)

    def get_result(self):
        """Return labels, uncertainties, seconds and memory."""
        return self.result
