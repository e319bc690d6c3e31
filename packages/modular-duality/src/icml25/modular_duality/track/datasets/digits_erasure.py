"""Digits by a perceptron with a letter written into its hidden matrix."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Digits by a perceptron with a letter written into its hidden matrix."""

    name = "digits_erasure"
    parameters = {"batch": [128, 8]}  # noqa: RUF012

    def get_data(self):
        """Settings."""
        return {"problem": "erasure", "batch": self.batch}
