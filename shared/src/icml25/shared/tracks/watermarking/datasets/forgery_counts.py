"""A corpus whose n-grams are counted, for the clock."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """A corpus whose n-grams are counted, for the clock."""

    name = "forgery_counts"
    parameters = {"tokens": [3_000_000], "order": [3]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        return {"problem": "forgery", "question": "counts", "tokens": self.tokens, "order": self.order}
