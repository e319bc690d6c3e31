"""The first case under four noise families in turn."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """The first case under four noise families in turn."""

    name = "instruments_families"
    parameters = {"n": [1000], "replicates": [40]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {
            "problem": "instruments",
            "dataset": "families",
            "scenario": "case1",
            "sizes": [self.n],
            "noise": "Uniform+Gaussian+Gamma+t",
            "replicates": self.replicates,
        }
