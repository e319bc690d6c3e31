"""gymnasium's CartPole-v1, which stays as it is: two implementations of PPO should learn alike."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """CartPole-v1 for a fixed number of steps."""

    name = "continual_cartpole"
    parameters = {"steps": [24576], "num_envs": [8], "replicates": [1]}  # noqa: RUF012

    def get_data(self):
        """Settings of the world."""
        settings = {name: getattr(self, name) for name in ("steps", "num_envs", "replicates")}
        return {"problem": "continual", "kind": "stationary", "env": "cartpole", **settings}
