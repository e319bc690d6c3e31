"""Random rewards and scores of lists of growing length, for the gradient of a loss."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Random rewards and scores of lists of growing length, for the gradient of a loss."""

    name = "ranking_gradients"
    parameters = {"sizes": ["16+32+64+128"], "rows": [500]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {"problem": "ranking", "world": "gradients", "sizes": self.sizes, "rows": self.rows}
