"""A sweep over chi, and Langevin steps."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """A sweep over chi, and Langevin steps."""

    name = "speed"

    def get_data(self):
        """Settings."""
        return {"problem": "speed"}
