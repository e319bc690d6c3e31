"""Ising tasks of linear networks in five scalings from chi = 1 to chi = N."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Ising tasks of linear networks in five scalings from chi = 1 to chi = N."""

    name = "scales"
    parameters = {"dp": [0.1]}  # noqa: RUF012

    def get_data(self):
        """Settings."""
        return {"problem": "scales", "dp": self.dp}
