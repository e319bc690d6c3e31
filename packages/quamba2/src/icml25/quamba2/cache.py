"""States kept between calls: integers where the model has scales for them, else floats."""

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["QuantizedStateCache"]


class QuantizedStateCache:
    """The last inputs of the convolution and the SSM state of each layer, filled by a model's forward passes.

    Its size does not depend on the number of tokens seen. It follows the interface that ``generate`` asks of a cache,
    beam search included.

    Parameters
    ----------
    n_layers : layers of the model.

    Attributes
    ----------
    conv : per layer (b, k - 1, channels), int8 with 8-bit activations; None before the first token.
    state : per layer (b, H, P, N) or (b, d, N), int8 with 8-bit states, else float32; None before the first token.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, n_layers: int) -> None:
        if n_layers < 1:
            raise ValueError(f"n_layers must be at least 1, got {n_layers}")
        self.conv: list[Tensor | None] = [None] * n_layers
        self.state: list[Tensor | None] = [None] * n_layers
        self._seen = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens seen so far."""
        return self._seen

    def advance(self, tokens: int) -> None:
        """Count tokens; the model calls it once per forward pass."""
        self._seen += tokens

    @property
    def is_linear(self) -> list[bool]:
        """Per layer, that its states do not grow with the tokens seen."""
        return [True] * len(self.state)

    @property
    def batch_size(self) -> int | None:
        """Sequences whose states are held; None before the first token."""
        return next((len(t) for t in (*self.conv, *self.state) if t is not None), None)

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(t.nbytes for t in (*self.conv, *self.state) if t is not None)

    def reset(self) -> None:
        """Forget everything."""
        self.__init__(len(self.state))

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        for states in (self.conv, self.state):
            states[:] = [None if t is None else change(t) for t in states]

    def reorder_cache(self, beam_idx: Int[Tensor, "b"]) -> None:
        """Take these rows of the batch, in this order (beam search)."""
        self._change(lambda t: t.index_select(0, beam_idx.to(t.device)))

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        self._change(lambda t: torch.repeat_interleave(t, repeats, 0))
