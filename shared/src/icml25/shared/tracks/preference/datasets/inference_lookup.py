"""Ranks of many rewards among the rollouts of their prompts, for the clock."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Ranks of many rewards among the rollouts of their prompts, for the clock."""

    name = "inference_lookup"
    parameters = {"P": [2000], "K": [100], "n": [200_000]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {
            "problem": "inference",
            "question": "lookup",
            "P": self.P,
            "K": self.K,
            "n": self.n,
        }
