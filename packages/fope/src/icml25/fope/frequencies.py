"""Which frequencies a head uses: RoPE's grid, the floor of the training length, YaRN, and who is whose main frequency."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from icml25.fope.config import FopeConfig, check_config, checked_yarn, number, whole


def rope_frequencies(dim: int, theta: float | int = 10000.0) -> Float[Tensor, " pairs"]:
    """Frequencies of RoPE, w_i = theta^(-2i/dim), i = 0 .. dim/2 - 1, in radians per token and decreasing.

    Parameters
    ----------
    dim : dimension of a head (or the finer grid's D); even.
    theta : base, > 1.

    Returns
    -------
    (dim/2,) float64.

    Raises
    ------
    ValueError: dim is odd or below 2, or theta is not above 1.
    """
    if whole("dim", dim, -math.inf) < 2 or dim % 2:
        raise ValueError(f"dim must be even and at least 2, got {dim}")
    number("theta", theta, 1, strict=True)
    return float(theta) ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def cycles(frequencies: Float[Tensor, "*any"], length: int) -> Float[Tensor, "*any"]:
    """Periods that each frequency finishes in ``length`` tokens, w * length / (2 pi); below 1 it is under-trained (Sec. 3.2).

    Parameters
    ----------
    frequencies : radians per token.
    length : tokens per training sequence.
    """
    return frequencies * (length / (2 * math.pi))


def kept_frequencies(head_dim: int, config: FopeConfig) -> Float[Tensor, " kept"]:
    """Frequencies Ω that survive the floor 2 pi r / L, decreasing, after YaRN if it is set.

    Parameters
    ----------
    head_dim : d.
    config : settings; L is its ``max_train_length``.

    Returns
    -------
    (I,) float64; a frequency exactly on the floor is kept.

    Raises
    ------
    ValueError: none survives, or n_freq_dim < head_dim.
    """
    check_config(config)
    dim = head_dim
    if config.n_freq_dim is not None:
        if config.n_freq_dim < head_dim:
            raise ValueError(f"n_freq_dim must be at least head_dim = {head_dim}, got {config.n_freq_dim}")
        dim = config.n_freq_dim if config.fourier_series else head_dim
    frequencies = rope_frequencies(dim, config.theta)
    keep = torch.ones(len(frequencies), dtype=torch.bool)
    if config.clip_floor:  # the tolerance: theta**(...) of a frequency on the floor is off by rounding
        keep = cycles(frequencies, config.max_train_length) >= config.floor_ratio * (1 - 1e-12)
        if not keep.any():
            raise ValueError(
                f"no frequency survives max_train_length = {config.max_train_length} with floor_ratio = "
                f"{config.floor_ratio}: the largest is 1, the floor {2 * math.pi * config.floor_ratio / config.max_train_length:.3g}"
            )
    if config.yarn is not None:
        frequencies = yarn_frequencies(frequencies, config.theta, **config.yarn)
    return frequencies[keep]


def yarn_frequencies(
    frequencies: Float[Tensor, " pairs"],
    theta: float | int,
    *,
    scale: float | int,
    original_length: float | int,
    beta_fast: float | int = 32.0,
    beta_slow: float | int = 1.0,
    factor: float | int = 1.0,
) -> Float[Tensor, " pairs"]:
    """YaRN: slow frequencies divided by ``scale``, fast ones as they are, a linear ramp between (Peng et al., 2024).

    Parameters
    ----------
    frequencies : the whole grid of ``rope_frequencies``.
    theta : its base.
    scale : new length over the original one.
    original_length : tokens per sequence before the extension.
    beta_fast, beta_slow : turns within ``original_length`` from which on a frequency is left alone, and below which it is
        divided.
    factor : strength of what is left alone, 1 for all of it.

    Raises
    ------
    ValueError, TypeError: naming the setting, as ``FopeConfig(yarn=...)``.
    """
    number("theta", theta, 1, strict=True)
    settings = {"scale": scale, "original_length": original_length}
    checked_yarn(settings | {"beta_fast": beta_fast, "beta_slow": beta_slow, "factor": factor})
    dim = 2 * len(frequencies)

    def index(turns: float) -> float:
        return dim * math.log(original_length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(index(beta_fast)), 0)
    high = min(math.ceil(index(beta_slow)), dim - 1)
    ramp = ((torch.arange(len(frequencies), dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    untouched = (1 - ramp) * factor
    return frequencies / scale * (1 - untouched) + frequencies * untouched


def series_pairs(head_dim: int, n_kept: int, config: FopeConfig) -> int:
    """Pairs O that carry a series: all kept ones up to the cap, which only clipping has, and d/2."""
    cap = head_dim // 2
    if config.fourier_series and config.clip_floor and config.max_series_pairs is not None:
        cap = min(cap, head_dim // 4 if config.max_series_pairs == "d/4" else int(config.max_series_pairs))
    return min(n_kept, cap)


def main_rows(n_kept: int, n_pairs: int, main_frequency: str = "code") -> list[int]:
    """Row of the main frequency of each pair; shorter than ``n_pairs`` where the last pairs have none."""
    if main_frequency == "spread":
        return [round(i * (n_kept - 1) / max(n_pairs - 1, 1)) for i in range(n_pairs)]
    step = math.ceil(n_kept / n_pairs)
    return [i * step for i in range(n_pairs) if i * step < n_kept]


def step_eye(n_kept: int, n_pairs: int, main_frequency: str = "code") -> Float[Tensor, "kept pairs"]:
    """The coefficients without noise: one at each pair's main frequency, zero elsewhere.

    Parameters
    ----------
    n_kept : I, kept frequencies.
    n_pairs : O <= I, pairs that carry a series.
    main_frequency : "code" (every ceil(I/O)-th; the last pairs may get none) or "spread" (evenly).

    Returns
    -------
    (I, O) float32; the identity when I = O.

    Raises
    ------
    ValueError: not 1 <= O <= I.
    """
    if whole("n_pairs", n_pairs, 1) > whole("n_kept", n_kept, 1):
        raise ValueError(f"n_pairs must be at most n_kept = {n_kept}, got {n_pairs}")
    eye = torch.zeros(n_kept, n_pairs)
    rows = main_rows(n_kept, n_pairs, main_frequency)
    eye[rows, range(len(rows))] = 1
    return eye


def noise_std(n_heads: int, n_kept: int, n_pairs: int, config: FopeConfig) -> float:
    """Standard deviation tau of the noise on a coefficient.

    ``init_scale="code"`` is Xavier-normal on the (H, I, O) tensor, whose fans are I O and H O: tau = sigma sqrt(2 / (O (I + H)));
    with one table for all heads the tensor is (I, O): tau = sigma sqrt(2 / (I + O)). ``init_scale="paper"``: tau = sigma.

    Parameters
    ----------
    n_heads : H, tables.
    n_kept, n_pairs : I and O.
    config : settings.
    """
    if not config.fourier_series:
        return 0.0
    if config.init_scale == "paper":
        return float(config.sigma)
    fans = n_pairs * (n_kept + n_heads) if config.separate_heads else n_kept + n_pairs
    return config.sigma * math.sqrt(2 / fans)
