"""Text that knows nothing of the key it is tested with: people's, or watermarked under another."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Text that knows nothing of the key it is tested with: people's, or watermarked under another."""

    name = "forgery_null"
    parameters = {"source": ["stdlib"], "h": [1], "length": [400], "tests": [16000]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        numbers = {name: getattr(self, name) for name in self.parameters}
        return {"problem": "forgery", "question": "null", **numbers}
