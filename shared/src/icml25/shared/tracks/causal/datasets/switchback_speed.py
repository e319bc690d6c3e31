"""The size at which estimators are timed."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Two hundred experiments of 52 days, or one of 10,000 days by 1,440 minutes."""

    name = "switchback_speed"
    parameters = {  # noqa: RUF012
        "n": [52],
        "T": [48],
        "p": [3],
        "delta": [0.8],
        "rho": [0.5],
        "replicates": [200],
        "designs": ["AT6"],
        "worlds": [1],
        "pilots": [0],
    }

    def get_data(self):
        """Settings of the experiments."""
        names = ("n", "T", "p", "delta", "rho", "replicates", "designs", "worlds", "pilots")
        return {"problem": "switchback", **{name: getattr(self, name) for name in names}}
