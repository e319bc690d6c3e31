"""Two valid candidates, and two whose direct effects are proportional to their first stages: not identifiable."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Two valid candidates, and two whose direct effects are proportional to their first stages: not identifiable."""

    name = "instruments_proportional"
    parameters = {"n": [1000], "replicates": [40]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {
            "problem": "instruments",
            "dataset": "proportional",
            "scenario": "proportional",
            "sizes": [self.n],
            "noise": "Uniform",
            "replicates": self.replicates,
        }
