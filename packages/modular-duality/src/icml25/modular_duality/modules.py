"""Modules that know their mass, sensitivity and norm, and how those compose (Section 4)."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, Shaped

from icml25.modular_duality import norms
from icml25.modular_duality.checks import check_integer, check_number
from icml25.modular_duality.orthogonalize import Schedule, check_schedule, positive

__all__ = [
    "Add",
    "ApplyAttentionScores",
    "AttentionQK",
    "AvgPool",
    "Bond",
    "CausalMask",
    "Composition",
    "Concatenation",
    "Conv2D",
    "Embed",
    "Flatten",
    "GeLU",
    "Identity",
    "Linear",
    "MeanSubtract",
    "MergeHeads",
    "Module",
    "Mul",
    "RMSDivide",
    "ReLU",
    "RoPE",
    "Softmax",
    "SplitIntoHeads",
]

Weights = list[Array]
Scalar = Float[Array, ""]


class Module(ABC):
    """A function ``y = f(w, x)`` with a norm for its weights; immutable.

    Weights are a flat list, those that are applied first come first; inputs have features on the last axis and any
    leading batch axes. ``N @ M`` is N after M, ``(M, N)`` gives both outputs (as in ``Add() @ (M, N)``), ``M + N`` their
    sum, ``a * M`` a multiple, ``M ** L`` L copies one after another, each with weights of its own.
    """

    @property
    @abstractmethod
    def mass(self) -> float:
        """Share of the change of the output that the weights may cause, relative to other modules."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """Bound of the change of the output by that of the input, at weights of norm at most 1."""

    @property
    @abstractmethod
    def atoms(self) -> int:
        """Number of weight arrays."""

    @abstractmethod
    def init(self, key: Shaped[Array, "*key"]) -> Weights:
        """Random weights, each of norm 1."""

    @abstractmethod
    def __call__(self, w: Weights, x: Any) -> Any:
        """The output."""

    @abstractmethod
    def norm(self, w: Weights) -> Scalar:
        """The modular norm, a scalar; atoms of mass 0 do not count."""

    @abstractmethod
    def dual_norm(self, g: Weights) -> Scalar:
        """The largest inner product of g with weights of modular norm 1, a scalar."""

    @abstractmethod
    def project(self, w: Weights) -> Weights:
        """Weights near w, each of norm 1."""

    @abstractmethod
    def norm_specs(self) -> list[norms.Norm]:
        """The norm of each weight with its mass and the sensitivity after it, for ``scale_by_modular_dual``."""

    @abstractmethod
    def _dualize(self, g: Weights, target_norm: float, schedule: Schedule) -> Weights: ...

    @abstractmethod
    def _scale_mass(self, factor: float) -> Module: ...

    def dualize(self, g: Weights, target_norm: float = 1.0, schedule: Schedule = "six_step") -> Weights:
        """The weights of modular norm ``target_norm`` with the largest inner product with g.

        Parameters
        ----------
        g : gradient, one array per atom.
        target_norm : at least 0; a number or a scalar array.
        schedule : see :func:`~icml25.modular_duality.orthogonalize`.

        Raises
        ------
        ValueError: all masses are 0, the number or shape of the arrays is wrong, or the schedule is unknown.
        """
        check_schedule(schedule)
        if not isinstance(target_norm, jax.Array):
            check_number("target_norm", target_norm)
        if self.mass == 0:
            raise ValueError("all masses of the module are 0; at least one must be above")
        self._check(g)
        return self._dualize(g, target_norm, schedule)

    def tare(self, absolute: float = 1.0) -> Module:
        """The same module with all masses rescaled to sum to ``absolute``.

        Raises
        ------
        ValueError: absolute is negative or not finite, or there is no mass to rescale.
        """
        check_number("absolute", absolute)
        if self.mass == 0 and absolute > 0:
            raise ValueError(f"all masses of the module are 0 and cannot be rescaled to sum to {absolute}")
        return self._scale_mass(absolute / self.mass) if self.mass else self

    def _check(self, w: Weights) -> None:
        if not isinstance(w, (list, tuple)):
            raise TypeError(f"weights must be a list of {self.atoms} arrays, one per atom, got {type(w).__name__}")
        if len(w) != self.atoms:
            raise ValueError(f"expected {self.atoms} weight arrays, one per atom, got {len(w)}")

    def __matmul__(self, first: Module | tuple[Module, ...]) -> Module:
        """Self after another module, or after several that share the input."""
        return Composition(self, _as_module(first))

    def __rmatmul__(self, last: tuple[Module, ...]) -> Module:
        """Several modules that share self's output."""
        return Composition(_as_module(last), self)

    def __add__(self, other: Module) -> Module:
        """The sum of two outputs."""
        return Add() @ (self, _as_module(other))

    def __mul__(self, factor: float) -> Module:
        """A multiple of the output."""
        return Mul(factor) @ self

    __rmul__ = __mul__

    def __pow__(self, copies: int) -> Module:
        """Copies one after another; none are the identity.

        Raises
        ------
        ValueError: copies is negative or no integer.
        """
        if not isinstance(copies, int) or isinstance(copies, bool) or copies < 0:
            raise ValueError(f"the power must be an integer, at least 0, got {copies!r}")
        return functools.reduce(lambda first, last: last @ first, [self] * copies) if copies else Identity()


def _as_module(modules: Module | tuple[Module, ...]) -> Module:
    if isinstance(modules, tuple):
        return Concatenation(tuple(_as_module(m) for m in modules))
    if not isinstance(modules, Module):
        raise TypeError(f"expected a module or a tuple of modules, got {modules!r}")
    return modules


@dataclass(frozen=True)
class Composition(Module):
    """``last`` after ``first``: sensitivities multiply, masses add.

    norm = max(mu_last (m / m_first) norm(first), (m / m_last) norm(last)).
    """

    last: Module
    first: Module

    @property
    def mass(self) -> float:
        return self.first.mass + self.last.mass

    @property
    def sensitivity(self) -> float:
        return self.first.sensitivity * self.last.sensitivity

    @property
    def atoms(self) -> int:
        return self.first.atoms + self.last.atoms

    def _split(self, w: Weights) -> tuple[Weights, Weights]:
        self._check(w)
        return w[: self.first.atoms], w[self.first.atoms :]

    def init(self, key: Shaped[Array, "*key"]) -> Weights:
        of_first, of_last = jax.random.split(key)
        return self.first.init(of_first) + self.last.init(of_last)

    def __call__(self, w: Weights, x: Any) -> Any:
        w1, w2 = self._split(w)
        return self.last(w2, self.first(w1, x))

    def norm(self, w: Weights) -> Scalar:
        w1, w2 = self._split(w)
        norm = jnp.zeros(())
        if self.first.mass:
            norm = self.last.sensitivity * (self.mass / self.first.mass) * self.first.norm(w1)
        if self.last.mass:
            norm = jnp.maximum(norm, (self.mass / self.last.mass) * self.last.norm(w2))
        return norm

    def dual_norm(self, g: Weights) -> Scalar:
        g1, g2 = self._split(g)
        norm = jnp.zeros(())
        if self.first.mass:
            norm = self.first.mass / self.mass / self.last.sensitivity * self.first.dual_norm(g1)
        if self.last.mass:
            norm = norm + self.last.mass / self.mass * self.last.dual_norm(g2)
        return norm

    def _dualize(self, g: Weights, target_norm: float, schedule: Schedule) -> Weights:
        g1, g2 = self._split(g)
        share = target_norm / (self.mass or 1)
        d1 = self.first._dualize(g1, share * self.first.mass / self.last.sensitivity, schedule)
        return d1 + self.last._dualize(g2, share * self.last.mass, schedule)

    def project(self, w: Weights) -> Weights:
        w1, w2 = self._split(w)
        return self.first.project(w1) + self.last.project(w2)

    def norm_specs(self) -> list[norms.Norm]:
        after = self.last.sensitivity
        first = [replace(spec, sensitivity_after=spec.sensitivity_after * after) for spec in self.first.norm_specs()]
        return first + self.last.norm_specs()

    def _scale_mass(self, factor: float) -> Module:
        return Composition(self.last._scale_mass(factor), self.first._scale_mass(factor))


@dataclass(frozen=True)
class Concatenation(Module):
    """Modules that share an input; the output is the tuple of theirs, its norm the sum. Masses and sensitivities add.

    norm = max over k of (m / m_k) norm(module k).

    Raises
    ------
    ValueError: there is no module.
    """

    modules: tuple[Module, ...]

    def __post_init__(self) -> None:
        if not self.modules:
            raise ValueError("modules is empty; expected at least one")

    @property
    def mass(self) -> float:
        return sum(m.mass for m in self.modules)

    @property
    def sensitivity(self) -> float:
        return sum(m.sensitivity for m in self.modules)

    @property
    def atoms(self) -> int:
        return sum(m.atoms for m in self.modules)

    def _split(self, w: Weights) -> list[tuple[Module, Weights]]:
        self._check(w)
        rest = iter(w)
        return [(m, [next(rest) for _ in range(m.atoms)]) for m in self.modules]

    def init(self, key: Shaped[Array, "*key"]) -> Weights:
        keys = jax.random.split(key, len(self.modules))
        return [w for m, k in zip(self.modules, keys, strict=True) for w in m.init(k)]

    def __call__(self, w: Weights, x: Any) -> tuple[Any, ...]:
        return tuple(m(part, x) for m, part in self._split(w))

    def norm(self, w: Weights) -> Scalar:
        parts = [(self.mass / m.mass) * m.norm(part) for m, part in self._split(w) if m.mass]
        return functools.reduce(jnp.maximum, parts, jnp.zeros(()))

    def dual_norm(self, g: Weights) -> Scalar:
        return sum((m.mass / self.mass * m.dual_norm(part) for m, part in self._split(g) if m.mass), jnp.zeros(()))

    def _dualize(self, g: Weights, target_norm: float, schedule: Schedule) -> Weights:
        share = target_norm / (self.mass or 1)
        return [d for m, part in self._split(g) for d in m._dualize(part, share * m.mass, schedule)]

    def project(self, w: Weights) -> Weights:
        return [p for m, part in self._split(w) for p in m.project(part)]

    def norm_specs(self) -> list[norms.Norm]:
        return [spec for m in self.modules for spec in m.norm_specs()]

    def _scale_mass(self, factor: float) -> Module:
        return Concatenation(tuple(m._scale_mass(factor) for m in self.modules))


@dataclass(frozen=True)
class Atom(Module):
    """A module with one weight array, of sensitivity 1."""

    spec: norms.Norm = field(kw_only=True)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of the weights."""

    @property
    def mass(self) -> float:
        return self.spec.mass

    @property
    def sensitivity(self) -> float:
        return 1.0

    @property
    def atoms(self) -> int:
        return 1

    def _check(self, w: Weights) -> None:
        super()._check(w)
        if w[0].shape != self.shape:
            raise ValueError(f"weights of {self!r} must have shape {self.shape}, got {tuple(w[0].shape)}")

    def _check_input(self, x: Array, features: int) -> None:
        if x.shape[-1:] != (features,):
            raise ValueError(f"inputs of {self!r} must have {features} features on the last axis, got shape {x.shape}")

    def init(self, key: Shaped[Array, "*key"]) -> Weights:
        return [self.spec.initialize(key, self.shape)]

    def norm(self, w: Weights) -> Scalar:
        self._check(w)
        return self.spec.norm(w[0])

    def dual_norm(self, g: Weights) -> Scalar:
        self._check(g)
        return self.spec.dual_norm(g[0])

    def _dualize(self, g: Weights, target_norm: float, schedule: Schedule) -> Weights:
        self._check(g)
        if self.mass == 0:
            return [jnp.zeros_like(g[0])]
        return [(target_norm * self.spec.dualize(g[0], schedule)).astype(g[0].dtype)]

    def project(self, w: Weights) -> Weights:
        self._check(w)
        return [self.spec.project(w[0])]

    def norm_specs(self) -> list[norms.Norm]:
        return [self.spec]

    def _scale_mass(self, factor: float) -> Module:
        return replace(self, spec=replace(self.spec, mass=self.spec.mass * factor))


@dataclass(frozen=True)
class Linear(Atom):
    """``W x``, weights (n_out, n_in) in the RMS -> RMS operator norm."""

    n_out: int
    n_in: int
    spec: norms.Linear = field(default_factory=lambda: norms.Linear(out_axes=(0,), in_axes=(1,)), kw_only=True)

    def __post_init__(self) -> None:
        check_integer("n_out", self.n_out)
        check_integer("n_in", self.n_in)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n_out, self.n_in)

    def __call__(self, w: Weights, x: Float[Array, "*batch n_in"]) -> Float[Array, "*batch n_out"]:
        self._check(w)
        self._check_input(x, self.n_in)
        return x @ w[0].T


@dataclass(frozen=True)
class Embed(Atom):
    """Lookup of rows of a table (num, dim), in the largest RMS norm of a row; nan where there is no such row."""

    dim: int
    num: int
    spec: norms.Embed = field(default_factory=norms.Embed, kw_only=True)

    def __post_init__(self) -> None:
        check_integer("dim", self.dim)
        check_integer("num", self.num)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.num, self.dim)

    def __call__(self, w: Weights, x: Num[Array, "*batch"]) -> Float[Array, "*batch dim"]:
        self._check(w)
        if not jnp.issubdtype(x.dtype, jnp.integer):
            raise TypeError(f"inputs of {self!r} must be integers, got {x.dtype}")
        return jnp.take(w[0], x, axis=0, mode="fill")


@dataclass(frozen=True)
class Conv2D(Atom):
    """Convolution with zero padding ("same") of images (..., height, width, n_in), weights (k, k, n_in, n_out).

    The norm of an image is the largest RMS norm of a pixel's channels.
    """

    n_out: int
    n_in: int
    k: int
    spec: norms.Conv2D = field(default_factory=norms.Conv2D, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("n_out", "n_in", "k"):
            check_integer(name, getattr(self, name))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.k, self.k, self.n_in, self.n_out)

    def __call__(self, w: Weights, x: Float[Array, "*batch h w n_in"]) -> Float[Array, "*batch h w n_out"]:
        self._check(w)
        self._check_input(x, self.n_in)
        images = x.reshape(-1, *x.shape[-3:])
        y = jax.lax.conv_general_dilated(images, w[0], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return y.reshape(*x.shape[:-1], self.n_out)


class Bond(Module):
    """A module without weights: mass 0, nothing to dualize."""

    @abstractmethod
    def forward(self, x: Any) -> Any:
        """The output."""

    @property
    def mass(self) -> float:
        return 0.0

    @property
    def sensitivity(self) -> float:
        return 1.0

    @property
    def atoms(self) -> int:
        return 0

    def init(self, key: Shaped[Array, "*key"]) -> Weights:
        return []

    def __call__(self, w: Weights, x: Any) -> Any:
        self._check(w)
        return self.forward(x)

    def norm(self, w: Weights) -> Scalar:
        self._check(w)
        return jnp.zeros(())

    def dual_norm(self, g: Weights) -> Scalar:
        self._check(g)
        return jnp.zeros(())

    def _dualize(self, g: Weights, target_norm: float, schedule: Schedule) -> Weights:
        self._check(g)
        return []

    def project(self, w: Weights) -> Weights:
        self._check(w)
        return []

    def norm_specs(self) -> list[norms.Norm]:
        return []

    def _scale_mass(self, factor: float) -> Module:
        return self


@dataclass(frozen=True)
class Identity(Bond):
    """x."""

    def forward(self, x: Any) -> Any:
        return x


@dataclass(frozen=True)
class Add(Bond):
    """The sum of a tuple of arrays."""

    def forward(self, x: tuple[Array, ...]) -> Array:
        return functools.reduce(jnp.add, x)


@dataclass(frozen=True)
class Mul(Bond):
    """``factor * x``, sensitivity ``abs(factor)``.

    Raises
    ------
    ValueError, TypeError: factor is 0 or not finite, or no number.
    """

    factor: float

    def __post_init__(self) -> None:
        check_number("factor", self.factor, least=-math.inf, above=True)
        if self.factor == 0:
            raise ValueError(f"factor must be finite and not 0, got {self.factor}")

    @property
    def sensitivity(self) -> float:
        return abs(self.factor)

    def forward(self, x: Any) -> Any:
        return jax.tree.map(lambda array: self.factor * array, x)


@dataclass(frozen=True)
class ReLU(Bond):
    """``max(x, 0)``."""

    def forward(self, x: Array) -> Array:
        return jax.nn.relu(x)


@dataclass(frozen=True)
class GeLU(Bond):
    """GeLU over its largest slope, 1.1289, so that the sensitivity is 1."""

    def forward(self, x: Array) -> Array:
        return jax.nn.gelu(x, approximate=False) / 1.1289


@dataclass(frozen=True)
class Softmax(Bond):
    """Softmax of ``scale * x`` over the last axis, sensitivity ``scale``.

    Raises
    ------
    ValueError, TypeError: scale is not above 0 and finite, or no number.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_number("scale", self.scale, above=True)

    @property
    def sensitivity(self) -> float:
        return self.scale

    def forward(self, x: Array) -> Array:
        return jax.nn.softmax(self.scale * x, axis=-1)


@dataclass(frozen=True)
class SplitIntoHeads(Bond):
    """(..., tokens, heads * d) to (..., heads, tokens, d)."""

    heads: int

    def __post_init__(self) -> None:
        check_integer("heads", self.heads)

    def forward(self, x: Float[Array, "*batch t hd"]) -> Float[Array, "*batch h t d"]:
        return x.reshape(*x.shape[:-1], self.heads, -1).swapaxes(-3, -2)


@dataclass(frozen=True)
class MergeHeads(Bond):
    """(..., heads, tokens, d) to (..., tokens, heads * d)."""

    def forward(self, x: Float[Array, "*batch h t d"]) -> Float[Array, "*batch t hd"]:
        x = x.swapaxes(-3, -2)
        return x.reshape(*x.shape[:-2], -1)


@dataclass(frozen=True)
class RoPE(Bond):
    """Rotary position embedding of an array (..., tokens, d), or of each of a tuple; d is even."""

    base: float = 10000.0

    def __post_init__(self) -> None:
        check_number("base", self.base, above=True)

    def forward(self, x: Any) -> Any:
        return jax.tree.map(self._rotate, x)

    def _rotate(self, x: Float[Array, "*batch t d"]) -> Float[Array, "*batch t d"]:
        tokens, d = x.shape[-2:]
        if d % 2:
            raise ValueError(f"the last axis of a rotated array must be even, got shape {x.shape}")
        frequencies = self.base ** (-2 * jnp.arange(d // 2) / d)
        angles = jnp.arange(tokens)[:, None] * frequencies
        cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
        one, two = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([one * cos - two * sin, one * sin + two * cos], axis=-1)


@dataclass(frozen=True)
class AttentionQK(Bond):
    """Scores ``q . k / d`` of queries and keys (..., tokens, d): 1/d, so that the sensitivity is 1, not 1/sqrt(d)."""

    def forward(self, x: tuple[Array, Array]) -> Float[Array, "*batch t t"]:
        q, k = x
        return q @ k.mT / q.shape[-1]


@dataclass(frozen=True)
class CausalMask(Bond):
    """Scores (..., tokens, tokens), minus infinity where the key is later than the query."""

    def forward(self, x: Float[Array, "*batch t t"]) -> Float[Array, "*batch t t"]:
        return jnp.where(jnp.tri(x.shape[-1], dtype=bool), x, -jnp.inf)


@dataclass(frozen=True)
class ApplyAttentionScores(Bond):
    """Average of values (..., tokens, d) by scores (..., tokens, tokens): takes the tuple (values, scores)."""

    def forward(self, x: tuple[Array, Array]) -> Float[Array, "*batch t d"]:
        values, scores = x
        return scores @ values


@dataclass(frozen=True)
class Flatten(Bond):
    """Images (..., height, width, channels) to vectors."""

    def forward(self, x: Float[Array, "*batch h w c"]) -> Float[Array, "*batch hwc"]:
        return x.reshape(*x.shape[:-3], -1)


@dataclass(frozen=True)
class AvgPool(Bond):
    """Mean over windows of images (..., height, width, channels), whose sides are multiples of ``window``."""

    window: int = 2

    def __post_init__(self) -> None:
        check_integer("window", self.window)

    def forward(self, x: Float[Array, "*batch h w c"]) -> Float[Array, "*batch h2 w2 c"]:
        *batch, height, width, channels = x.shape
        if height % self.window or width % self.window:
            raise ValueError(f"height and width must be multiples of window={self.window}, got {height} and {width}")
        cut = (height // self.window, self.window, width // self.window, self.window)
        return x.reshape(*batch, *cut, channels).mean((-4, -2))


@dataclass(frozen=True)
class MeanSubtract(Bond):
    """x less its mean over the features."""

    def forward(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        return x - x.mean(-1, keepdims=True)


@dataclass(frozen=True)
class RMSDivide(Bond):
    """x over its RMS over the features; sensitivity 1 is declared (it holds where that RMS is at least 1)."""

    def forward(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        rms = jnp.sqrt(jnp.mean(x**2, -1, keepdims=True))
        return x / positive(rms)
