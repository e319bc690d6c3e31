"""Noisy linear regression on standard normal contexts, queries on the unit sphere."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Noisy linear regression on standard normal contexts, queries on the unit sphere."""

    name = "gaussian"
    parameters = {"dim": [3], "n": [256]}  # noqa: RUF012

    def get_data(self):
        """Settings."""
        return {"problem": "regression", "dim": self.dim, "n": self.n}
