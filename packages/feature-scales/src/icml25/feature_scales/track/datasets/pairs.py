"""Two classes of images, by linear networks in five scalings from chi = 1 to chi = N."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Two classes of images, by linear networks in five scalings from chi = 1 to chi = N."""

    name = "pairs"
    parameters = {"source": ["digits", "mnist"]}  # noqa: RUF012

    def get_data(self):
        """Settings."""
        return {"problem": "pairs", "source": self.source}
