"""Prompts whose rewards differ in location, scale and shape; a policy of given KL is served as it is, best-of-N or worst-of-N."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Prompts whose rewards differ in location, scale and shape; a policy of given KL is served as it is, best-of-N or worst-of-N."""

    name = "inference_world"
    parameters = {"P": [100], "A": [400], "N": [4], "kl": [0.5]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {
            "problem": "inference",
            "question": "world",
            "P": self.P,
            "A": self.A,
            "N": self.N,
            "kl": self.kl,
        }
