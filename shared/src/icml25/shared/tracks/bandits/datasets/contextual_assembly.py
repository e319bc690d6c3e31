"""Assemble the design operator of many rows, with as many or with few different contexts."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Assemble the design operator of many rows, with as many or with few different contexts."""

    name = "contextual_assembly"
    parameters = {"n": [10_000], "contexts": [0, 20]}  # noqa: RUF012

    def get_data(self):
        """Name the problem and its settings."""
        return {"problem": "contextual risk", "kind": "assembly", "n": self.n, "contexts": self.contexts}
