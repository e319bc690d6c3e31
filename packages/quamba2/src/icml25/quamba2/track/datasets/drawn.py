"""Random models: uneven ones to be kept close, small ones of each architecture, and a wide one for sizes and times."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Random models: uneven ones to be kept close, small ones of each architecture, and a wide one for sizes and times."""

    name = "drawn"
    parameters = {"draws": [2]}  # noqa: RUF012

    def get_data(self):
        """Settings: that many uneven models per seed."""
        return {"problem": "drawn", "draws": self.draws}
