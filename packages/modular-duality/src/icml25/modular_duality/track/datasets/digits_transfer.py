"""Digits by networks of several widths or depths: one learning rate for all?"""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Digits by networks of several widths or depths: one learning rate for all?"""

    name = "digits_transfer"
    parameters = {"scaling": ["width", "depth"]}  # noqa: RUF012

    def get_data(self):
        """Settings."""
        return {"problem": "transfer", "scaling": self.scaling}
