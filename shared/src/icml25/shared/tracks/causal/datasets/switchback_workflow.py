"""Which design to run next: pilots, judged by the error of least squares under each candidate."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Pilots under AT6; experiments under the candidates stay with the protocol."""

    name = "switchback_workflow"
    parameters = {  # noqa: RUF012
        "n": [32],
        "T": [48],
        "p": [3],
        "delta": [0.0],
        "rho": [0.9],
        "replicates": [500],
        "designs": ["AT1+AT6+AT24+AD"],
        "worlds": [1],
        "pilots": [7],
    }

    def get_data(self):
        """Settings of the experiments."""
        names = ("n", "T", "p", "delta", "rho", "replicates", "designs", "worlds", "pilots")
        return {"problem": "switchback", **{name: getattr(self, name) for name in names}}
