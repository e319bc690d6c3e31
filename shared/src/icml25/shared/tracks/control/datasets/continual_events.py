"""The pendulum as it is: what happens to the policy at the learner's own resets."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Returns of 32 deterministic episodes before, at and after each event."""

    name = "continual_events"
    parameters = {"steps": [409600], "num_envs": [16], "replicates": [1]}  # noqa: RUF012

    def get_data(self):
        """Settings of the world."""
        settings = {name: getattr(self, name) for name in ("steps", "num_envs", "replicates")}
        return {"problem": "continual", "kind": "events", "env": "pendulum", **settings}
