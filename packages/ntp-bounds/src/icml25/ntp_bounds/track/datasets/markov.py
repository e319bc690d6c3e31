"""Markov chains of two symbols, whose risk is exact."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Markov chains of two symbols, whose risk is exact."""

    name = "markov"

    def get_data(self):
        """Settings."""
        return {"problem": "markov"}
