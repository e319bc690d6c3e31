"""Networks composed of modules: perceptron, attention, transformer."""

from __future__ import annotations

from icml25.modular_duality.checks import check_integer
from icml25.modular_duality.modules import (
    ApplyAttentionScores,
    AttentionQK,
    CausalMask,
    Embed,
    GeLU,
    Identity,
    Linear,
    MergeHeads,
    Module,
    ReLU,
    RoPE,
    Softmax,
    SplitIntoHeads,
)

__all__ = ["GPT", "MLP", "Attention", "residual"]


def residual(block: Module, blocks: int) -> Module:
    """``(1 - 1/L) x + (1/L) block(x)``, sensitivity 1 when that of block is; L is the number of ``blocks`` in a row.

    Raises
    ------
    ValueError: blocks is below 2 (with one, nothing is left of x).
    """
    check_integer("blocks", blocks, least=2)
    return (1 - 1 / blocks) * Identity() + (1 / blocks) * block


def MLP(n_out: int, n_in: int, width: int, depth: int) -> Module:
    """``depth`` linear layers with ReLU in between.

    Raises
    ------
    ValueError: depth is below 2, or a size below 1.
    """
    check_integer("depth", depth, least=2)
    hidden = (Linear(width, width) @ ReLU()) ** (depth - 2)
    return Linear(n_out, width) @ ReLU() @ hidden @ Linear(width, n_in)


def Attention(heads: int, d: int, d_q: int, d_v: int, scale: float = 1.0, causal: bool = True) -> Module:
    """Self-attention of (..., tokens, d) with rotary positions, sensitivity 1 at ``scale`` 1.

    Parameters
    ----------
    heads : number of heads.
    d, d_q, d_v : features of inputs and outputs, of a head's queries and keys (even), of a head's values.
    scale : of the scores inside the softmax, an inverse temperature.
    causal : whether a token sees only earlier ones.

    Raises
    ------
    ValueError: d_q is odd, scale is not above 0, or a size below 1.
    """
    check_integer("d_q", d_q)
    if d_q % 2:
        raise ValueError(f"d_q must be even, got {d_q}")
    query = SplitIntoHeads(heads) @ Linear(heads * d_q, d)
    key = SplitIntoHeads(heads) @ Linear(heads * d_q, d)
    value = SplitIntoHeads(heads) @ Linear(heads * d_v, d)
    mask = CausalMask() if causal else Identity()
    scores = Softmax(scale) @ mask @ AttentionQK() @ RoPE() @ (query, key)
    return Linear(d, heads * d_v) @ MergeHeads() @ (1 / 3 * ApplyAttentionScores()) @ (value, scores)


def GPT(
    vocab: int,
    heads: int,
    d: int,
    d_q: int,
    d_v: int,
    blocks: int,
    blocks_mass: float = 5.0,
    attention_scale: float = 1.0,
    final_scale: float = 1.0,
) -> Module:
    """Transformer from tokens (..., tokens) to logits (..., tokens, vocab), sensitivity ``final_scale``.

    Parameters
    ----------
    vocab : number of symbols.
    heads, d, d_q, d_v : see :func:`Attention`.
    blocks : number of pairs of attention and perceptron (four times as wide as d).
    blocks_mass : mass of all blocks together; that of embedding and readout is 1 each.
    attention_scale, final_scale : of the scores inside the softmax, and of the logits.

    Raises
    ------
    ValueError: a size below 1, or a scale that is not above 0.
    """
    check_integer("blocks", blocks)
    attend = residual(Attention(heads, d, d_q, d_v, attention_scale), 2 * blocks)
    think = residual(Linear(d, 4 * d) @ GeLU() @ Linear(4 * d, d), 2 * blocks)
    body = ((think @ attend) ** blocks).tare(blocks_mass)
    network = Linear(vocab, d) @ body @ Embed(d, vocab).tare(1.0)
    return network if final_scale == 1 else final_scale * network
