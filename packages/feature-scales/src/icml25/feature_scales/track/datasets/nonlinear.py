"""An Ising task of an erf network at chi = 1, 5 and 50."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """An Ising task of an erf network at chi = 1, 5 and 50."""

    name = "nonlinear"
    parameters = {"dp": [0.2]}  # noqa: RUF012

    def get_data(self):
        """Settings."""
        return {"problem": "nonlinear", "dp": self.dp}
