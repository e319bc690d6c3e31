"""Head dimensions, training lengths and bases: which frequencies finish a period in training?"""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Head dimensions, training lengths and bases: which frequencies finish a period in training?"""

    name = "floor"

    def get_data(self):
        """Settings: none."""
        return {"problem": "floor"}
