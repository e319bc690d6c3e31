"""Experiments without states, whose mean squared error has a closed form."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Many short experiments; the covariance of the errors is public."""

    name = "switchback_stateless"
    parameters = {  # noqa: RUF012
        "n": [4],
        "T": [12],
        "p": [0],
        "delta": [0.0],
        "rho": [0.7],
        "replicates": [20_000],
        "designs": ["AD+AT1+AT6+UR"],
        "worlds": [1],
        "pilots": [0],
    }

    def get_data(self):
        """Settings of the experiments."""
        names = ("n", "T", "p", "delta", "rho", "replicates", "designs", "worlds", "pilots")
        return {"problem": "switchback", **{name: getattr(self, name) for name in names}}
