"""The network: f(x) = sum_i w_i phi(V_i . x), V_ij ~ N(0, g_v/D), w_i ~ N(0, g_w/(chi N)), Gaussian noise on f."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

__all__ = ["ConvergenceError", "TwoLayer"]


class ConvergenceError(RuntimeError):
    """An equation has no root within reach, or its solver stopped early; the message gives the residual."""


@dataclass(frozen=True)
class TwoLayer:
    """A Bayesian two-layer network between standard scaling (chi = 1) and mean-field scaling (chi = N).

    Parameters
    ----------
    width : number N of hidden neurons.
    phi : nonlinearity, "linear", "erf" or "relu".
    g_w : readout variance times N at chi = 1.
    g_v : variance of a hidden weight times D.
    noise : variance kappa of the Gaussian likelihood (the temperature of Langevin training).
    chi : the readout variance is g_w/(chi N).
    noise_scaling : "chi" divides the noise by chi as well, so that the signal survives at large chi; "none" keeps it.
    allow_sublazy : allow 0 < chi < 1.

    Raises
    ------
    ValueError: naming the parameter, what was given and what was expected.
    """

    width: int
    phi: str
    g_w: int | float
    g_v: int | float
    noise: int | float
    chi: int | float = 1.0
    noise_scaling: str = "chi"
    allow_sublazy: bool = False

    def __post_init__(self) -> None:
        check_count("width", self.width)
        if self.phi not in ("linear", "erf", "relu"):
            raise ValueError(f"phi={self.phi!r}; expected 'linear', 'erf' or 'relu'")
        for name in ("g_w", "g_v", "noise", "chi"):
            value = getattr(self, name)
            if not isinstance(value, Real) or isinstance(value, bool) or not 1e-75 < float(value) < 1e75:
                raise ValueError(f"{name}={value!r}; expected a number between 1e-75 and 1e75")
        if self.chi < 1 and not self.allow_sublazy:
            raise ValueError(f"chi={self.chi!r}; expected at least 1 (or allow_sublazy=True)")
        if self.noise_scaling not in ("chi", "none"):
            raise ValueError(f"noise_scaling={self.noise_scaling!r}; expected 'chi' or 'none'")

    def standard(self) -> TwoLayer:
        """The same network in standard scaling, chi = 1."""
        return replace(self, chi=1.0)

    def mean_field(self) -> TwoLayer:
        """The same network in mean-field scaling, chi = N."""
        return replace(self, chi=float(self.width))

    def effective(self) -> tuple[float, float]:
        """Readout variance times N, g_w/chi, and noise: kappa/chi, or kappa with noise_scaling "none"."""
        return self.g_w / self.chi, self.noise / self.chi if self.noise_scaling == "chi" else self.noise


def check_network(net: TwoLayer) -> None:
    """A network and nothing else."""
    if not isinstance(net, TwoLayer):
        raise TypeError(f"net={net!r}; expected a TwoLayer")


def check_count(name: str, value: int, least: int = 1) -> None:
    """An integer of at least ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= value < 2**63:
        raise ValueError(f"{name}={value!r}; expected an integer of at least {least}")


def as_points(name: str, X: ArrayLike, features: int | None = None) -> np.ndarray:
    """Inputs as finite float64 of shape (P, D)."""
    points = as_floats(name, X)
    if points.ndim != 2 or 0 in points.shape:
        raise ValueError(f"{name} has shape {points.shape}; expected (P, D) with P, D >= 1")
    if features is not None and points.shape[1] != features:
        raise ValueError(f"{name} has {points.shape[1]} features; expected {features}")
    return points


def as_targets(name: str, y: ArrayLike, length: int) -> Float[np.ndarray, " P"]:
    """Targets as finite float64 of shape (P,); a single column is flattened."""
    targets = as_floats(name, y)
    if targets.ndim == 2 and targets.shape[1] > 1:
        raise ValueError(f"{name} has shape {targets.shape}; several outputs share hidden weights: expected (P,)")
    if targets.shape not in ((length,), (length, 1)):
        raise ValueError(f"{name} has shape {targets.shape}; expected ({length},), one target per row of X")
    return targets.reshape(length)


def as_floats(name: str, value: Any) -> np.ndarray:
    """Finite float64, small enough to be squared twice."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is not an array: {error}") from None
    if not np.can_cast(array.dtype, np.float64, "same_kind"):
        raise TypeError(f"{name} has dtype {array.dtype}; expected real numbers")
    array = array.astype(np.float64)
    if not (np.abs(array) < 1e75).all():
        raise ValueError(f"{name} holds NaN, infinity or a number beyond 1e75; expected finite numbers")
    return array
