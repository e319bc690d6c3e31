"""Decide by four utilities after 6400 uniform rounds, with scales that are equal or differ by action."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Decide by four utilities after 6400 uniform rounds, with scales that are equal or differ by action."""

    name = "contextual_utilities"

    def get_data(self):
        """Name the problem and its settings."""
        return {"problem": "contextual risk", "kind": "utilities"}
