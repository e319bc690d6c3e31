"""Friedman's first function with noise, for scaling with the rows."""

from benchopt import BaseDataset

from icml25.shared.datasets import load


class Dataset(BaseDataset):
    """Friedman's first function with noise, for scaling with the rows."""

    name = "friedman1"
    parameters = {"n": [2_000], "generator_seed": [0]}  # noqa: RUF012

    def get_data(self):
        """Load features and target."""
        data = load("friedman1", n=self.n, seed=self.generator_seed)
        return {"X": data.X, "y": data.y, "task": data.task, "name": data.name}
