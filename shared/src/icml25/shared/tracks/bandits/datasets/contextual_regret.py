"""Five actions, contexts on a circle: choose by the mean and by the CVaR of the outcome."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Five actions, contexts on a circle: choose by the mean and by the CVaR of the outcome."""

    name = "contextual_regret"

    def get_data(self):
        """Name the problem and its settings."""
        return {"problem": "contextual risk", "kind": "regret"}
