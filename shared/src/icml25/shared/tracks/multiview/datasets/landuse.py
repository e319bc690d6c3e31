"""LandUse-21: 2100 aerial tiles, 21 classes, 3 views."""

from benchopt import BaseDataset

from icml25.shared.datasets import load


class Dataset(BaseDataset):
    """LandUse-21: 2100 aerial tiles, 21 classes, 3 views."""

    name = "landuse"

    def get_data(self):
        """Load views and labels."""
        data = load("landuse")
        return {"views": data.views, "y": data.y, "name": data.name}
