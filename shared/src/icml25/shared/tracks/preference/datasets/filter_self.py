"""New prompts written after the example of eight; bad examples make bad prompts."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """New prompts written after the example of eight; bad examples make bad prompts."""

    name = "filter_self"
    parameters = {"bad": [0.5], "d": [16], "k": [8], "N": [16]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {"problem": "filter", "question": "self", **{name: getattr(self, name) for name in self.parameters}}
