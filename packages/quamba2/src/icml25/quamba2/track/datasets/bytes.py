"""A byte-level language model, trained on plain text."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """A byte-level language model, trained on plain text."""

    name = "bytes"
    parameters = {"arch": ["mamba2"], "text": ["stdlib"], "steps": [80]}  # noqa: RUF012

    def get_data(self):
        """Settings; "stdlib" comes with scikit-learn's descriptions."""
        return {"problem": "bytes", "arch": self.arch, "text": self.text, "steps": self.steps}
