"""Flights from New York in 2013: arrival delay in minutes, or whether it exceeds 15."""

from benchopt import BaseDataset

from icml25.shared.datasets import load


class Dataset(BaseDataset):
    """Flights from New York in 2013: arrival delay in minutes, or whether it exceeds 15."""

    name = "flights"
    parameters = {"n": [60_000], "target": ["arr_delay"]}  # noqa: RUF012

    def get_data(self):
        """Load features and target."""
        data = load("flights", n=self.n, target=self.target)
        return {"X": data.X, "y": data.y, "task": data.task, "name": data.name}
