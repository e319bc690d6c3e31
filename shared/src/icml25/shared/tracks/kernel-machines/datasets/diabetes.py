"""Diabetes progression: 442 x 10, regression."""

from benchopt import BaseDataset

from icml25.shared.datasets import load


class Dataset(BaseDataset):
    """Diabetes progression: 442 x 10, regression."""

    name = "diabetes"

    def get_data(self):
        """Load features and target."""
        data = load("diabetes")
        return {"X": data.X, "y": data.y, "task": data.task, "name": data.name}
