"""The configuration that ``model.generate(watermarking_config=...)`` takes."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers.generation import BaseWatermarkingConfig

from icml25.bimark.detector import MAX_MESSAGE_BITS, check_integer, message_text
from icml25.bimark.prf import MAX_LAYERS

if TYPE_CHECKING:
    import torch

    from icml25.bimark.processor import BiMarkLogitsProcessor

__all__ = ["BiMarkConfig"]

FIELDS = ("message", "n_layers", "base_scale", "window", "message_bits", "pad_token_id")
NOTE = "BiMarkConfig: transformers cannot load it; delete watermarking_config from generation_config.json, and pass the object to generate"


class BiMarkConfig(BaseWatermarkingConfig):
    """Key, message and settings of a BiMark watermark.

    Pass the object itself to ``model.generate(..., do_sample=True, watermarking_config=config)``: transformers then puts
    the processor behind temperature, top-k and top-p, the only place where the watermark leaves the distribution as it is.

    Parameters
    ----------
    key : the secret: text, bytes or a non-negative integer; kept as ``key`` in hexadecimal digits.
    message : text of 0s and 1s, a sequence of 0s and 1s, or an integer together with ``message_bits`` (most significant
        bit first); 1 to 1024 bits. "1" alone marks text without saying more. None, together with ``message_bits``, is for
        detection only.
    n_layers : layers d, 1 to 448.
    base_scale : how much probability a layer may move, in (0, 1]; less is a weaker watermark, and still unbiased.
    window : number h of preceding tokens that seed a step, at least 1. Larger is more random and less robust to edits.
    message_bits : length of the message where it is an integer or None; else it must fit, if given.
    pad_token_id : of left-padded batches; only matters for prompts of fewer than ``window`` tokens.

    Raises
    ------
    ValueError, TypeError: naming the argument, what it was and what was expected.

    Source: the paper's settings, d = 10, base_scale 1, h = 2.
    """

    key: str
    message: str | None
    n_layers: int
    base_scale: float
    window: int
    message_bits: int
    pad_token_id: int | None

    def __init__(
        self,
        key: Any,
        message: Any = "1",
        n_layers: Any = 10,
        base_scale: Any = 1.0,
        window: Any = 2,
        message_bits: Any = None,
        pad_token_id: Any = None,
    ) -> None:
        self.key = _key_bytes(key).hex()
        self.message = message_text("message", message, _plain(message_bits))
        self.n_layers = _plain(n_layers)
        self.base_scale = _plain(base_scale)
        self.window = _plain(window)
        message_bits = _plain(message_bits)
        if message_bits is None:
            if self.message is None:
                raise ValueError("message is None, so message_bits is needed: the length of the message to look for")
            message_bits = len(self.message)
        self.message_bits = message_bits
        self.pad_token_id = _plain(pad_token_id)
        self.validate()

    def validate(self) -> None:
        """Check all fields; transformers calls it before it generates.

        Raises
        ------
        ValueError, TypeError: naming the field, its value and the range.
        """
        if not isinstance(self.key, str) or not re.fullmatch("(?:[0-9a-f]{2})*", self.key):
            raise ValueError("key must be hexadecimal digits, as BiMarkConfig(key) makes them")
        if not self.key:
            raise ValueError("key is empty; expected text, bytes or an integer that nobody can guess")
        for name, low, high in (
            ("message_bits", 1, MAX_MESSAGE_BITS),
            ("n_layers", 1, MAX_LAYERS),
            ("window", 1, None),
        ):
            check_integer(name, getattr(self, name), low, high)
        if self.pad_token_id is not None:
            check_integer("pad_token_id", self.pad_token_id, 0, None)
        if isinstance(self.base_scale, bool) or not isinstance(self.base_scale, (int, float)):
            raise TypeError(f"base_scale must be a number, got {self.base_scale!r}")
        if not 0 < self.base_scale <= 1:
            raise ValueError(f"base_scale must be in (0, 1], got {self.base_scale}")
        if self.message is not None:
            if not isinstance(self.message, str) or not self.message or set(self.message) - {"0", "1"}:
                raise ValueError(f"message must be 1 to {MAX_MESSAGE_BITS} bits, each 0 or 1; got {self.message!r}")
            if len(self.message) != self.message_bits:
                raise ValueError(
                    f"message has {len(self.message)} bits and message_bits is {self.message_bits}; expected the same"
                )

    @property
    def key_bytes(self) -> bytes:
        """The secret as bytes."""
        return bytes.fromhex(self.key)

    def construct_processor(self, vocab_size: int, device: "str | torch.device" = "cpu") -> "BiMarkLogitsProcessor":
        """Build the logits processor; ``generate`` calls it.

        Parameters
        ----------
        vocab_size : width of the model's logits, ``model.config.vocab_size``.
        device : where the logits are.

        Raises
        ------
        ValueError: this configuration has no message.
        """
        from icml25.bimark.processor import BiMarkLogitsProcessor

        return BiMarkLogitsProcessor(self, vocab_size, device)

    def public(self) -> "BiMarkConfig":
        """Return a copy without the message: what a detector needs. It still holds the key."""
        return self.from_dict(self.to_dict(include_key=True) | {"message": None})

    def to_dict(self, include_key: bool = False) -> dict[str, Any]:
        """Return the fields as plain values.

        Parameters
        ----------
        include_key : whether ``key_hex`` is among them. It is not by default, because ``save_pretrained`` writes the
            dictionary of a configuration that is attached to ``model.generation_config``. transformers reads each such
            dictionary as its own ``WatermarkingConfig`` and raises TypeError with the first field that it doesn't
            know; so a note for the reader of that error comes first.
        """
        fields = {name: getattr(self, name) for name in FIELDS}
        return fields | {"key_hex": self.key} if include_key else {NOTE: True} | fields

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], **kwargs: Any) -> "BiMarkConfig":
        """Build a configuration from :meth:`to_dict`.

        Parameters
        ----------
        config_dict : the fields, with ``key_hex`` or ``key``.
        **kwargs : fields that replace those, such as ``key``.

        Raises
        ------
        ValueError: no key. TypeError: an unknown field, or fields that aren't a mapping.
        """
        if not isinstance(config_dict, Mapping):
            raise TypeError(f"config_dict is {type(config_dict).__name__}; expected a mapping of fields")
        fields = dict(config_dict)
        fields.pop(NOTE, None)
        if (digits := fields.pop("key_hex", None)) is not None:
            try:
                fields["key"] = bytes.fromhex(digits)
            except (TypeError, ValueError):
                raise ValueError("key_hex must be hexadecimal digits, two for each byte of the key") from None
        fields |= kwargs
        if unknown := set(fields) - {"key", *FIELDS}:
            raise TypeError(f"unknown field {min(unknown, key=str)!r}; expected key or key_hex, {', '.join(FIELDS)}")
        if "key" not in fields:
            raise ValueError("key is not among the fields: they were written without it; pass key=...")
        return cls(**fields)

    def to_json_string(self, include_key: bool = False) -> str:
        """Return :meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict(include_key), indent=2, sort_keys=True) + "\n"

    def to_json_file(self, json_file_path: str | os.PathLike, include_key: bool = False) -> None:
        """Write :meth:`to_dict` to a JSON file, which only the user may read where it holds the key.

        Parameters
        ----------
        json_file_path : the file, replaced if it exists.
        include_key : whether the secret is written too.
        """
        path = Path(json_file_path)
        if include_key:
            path.touch(mode=0o600)
            path.chmod(0o600)  # it may have been there, for all to read
        path.write_text(self.to_json_string(include_key), encoding="utf-8")

    @classmethod
    def from_json_file(cls, json_file_path: str | os.PathLike, **kwargs: Any) -> "BiMarkConfig":
        """Read what :meth:`to_json_file` wrote; ``key=...`` where it was written without the key.

        Raises
        ------
        ValueError: no key, or not a JSON object, naming the file.
        """
        try:
            fields = json.loads(Path(json_file_path).read_text(encoding="utf-8"))
        except ValueError as error:  # not JSON, or not text
            raise ValueError(f"{json_file_path} is damaged: {error}") from None
        if not isinstance(fields, dict):
            raise ValueError(f"{json_file_path} holds {type(fields).__name__}; expected an object of fields")
        return cls.from_dict(fields, **kwargs)

    def __iter__(self) -> Any:
        yield from self.to_dict().items()

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in FIELDS)
        return f"{type(self).__name__}(key=..., {fields})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).items()))


def _plain(value: Any) -> Any:
    """A NumPy number as Python's, so that it can be written as JSON; anything else as it is."""
    return value.item() if isinstance(value, (np.integer, np.floating)) else value


def _key_bytes(key: Any) -> bytes:
    key = _plain(key)
    if isinstance(key, bool) or not isinstance(key, (str, bytes, bytearray, int)):
        raise TypeError(f"key must be text, bytes or an integer, got {type(key).__name__}")
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            raise ValueError("key has a lone surrogate; expected text that UTF-8 can encode, or bytes") from None
    if isinstance(key, (bytes, bytearray)):
        return bytes(key)
    if key < 0:
        raise ValueError("key must not be negative where it is an integer")
    return key.to_bytes(max(1, -(-key.bit_length() // 8)), "big")
