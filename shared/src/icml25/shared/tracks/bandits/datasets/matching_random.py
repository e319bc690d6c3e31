"""Random means, four players on six arms."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Random means, four players on six arms."""

    name = "matching_random"
    parameters = {"T": [1_000_000]}  # noqa: RUF012

    def get_data(self):
        """Settings of the protocol."""
        return {"problem": "fair matching", "kind": "random", "T": self.T}
