"""One class of decoders, ever more sequences."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """One class of decoders, ever more sequences."""

    name = "bounds"

    def get_data(self):
        """Settings."""
        return {"problem": "bounds"}
