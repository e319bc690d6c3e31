"""Gaussian answers whose scores are linear, fitted by a small network."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Gaussian answers whose scores are linear, fitted by a small network."""

    name = "ranking"
    parameters = {  # noqa: RUF012
        "answers": [10],
        "prompts": [512],
        "dimensions": [16],
        "test": [1000],
        "worlds": [3],
    }

    def get_data(self):
        """Settings of the draw."""
        return {"problem": "ranking", "world": "gaussian", **{name: getattr(self, name) for name in self.parameters}}
