"""Random networked MDPs: three agents on a ring, six states, rewards that add up over the agents."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Random networked MDPs: three agents on a ring, six states, rewards that add up over the agents."""

    name = "networked_mdp"
    parameters = {"n_problems": [6]}  # noqa: RUF012

    def get_data(self):
        """Settings of the protocol."""
        return {
            "problem": "networked",
            "dataset": "mdp",
            "kind": "mdp",
            "graph": "ring",
            "n_agents": 3,
            "n_states": 6,
            "n_actions": 2,
            "n_problems": self.n_problems,
            "conflict": 0.0,
            "gamma": 0.9,
            "T": {"smoke": 300, "quick": 3000, "paper": 30_000},
            "checkpoints": 150,
        }
