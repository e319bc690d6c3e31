"""One prompt with many equally likely responses, where the best win rate at a KL is known."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """One prompt with many equally likely responses, where the best win rate at a KL is known."""

    name = "inference_continuum"
    parameters = {"A": [2001], "N": [4], "kl": [0.5]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {
            "problem": "inference",
            "question": "continuum",
            "A": self.A,
            "N": self.N,
            "kl": self.kl,
        }
