"""The paper's first case: five candidates, two valid, answered at a fifth, a half and all of n rows."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """The paper's first case: five candidates, two valid, answered at a fifth, a half and all of n rows."""

    name = "instruments_case1"
    parameters = {"n": [1000], "covariates": [False, True], "noise": ["Uniform"], "replicates": [50]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {
            "problem": "instruments",
            "dataset": "case1",
            "scenario": "case1",
            "sizes": [self.n // 5, self.n // 2, self.n],
            "covariates": self.covariates,
            "noise": self.noise,
            "replicates": self.replicates,
        }
