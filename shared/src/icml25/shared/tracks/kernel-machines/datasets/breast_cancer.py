"""Wisconsin breast cancer: 569 x 30, two classes."""

from benchopt import BaseDataset

from icml25.shared.datasets import load


class Dataset(BaseDataset):
    """Wisconsin breast cancer: 569 x 30, two classes."""

    name = "breast_cancer"

    def get_data(self):
        """Load features and target."""
        data = load("breast_cancer")
        return {"X": data.X, "y": data.y, "task": data.task, "name": data.name}
