"""Grid with weights 1..8 of which a half of the edges is replaced by edges between random vertices."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Grid with weights 1..8 of which a half of the edges is replaced by edges between random vertices."""

    name = "replaced"
    parameters = {"n": [400]}  # noqa: RUF012

    def get_data(self):
        """Settings of the stream: 2000 pairs at its end."""
        side = round(self.n**0.5)
        return {
            "problem": "replaced",
            "sizes": [side**2],
            "degree": 4,
            "top": 8,
            "updates": 2 * side * (side - 1),
            "stream": "replace",
            "pairs": 2000,
            "checks": 1,
            "graph": "grid",
        }
