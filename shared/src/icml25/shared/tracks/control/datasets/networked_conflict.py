"""Four agents in a row whose own rewards pull away from the team's."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Four agents in a row whose own rewards pull away from the team's."""

    name = "networked_conflict"
    parameters = {"conflict": [3.0], "n_problems": [2]}  # noqa: RUF012

    def get_data(self):
        """Settings of the protocol."""
        return {
            "problem": "networked",
            "dataset": "conflict",
            "kind": "mdp",
            "graph": "path",
            "n_agents": 4,
            "n_states": 4,
            "n_actions": 2,
            "n_problems": self.n_problems,
            "conflict": self.conflict,
            "gamma": 0.9,
            "T": {"smoke": 20, "quick": 400, "paper": 6000},
            "checkpoints": 10,
        }
