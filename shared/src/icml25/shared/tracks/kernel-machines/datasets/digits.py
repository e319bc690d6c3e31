"""Handwritten digits, 8 x 8: 1,797 x 64, ten classes."""

from benchopt import BaseDataset

from icml25.shared.datasets import load


class Dataset(BaseDataset):
    """Handwritten digits, 8 x 8: 1,797 x 64, ten classes."""

    name = "digits"

    def get_data(self):
        """Load features and target."""
        data = load("digits")
        return {"X": data.X, "y": data.y, "task": data.task, "name": data.name}
