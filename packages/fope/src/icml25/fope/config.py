"""The settings of FoPE, and the paper's ablations of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsIndex

if TYPE_CHECKING:
    Whole = int
else:
    Whole = SupportsIndex  # numpy's whole numbers, too; ``whole`` makes them int

_CHOICES = {"main_frequency": ("code", "spread"), "init_scale": ("code", "paper")}
_FLAGS = ("fourier_series", "clip_floor", "separate_heads", "separate_basis", "learnable", "normalize")
_YARN = {"scale": None, "original_length": None, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 1.0}


@dataclass(frozen=True)
class FopeConfig:
    """Settings of Fourier position embedding (Eq. 11-13 and the settings of the reported models).

    Parameters
    ----------
    max_train_length : L, tokens per sequence in *training* (not the model's largest context); at least 7 with the default
        floor. Frequencies that do not finish a period in L tokens, w < 2 pi / L, are the under-trained ones.
    sigma : gain of the noise on the coefficients, >= 0; the paper takes 0.3 (60M parameters), 0.4 (180M), 0.6 (1.2B).
    theta : base of the frequencies w_i = theta^(-2i/D), > 1.
    n_freq_dim : D, twice the number of candidate frequencies; even, >= the head's dimension, which is the default. Without
        ``fourier_series`` a pair has its own frequency of the head's grid, and D is not used.
    floor_ratio : r >= 0; frequencies below r * 2 pi / L become the zero frequency.
    fourier_series : FS, whether each pair of dimensions mixes all kept frequencies. Without it a pair keeps its own.
    clip_floor : CF, whether frequencies below the floor become the zero frequency.
    separate_heads : whether each head draws coefficients of its own.
    separate_basis : whether cosine and sine draw coefficients of their own.
    learnable : whether the coefficients are parameters (the paper's are not). In converted models use non-reentrant
        gradient checkpointing with it: reentrant checkpoints lose their gradient.
    zero_sin : sine of the zero-frequency pairs: 1 in the reported models (the pair's score counts twice), 0 in the textbook.
    normalize : divide each series by the sum of its coefficients, as the paper's printed code does and its models do not.
    max_series_pairs : most pairs that carry a series under ``clip_floor``: "d/4" (half of the head stays free of
        position), a number, or None (no cap).
    main_frequency : where a pair's main frequency sits when there are more frequencies than pairs. "code": every s-th with
        s = ceil(I/O), which leaves the last pairs without one; "spread": evenly, each pair has one.
    init_scale : standard deviation of the noise. "code": Xavier-normal of the coefficient tensor with gain sigma;
        "paper": sigma itself.
    yarn : None, or YaRN on the kept frequencies: a mapping of ``scale`` and ``original_length``, optionally ``beta_fast``
        (32), ``beta_slow`` (1) and ``factor`` (1: strength of the frequencies that YaRN leaves alone).
    seed : seed of the coefficients, 0 to 2^63 - 1; the same settings and seed give the same table.

    Raises
    ------
    ValueError, TypeError: naming the argument, what was given and what is expected.
    """

    max_train_length: Whole
    sigma: float | int = 0.3
    theta: float | int = 10000.0
    n_freq_dim: Whole | None = None
    floor_ratio: float | int = 1.0
    fourier_series: bool = True
    clip_floor: bool = True
    separate_heads: bool = True
    separate_basis: bool = True
    learnable: bool = False
    zero_sin: float | int = 1.0
    normalize: bool = False
    max_series_pairs: str | Whole | None = "d/4"
    main_frequency: str = "code"
    init_scale: str = "code"
    yarn: Mapping[str, Any] | None = None
    seed: Whole = 0

    def __post_init__(self) -> None:
        for name, least in (("max_train_length", 1), ("seed", 0), ("n_freq_dim", 4), ("max_series_pairs", 1)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                object.__setattr__(self, name, whole(name, value, least))
        number("sigma", self.sigma, 0)
        number("theta", self.theta, 1, strict=True)
        number("floor_ratio", self.floor_ratio, 0)
        number("zero_sin", self.zero_sin, -math.inf)
        for name in ("max_train_length", "seed"):
            if not isinstance(getattr(self, name), int):
                raise TypeError(f"{name} must be a whole number, got {getattr(self, name)!r}")
        if self.seed >= 2**63:
            raise ValueError(f"seed must be below 2^63, got {self.seed}")
        if self.n_freq_dim is not None and (isinstance(self.n_freq_dim, str) or self.n_freq_dim % 2):
            raise ValueError(f"n_freq_dim must be even, got {self.n_freq_dim!r}")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {choices}, got {getattr(self, name)!r}")
        if isinstance(self.max_series_pairs, str) and self.max_series_pairs != "d/4":
            raise ValueError(f"max_series_pairs must be 'd/4', a number or None, got {self.max_series_pairs!r}")
        if self.yarn is not None:
            object.__setattr__(self, "yarn", MappingProxyType(checked_yarn(self.yarn)))

    def to_dict(self) -> dict[str, Any]:
        """Settings as JSON-able values; ``FopeConfig(**config.to_dict())`` equals ``config``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"yarn": None if self.yarn is None else dict(self.yarn)}

    def __hash__(self) -> int:
        return hash(tuple(tuple(v.items()) if isinstance(v, dict) else v for v in self.to_dict().values()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_dict, (self.to_dict(),)


def ablation(name: str, max_train_length: int, **overrides: Any) -> FopeConfig:
    """Settings of the paper's ablation (Fig. 6a).

    Parameters
    ----------
    name : "rope" (neither part), "clip" (CF: under-trained frequencies become zero), "series" (FS on all frequencies) or
        "fope" (both).
    max_train_length : L in tokens.
    overrides : other settings of ``FopeConfig``.

    Raises
    ------
    ValueError: an unknown name.
    """
    parts = {"rope": (False, False), "clip": (False, True), "series": (True, False), "fope": (True, True)}
    if name not in parts:
        raise ValueError(f"name must be one of {', '.join(parts)}, got {name!r}")
    series, clip = parts[name]
    settings: dict[str, Any] = {"fourier_series": series, "clip_floor": clip} | overrides
    return FopeConfig(max_train_length, **settings)


def check_config(config: Any) -> None:
    """Raise a TypeError for what is not a ``FopeConfig``."""
    if not isinstance(config, FopeConfig):
        raise TypeError(f"config must be a FopeConfig, got {config!r}")


def _from_dict(values: dict[str, Any]) -> FopeConfig:
    return FopeConfig(**values)


def checked_yarn(yarn: Mapping[str, Any]) -> dict[str, float]:
    """YaRN's settings with its defaults, or an error that names the wrong one."""
    if not isinstance(yarn, Mapping):
        raise TypeError(f"yarn must be a mapping of {', '.join(_YARN)}, got {type(yarn).__name__}")
    if unknown := set(yarn) - set(_YARN):
        raise ValueError(f"yarn has unknown keys {sorted(unknown)}; expected {', '.join(_YARN)}")
    if missing := [key for key, default in _YARN.items() if default is None and key not in yarn]:
        raise ValueError(f"yarn needs {', '.join(missing)}; got {dict(yarn)}")
    values = {key: yarn.get(key, default) for key, default in _YARN.items()}
    number("yarn['scale']", values["scale"], 1)
    for key in ("original_length", "beta_fast", "beta_slow"):
        number(f"yarn[{key!r}]", values[key], 0, strict=True)
    number("yarn['factor']", values["factor"], 0)
    if values["beta_fast"] <= values["beta_slow"]:
        raise ValueError(f"yarn: beta_fast must exceed beta_slow, got {values['beta_fast']} and {values['beta_slow']}")
    return {key: float(value) for key, value in values.items()}


def whole(name: str, value: Any, least: float | int) -> int:
    """The value as an int of at least ``least``, or an error that names the argument."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return operator.index(value)


def number(name: str, value: Any, least: float | int, *, strict: bool = False) -> None:
    """Raise an error that names the argument unless it is a finite number of at least ``least`` (above, if strict)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value) or value < least or (strict and value == least):
        bound = "finite" if least == -math.inf else f"finite and {'above' if strict else 'at least'} {least}"
        raise ValueError(f"{name} must be {bound}, got {value}")
