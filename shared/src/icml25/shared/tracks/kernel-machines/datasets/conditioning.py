"""Kernel ridge regression at a given C, to count what an ill-conditioned Hessian costs."""

from benchopt import BaseDataset

from icml25.shared.datasets import load


class Dataset(BaseDataset):
    """Friedman's first function at a given C; only solvers that count kernel products run on it."""

    name = "conditioning"
    parameters = {"n": [500], "C": [1.0, 100.0, 10_000.0]}  # noqa: RUF012

    def get_data(self):
        """Load features, target and C."""
        data = load("friedman1", n=self.n, seed=0)
        return {"X": data.X, "y": data.y, "task": data.task, "name": data.name, "C": self.C}
