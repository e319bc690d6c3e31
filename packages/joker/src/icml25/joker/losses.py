"""The losses of the paper's Table 1, each given by what its dual needs.

For ``loss(y, u)`` with Fenchel conjugate ``xi*_y`` in ``u``, the dual carries per row ``f(a) = C xi*_y(-a / C)`` over a
box (Theorem 1). A loss is ``f``, ``f'``, ``f''`` and the box; the solver knows nothing else.
"""

from __future__ import annotations

import abc
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

Matrix = Float[Tensor, "rows columns"]
Scalar = float | int

RANGES: dict[str, Callable[[Any], bool]] = {
    "> 0": lambda value: 0 < value < math.inf,
    ">= 0": lambda value: 0 <= value < math.inf,
    ">= 1": lambda value: 1 <= value < math.inf,
    "in (0, 1]": lambda value: 0 < value <= 1,
}


def number(name: str, value: Any, allowed: str, kind: type[int] | type[float] = float) -> Any:
    """Return ``value`` as a Python number of that kind, or raise an error that names it.

    Raises:
        TypeError: not a number of that kind; a bool is none.
        ValueError: outside of the range ``allowed``, a key of ``RANGES``.
    """
    abstract: Any = numbers.Integral if kind is int else numbers.Real
    if not isinstance(value, abstract) or isinstance(value, bool):
        raise TypeError(f"{name} must be {'an integer' if kind is int else 'a number'}, got {value!r}")
    if not RANGES[allowed](value):
        raise ValueError(f"{name} must be {allowed} and finite, got {value!r}")
    return kind(value)


class Loss(abc.ABC):
    """A convex loss, seen through its dual; subclass it to train with a loss of your own.

    All methods act element by element on (rows, columns) tensors. ``split = True`` marks an ``f`` with a kink at 0:
    the solver then works on ``a = a_plus - a_minus``, and ``gradient``, ``curvature`` and ``box`` describe one
    non-negative half (the second half is called with ``-y``).
    """

    task: ClassVar[str]
    split: ClassVar[bool] = False

    @abc.abstractmethod
    def value(self, y: Matrix, u: Matrix) -> Matrix:
        """Return loss(y, u) for targets ``y`` and decision values ``u``."""

    @abc.abstractmethod
    def conjugate(self, a: Matrix, y: Matrix, C: Scalar) -> Matrix:
        """Return f(a) = C xi*_y(-a / C)."""

    @abc.abstractmethod
    def gradient(self, a: Matrix, y: Matrix, C: Scalar) -> Matrix:
        """Return f'(a)."""

    @abc.abstractmethod
    def curvature(self, a: Matrix, y: Matrix, C: Scalar) -> Matrix:
        """Return f''(a), the diagonal of the Hessian."""

    @abc.abstractmethod
    def box(self, y: Matrix, C: Scalar) -> tuple[Matrix, Matrix]:
        """Return the lower and upper bounds of ``a``; infinite where there is none."""

    def bregman(self, a: Matrix, s: Matrix, y: Matrix, C: Scalar) -> Matrix:
        """Return f(a + s) - f(a) - f'(a) s; override it where a closed form avoids the cancellation."""
        return self.conjugate(a + s, y, C) - self.conjugate(a, y, C) - self.gradient(a, y, C) * s

    def start(self, y: Matrix, C: Scalar) -> Matrix:
        """Return the default feasible starting point."""
        return torch.zeros_like(y)


class _QuadraticConjugate(Loss):
    """f(a) = a^2 / (2C) - a y, shared by the losses built from a square."""

    def conjugate(self, a: Matrix, y: Matrix, C: Scalar) -> Matrix:
        return a * a / (2 * C) - a * y

    def gradient(self, a: Matrix, y: Matrix, C: Scalar) -> Matrix:
        return a / C - y

    def curvature(self, a: Matrix, y: Matrix, C: Scalar) -> Matrix:
        return torch.full_like(a, 1 / C)

    def bregman(self, a: Matrix, s: Matrix, y: Matrix, C: Scalar) -> Matrix:
        return s * s / (2 * C)


@dataclass(frozen=True)
class Squared(_QuadraticConjugate):
    """Kernel ridge regression: (y - u)^2 / 2."""

    task = "regression"

    def value(self, y: Matrix, u: Matrix) -> Matrix:
        return (y - u).square() / 2

    def box(self, y: Matrix, C: Scalar) -> tuple[Matrix, Matrix]:
        return torch.full_like(y, -torch.inf), torch.full_like(y, torch.inf)


@dataclass(frozen=True)
class Huber(_QuadraticConjugate):
    """Huber regression: the square inf-convolved with ``delta`` |.|, so the same f over a box (Proposition 2)."""

    delta: Scalar = 1.0
    task = "regression"

    def __post_init__(self) -> None:
        number("delta", self.delta, "> 0")

    def value(self, y: Matrix, u: Matrix) -> Matrix:
        r = (u - y).abs()
        return torch.where(r <= self.delta, r * r / 2, self.delta * (r - self.delta / 2))

    def box(self, y: Matrix, C: Scalar) -> tuple[Matrix, Matrix]:
        return torch.full_like(y, -C * self.delta), torch.full_like(y, C * self.delta)


@dataclass(frozen=True)
class EpsilonInsensitive(Loss):
    """Support vector regression: max(0, |y - u| - epsilon), solved on a = a_plus - a_minus."""

    epsilon: Scalar = 0.1
    task = "regression"
    split = True

    def __post_init__(self) -> None:
        number("epsilon", self.epsilon, ">= 0")

    def value(self, y: Matrix, u: Matrix) -> Matrix:
        return ((y - u).abs() - self.epsilon).clamp_min(0)

    def conjugate(self, a: Matrix, y: Matrix, C: Scalar) -> Matrix:
        return self.epsilon * a.abs() - a * y

    def gradient(self, a: Matrix, y: Matrix, C: Scalar) -> Matrix:
        return self.epsilon - y

    def curvature(self, a: Matrix, y: Matrix, C: Scalar) -> Matrix:
        return torch.zeros_like(a)

    def bregman(self, a: Matrix, s: Matrix, y: Matrix, C: Scalar) -> Matrix:
        return torch.zeros_like(a)

    def box(self, y: Matrix, C: Scalar) -> tuple[Matrix, Matrix]:
        return torch.zeros_like(y), torch.full_like(y, C)


@dataclass(frozen=True)
class SquaredHinge(_QuadraticConjugate):
    """L2 support vector machine: max(0, 1 - y u)^2 / 2, y in {-1, +1}."""

    task = "classification"

    def value(self, y: Matrix, u: Matrix) -> Matrix:
        return (1 - y * u).clamp_min(0).square() / 2

    def box(self, y: Matrix, C: Scalar) -> tuple[Matrix, Matrix]:
        return torch.where(y > 0, 0.0, -torch.inf).to(y.dtype), torch.where(y > 0, torch.inf, 0.0).to(y.dtype)


@dataclass(frozen=True)
class Hinge(Loss):
    """L1 support vector machine: max(0, 1 - y u), y in {-1, +1}."""

    task = "classification"

    def value(self, y: Matrix, u: Matrix) -> Matrix:
        return (1 - y * u).clamp_min(0)

    def conjugate(self, a: Matrix, y: Matrix, C: Scalar) -> Matrix:
        return -a * y

    def gradient(self, a: Matrix, y: Matrix, C: Scalar) -> Matrix:
        return -y

    def curvature(self, a: Matrix, y: Matrix, C: Scalar) -> Matrix:
        return torch.zeros_like(a)

    def bregman(self, a: Matrix, s: Matrix, y: Matrix, C: Scalar) -> Matrix:
        return torch.zeros_like(a)

    def box(self, y: Matrix, C: Scalar) -> tuple[Matrix, Matrix]:
        return (C * y).clamp_max(0), (C * y).clamp_min(0)


@dataclass(frozen=True)
class Logistic(Loss):
    """Kernel logistic regression: log(1 + exp(-y u)), y in {-1, +1}; its f is C times a negative binary entropy."""

    task = "classification"

    def value(self, y: Matrix, u: Matrix) -> Matrix:
        return torch.nn.functional.softplus(-y * u)

    def conjugate(self, a: Matrix, y: Matrix, C: Scalar) -> Matrix:
        p = a * y
        return torch.xlogy(p, p / C) + torch.xlogy(C - p, (C - p) / C)

    def gradient(self, a: Matrix, y: Matrix, C: Scalar) -> Matrix:
        p = a * y
        return y * (p.log() - (C - p).log())

    def curvature(self, a: Matrix, y: Matrix, C: Scalar) -> Matrix:
        p = a * y
        return (C / (p * (C - p))).clamp_max((C * torch.finfo(a.dtype).eps) ** -0.5)

    def bregman(self, a: Matrix, s: Matrix, y: Matrix, C: Scalar) -> Matrix:
        p, d = a * y, s * y
        return (p + d) * torch.log1p(d / p) + (C - p - d) * torch.log1p(-d / (C - p))

    def box(self, y: Matrix, C: Scalar) -> tuple[Matrix, Matrix]:
        edge = C * torch.finfo(y.dtype).eps  # the open interval (0, C), closed where the logarithms are still finite
        lo, hi = torch.full_like(y, edge), torch.full_like(y, C - edge)
        return torch.where(y > 0, lo, -hi), torch.where(y > 0, hi, -lo)

    def start(self, y: Matrix, C: Scalar) -> Matrix:
        return y * (C / 2)  # where the gradient of the entropy vanishes


LOSSES: dict[str, type[Loss]] = {
    "squared": Squared,
    "huber": Huber,
    "epsilon_insensitive": EpsilonInsensitive,
    "squared_hinge": SquaredHinge,
    "hinge": Hinge,
    "logistic": Logistic,
}
