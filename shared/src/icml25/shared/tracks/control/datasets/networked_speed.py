"""The paper's grid and network, for the clock: 13 x 5 cells, two agents."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """The paper's grid and network, for the clock: 13 x 5 cells, two agents."""

    name = "networked_speed"

    def get_data(self):
        """Settings of the protocol."""
        return {
            "problem": "networked",
            "dataset": "speed",
            "kind": "grid",
            "graph": "complete",
            "n_agents": 2,
            "width": 13,
            "height": 5,
            "reset_every": 10,
            "gamma": 0.99,
            "T": {"smoke": 50, "quick": 2000, "paper": 20_000},
            "checkpoints": 2,
            "runs": 1,
        }
