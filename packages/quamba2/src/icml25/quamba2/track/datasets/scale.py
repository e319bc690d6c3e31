"""A random Mamba2 model of width 512 with 8 blocks, for sizes and times."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """A random Mamba2 model of width 512 with 8 blocks, for sizes and times."""

    name = "scale"

    def get_data(self):
        """Settings."""
        return {"problem": "scale"}
