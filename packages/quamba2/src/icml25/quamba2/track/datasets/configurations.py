"""Small random models of each supported architecture."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Small random models of each supported architecture."""

    name = "configurations"

    def get_data(self):
        """Settings."""
        return {"problem": "configurations"}
