"""The recurrences of Mamba2 (SSD) and Mamba1 (selective scan) in plain torch, over sequences and one step at a time."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["causal_conv", "selective_scan", "selective_step", "ssd_chunk_scan", "ssd_step"]

_BLOCK = 2**18  # elements of the largest temporary: a MiB of float32, which caches hold


def causal_conv(x: Float[Tensor, "b t c"], weight: Float[Tensor, "c k"]) -> Float[Tensor, "b l c"]:
    """Depthwise convolution y_t = sum_j w_j x_{t+j} of x with its k - 1 past inputs in front: t = l + k - 1."""
    taps = weight.shape[1]
    length = x.shape[1] - taps + 1
    y = x[:, :length] * weight[:, 0]
    for j in range(1, taps):
        y = torch.addcmul(y, x[:, j : j + length], weight[:, j])
    return y


def _wide(*tensors: Tensor) -> list[Tensor]:
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    return [t.to(dtype) for t in tensors]


def _check_shapes(**expected: tuple[Tensor, tuple[int, ...]]) -> None:
    for name, (tensor, shape) in expected.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {tuple(shape)}")


def ssd_chunk_scan(
    x: Float[Tensor, "b l H P"],
    dt: Float[Tensor, "b l H"],
    A: Float[Tensor, "H"],
    B: Float[Tensor, "b l G N"],
    C: Float[Tensor, "b l G N"],
    D: Float[Tensor, "H"],
    chunk_size: int = 32,
    initial_state: Float[Tensor, "b H P N"] | None = None,
    *,
    on_states: Callable[[Tensor], None] | None = None,
) -> tuple[Float[Tensor, "b l H P"], Float[Tensor, "b H P N"]]:
    """h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t, y_t = C_t h_t + D x_t, chunk by chunk with matrix products.

    In a chunk, with s = cumsum(dt A): Y_diag = (C B^T * exp(s_i - s_j) tril) (dt x); its state is
    S = sum_j exp(s_c - s_j) dt_j B_j x_j; between chunks h <- exp(s_c) h + S; Y_off = exp(s_i) C_i h_before;
    y = Y_diag + Y_off + D x. Differentiable.

    Parameters
    ----------
    x : inputs.
    dt : step sizes >= 0, after softplus and clamp.
    A : negative decay rates.
    B, C : input and output maps; H/G heads share each.
    D : skip weights.
    chunk_size : c (32); any length l is fine.
    initial_state : state before the first token (zeros).
    on_states : called with the states (b, k, H, P, N) at the ends of chunks, block by block.

    Returns
    -------
    y, final_state : computed in float32 (float64 for float64 inputs).

    Raises
    ------
    ValueError: chunk_size < 1, l = 0, H is not a multiple of G, other shapes that do not fit, A > 0 or dt < 0.
    """
    x, dt, A, B, C, D = _wide(x, dt, A, B, C, D)
    batch, length, heads, width = x.shape
    groups, n_states = B.shape[2:]
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
    if length == 0:
        raise ValueError("x has length 0; expected at least one token")
    if heads % groups:
        raise ValueError(f"x has {heads} heads, not a multiple of the {groups} groups of B")
    steps, maps = (batch, length, heads), (batch, length, groups, n_states)
    _check_shapes(dt=(dt, steps), A=(A, (heads,)), B=(B, maps), C=(C, maps), D=(D, (heads,)))
    if initial_state is not None:
        _check_shapes(initial_state=(initial_state, (batch, heads, width, n_states)))
    if bool((A > 0).any()) or bool((dt < 0).any()):
        raise ValueError("A must be negative and dt >= 0: states would grow")
    c = min(chunk_size, length)
    state = x.new_zeros(batch, heads, width, n_states) if initial_state is None else initial_state.to(x)
    largest = batch * heads * max(c * c, c * width, width * n_states)  # of a chunk: decays, inputs, state
    block = max(1, _BLOCK // max(largest, 1)) * c  # tokens at a time, to bound the memory of these
    outputs = []
    for start in range(0, length, block):
        part = slice(start, start + block)
        y, state = _ssd_block(x[:, part], dt[:, part], A, B[:, part], C[:, part], D, c, state, on_states)
        outputs.append(y)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1), state


def _ssd_block(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    c: int,
    state: Tensor,
    on_states: Callable[[Tensor], None] | None,
) -> tuple[Tensor, Tensor]:
    batch, length, heads, width = x.shape
    groups, n_states = B.shape[2:]
    per, chunks = heads // groups, -(-length // c)
    if pad := chunks * c - length:  # steps of size 0 leave the state as it is
        x, dt, B, C = (torch.nn.functional.pad(t, (0, 0) * (t.ndim - 2) + (0, pad)) for t in (x, dt, B, C))
    x = x.view(batch, chunks, c, groups, per, width).permute(0, 1, 3, 4, 2, 5)  # b k g h c p
    dt = dt.view(batch, chunks, c, groups, per).permute(0, 1, 3, 4, 2)  # b k g h c
    B = B.view(batch, chunks, c, groups, n_states).transpose(2, 3)  # b k g c n
    C = C.view(batch, chunks, c, groups, n_states).transpose(2, 3)
    s = (dt * A.view(groups, per, 1)).cumsum(-1)
    decay = (s[..., :, None] - s[..., None, :]).clamp_(max=0).exp_()  # above the diagonal tril makes it 0
    dx = x * dt[..., None]
    y = (decay * (C @ B.mT).tril()[:, :, :, None]) @ dx
    kept = (dx * (s[..., -1:] - s).exp()[..., None]).transpose(3, 4)  # b k g c h p
    local = (kept.reshape(batch, chunks, groups, c, per * width).mT @ B).view(batch, chunks, heads, width, n_states)
    shrink = s[..., -1].exp().reshape(batch, chunks, heads, 1, 1)
    previous, state = _between_chunks(local, shrink, state, on_states)
    off = C @ previous.view(batch, chunks, groups, per * width, n_states).mT  # b k g c (h p)
    off = off.view(batch, chunks, groups, c, per, width).transpose(3, 4)
    y = torch.addcmul(torch.addcmul(y, off, s.exp()[..., None]), x, D.view(groups, per, 1, 1))
    return y.permute(0, 1, 4, 2, 3, 5).reshape(batch, chunks * c, heads, width)[:, :length], state


def _between_chunks(
    local: Tensor, shrink: Tensor, state: Tensor, on_states: Callable[[Tensor], None] | None
) -> tuple[Tensor, Tensor]:
    """States before each chunk and after the last: h <- shrink_k h + local_k, with chunks in dimension 1."""
    before = []
    for k in range(local.shape[1]):
        before.append(state)
        state = torch.addcmul(local[:, k], shrink[:, k], state)
    previous = torch.stack(before, 1)
    if on_states is not None:
        on_states(torch.cat([previous[:, 1:], state[:, None]], 1))
    return previous, state


def ssd_step(
    state: Float[Tensor, "b H P N"],
    x: Float[Tensor, "b H P"],
    dt: Float[Tensor, "b H"],
    A: Float[Tensor, "H"],
    B: Float[Tensor, "b G N"],
    C: Float[Tensor, "b G N"],
    D: Float[Tensor, "H"],
) -> tuple[Float[Tensor, "b H P"], Float[Tensor, "b H P N"]]:
    """One token of :func:`ssd_chunk_scan`: y and the new state."""
    per = x.shape[1] // B.shape[1]
    B, C = B.repeat_interleave(per, 1), C.repeat_interleave(per, 1)
    inflow = (x * dt[..., None])[..., None] * B[:, :, None]
    state = torch.addcmul(inflow, (dt * A).exp()[..., None, None], state)
    return (state @ C[..., None])[..., 0] + D[:, None] * x, state


def selective_scan(
    x: Float[Tensor, "b l d"],
    dt: Float[Tensor, "b l d"],
    A: Float[Tensor, "d N"],
    B: Float[Tensor, "b l N"],
    C: Float[Tensor, "b l N"],
    D: Float[Tensor, "d"],
    chunk_size: int | None = None,
    initial_state: Float[Tensor, "b d N"] | None = None,
    *,
    on_states: Callable[[Tensor], None] | None = None,
) -> tuple[Float[Tensor, "b l d"], Float[Tensor, "b d N"]]:
    """Mamba1: h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t, y_t = C_t h_t + D x_t, for each channel.

    All chunks advance together, once for their end states and once for the outputs, so that the sequential part is
    2 c + l/c steps instead of l. Differentiable.

    Parameters
    ----------
    x : inputs.
    dt : step sizes >= 0, after softplus.
    A : negative decay rates.
    B, C : input and output maps, shared by all channels.
    D : skip weights.
    chunk_size : c (about the root of l/2).
    initial_state : state before the first token (zeros).
    on_states : called with the states (b, k, d, N) at the ends of chunks.

    Returns
    -------
    y, final_state : computed in float32 (float64 for float64 inputs).

    Raises
    ------
    ValueError: chunk_size < 1, l = 0, or shapes that do not fit.
    """
    x, dt, A, B, C, D = _wide(x, dt, A, B, C, D)
    batch, length, channels = x.shape
    if length == 0:
        raise ValueError("x has length 0; expected at least one token")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
    maps = (batch, length, A.shape[-1])
    _check_shapes(dt=(dt, x.shape), A=(A, (channels, maps[2])), B=(B, maps), C=(C, maps), D=(D, (channels,)))
    if initial_state is not None:
        _check_shapes(initial_state=(initial_state, (batch, channels, maps[2])))
    c = min(chunk_size or max(1, round((length / 2) ** 0.5)), length)
    chunks = -(-length // c)
    state = x.new_zeros(batch, channels, A.shape[1]) if initial_state is None else initial_state.to(x)
    pad = chunks * c - length
    steps = [torch.nn.functional.pad(t, (0, 0, 0, pad)).view(batch, chunks, c, -1) for t in (x, dt, B, C)]
    xs, dts, Bs, Cs = (t.unbind(2) for t in steps)
    end = x.new_zeros(batch, chunks, channels, A.shape[1])
    for i in range(c):
        end = torch.addcmul((dts[i] * xs[i])[..., None] * Bs[i][:, :, None], (dts[i][..., None] * A).exp(), end)
    shrink = (steps[1].sum(2)[..., None] * A).exp()
    h, state = _between_chunks(end, shrink, state, on_states)
    outputs = []
    for i in range(c):
        h = torch.addcmul((dts[i] * xs[i])[..., None] * Bs[i][:, :, None], (dts[i][..., None] * A).exp(), h)
        outputs.append((h @ Cs[i][..., None])[..., 0])
    y = torch.stack(outputs, 2).reshape(batch, chunks * c, channels)[:, :length]
    return torch.addcmul(y, x, D), state


def selective_step(
    state: Float[Tensor, "b d N"],
    x: Float[Tensor, "b d"],
    dt: Float[Tensor, "b d"],
    A: Float[Tensor, "d N"],
    B: Float[Tensor, "b N"],
    C: Float[Tensor, "b N"],
    D: Float[Tensor, "d"],
) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b d N"]]:
    """One token of :func:`selective_scan`: y and the new state."""
    state = torch.addcmul((dt * x)[..., None] * B[:, None], (dt[..., None] * A).exp(), state)
    return (state @ C[..., None])[..., 0] + D * x, state
