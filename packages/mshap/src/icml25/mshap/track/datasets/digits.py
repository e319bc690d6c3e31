"""scikit-learn's digits, rotated by 10, 90 and 180 degrees in three groups of agents, with accuracies measured by FedAvg."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """scikit-learn's digits, rotated by 10, 90 and 180 degrees in three groups of agents, with accuracies measured by FedAvg."""

    name = "digits"
    parameters = {"agents": [12], "levels": [4]}  # noqa: RUF012

    def get_data(self):
        """Settings: 110 images an agent, accuracies on a grid of levels^3 group contributions; five draws of costs."""
        return {"problem": "digits", "agents": self.agents, "images": 110, "levels": self.levels, "prices": 5}
