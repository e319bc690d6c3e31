"""One replicate of the first case with many rows, for the clock."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """One replicate of the first case with many rows, for the clock."""

    name = "instruments_speed"
    parameters = {"n": [3000]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {
            "problem": "instruments",
            "dataset": "speed",
            "scenario": "case1",
            "sizes": [self.n],
            "noise": "Uniform",
            "replicates": 1,
        }
