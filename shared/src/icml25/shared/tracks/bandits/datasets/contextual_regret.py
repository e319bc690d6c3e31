"""Five actions, contexts on a circle: choose by the mean and by the CVaR; scales equal or different by action."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Five actions, contexts on a circle: choose by the mean and by the CVaR; scales equal or different by action."""

    name = "contextual_regret"
    parameters = {"environment": ["equal", "varied"]}  # noqa: RUF012

    def get_data(self):
        """Name the problem and its settings."""
        return {"problem": "contextual risk", "kind": "regret", "environment": self.environment}
