"""Agents that are all alike: a = 1 - α (Σ s + 1)^-β, where equilibria have closed forms."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Agents that are all alike: a = 1 - α (Σ s + 1)^-β, where equilibria have closed forms."""

    name = "homogeneous"
    parameters = {"largest": [64], "beta": [0.4]}  # noqa: RUF012

    def get_data(self):
        """Settings: 2, 4, 8 ... agents."""
        sizes = [2**k for k in range(1, self.largest.bit_length())]
        return {"problem": "homogeneous", "sizes": sizes, "alpha": 0.5, "beta": self.beta, "gamma": 5e-4}
