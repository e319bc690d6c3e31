"""Training steps of a small GPT-2, in turns with a peer."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Training steps of a small GPT-2, in turns with a peer."""

    name = "speed"

    def get_data(self):
        """Settings: none."""
        return {"problem": "speed"}
