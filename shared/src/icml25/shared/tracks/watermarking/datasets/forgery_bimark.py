"""Genuine and forged text under BiMark: the colour is the share of layers whose vote agrees with the message."""

import numpy as np
from benchopt import BaseDataset

MESSAGE, LAYERS, WINDOW = "10110010", 10, 2


class BiMark:
    """BiMark for the offline chain: only the first occurrence of a context in a text is watermarked."""

    h, once, null_mean, null_variance = WINDOW, True, 0.5, 0.25 / LAYERS

    def __init__(self, key):
        from icml25.bimark import partitions
        from icml25.shared.protocols.watermark_forgery import VOCAB

        self.about = {"scheme": "bimark", "key": key, "h": WINDOW, "layers": LAYERS, "message": MESSAGE}
        self._key = key.to_bytes(8, "little")
        self._members = partitions(self._key, LAYERS, VOCAB)
        self._bits = np.array([bit == "1" for bit in MESSAGE])

    def directions(self, contexts):
        """What each layer does after a context: message bit XOR pad, (N, layers)."""
        from icml25.bimark import context_randomness

        position, pad = context_randomness(self._key, contexts, len(MESSAGE), LAYERS)
        return self._bits[position, None] ^ pad

    def weights(self, contexts, candidates, p):
        """All layers in turn on the candidates, each by bit-flip reweighting at base scale 1."""
        p = p / p.sum(axis=1, keepdims=True)
        heads = self.directions(contexts)
        for layer, members in enumerate(self._members):
            in_v1 = members[candidates]
            p1 = (p * in_v1).sum(axis=1, keepdims=True)
            odds = (1 - p1) / np.maximum(p1, 1e-12)
            d1 = np.clip(odds, 0, 1)
            d0 = np.minimum(d1 / np.maximum(odds, 1e-12), 1)
            sign = np.where(heads[:, layer, None], 1, -1) * ((p1 > 1e-6) & (odds > 1e-6))  # float32: else determined
            p = np.maximum(p * np.where(in_v1, 1 + sign * d1, 1 - sign * d0), 0)
        return p

    def colors(self, text):
        """Share of layers that agree, at the first occurrence of every context."""
        windows = np.lib.stride_tricks.sliding_window_view(text, WINDOW)[:-1]
        first = np.unique(windows, axis=0, return_index=True)[1]
        x, valid = np.zeros(len(text)), np.zeros(len(text), dtype=bool)
        at = first + WINDOW
        x[at] = (self.directions(windows[first]) == self._members[:, text[at]].T).mean(axis=1)
        valid[at] = True
        return x, valid


def watermark(key):
    """BiMark, or why there is none."""
    try:
        import icml25.bimark  # noqa: F401
    except ImportError as error:
        return f"needs icml25-bimark ({error})"
    return BiMark(key)


class Dataset(BaseDataset):
    """Genuine and forged text under BiMark: the colour is the share of layers whose vote agrees with the message."""

    name = "forgery_bimark"
    parameters = {"length": [500], "genuine": [60], "forged": [40], "learned": [400]}  # noqa: RUF012

    def get_data(self):
        """Settings of the draw."""
        numbers = {name: getattr(self, name) for name in self.parameters}
        lengths = [self.length, 4 * self.length]
        return {"problem": "forgery", "question": "forgery", "watermark": watermark, "lengths": lengths, **numbers}
