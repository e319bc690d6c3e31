"""A pendulum whose gravity changes while the learner learns."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Gravity times 1, 0.5, 0.25, ... for ``period`` environment steps each, 200 steps an episode."""

    name = "continual_pendulum"
    parameters = {  # noqa: RUF012
        "steps": [204800],
        "period": [40960],
        "factors": ["1+0.5+0.25+0.75+0.1"],
        "epochs": [10],
        "replicates": [2],
        "num_envs": [16],
    }

    def get_data(self):
        """Settings of the world."""
        names = ("steps", "period", "factors", "epochs", "replicates", "num_envs")
        settings = {name: getattr(self, name) for name in names}
        return {"problem": "continual", "kind": "changing", "env": "pendulum", **settings}
