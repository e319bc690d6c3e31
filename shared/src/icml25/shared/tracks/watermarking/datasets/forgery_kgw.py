"""Genuine and forged text under a red/green watermark; tests of one text, a quarter of it, and four."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Genuine and forged text under a red/green watermark; tests of one text, a quarter of it, and four."""

    name = "forgery_kgw"
    parameters = {  # noqa: RUF012
        "h": [2],
        "gamma": [0.5],
        "delta": [2.0],
        "length": [1000],
        "keys": [2],
        "genuine": [150],
        "forged": [120],
        "learned": [400],
        "held_out": [60],
        "attacker_noise": [0.0],
    }

    def get_data(self):
        """Settings of the draw."""
        numbers = {name: getattr(self, name) for name in self.parameters}
        lengths = [self.length, self.length // 4, 4 * self.length]
        return {"problem": "forgery", "question": "forgery", "lengths": lengths, **numbers}
