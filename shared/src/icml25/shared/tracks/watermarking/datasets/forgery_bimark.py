"""Genuine and forged text under BiMark: the colour is the share of layers whose vote agrees with the message."""

import numpy as np
from benchopt import BaseDataset

MESSAGE, LAYERS, WINDOW = "10110010", 10, 2


class BiMark:
    """BiMark for the offline chain: only the first occurrence of a context in a text is watermarked."""

    h, once, null_mean, null_variance = WINDOW, True, 0.5, 0.25 / LAYERS

    def __init__(self, key):
        from icml25.shared.protocols.watermark_forgery import VOCAB, bimark_hashes

        self.about = {"scheme": "bimark", "h": WINDOW, "layers": LAYERS, "message": MESSAGE}
        self._key = key.to_bytes(8, "little")
        self._hashes = bimark_hashes()
        self._members = self._hashes.partitions(self._key, LAYERS, VOCAB)
        self._bits = np.array([bit == "1" for bit in MESSAGE])
        self._vocab = VOCAB
        self._known = np.zeros(VOCAB**WINDOW, dtype=np.int16)  # directions as bits, and one that says they are there

    def directions(self, contexts):
        """What each layer does after a context: message bit XOR pad, (N, layers)."""
        packed, layers = contexts @ (self._vocab, 1), np.arange(LAYERS)
        new = np.unique(packed[self._known[packed] == 0])
        if len(new):
            unpacked = np.stack(np.divmod(new, self._vocab), axis=1)
            position, pad = self._hashes.context_randomness(self._key, unpacked, len(MESSAGE), LAYERS)
            self._known[new] = (self._bits[position, None] ^ pad) @ (1 << layers) + (1 << LAYERS)
        return (self._known[packed, None] >> layers & 1).astype(bool)

    def weights(self, contexts, candidates, p):
        """All layers in turn on the candidates, each by bit-flip reweighting at base scale 1."""
        p = p / p.sum(axis=1, keepdims=True)
        signs = np.where(self.directions(contexts), 1, -1).astype(p.dtype)
        for sign, members in zip(signs.T, self._members.astype(p.dtype), strict=True):
            in_v1 = members.take(candidates)
            p1 = np.einsum("nk,nk->n", p, in_v1)
            odds = (1 - p1) / np.maximum(p1, 1e-12)
            d1 = np.clip(odds, 0, 1)
            d0 = np.minimum(d1 / np.maximum(odds, 1e-12), 1)
            sign = sign * ((p1 > 1e-6) & (odds > 1e-6))  # float32: else determined
            in_v1 *= (sign * (d1 + d0))[:, None]
            in_v1 += (1 - sign * d0)[:, None]  # 1 + sign d1 in V1, 1 - sign d0 elsewhere
            p *= in_v1
        return np.maximum(p, 0)

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
        return BiMark(key)
    except ImportError as error:
        return f"needs icml25-bimark ({error})"


class Dataset(BaseDataset):
    """Genuine and forged text under BiMark: the colour is the share of layers whose vote agrees with the message."""

    name = "forgery_bimark"
    parameters = {  # noqa: RUF012
        "length": [500],
        "keys": [2],
        "genuine": [100],
        "forged": [100],
        "learned": [400],
        "held_out": [50],
    }

    def get_data(self):
        """Settings of the draw."""
        numbers = {name: getattr(self, name) for name in self.parameters}
        lengths = [self.length, 4 * self.length]
        return {"problem": "forgery", "question": "forgery", "watermark": watermark, "lengths": lengths, **numbers}
