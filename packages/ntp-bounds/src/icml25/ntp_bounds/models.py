"""The decoder that the theory speaks of, in torch."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import relu, rms_norm, scaled_dot_product_attention

from icml25.ntp_bounds.checks import check_integer
from icml25.ntp_bounds.spec import DecoderSpec


class Block(nn.Module):
    """Masked attention and a relu network, each with a residual and a normalisation."""

    def __init__(self, dim: int, heads: int, ffn_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.Q, self.K, self.V, self.O = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.W1, self.W2 = nn.Linear(dim, ffn_dim, bias=False), nn.Linear(ffn_dim, dim, bias=False)

    def attend(self, x: Float[Tensor, "b t d"], **mask: Any) -> Float[Tensor, "b t d"]:
        """All heads side by side, times O."""
        q, k, v = (project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for project in (self.Q, self.K, self.V))
        return self.O(scaled_dot_product_attention(q, k, v, **mask).transpose(1, 2).flatten(2))

    def feed(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """relu(x W1) W2."""
        return self.W2(relu(self.W1(x)))

    def forward(
        self, x: Float[Tensor, "b t d"], normalise: Callable[[Tensor], Tensor], pre_norm: bool, **mask: Any
    ) -> Float[Tensor, "b t d"]:
        """Both sub-blocks, with the normalisation behind the sums or before the sub-blocks."""
        if pre_norm:
            x = x + self.attend(normalise(x), **mask)
            return x + self.feed(normalise(x))
        x = normalise(x + self.attend(x, **mask))
        return normalise(x + self.feed(x))


class Decoder(nn.Module):
    """Exactly the block of ``DecoderSpec``, which has the formulas; no biases, gains or dropout.

    Parameters
    ----------
    vocab, dim, heads, ffn_dim, n_layers, seq_len, mask, b_x, norm, pre_norm, rms_eps : as for ``DecoderSpec``.
    seed : of the initial weights.

    Attributes
    ----------
    shell : the ``DecoderSpec`` of these sizes, with norms of 1 in place of the weights'.
    """

    def __init__(
        self,
        vocab: int,
        dim: int,
        heads: int,
        ffn_dim: int,
        n_layers: int,
        seq_len: int,
        *,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        if unknown := sorted(set(options) - {"mask", "b_x", "norm", "pre_norm", "rms_eps"}):
            raise TypeError(f"Decoder has no option {unknown[0]!r}")
        self.shell = DecoderSpec(vocab, dim, heads, ffn_dim, n_layers, seq_len, norms=(1.0, 1.0), **options)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(check_integer(seed, "seed", 0))
            self.embedding = nn.Embedding(vocab, dim)
            self.positions = nn.Embedding(seq_len, dim)
            self.blocks = nn.ModuleList(Block(dim, heads, ffn_dim) for _ in range(n_layers))
            self.W_out = nn.Linear(dim, vocab, bias=False)
        self.mask: Tensor
        self.register_buffer("mask", torch.tensor(self.shell.mask_matrix), persistent=False)

    def extra_repr(self) -> str:
        """Everything that the modules don't show."""
        names = ("heads", "seq_len", "mask", "b_x", "norm", "pre_norm", "rms_eps")
        return ", ".join(f"{name}={getattr(self.shell, name)!r}" for name in names)

    @property
    def paths(self) -> dict[str, str]:
        """Names of matrices, as in ``DecoderSpec`` -> names of modules."""
        return {name: f"blocks.{name}" if name[0].isdigit() else name for name in self.shell.shapes}

    def normalise(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """Pi: each row projected on the ball, or divided by its root mean square."""
        if self.shell.norm == "rmsnorm":
            return rms_norm(x, x.shape[-1:], eps=self.shell.rms_eps)
        return x * (self.shell.b_x / x.norm(dim=-1, keepdim=True).clamp(min=self.shell.b_x))

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
        """Logits of each next token; at most seq_len tokens, with a shorter mask for fewer."""
        t = tokens.shape[-1]
        if tokens.ndim != 2 or not 1 <= t <= self.shell.seq_len:
            raise ValueError(
                f"tokens must be (b, t) with t from 1 to {self.shell.seq_len}, got shape {tuple(tokens.shape)}"
            )
        allowed = self.mask[:t, :t]
        if isinstance(self.shell.mask, str) and self.shell.mask == "causal":
            mask = {"is_causal": True}
        elif t == self.shell.seq_len or allowed.any(1).all():
            mask = {"attn_mask": allowed}
        else:
            raise ValueError(f"the mask of the first {t} tokens has a row without a 1: the softmax of nothing")
        x = self.embedding(tokens) + self.positions.weight[:t]
        pre_norm = self.shell.pre_norm
        x = x if pre_norm else self.normalise(x)
        for block in self.blocks:
            x = block(x, self.normalise, pre_norm, **mask)
        return self.W_out(self.normalise(x) if pre_norm else x)
