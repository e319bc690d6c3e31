"""Norms of weights, and their duality maps: what a weight is for, as data.

A specification says how one leaf of a parameter tree is used (a matrix, a table of embeddings, ...) and so which norm
measures it. ``dualize(G) = argmax over norm(T) = 1 of <G, T>``, ``dual_norm(G)`` is that maximum (Section 3).
"""

from __future__ import annotations

import itertools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree, Shaped

from icml25.modular_duality.checks import check_axes, check_integer, check_number
from icml25.modular_duality.orthogonalize import Schedule, orthogonalize, positive

__all__ = ["Bias", "Conv2D", "Embed", "Frozen", "Linear", "Norm", "Scale", "infer_norms"]

Scalar = Float[Array, ""]
_Weights = Shaped[Array, "*shape"]
_Leaf = Shaped[Array | jax.ShapeDtypeStruct, "*shape"]
N = TypeVar("N", bound="Norm")


@dataclass(frozen=True, kw_only=True)
class Norm(ABC):
    """How one weight array is measured; frozen and hashable, so that it can be static under jit.

    Parameters
    ----------
    mass : share of the change of the output that this weight may cause, relative to the others; at least 0.
    sensitivity_after : product of the sensitivities of all modules applied after it; above 0.

    Raises
    ------
    ValueError, TypeError: mass or sensitivity_after is out of range, or no number.
    """

    mass: float = 1.0
    sensitivity_after: float = 1.0

    def __post_init__(self) -> None:
        check_number("mass", self.mass)
        check_number("sensitivity_after", self.sensitivity_after, above=True)

    def check(self, W: _Leaf, path: str = "weights") -> None:
        """Refuse an array that this norm is not for.

        Raises
        ------
        TypeError: it is no array, or not of a real floating dtype.
        ValueError: it has the wrong axes, or is empty.
        """
        dtype = getattr(W, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            got = type(W).__name__ if dtype is None else dtype
            raise TypeError(f"{path} must be of a real floating dtype, got {got}; Frozen() leaves it alone")
        if 0 in W.shape:
            raise ValueError(f"{path} has shape {tuple(W.shape)}, which is empty")
        if problem := self._misfit(W.ndim):
            raise ValueError(f"{path} has shape {tuple(W.shape)}, but {type(self).__name__} {problem}")

    def _misfit(self, ndim: int) -> str | None:
        """What is wrong with so many axes."""
        return None

    def norm(self, W: _Weights) -> Scalar:
        """The norm of the weights, a scalar."""
        self.check(W)
        return self._norm(_wide(W))

    def dual_norm(self, G: _Weights) -> Scalar:
        """The largest inner product of G with weights of norm 1, a scalar."""
        self.check(G)
        return self._dual_norm(_wide(G))

    def dualize(self, G: _Weights, schedule: Schedule = "six_step") -> _Weights:
        """The weights of norm 1 with the largest inner product with G; zero where G is zero.

        Parameters
        ----------
        G : gradient; its inner axes and dtype are those of the result.
        schedule : see :func:`~icml25.modular_duality.orthogonalize`; only "svd" is exact.

        Raises
        ------
        ValueError, TypeError: G is not what this norm is for, or the schedule is unknown.
        """
        self.check(G)
        return self._dualize(_wide(G), schedule).astype(G.dtype)

    def project(self, W: _Weights, schedule: Schedule = "six_step") -> _Weights:
        """Weights of norm 1 near W: the duality map, applied to weights."""
        return self.dualize(W, schedule)

    def initialize(
        self, key: Shaped[Array, "*key"], shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
    ) -> _Weights:
        """Random weights of norm 1: the duality map (exact) of a Gaussian."""
        wide = jnp.promote_types(dtype, jnp.float32)
        return self.dualize(jax.random.normal(key, shape, wide), "svd").astype(dtype)

    @abstractmethod
    def _norm(self, W: Array) -> Array: ...

    @abstractmethod
    def _dual_norm(self, G: Array) -> Array: ...

    @abstractmethod
    def _dualize(self, G: Array, schedule: Schedule) -> Array: ...


@dataclass(frozen=True)
class _Matrices(Norm, ABC):
    """k^2 sqrt(in/out) times the largest sigma of all matrices; dual the sum over k^2 sqrt(in/out); map U V^T over that."""

    @abstractmethod
    def _linear(self, W: _Leaf) -> tuple[Linear, int]:
        """The axes of the matrices as those of Linear, and k^2."""

    def _layout(self, W: _Leaf) -> tuple[list[int], int, int, float]:
        """Axes in the order (batch, out, in), sizes of out and in, k^2 sqrt(in/out)."""
        linear, k2 = self._linear(W)
        axes = [axis % W.ndim for axis in (*linear.batch_axes, *linear.out_axes, *linear.in_axes)]
        n_out = math.prod(W.shape[axis] for axis in linear.out_axes)
        n_in = math.prod(W.shape[axis] for axis in linear.in_axes)
        return axes, n_out, n_in, k2 * math.sqrt(n_in / n_out)

    def matrices(self, W: Array) -> Array:
        """Matrices (batch, out, in)."""
        axes, n_out, n_in, _ = self._layout(W)
        return W.transpose(axes).reshape(-1, n_out, n_in)

    def from_orthogonal(self, matrices: Array, like: _Leaf) -> Array:
        """Weights of norm 1, laid out like these, from orthogonal matrices (batch, out, in)."""
        axes, _, _, scale = self._layout(like)
        unflattened = (matrices / scale).reshape([like.shape[axis] for axis in axes])
        return unflattened.transpose([axes.index(axis) for axis in range(like.ndim)])

    def _norm(self, W: Array) -> Array:
        return jnp.max(jnp.linalg.svd(self.matrices(W), compute_uv=False)) * self._layout(W)[-1]

    def _dual_norm(self, G: Array) -> Array:
        return jnp.sum(jnp.linalg.svd(self.matrices(G), compute_uv=False)) / self._layout(G)[-1]

    def _dualize(self, G: Array, schedule: Schedule) -> Array:
        return self.from_orthogonal(orthogonalize(self.matrices(G), schedule), G)


@dataclass(frozen=True)
class Linear(_Matrices):
    """RMS -> RMS operator norm sqrt(in/out) sigma_max; dual sqrt(out/in) sum of sigma; map sqrt(out/in) U V^T.

    Parameters
    ----------
    out_axes, in_axes : axes of outputs and of inputs, several are flattened; the default is flax's (in, out). A kernel
        (features, heads, head_dim) has out_axes=(-2, -1) and in_axes=(-3,).
    batch_axes : axes of stacked layers, each of them a matrix: the norm is the largest of theirs, the dual their sum.
    """

    out_axes: tuple[int, ...] = (-1,)
    in_axes: tuple[int, ...] = (-2,)
    batch_axes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("out_axes", "in_axes", "batch_axes"):
            check_axes(name, getattr(self, name))

    def _misfit(self, ndim: int) -> str | None:
        axes = (*self.batch_axes, *self.out_axes, *self.in_axes)
        if not self.out_axes or not self.in_axes or any(not -ndim <= axis < ndim for axis in axes):
            problem = "are not axes of it"
        elif sorted(axis % ndim for axis in axes) != list(range(ndim)):
            problem = "do not name each axis once"
        else:
            return None
        return f"out_axes={self.out_axes}, in_axes={self.in_axes}, batch_axes={self.batch_axes} {problem}"

    def _linear(self, W: _Leaf) -> tuple[Linear, int]:
        return self, 1


@dataclass(frozen=True)
class Conv2D(_Matrices):
    """k^2 times the largest RMS -> RMS norm of a tap; dual and map are Linear's of each tap, divided by k^2.

    Parameters
    ----------
    layout : order of the axes, height, width, inputs, outputs: "HWIO" (flax) or "OIHW" (torch) or another.
    """

    layout: str = "HWIO"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.layout, str) or sorted(self.layout) != sorted("HWIO"):
            raise ValueError(f"layout must be the letters H, W, I and O in some order, got {self.layout!r}")

    def _misfit(self, ndim: int) -> str | None:
        return None if ndim == 4 else "needs 4 axes (one group of channels)"

    def _linear(self, W: _Leaf) -> tuple[Linear, int]:
        height, width, n_in, n_out = (self.layout.index(letter) for letter in "HWIO")
        return Linear((n_out,), (n_in,), (height, width)), W.shape[height] * W.shape[width]


@dataclass(frozen=True)
class _Vectors(Norm, ABC):
    """The largest RMS norm of vectors; dual the sum of sqrt(d) times their lengths; map g / RMS(g)."""

    @abstractmethod
    def _features(self, ndim: int) -> tuple[int, ...]:
        """Axes of a vector."""

    def _scaled(self, W: Array) -> tuple[Array, Array, Array]:
        """Vectors over their largest entry (squares of small numbers underflow), that entry, the RMS norm of the former."""
        axes = self._features(W.ndim)
        peak = jnp.max(jnp.abs(W), axes, keepdims=True)
        vectors = W / positive(peak)
        return vectors, peak, jnp.sqrt(jnp.mean(vectors**2, axes, keepdims=True))

    def _norm(self, W: Array) -> Array:
        _, peak, rms = self._scaled(W)
        return jnp.max(peak * rms)

    def _dual_norm(self, G: Array) -> Array:
        _, peak, rms = self._scaled(G)
        return jnp.sum(peak * rms) * math.prod(G.shape[axis] for axis in self._features(G.ndim))

    def _dualize(self, G: Array, schedule: Schedule) -> Array:
        vectors, _, rms = self._scaled(G)
        return vectors / positive(rms)


@dataclass(frozen=True)
class Embed(_Vectors):
    """l1 -> RMS norm, the largest RMS of an embedding; a row that is zero (not in the batch) stays put.

    Parameters
    ----------
    dim_axis : axis of the features; the default is flax's (num, features).
    """

    dim_axis: int = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("dim_axis", self.dim_axis, least=-2)

    def _misfit(self, ndim: int) -> str | None:
        return (
            None if ndim == 2 and -2 <= self.dim_axis < 2 else f"needs 2 axes and dim_axis={self.dim_axis} among them"
        )

    def _features(self, ndim: int) -> tuple[int, ...]:
        return (self.dim_axis,)


@dataclass(frozen=True)
class Bias(_Vectors):
    """RMS norm of a vector that is added.

    Parameters
    ----------
    batch_axes : axes of stacked layers, each of them a vector; all others are one vector.
    """

    batch_axes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_axes("batch_axes", self.batch_axes)

    def _misfit(self, ndim: int) -> str | None:
        stacked = {axis % ndim for axis in self.batch_axes} if ndim else set()
        if len(stacked) < len(self.batch_axes) or any(not -ndim <= axis < ndim for axis in self.batch_axes):
            return f"batch_axes={self.batch_axes} are not distinct axes of it"
        return None if len(stacked) < ndim else "needs an axis of features"

    def _features(self, ndim: int) -> tuple[int, ...]:
        stacked = {axis % ndim for axis in self.batch_axes}
        return tuple(axis for axis in range(ndim) if axis not in stacked)


@dataclass(frozen=True)
class Scale(Norm):
    """Largest absolute value of factors per feature; dual their sum; map the sign, and 0 at 0."""

    def _norm(self, W: Array) -> Array:
        return jnp.max(jnp.abs(W))

    def _dual_norm(self, G: Array) -> Array:
        return jnp.sum(jnp.abs(G))

    def _dualize(self, G: Array, schedule: Schedule) -> Array:
        return jnp.sign(G)


@dataclass(frozen=True, kw_only=True)
class Frozen(Norm):
    """A leaf of any dtype that does not move: norm 0, mass 0, zero update."""

    mass: float = 0.0

    def __post_init__(self) -> None:
        if self.mass != 0:
            raise ValueError(f"mass of a frozen leaf must be 0, got {self.mass}")
        super().__post_init__()

    def check(self, W: _Leaf, path: str = "weights") -> None:
        """Take anything."""

    def project(self, W: _Weights, schedule: Schedule = "six_step") -> _Weights:
        """The weights as they are."""
        return W

    def _norm(self, W: Array) -> Array:
        return jnp.zeros(())

    def _dual_norm(self, G: Array) -> Array:
        return jnp.zeros(())

    def _dualize(self, G: Array, schedule: Schedule) -> Array:
        return jnp.zeros_like(G)


SMALL = 2**16  # entries of a matrix from which on a device is busy with that one


def dualize_together(norms: Sequence[Norm], gradients: Sequence[Array], schedule: Schedule) -> list[Array]:
    """Duality maps of several weights; small matrices of one shape go through the iteration as one batch."""
    duals: list[Any] = [None] * len(norms)
    groups: dict[Any, list[tuple[int, _Matrices, Array]]] = {}
    for k, (norm, G) in enumerate(zip(norms, gradients, strict=True)):
        wide = _wide(G)
        if isinstance(norm, _Matrices) and (matrices := norm.matrices(wide))[0].size <= SMALL:
            groups.setdefault((matrices.shape[1:], wide.dtype), []).append((k, norm, matrices))
        else:
            duals[k] = norm._dualize(wide, schedule)
    for group in groups.values():
        ends = list(itertools.accumulate(len(matrices) for *_, matrices in group))
        batch = orthogonalize(jnp.concatenate([matrices for *_, matrices in group]), schedule)
        for (k, norm, _), matrices in zip(group, jnp.split(batch, ends[:-1]), strict=True):
            duals[k] = norm.from_orthogonal(matrices, gradients[k])
    return [dual.astype(G.dtype) for dual, G in zip(duals, gradients, strict=True)]


def tare(norms: Sequence[N], total: float) -> list[N]:
    """Rescale masses to sum to ``total``.

    Raises
    ------
    ValueError: total is negative or not finite, or all masses are 0 and total is not.
    """
    check_number("mass", total)
    mass = sum(norm.mass for norm in norms)
    if mass == 0 and total > 0:
        raise ValueError(f"masses are all 0 and cannot be rescaled to sum to {total}")
    return [replace(norm, mass=norm.mass * total / mass) if mass else norm for norm in norms]


def infer_norms(
    params: PyTree,
    *,
    rules: Sequence[tuple[str, Norm]] | None = None,
    masses: Mapping[str, float] | None = None,
) -> PyTree:
    """A norm for each leaf of a parameter tree, by name and shape as flax (linen, nnx) lays them out.

    ``kernel`` with 2 axes is Linear and with 4 Conv2D, ``embedding`` Embed, ``bias`` Bias, ``scale`` Scale. Without an
    architecture all sensitivities are 1 and all masses equal.

    Parameters
    ----------
    params : the parameters, or their shapes and dtypes.
    rules : (regular expression, norm), looked up in order before the above; the expression is searched in the leaf's
        path, "layers_0/kernel". Other layouts (equinox's ``weight``, kernels with heads, stacked layers) need one.
    masses : regular expression -> total mass of the leaves whose paths it is found in, kept in proportion.

    Returns
    -------
    tree of norms with the structure of params.

    Raises
    ------
    ValueError: a leaf that no rule knows, or whose axes do not fit; an expression of masses that no leaf has. The
        message names the path. An expression that is none.
    TypeError: a leaf that is neither of a real floating dtype nor frozen; rules or masses of other types.
    """
    for rule in rules or ():
        if not isinstance(rule, tuple) or len(rule) != 2 or not isinstance(rule[1], Norm):
            raise TypeError(f"rules must hold pairs (regular expression, norm), got {rule!r}")
    if not isinstance(masses or {}, Mapping):
        raise TypeError(f"masses must map regular expressions to masses, got {masses!r}")
    known = [(_expression("rules", pattern), norm) for pattern, norm in rules or ()]
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    paths = [path_name(path) for path, _ in leaves]
    norms = []
    for path, (_, leaf) in zip(paths, leaves, strict=True):
        norm = next((norm for pattern, norm in known if pattern.search(path)), None) or _by_name(path, leaf)
        norm.check(leaf, path)
        norms.append(norm)
    for pattern, total in (masses or {}).items():
        places = [k for k, path in enumerate(paths) if _expression("masses", pattern).search(path)]
        if not places:
            raise ValueError(f"masses: no leaf's path has {pattern!r}; there are {', '.join(paths)}")
        for place, norm in zip(places, tare([norms[k] for k in places], total), strict=True):
            norms[place] = norm
    return structure.unflatten(norms)


def _expression(name: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(f"{name}: {pattern!r} is not a regular expression: {error}") from None


def path_name(path: tuple[Any, ...]) -> str:
    """``layers_0/kernel``: keys of a leaf, without the box that flax puts around its value."""
    names = [jax.tree_util.keystr((key,), simple=True) for key in path]
    return "/".join(name for name in names if name not in ("value", "raw_value")) or "the only leaf"


def _by_name(path: str, leaf: Any) -> Norm:
    name, shape = path.rsplit("/", 1)[-1], tuple(getattr(leaf, "shape", ()))
    known = {("kernel", 2): Linear(), ("kernel", 4): Conv2D(), ("embedding", 2): Embed()}
    if norm := known.get((name, len(shape))) or {"bias": Bias(), "scale": Scale()}.get(name):
        return norm
    raise ValueError(f"{path}, shape {shape}, is not known; give a rule such as ({path!r}, Linear(...))")


def _wide(W: Array) -> Array:
    return W.astype(jnp.promote_types(W.dtype, jnp.float32))
