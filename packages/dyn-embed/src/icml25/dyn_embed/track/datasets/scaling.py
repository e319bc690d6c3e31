"""Random 8-regular graphs with weights 1..8 of growing size, under random insertions and deletions with two queries each."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Random 8-regular graphs with weights 1..8 of growing size, under random insertions and deletions with two queries each."""

    name = "scaling"
    parameters = {"m": [32000]}  # noqa: RUF012

    def get_data(self):
        """Settings: sizes m/16, m/4 and m, and updates enough for a phase of every method."""
        return {
            "problem": "scaling",
            "sizes": [self.m // 64, self.m // 16, self.m // 4],
            "degree": 8,
            "top": 8,
            "updates": round(3 * self.m ** (2 / 3)),
            "stream": "random",
            "pairs": 0,
            "checks": 0,
        }
