"""A Markov chain whose loss does not depend on length, with two keys to remember: loss and retrieval in one corpus."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """A Markov chain whose loss does not depend on length, with two keys to remember."""

    name = "markov_passkey"
    parameters = {"length": [64]}  # noqa: RUF012

    def get_data(self):
        """Settings."""
        return {"problem": "reading", "corpus": "markov_passkey", "length": self.length}
