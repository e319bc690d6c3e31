"""UCI Multiple Features: 2000 digits, 10 classes, 6 views (the paper's HW)."""

from benchopt import BaseDataset

from icml25.shared.datasets import load


class Dataset(BaseDataset):
    """UCI Multiple Features: 2000 digits, 10 classes, 6 views (the paper's HW)."""

    name = "handwritten"

    def get_data(self):
        """Load views and labels."""
        data = load("handwritten")
        return {"views": data.views, "y": data.y, "name": data.name}
