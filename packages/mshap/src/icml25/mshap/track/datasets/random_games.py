"""Random games of 2, 5 and 10 agents: a_k = 1 - 1/(1 + W_k · s) with uniform weights and costs."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Random games of 2, 5 and 10 agents: a_k = 1 - 1/(1 + W_k · s) with uniform weights and costs."""

    name = "random"
    parameters = {"games": [20]}  # noqa: RUF012

    def get_data(self):
        """Settings: that many games of each size."""
        return {"problem": "random", "games": self.games, "sizes": [2, 5, 10]}
