"""The paper's simulator: five candidate instruments, additive nonlinear first stages and direct effects."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from icml25.cat_iv.checks import as_generator, require_whole

__all__ = ["FUNCTIONS", "NOISE", "Simulation", "make_anlce"]

NOISE: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "Uniform": lambda rng, n: rng.uniform(-1, 1, n),
    "Gaussian": lambda rng, n: rng.normal(size=n),
    "Beta": lambda rng, n: rng.beta(2, 2, n),
    "Gamma": lambda rng, n: rng.gamma(2, 1 / 2, n),
    "Lognormal": lambda rng, n: rng.lognormal(size=n),
    "Exponential": lambda rng, n: rng.exponential(size=n),
    "t": lambda rng, n: rng.standard_t(3, n),
}

FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "log": lambda u: np.log(np.abs(u) + 1),
    "sin": np.sin,
    "cos": np.cos,
    "exp": np.exp,
    "square": lambda u: u**2,
    "cubic": lambda u: u**3,
    "sinh": np.sinh,
    "logistic": lambda u: 1 / (1 + np.exp(-u)),
    "atanh": lambda u: np.arctanh(np.clip(u, -0.99, 0.99)),
    "quadratic": lambda u: 1 - 1.5 * u + u**2,
    "polynomial": lambda u: 1 - 1.5 * u + 0.1 * u**2 + 0.5 * u**3,
    "log_quadratic": lambda u: np.log(np.abs(0.5 * u**2 - 0.2 * u) + 1),
    "exp_quadratic": lambda u: np.exp(0.05 * u**2 - u + 1),
    "frequent_sin": lambda u: np.sin(3 * u),
    "frequent_cos": lambda u: np.cos(3 * u),
    "abs_sqrt": lambda u: np.sqrt(np.abs(u)),
    "step": lambda u: np.where(u < 0, 1.0, 2.5),
}


class Simulation(NamedTuple):
    """One draw.

    Attributes
    ----------
    Z : (n, 5) candidates.
    x, y : (n,) treatment and outcome.
    W : (n, 2) covariates, or None.
    beta : effect of x on y; NaN when it is not constant.
    valid : (5,) bool, the valid instruments.
    """

    Z: Float[np.ndarray, "n 5"]
    x: Float[np.ndarray, " n"]
    y: Float[np.ndarray, " n"]
    W: Float[np.ndarray, "n 2"] | None
    beta: float
    valid: Bool[np.ndarray, " 5"]


def make_anlce(
    n: Any,
    case: int = 1,
    effect: str = "linear",
    covariates: bool = False,
    noise: str = "Uniform",
    seed: Any = None,
) -> Simulation:
    """Draw from the additive nonlinear, constant effects model of the paper's first case.

    Z_5 = Z_4^3 + noise, X = sum of Z_1^3, Z_2^3, Z_3^3, cos Z_4, cos Z_5, (Z_3 Z_4 Z_5)^3, U^3 and noise, and
    Y = beta X + U^3 + Z_3^3 + 1.5 Z_4^3 + Z_5^3 + noise: candidates 1 and 2 are valid, 3 to 5 have direct effects.
    Covariates enter every candidate, X and (by half) Y linearly.

    Parameters
    ----------
    n : rows, at least 1.
    case : 1, the only one that was published.
    effect : "linear" (beta ~ Uniform(-1.5, 1.5)), or a name of FUNCTIONS for an effect s(X) that is not constant.
    covariates : whether W1 and W2 exist.
    noise : a name of NOISE, used for every source variable.
    seed : seed or generator.

    Returns
    -------
    Simulation

    Raises
    ------
    ValueError: an unknown case, effect or noise, or n below 1.
    """
    require_whole("n", n, 1)
    if case != 1:
        raise ValueError(f"case is {case!r}; expected 1")
    if effect != "linear" and effect not in FUNCTIONS:
        raise ValueError(f"effect is {effect!r}; expected 'linear' or one of {', '.join(FUNCTIONS)}")
    if noise not in NOISE:
        raise ValueError(f"noise is {noise!r}; expected one of {', '.join(NOISE)}")
    rng = as_generator("seed", seed)

    def draw() -> np.ndarray:
        return NOISE[noise](rng, n)

    def cube(u: np.ndarray) -> np.ndarray:
        return _rescale(u**3)

    W = np.stack([draw(), draw()]) if covariates else None

    def linear_in_w() -> np.ndarray | float:
        return 0.0 if W is None else sum(_rescale(rng.uniform(-1.5, 1.5) * w) for w in W)

    ratio = 0.5 if covariates else 0.3
    u = draw()
    z1, z2, z3, z4 = (linear_in_w() + draw() for _ in range(4))
    z5 = linear_in_w() + cube(z4) + (1.0 if covariates else ratio) * draw()
    x = linear_in_w() + cube(z1) + cube(z2) + cube(z3) + _rescale(np.cos(z4)) + _rescale(np.cos(z5))
    x += (z3 * z4 * z5) ** 3 + cube(u) + ratio * draw()
    beta = rng.uniform(-1.5, 1.5) if effect == "linear" else math.nan
    with np.errstate(over="ignore"):
        response = beta * x if effect == "linear" else _rescale(FUNCTIONS[effect](x))
    y = response + 0.5 * linear_in_w() + cube(u) + cube(z3) + 1.5 * cube(z4) + cube(z5) + ratio * draw()
    valid = np.array([True, True, False, False, False])
    return Simulation(np.column_stack([z1, z2, z3, z4, z5]), x, y, None if W is None else W.T, beta, valid)


def _rescale(out: np.ndarray) -> np.ndarray:
    """Powers of ten that bring a largest value above 100 below 1, and one below 0.01 to at least 100."""
    out = np.where(np.isfinite(out), out, 0.0)
    largest = np.abs(out).max()
    if largest > 100:
        return out / 10 ** (math.floor(math.log10(largest)) + 1)
    if 0 < largest < 0.01:
        return out * 10 ** (2 - math.floor(math.log10(largest)))
    return out
