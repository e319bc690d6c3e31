"""Matrices to orthogonalise: how exactly, and how fast."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Matrices to orthogonalise: how exactly, and how fast."""

    name = "dualizers"

    def get_data(self):
        """Settings: none."""
        return {"problem": "dualizers"}
