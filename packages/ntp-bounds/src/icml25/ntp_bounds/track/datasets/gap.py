"""Decoders trained on characters of a text, Python's reference topics by default; one of N, width and m is varied."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """What is varied."""

    name = "gap"
    parameters = {"axis": ["sequences"], "corpus": ["stdlib"]}  # noqa: RUF012

    def get_data(self):
        """Settings."""
        return {"problem": "gap", "axis": self.axis, "corpus": self.corpus}
