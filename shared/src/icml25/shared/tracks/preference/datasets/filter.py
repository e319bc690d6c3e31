"""Scored answers to prompts of which half are corrupted; DPO trains on those that are kept."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Scored answers to prompts of which half are corrupted; DPO trains on those that are kept."""

    name = "filter"
    parameters = {"bad": [0.5], "d": [16], "k": [8], "N": [16]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {"problem": "filter", "question": "world", **{name: getattr(self, name) for name in self.parameters}}
