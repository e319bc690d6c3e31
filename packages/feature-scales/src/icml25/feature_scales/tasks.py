"""Tasks with a known structure."""

from __future__ import annotations

from numbers import Real

import jax
import numpy as np
from jaxtyping import Float

from icml25.feature_scales.model import check_count

__all__ = ["ising_task", "teacher_task"]


def ising_task(
    key: jax.Array, P: int, D: int = 200, dp: float = 0.1
) -> tuple[Float[np.ndarray, "P D"], Float[np.ndarray, " P"]]:
    """Linearly separable Ising task: y = +-1 balanced, x_k = +1 with probability 1/2 + dp y, else -1.

    Parameters
    ----------
    key : key of jax.random.
    P : number of samples; with an odd P one class has one more.
    D : number of spins.
    dp : shift of the probability, between 0 and 1/2.

    Returns
    -------
    X (P, D), y (P,) : float64

    Raises
    ------
    ValueError: P or D below 1, dp outside [0, 1/2].
    """
    _check_sizes(P, D)
    if not isinstance(dp, Real) or not 0 <= dp <= 0.5:
        raise ValueError(f"dp={dp!r}; expected between 0 and 0.5")
    order, spins = jax.random.split(key)
    y = np.where(np.arange(P) % 2 == 0, 1.0, -1.0)[np.asarray(jax.random.permutation(order, P))]
    uniform = np.asarray(jax.random.uniform(spins, (P, D)))
    return np.where(uniform < 0.5 + dp * y[:, None], 1.0, -1.0), y


def teacher_task(key: jax.Array, P: int, D: int) -> tuple[Float[np.ndarray, "P D"], Float[np.ndarray, " P"]]:
    """Linear teacher: standard normal X, y = <u, x> with a random unit vector u.

    Parameters
    ----------
    key : key of jax.random.
    P, D : numbers of samples and of features.

    Returns
    -------
    X (P, D), y (P,) : float64

    Raises
    ------
    ValueError: P or D below 1.
    """
    _check_sizes(P, D)
    inputs, teacher = jax.random.split(key)
    X = np.asarray(jax.random.normal(inputs, (P, D)), dtype=np.float64)
    u = np.asarray(jax.random.normal(teacher, (D,)), dtype=np.float64)
    return X, X @ u / np.linalg.norm(u)


def _check_sizes(P: int, D: int) -> None:
    check_count("P", P)
    check_count("D", D)
