"""Digits by a perceptron of three layers: steps to a training loss."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Digits by a perceptron of three layers: steps to a training loss."""

    name = "digits_curve"
    parameters = {"width": [128]}  # noqa: RUF012

    def get_data(self):
        """Settings."""
        return {"problem": "curve", "width": self.width}
