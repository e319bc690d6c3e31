"""Switchback experiments in the paper's linear world."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """One estimator under one design: 48 half-hours a day, three states, coefficients drawn for each seed."""

    name = "switchback_linear"
    parameters = {  # noqa: RUF012
        "n": [32],
        "T": [48],
        "p": [3],
        "delta": [0.0],
        "rho": [0.9],
        "replicates": [100],
        "designs": ["AD+AT1"],
        "worlds": [1],
        "pilots": [0],
    }

    def get_data(self):
        """Settings of the experiments."""
        names = ("n", "T", "p", "delta", "rho", "replicates", "designs", "worlds", "pilots")
        return {"problem": "switchback", **{name: getattr(self, name) for name in names}}
