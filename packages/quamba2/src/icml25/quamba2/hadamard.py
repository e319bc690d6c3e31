"""Orthonormal Hadamard matrices, and the rotation of a Mamba model by them."""

import warnings
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["RotatedLinear", "fuse_hadamard_", "hadamard_matrix", "hadamard_transform"]

_RADIX = 32


def _paley_1(q: int) -> Tensor:
    """Hadamard matrix of order q + 1 for a prime q = 3 mod 4, from the quadratic residues mod q."""
    order = q + 1
    skew = torch.zeros(order, order, dtype=torch.float64)
    skew[0, 1:], skew[1:, 0] = 1, -1
    skew[1:, 1:] = _jacobsthal(q)
    return skew + torch.eye(order, dtype=torch.float64)


def _paley_2(q: int) -> Tensor:
    """Hadamard matrix of order 2 (q + 1) for a prime q = 1 mod 4."""
    conference = torch.zeros(q + 1, q + 1, dtype=torch.float64)
    conference[0, 1:] = conference[1:, 0] = 1
    conference[1:, 1:] = _jacobsthal(q)
    one = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    other = torch.tensor([[1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
    return torch.kron(conference, one) + torch.kron(torch.eye(q + 1, dtype=torch.float64), other)


def _jacobsthal(q: int) -> Tensor:
    residues = {i * i % q for i in range(1, q)}
    return torch.tensor(
        [[0 if i == j else 1 if (i - j) % q in residues else -1 for j in range(q)] for i in range(q)],
        dtype=torch.float64,
    )


_BASES = {3: lambda: _paley_1(11), 5: lambda: _paley_1(19), 7: lambda: _paley_2(13)}


@cache
def _factors(n: int) -> tuple[Tensor, ...]:
    """Small orthonormal matrices whose Kronecker product, with an identity if the sizes ask for one, is H_n."""
    odd, power = n, 0
    while odd % 2 == 0:
        odd, power = odd // 2, power + 1
    last: tuple[Tensor, ...] = ()
    if odd in _BASES and power >= 2:
        base = _BASES[odd]()
        last, power = (base / len(base) ** 0.5,), power - 2
    elif odd > 1:
        warnings.warn(
            f"no Hadamard matrix of order {n} is known here; {odd} interleaved transforms of order {2**power} instead",
            UserWarning,
            stacklevel=3,
        )
    sylvester = []
    while power > 0:
        step = min(power, _RADIX.bit_length() - 1)
        h = torch.ones(1, 1, dtype=torch.float64)
        for _ in range(step):
            h = torch.kron(h, torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64))
        sylvester.append(h / 2 ** (step / 2))
        power -= step
    return (*sylvester, *last)


def hadamard_transform(x: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """x H_n along the last axis, with H_n H_n^T = I, in O(n log n).

    Parameters
    ----------
    x : any float dtype. n = 2^k, or 12, 20, 28 or 40 times a power of two, has an exact Hadamard matrix (Sylvester,
        Paley).

    Returns
    -------
    Tensor of the same shape and dtype. For other n it is H_{2^k} kron I_m, still orthogonal, and a ``UserWarning`` is
    issued once.

    Raises
    ------
    TypeError: x holds no real floats. ValueError: n is 0.
    """
    if not x.is_floating_point():
        raise TypeError(f"x must be of a real float dtype, got {x.dtype}")
    n = x.shape[-1]
    if n == 0:
        raise ValueError("x has no channels; expected at least one")
    shape, after = x.shape, n
    for h in _factors(n):
        h = h.to(device=x.device, dtype=x.dtype)
        after //= len(h)
        # all but the last factor are Sylvester's, which are symmetric
        x = x.reshape(-1, len(h)) @ h if after == 1 else h @ x.reshape(-1, len(h), after)
    return x.reshape(shape)


def hadamard_matrix(n: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, "n n"]:
    """H_n as a dense matrix; see :func:`hadamard_transform`.

    Parameters
    ----------
    n : order, at least 1.
    dtype : of the matrix (float32).
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    return hadamard_transform(torch.eye(n, dtype=torch.float64)).to(dtype)


class RotatedLinear(nn.Linear):
    """A linear layer whose input is rotated first: W' (H^T x), where W' = W H."""

    def forward(self, input: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch m"]:
        """Rotate, then multiply."""
        return super().forward(hadamard_transform(input))


@torch.no_grad()
def fuse_hadamard_(model: Any) -> Any:
    """Rotate the residual stream of a float Mamba or Mamba2 model in place; its logits stay.

    Weights of the norms are folded into the projections that follow (and become 1), the head is untied from the
    embedding, and every out_proj becomes a :class:`RotatedLinear`, which rotates its input while running (Sec. 4.2).

    Parameters
    ----------
    model : ``MambaForCausalLM`` or ``Mamba2ForCausalLM`` of transformers.

    Returns
    -------
    The same model.

    Raises
    ------
    TypeError: another class. ValueError: it is rotated already.
    """
    from .graph import check_model

    check_model(model)
    backbone = model.backbone
    if any(isinstance(block.mixer.out_proj, RotatedLinear) for block in backbone.layers):
        raise ValueError("model is rotated already (its out_proj is a RotatedLinear)")
    untie_head_(model)
    _set(backbone.embeddings.weight, hadamard_transform(backbone.embeddings.weight.double()))
    for block in backbone.layers:
        _fold(block.norm.weight, block.mixer.in_proj.weight)
        old = block.mixer.out_proj
        new = RotatedLinear(
            old.in_features, old.out_features, old.bias is not None, old.weight.device, old.weight.dtype
        )
        _set(new.weight, hadamard_transform(hadamard_transform(old.weight.double()).T).T)
        if old.bias is not None:
            _set(new.bias, hadamard_transform(old.bias.double()))
        block.mixer.out_proj = new
    _fold(backbone.norm_f.weight, model.lm_head.weight)
    return model


def untie_head_(model: Any) -> None:
    """Give the head a weight of its own, or edits of the embedding would change it too."""
    if model.lm_head.weight is model.backbone.embeddings.weight:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = False


def _fold(gamma: Tensor, weight: Tensor) -> None:
    """W <- W diag(gamma) H, gamma <- 1."""
    _set(weight, hadamard_transform(weight.double() * gamma.double()))
    gamma.data.fill_(1)


def _set(parameter: Any, value: Tensor) -> None:
    parameter.data = value.to(parameter.dtype).contiguous()
