"""The grid variant of Simple Spread: agents cover landmarks, each paid for one of them."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """The grid variant of Simple Spread: agents cover landmarks, each paid for one of them."""

    name = "networked_grid"
    parameters = {"n_agents": [2], "width": [5], "height": [3], "gamma": [0.9]}  # noqa: RUF012

    def get_data(self):
        """Settings of the protocol."""
        return {
            "problem": "networked",
            "dataset": "grid",
            "kind": "grid",
            "graph": "complete",
            "n_agents": self.n_agents,
            "width": self.width,
            "height": self.height,
            "reset_every": 10,
            "gamma": self.gamma,
            "T": {"smoke": 30, "quick": 1500, "paper": 20_000},
            "checkpoints": 15,
        }
