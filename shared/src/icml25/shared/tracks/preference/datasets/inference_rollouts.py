"""The reward distribution of the base policy is known from K rollouts a prompt only."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """The reward distribution of the base policy is known from K rollouts a prompt only."""

    name = "inference_rollouts"
    parameters = {"P": [100], "A": [400], "N": [4], "kl": [0.5], "sizes": ["10+30+100+300"]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {
            "problem": "inference",
            "question": "rollouts",
            "P": self.P,
            "A": self.A,
            "N": self.N,
            "kl": self.kl,
            "sizes": [int(size) for size in self.sizes.split("+")],
        }
