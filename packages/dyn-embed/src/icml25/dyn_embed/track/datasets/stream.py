"""Random 4-regular graph with weights 1..8 under random insertions and deletions, checked on the way."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Random 4-regular graph with weights 1..8 under random insertions and deletions, checked on the way."""

    name = "stream"
    parameters = {"n": [60], "updates": [150]}  # noqa: RUF012

    def get_data(self):
        """Settings of the stream: 200 pairs at 15 moments."""
        return {
            "problem": "stream",
            "sizes": [self.n],
            "degree": 4,
            "top": 8,
            "updates": self.updates,
            "stream": "random",
            "pairs": 200,
            "checks": 15,
        }
