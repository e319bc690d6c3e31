"""Digits with permuted pixels, one permutation after another."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """scikit-learn's digits; each task permutes the pixels anew."""

    name = "continual_digits"
    parameters = {"tasks": [20], "epochs": [5], "batch": [64]}  # noqa: RUF012

    def get_data(self):
        """Settings of the tasks."""
        settings = {name: getattr(self, name) for name in ("tasks", "epochs", "batch")}
        return {"problem": "continual", "kind": "digits", **settings}
