"""Random 4-regular unweighted graphs of growing size, as they are or with half a phase of insertions."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Random 4-regular unweighted graphs of growing size, as they are or with half a phase of insertions."""

    name = "growth"
    parameters = {"largest": [1024], "insertions": ["none"]}  # noqa: RUF012

    def get_data(self):
        """Settings: 300 pairs per size, 40 replicates of the embedding."""
        return {
            "problem": "growth",
            "sizes": [self.largest // 16, self.largest // 4, self.largest],
            "degree": 4,
            "top": 1,
            "updates": 0 if self.insertions == "none" else "half a phase",
            "stream": "insert",
            "pairs": 300,
            "checks": 1,
            "replicates": 40,
        }
