"""Bounds of large and of many classes, and training steps."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Bounds of large and of many classes, and training steps."""

    name = "speed"

    def get_data(self):
        """Settings."""
        return {"problem": "speed"}
