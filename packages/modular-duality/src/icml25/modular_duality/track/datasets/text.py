"""Next characters of English prose by a small GPT."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Next characters of English prose by a small GPT."""

    name = "text"
    parameters = {"corpus": ["stdlib"]}  # noqa: RUF012

    def get_data(self):
        """Settings."""
        return {"problem": "text", "corpus": self.corpus}
