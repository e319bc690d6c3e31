"""Characters of real prose: Python's own reference topics (embedded), or Shakespeare's plays (downloaded)."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Characters of real prose."""

    name = "text"
    parameters = {"corpus": ["stdlib"], "length": [64]}  # noqa: RUF012

    def get_data(self):
        """Settings."""
        return {"problem": "reading", "corpus": self.corpus, "length": self.length}
