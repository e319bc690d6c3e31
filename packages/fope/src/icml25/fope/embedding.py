"""The position table of FoPE and its application to queries and keys (Eq. 11-13)."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from icml25.fope.config import FopeConfig, check_config, whole
from icml25.fope.frequencies import kept_frequencies, noise_std, series_pairs, step_eye

_CHUNK = 8192  # positions whose series are computed at once, and the most that are cached


@dataclass(frozen=True)
class Spectrum:
    """Complex Fourier coefficients of each pair's series, c(n) + i s(n) = sum_w p_w e^(iwn) + m_w e^(-iwn) (Eq. 13).

    Attributes
    ----------
    frequencies : (I,) radians per token, decreasing.
    positive : (H, O, I) p_w = (a_w^cos + a_w^sin) / 2, near 1 at the pair's main frequency.
    negative : (H, O, I) m_w = (a_w^cos - a_w^sin) / 2, zero without noise.
    """

    frequencies: Float[Tensor, " kept"]
    positive: Float[Tensor, "heads pairs kept"]
    negative: Float[Tensor, "heads pairs kept"]


@dataclass(frozen=True)
class _Cache:
    """Tables (H, n, d) of positions 0 .. n - 1; ``state`` are identity and version of the buffers that they come from."""

    buffers: list[Tensor]  # kept alive, so that no other takes their identity
    state: list[tuple[int, int]]
    cos: Tensor
    sin: Tensor


class FourierPositionEmbedding(nn.Module):
    """Rotate queries and keys by Fourier series of the position instead of single frequencies (Eq. 11-13).

    Dimension j and j + d/2 of a head are a pair ("rotate-half" layout, as in transformers' Llama). Of the d/2 pairs the
    first O carry a series over the I kept frequencies Ω, c(n) = A_cos^T cos(Ω n) and s(n) = A_sin^T sin(Ω n); the others
    have the zero frequency, c = 1 and s = ``zero_sin``. A = noise + step-eye, drawn once per head, part of the
    ``state_dict`` and not trained. One module serves all layers.

    Parameters
    ----------
    head_dim : d, divisible by 4.
    n_heads : H, number of tables = number of key/value heads.
    config : settings.
    generator : source of the coefficients' noise; None takes ``config.seed``. It must be on the CPU.

    Attributes
    ----------
    frequencies : (I,) float32, Ω in radians per token, decreasing.
    cos_coefficients, sin_coefficients : (H or 1, I, O) float32, A; the second is absent with ``separate_basis=False``.
    step_eye, noise_std : (I, O) float32, mean and standard deviation that the coefficients were drawn with.

    Coefficients and how they were drawn are in the ``state_dict``; frequencies are not, they follow from the settings: a
    state loaded into a module with other ``yarn`` has that YaRN.

    Raises
    ------
    ValueError: head_dim is not a multiple of 4, n_heads < 1, no frequency survives, n_freq_dim < head_dim, sigma too large
        for float32, or ``normalize`` where a pair's coefficients sum to zero.
    TypeError: an argument of another type.

    Warns
    -----
    UserWarning: pairs without a main frequency, which ``main_frequency="code"`` leaves when I > O.
    """

    frequencies: Tensor
    _frequencies_rest: Tensor
    step_eye: Tensor
    noise_std: Tensor
    cos_coefficients: Tensor
    sin_coefficients: Tensor

    def __init__(
        self, head_dim: int, n_heads: int, config: FopeConfig, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        check_config(config)
        if whole("head_dim", head_dim, -math.inf) < 4 or head_dim % 4:
            raise ValueError(f"head_dim must be a positive multiple of 4, got {head_dim}")
        n_heads = whole("n_heads", n_heads, 1)
        if not isinstance(generator, (torch.Generator, type(None))):
            raise TypeError(f"generator must be a torch.Generator or None, got {generator!r}")
        self.head_dim, self.n_heads, self.config = int(head_dim), n_heads, config
        kept = kept_frequencies(head_dim, config)
        n_kept, n_pairs = len(kept), series_pairs(head_dim, len(kept), config)
        eye = step_eye(n_kept, n_pairs, config.main_frequency)
        if lacking := int((eye.sum(0) == 0).sum()):
            warnings.warn(
                f"{lacking} of {n_pairs} pairs carry noise and no main frequency (head_dim = {head_dim}, "
                f"{n_kept} kept frequencies), as in the official code; main_frequency='spread' gives each one",
                stacklevel=2,
            )
        if generator is None:
            generator = torch.Generator().manual_seed(config.seed)
        std = noise_std(n_heads, n_kept, n_pairs, config)
        if std > 1e30:
            raise ValueError(f"sigma = {config.sigma:g} is too large: the table would overflow float32")
        shape = (n_heads if config.separate_heads else 1, n_kept, n_pairs)
        self.register_buffer("frequencies", kept.float(), persistent=False)
        self.register_buffer("_frequencies_rest", (kept - kept.float()).float(), persistent=False)
        self.register_buffer("step_eye", eye)
        self.register_buffer("noise_std", torch.full_like(eye, std))
        for name in ("cos_coefficients", "sin_coefficients")[: 1 + config.separate_basis]:
            drawn = eye + std * torch.randn(shape, generator=generator)
            if config.normalize and not drawn.is_meta and (drawn.sum(-2) == 0).any():
                raise ValueError(
                    "normalize divides by the sum of a pair's coefficients, which is zero for pairs without a main frequency "
                    f"and noise (sigma = {config.sigma}); main_frequency='spread' gives each pair one"
                )
            if config.learnable:
                self.register_parameter(name, nn.Parameter(drawn))
            else:
                self.register_buffer(name, drawn)
        self._cache: _Cache | None = None

    def tables(
        self, positions: Tensor
    ) -> tuple[Float[Tensor, "batch heads tokens dim"], Float[Tensor, "batch heads tokens dim"]]:
        """Cosine and sine table of these positions, to be computed once per forward pass and shared by all layers.

        Parameters
        ----------
        positions : (t,) or (b, t) whole numbers >= 0.

        Returns
        -------
        cos, sin : (1 or b, H, t, d) float32, whatever the dtype of the model; dimension j and j + d/2 are equal.

        Raises
        ------
        TypeError: positions is not a tensor of integers.
        ValueError: it has another number of dimensions, or a negative entry.
        """
        _check_positions(positions)
        return self._tables(positions if positions.ndim == 2 else positions[None])

    def _tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The tables of (b, t) positions, which are not checked (that would wait for the device)."""
        positions = positions.long()
        if (cache := self._cached(positions)) is None:
            return self._computed(positions)
        flat = positions.flatten()
        cos, sin = (table.index_select(1, flat).unflatten(1, positions.shape) for table in (cache.cos, cache.sin))
        return cos.transpose(0, 1), sin.transpose(0, 1)

    def _cached(self, positions: Tensor) -> _Cache | None:
        """Tables of 0, 1, ... up to these positions at least, which grow geometrically; None where none are kept.

        They are kept on the CPU only (elsewhere reading the largest position waits for the device), not for coefficients
        that ask for a gradient or were made in inference mode (whose changes are not counted), and dropped when a buffer is
        changed or replaced.
        """
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing() or type(positions) is not Tensor
        if traced or self.config.learnable or positions.device.type != "cpu" or not positions.numel():
            return None
        buffers = [buffer for buffer in self._buffers.values() if buffer is not None]
        if any(buffer.is_inference() or buffer.requires_grad for buffer in buffers):
            return None
        state = [(id(buffer), buffer._version) for buffer in buffers]
        cache = self._cache if self._cache is not None and self._cache.state == state else None
        first, last = (int(n) for n in positions.aminmax())
        size = 0 if cache is None else cache.cos.shape[1]
        if last >= size:
            size = min(max(2 * size, positions.shape[1]), _CHUNK)
            if last < size:
                cos, sin = self._computed(torch.arange(size)[None])
                cache = self._cache = _Cache(buffers, state, cos[0], sin[0])
        return cache if first >= 0 and last < size else None

    def _computed(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The tables of (b, t) positions from the series (Eq. 13)."""
        shape = (len(positions), self.n_heads, positions.shape[1], 2, self.head_dim // 2)
        cos = self.frequencies.new_ones(shape)
        sin = self.frequencies.new_full(shape, self.config.zero_sin)
        cos_coefficients, sin_coefficients = self._coefficients()
        for start in range(0, positions.shape[1], _CHUNK):
            part = slice(start, start + _CHUNK)
            phase = self._phase(positions[:, part]).unsqueeze(1)
            with _without_autocast(phase.device):
                c, s = phase.cos() @ cos_coefficients, phase.sin() @ sin_coefficients
            cos[:, :, part, :, : c.shape[-1]] = c.unsqueeze(-2)
            sin[:, :, part, :, : s.shape[-1]] = s.unsqueeze(-2)
        return cos.flatten(-2), sin.flatten(-2)

    def _phase(self, positions: Tensor) -> Float[Tensor, "batch tokens kept"]:
        """Phase w n, computed and reduced by 2 pi in float64; devices without it (mps) compute it in float32."""
        n = positions.unsqueeze(-1)
        if positions.device.type == "mps":
            return n * self.frequencies
        w = self.frequencies.double() + self._frequencies_rest
        return torch.remainder(n * w, 2 * math.pi).float()

    def _coefficients(self) -> tuple[Tensor, Tensor]:
        cos = self.cos_coefficients
        sin = self.sin_coefficients if self.config.separate_basis else cos
        if self.config.normalize:
            cos, sin = cos / cos.sum(-2, keepdim=True), sin / sin.sum(-2, keepdim=True)
        return cos, sin

    def forward(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys at their positions.

        Parameters
        ----------
        q : (b, H * g, t, d) floating point; g query heads in a row share the table of their key head.
        k : (b, H, t, d).
        positions : (t,) or (b, t) whole numbers >= 0.

        Returns
        -------
        q, k : rotated, in the dtypes that they came in (computed in float32 at least).

        Raises
        ------
        TypeError, ValueError: shapes that do not fit, with both of them; positions as in ``tables``.
        """
        self._check_heads(q, k)
        cos, sin = self.tables(positions)
        tokens = q.shape[2]
        if cos.shape[2] != tokens or len(cos) not in (1, len(q)):
            raise ValueError(f"positions of shape {tuple(positions.shape)} do not fit q of shape {tuple(q.shape)}")
        return rotate(q, cos, sin), rotate(k, cos, sin)

    def _check_heads(self, q: Any, k: Any) -> None:
        for name, x in (("q", q), ("k", k)):
            if not isinstance(x, Tensor) or not x.is_floating_point():
                raise TypeError(f"{name} must be a tensor of floating point numbers, got {_kind(x)}")
        shapes = f"got q {tuple(q.shape)} and k {tuple(k.shape)}"
        if q.ndim != 4 or k.ndim != 4 or q.shape[-1] != self.head_dim or k.shape[-1] != self.head_dim:
            raise ValueError(f"q and k must be (batch, heads, tokens, head_dim = {self.head_dim}); {shapes}")
        if k.shape[1] != self.n_heads or q.shape[1] % self.n_heads or not q.shape[1]:
            raise ValueError(f"k must have n_heads = {self.n_heads} heads and q a multiple of them; {shapes}")
        if q.shape[0] != k.shape[0] or q.shape[2] != k.shape[2]:
            raise ValueError(f"q and k must have the same batch and tokens; {shapes}")

    @property
    def main_rows(self) -> Int[Tensor, " pairs"]:
        """(O,) index in ``frequencies`` of each pair's main frequency, -1 where it has none; the largest if ``extend`` gave two."""
        return torch.where(self.step_eye.sum(0) == 0, -1, self.step_eye.argmax(0))

    @property
    def main_frequencies(self) -> Float[Tensor, " pairs"]:
        """(O,) main frequency of each pair that carries a series, NaN where it has none."""
        found = self.frequencies[self.main_rows.clamp(min=0)]
        return torch.where(self.main_rows < 0, torch.nan, found)

    def spectrum(self) -> Spectrum:
        """Complex Fourier coefficients of the table that was drawn (Eq. 13)."""
        cos, sin = (a.detach().mT.expand(self.n_heads, -1, -1) for a in self._coefficients())
        return Spectrum(self.frequencies, (cos + sin) / 2, (cos - sin) / 2)

    def expected_kernel(self, delta: Tensor | float | int) -> Float[Tensor, "*any pairs"]:
        """Mean over draws of c(n) c(m) + s(n) s(m) at distance delta = n - m, which only depends on the distance.

        cos(w_j delta) + tau^2 sum_w cos(w delta) for a pair with main frequency w_j, 1 + ``zero_sin``^2 for the others; a
        single draw scatters around it and is not shift invariant. A pair that ``extend`` gave a second main frequency is
        relative only in the mean over positions, too: this is that mean.

        Parameters
        ----------
        delta : numbers, any shape.

        Returns
        -------
        (..., d/2) float32.

        Raises
        ------
        ValueError: ``normalize`` is set, for which there is no closed form.
        """
        if self.config.normalize:
            raise ValueError("expected_kernel has no closed form with normalize=True")
        if not isinstance(delta, Tensor):
            delta = torch.tensor(delta)
        delta = delta.to(self.frequencies).unsqueeze(-1)
        main = (delta * self.frequencies).cos() @ (self.step_eye + self.noise_std**2)
        rest = self.frequencies.new_full((self.head_dim // 2 - main.shape[-1],), 1 + self.config.zero_sin**2)
        return torch.cat((main, rest.expand(*main.shape[:-1], -1)), -1)

    def extend(
        self,
        new_length: int,
        generator: torch.Generator | None = None,
        *,
        yarn: Mapping[str, Any] | None = None,
    ) -> FourierPositionEmbedding:
        """The table for training on at another length: old coefficients stay, those of new frequencies are drawn.

        Parameters
        ----------
        new_length : L' in tokens; below L the table is cut, at L it stays.
        generator : source of the new noise; None takes ``config.seed + new_length``.
        yarn : YaRN's settings (see ``FopeConfig``); None keeps those of ``config``.

        Returns
        -------
        FourierPositionEmbedding on the same device, with coefficients equal to the old ones in [..., :I, :O]. The new rows
        are noise + the new length's step-eye, as in the official code, so a pair may gain a second large coefficient.
        """
        config = replace(self.config, max_train_length=new_length, yarn=self.config.yarn if yarn is None else yarn)
        if generator is None:
            generator = torch.Generator().manual_seed(config.seed + config.max_train_length)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* pairs carry noise")  # pairs keep the main frequency that they had
            longer = type(self)(self.head_dim, self.n_heads, config, generator=generator)
        longer.to(self.frequencies.device)
        kept, pairs = (min(a, b) for a, b in zip(self.step_eye.shape, longer.step_eye.shape, strict=True))
        with torch.no_grad():
            for name, value in self.state_dict().items():
                getattr(longer, name)[..., :kept, :pairs] = value[..., :kept, :pairs]
        if not longer.step_eye.is_meta and (lacking := int((longer.main_rows < 0).sum())):
            warnings.warn(
                f"{lacking} of {longer.step_eye.shape[1]} pairs carry noise and no main frequency after the extension "
                f"from {self.config.max_train_length} to {config.max_train_length} tokens",
                stacklevel=2,
            )
        return longer

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return (
            f"head_dim={self.head_dim}, n_heads={self.n_heads}, frequencies={len(self.frequencies)}, "
            f"series_pairs={self.step_eye.shape[1]}, max_train_length={self.config.max_train_length}"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave the cache behind."""
        return self.__dict__ | {"_cache": None}

    def _apply(self, fn: Any, recurse: bool = True) -> FourierPositionEmbedding:
        """Casting the model moves the table, but leaves it in float32: a phase in bfloat16 is noise."""

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move, recurse)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate and scale each pair, out = x * cos + rotate_half(x) * sin with rotate_half(x) = [-x_2, x_1].

    Parameters
    ----------
    x : (b, H * g, t, d); g heads in a row share a table.
    cos, sin : (1 or b, H, t, d) from ``FourierPositionEmbedding.tables``.

    Returns
    -------
    (b, H * g, t, d) in the dtype of x.

    Raises
    ------
    ValueError: tables of other heads, tokens, dimension or batch.
    """
    fits = x.ndim == cos.ndim == 4 and cos.shape == sin.shape and cos.shape[2:] == x.shape[2:]
    if not fits or len(cos) not in (1, len(x)) or not cos.shape[1] or x.shape[1] % cos.shape[1]:
        shapes = f"got x {tuple(x.shape)}, cos {tuple(cos.shape)} and sin {tuple(sin.shape)}"
        raise ValueError(f"x must be (b, H * g, tokens, d), cos and sin (1 or b, H, tokens, d); {shapes}")
    half, grouped = x.shape[-1] // 2, x.shape[1] != cos.shape[1]
    dtype = torch.promote_types(x.dtype, cos.dtype)
    y, c, s = x.to(dtype), cos.to(dtype), sin[..., :half].to(dtype)
    if grouped:
        y, c, s = y.unflatten(1, (cos.shape[1], -1)), c.unsqueeze(2), s.unsqueeze(2)
    out = y * c  # the rest is added in place: long inputs make no other large tensor
    out[..., :half].addcmul_(y[..., half:], s, value=-1)
    out[..., half:].addcmul_(y[..., :half], s)
    return (out.flatten(1, 2) if grouped else out).to(x.dtype)


def _check_positions(positions: Any) -> None:
    """Raise an error unless these are whole numbers of at least 0, (tokens,) or (batch, tokens)."""
    if not isinstance(positions, Tensor):
        raise TypeError(f"positions must be a tensor of whole numbers, got {_kind(positions)}")
    if positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool:
        raise TypeError(f"positions must be whole numbers, got dtype {positions.dtype}")
    if positions.ndim not in (1, 2):
        raise ValueError(f"positions must be (tokens,) or (batch, tokens), got shape {tuple(positions.shape)}")
    if positions.numel() and not positions.is_meta and not torch.compiler.is_compiling() and positions.long().min() < 0:
        raise ValueError(f"positions must be at least 0, got {int(positions.min())}")


def _kind(x: Any) -> str:
    return f"a tensor of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__


def _without_autocast(device: torch.device) -> Any:
    return contextlib.nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
