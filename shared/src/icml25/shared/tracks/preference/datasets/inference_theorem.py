"""Small problems with ties: the optimal policy for best-of-N or worst-of-N, against direct optimisation."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Small problems with ties: the optimal policy for best-of-N or worst-of-N, against direct optimisation."""

    name = "inference_theorem"
    parameters = {"problems": [12]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {
            "problem": "inference",
            "question": "theorem",
            "problems": self.problems,
        }
