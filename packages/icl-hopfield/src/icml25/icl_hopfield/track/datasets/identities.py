"""Memories, examples and queries: energies and retrieval before and after the examples."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Memories, examples and queries: energies and retrieval before and after the examples."""

    name = "identities"

    def get_data(self):
        """Settings: none."""
        return {"problem": "identities"}
