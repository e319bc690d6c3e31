"""Conditional CDFs from growing prefixes of data: fast or polynomial decay of the design operator."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Conditional CDFs from growing prefixes of data: fast or polynomial decay of the design operator."""

    name = "contextual_regression"
    parameters = {"family": ["logistic", "step"]}  # noqa: RUF012

    def get_data(self):
        """Name the problem and its settings."""
        return {"problem": "contextual risk", "kind": "regression", "family": self.family}
