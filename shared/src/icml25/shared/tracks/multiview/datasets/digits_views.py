"""scikit-learn's 1797 digits in 4 views: rows, columns, 4x4 blocks, 2-D cosine transform."""

from benchopt import BaseDataset

from icml25.shared.datasets import load


class Dataset(BaseDataset):
    """scikit-learn's 1797 digits in 4 views: rows, columns, 4x4 blocks, 2-D cosine transform."""

    name = "digits_views"

    def get_data(self):
        """Load views and labels."""
        data = load("digits_views")
        return {"views": data.views, "y": data.y, "name": data.name}
