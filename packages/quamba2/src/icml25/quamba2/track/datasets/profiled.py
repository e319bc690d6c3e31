"""Random Mamba2 models with strongly uneven channels, heads and state groups."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Random Mamba2 models with strongly uneven channels, heads and state groups."""

    name = "profiled"
    parameters = {"draws": [2]}  # noqa: RUF012

    def get_data(self):
        """Settings: that many models per seed."""
        return {"problem": "profiled", "draws": self.draws}
