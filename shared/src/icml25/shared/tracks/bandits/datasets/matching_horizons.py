"""The instance of Shi et al. (2021) at T = 1e5, 1e6 and 1e7."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """The instance of Shi et al. (2021) at T = 1e5, 1e6 and 1e7."""

    name = "matching_horizons"

    def get_data(self):
        """Settings of the protocol."""
        return {"problem": "fair matching", "kind": "horizons"}
