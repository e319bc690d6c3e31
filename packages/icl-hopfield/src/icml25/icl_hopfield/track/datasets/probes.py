"""Prompts like those of training, and three ways to depart from them: other inputs, wrong labels, other tasks."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Prompts like those of training, and three ways to depart from them."""

    name = "probes"
    parameters = {"family": ["linear"], "dim": [3], "examples": [12]}  # noqa: RUF012

    def get_data(self):
        """Settings."""
        return {"problem": "probes", "family": self.family, "dim": self.dim, "examples": self.examples}
