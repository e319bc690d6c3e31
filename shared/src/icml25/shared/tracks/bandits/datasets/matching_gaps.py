"""Four players on four arms, at a wide gap and at a gap a quarter of it."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Four players on four arms, at a wide gap and at a gap a quarter of it."""

    name = "matching_gaps"
    parameters = {"wide": [0.4], "narrow": [0.1], "T": [1_000_000]}  # noqa: RUF012

    def get_data(self):
        """Settings of the protocol."""
        return {"problem": "fair matching", "kind": "gaps", "wide": self.wide, "narrow": self.narrow, "T": self.T}
