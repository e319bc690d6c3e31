"""CartPole for the clock."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Environment steps per second; solvers time their loops in turns in one process, compiled before."""

    name = "continual_speed"
    parameters = {"steps": [4096], "num_envs": [8], "repeats": [3]}  # noqa: RUF012

    def get_data(self):
        """Settings of the loops."""
        settings = {name: getattr(self, name) for name in ("steps", "num_envs", "repeats")}
        return {"problem": "continual", "kind": "speed", "env": "cartpole", **settings}
