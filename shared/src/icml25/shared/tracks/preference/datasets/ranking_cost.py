"""Random texts with many answers each, for the clock."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Random texts with many answers each, for the clock."""

    name = "ranking_cost"
    parameters = {"answers": [16], "prompts": [8], "tokens": [24], "vocabulary": [1000], "repeats": [9]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {"problem": "ranking", "world": "cost", **{name: getattr(self, name) for name in self.parameters}}
