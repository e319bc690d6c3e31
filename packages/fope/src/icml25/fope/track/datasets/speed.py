"""A forward pass against RoPE's, and position tables of 8192 and 32768 tokens."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """A forward pass against RoPE's, and position tables of 8192 and 32768 tokens."""

    name = "speed"
    parameters = {"tokens": [1024]}  # noqa: RUF012

    def get_data(self):
        """Settings."""
        return {"problem": "speed", "tokens": self.tokens}
