"""Contexts of 8 to 1024 examples on the unit sphere: what can one example change?"""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Contexts of 8 to 1024 examples on the unit sphere: what can one example change?"""

    name = "stability"

    def get_data(self):
        """Settings: none."""
        return {"problem": "stability"}
