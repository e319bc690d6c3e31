"""Covering numbers under three masks, and the bound's parts."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Covering numbers under three masks, and the bound's parts."""

    name = "cover"

    def get_data(self):
        """Settings."""
        return {"problem": "cover"}
