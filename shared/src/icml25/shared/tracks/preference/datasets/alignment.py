"""Scored answers to prompts of which half are corrupted."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Scored answers to prompts of which half are corrupted."""

    name = "alignment"
    parameters = {"bad": [0.5], "responses": [16], "candidates": [64], "d": [16], "k": [8]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {"problem": "alignment", **{name: getattr(self, name) for name in self.parameters}}
