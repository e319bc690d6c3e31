"""From three players on six arms to three players on 48, at the same gap."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """From three players on six arms to three players on 48, at the same gap."""

    name = "matching_sizes"
    parameters = {"T": [1_000_000]}  # noqa: RUF012

    def get_data(self):
        """Settings of the protocol."""
        return {"problem": "fair matching", "kind": "sizes", "T": self.T}
