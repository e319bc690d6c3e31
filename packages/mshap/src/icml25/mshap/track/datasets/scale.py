"""Many agents in a few groups: Shapley shares along n ln n permutations."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Many agents in a few groups: Shapley shares along n ln n permutations."""

    name = "scale"
    parameters = {"n": [200]}  # noqa: RUF012

    def get_data(self):
        """Settings: three groups."""
        return {"problem": "scale", "n": self.n, "groups": 3}
