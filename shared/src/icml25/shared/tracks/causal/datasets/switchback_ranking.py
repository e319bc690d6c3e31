"""Do estimators agree on the order of the designs?"""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Every design for every estimator."""

    name = "switchback_ranking"
    parameters = {  # noqa: RUF012
        "n": [32],
        "T": [48],
        "p": [3],
        "delta": [0.0],
        "rho": [0.9],
        "replicates": [100],
        "designs": ["AT1+AT6+AT24+AD"],
        "worlds": [1],
        "pilots": [0],
    }

    def get_data(self):
        """Settings of the experiments."""
        names = ("n", "T", "p", "delta", "rho", "replicates", "designs", "worlds", "pilots")
        return {"problem": "switchback", **{name: getattr(self, name) for name in names}}
