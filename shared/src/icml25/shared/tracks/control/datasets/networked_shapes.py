"""The grid of Simple Spread for networks of several depths and widths."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """The grid of Simple Spread for networks of several depths and widths."""

    name = "networked_shapes"

    def get_data(self):
        """Settings of the protocol."""
        return {
            "problem": "networked",
            "dataset": "shapes",
            "kind": "grid",
            "graph": "complete",
            "n_agents": 2,
            "width": 5,
            "height": 3,
            "reset_every": 10,
            "gamma": 0.9,
            "T": {"smoke": 5, "quick": 500, "paper": 20_000},
            "checkpoints": 15,
        }
