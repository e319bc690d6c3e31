"""Messages in the text of a synthetic language model with known probabilities."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Cells of bits x tokens; null texts from Python's reference manual."""

    name = "message"
    parameters = {  # noqa: RUF012
        "cells": ["8x50+32x50+16x200"],
        "sequences": [400],
        "messages": [10],
        "null": [8000],
        "bias": [16384],
        "vocab": [4096],
        "rows": [512],
    }

    def get_data(self):
        """Settings of the draw."""
        names = ("cells", "sequences", "messages", "null", "bias", "vocab", "rows")
        settings = {name: getattr(self, name) for name in names}
        return {"problem": "message", "dataset": "message", "model": "synthetic", **settings}
