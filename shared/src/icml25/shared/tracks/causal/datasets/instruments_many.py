"""p candidates, a quarter of them valid."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """p candidates, a quarter of them valid."""

    name = "instruments_many"
    parameters = {"n": [5000], "p": [20], "replicates": [20]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {
            "problem": "instruments",
            "dataset": "many",
            "scenario": "many",
            "sizes": [self.n],
            "noise": "Uniform",
            "p": self.p,
            "replicates": self.replicates,
        }
