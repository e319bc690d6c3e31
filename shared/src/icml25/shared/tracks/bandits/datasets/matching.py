"""Six players on eight arms, the instance of Shi et al. (2021)."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Six players on eight arms, the instance of Shi et al. (2021)."""

    name = "matching"
    parameters = {"T": [1_000_000]}  # noqa: RUF012

    def get_data(self):
        """Settings of the protocol."""
        return {"problem": "fair matching", "kind": "shi2021", "T": self.T}
