"""The first case with many rows, answered at a quarter and all of them: do scores vanish and stay as they should?"""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """The first case with many rows, answered at a quarter and all of them: do scores vanish and stay as they should?"""

    name = "instruments_growth"
    parameters = {"n": [4000], "replicates": [20]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {
            "problem": "instruments",
            "dataset": "growth",
            "scenario": "case1",
            "sizes": [self.n // 4, self.n],
            "noise": "Uniform",
            "replicates": self.replicates,
        }
