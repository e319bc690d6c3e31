"""How much one example of the context can change a prediction, and what follows for unseen tasks."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from icml25.icl_hopfield import checks
from icml25.icl_hopfield.checks import ArrayLike, Real


def stability_bound(n: ArrayLike, V: Real, R_k: Real, R_q: Real, beta: Real) -> Float[np.ndarray, "..."]:
    """eps_n = 4 V / (1 + (n - 1) exp(-2 Gamma)), Gamma = beta R_k R_q: replacing one of n examples moves attention no more.

    Parameters
    ----------
    n : examples, integers >= 1.
    V, R_k, R_q : >= 0, largest norms of values, keys and queries.
    beta : > 0, inverse temperature.

    Returns
    -------
    of the shape of n

    Raises
    ------
    ValueError: an argument outside its range.
    """
    n = np.asarray(n)
    if not (np.issubdtype(n.dtype, np.integer) and (n >= 1).all()):
        raise ValueError(f"n must be integers >= 1, got {n}")
    for name, value in (("V", V), ("R_k", R_k), ("R_q", R_q)):
        checks.number(value, name, 0)
    checks.number(beta, "beta", 0, open_low=True)
    return np.asarray(4 * V / (1 + (n - 1) * np.exp(-2 * beta * R_k * R_q)))


def generalization_bound(
    n: int,
    T: int,
    B: Real,
    L: Real,
    *,
    V: Real,
    R_k: Real,
    R_q: Real,
    beta: Real,
    delta: Real,
    log_cover: Real = 0.0,
    tau: Real = 0.0,
) -> float:
    """Bound of |risk - empirical risk| of in-context predictions, with probability 1 - delta over the examples of the tasks.

    2 L tau + (B + K (1 + log n)) sqrt((log(2 / delta) + log_cover) / (2 n T)) with K = 4 L V exp(2 beta R_k R_q), by bounded differences.

    Parameters
    ----------
    n : examples per task; the risk averages the predictions of each from those before it.
    T : tasks.
    B : the loss is in [0, B].
    L : Lipschitz constant of the loss in the prediction.
    V, R_k, R_q : largest norms of values, keys and queries.
    beta : > 0, inverse temperature.
    delta : in (0, 1].
    log_cover : log of the size of a tau-cover of the class of models in sup distance of predictions; 0 for a fixed model.
    tau : its radius; 0 for a fixed model.

    Returns
    -------
    float, infinite where exp(2 beta R_k R_q) overflows

    Raises
    ------
    ValueError: an argument outside its range.
    """
    checks.count(n, "n")
    checks.count(T, "T")
    for name, value in (
        ("B", B),
        ("L", L),
        ("V", V),
        ("R_k", R_k),
        ("R_q", R_q),
        ("log_cover", log_cover),
        ("tau", tau),
    ):
        checks.number(value, name, 0)
    checks.number(beta, "beta", 0, open_low=True)
    checks.number(delta, "delta", 0, 1, open_low=True)
    with np.errstate(over="ignore"):
        K = 4 * L * V * np.exp(2 * beta * R_k * R_q) if L * V else 0.0
    return float(2 * L * tau + (B + K * (1 + np.log(n))) * np.sqrt((np.log(2 / delta) + log_cover) / (2 * n * T)))


def _largest(name: str, given: Real | None, *parts: Float[Array, "..."]) -> float:
    """The given radius, or that of the data, which must not exceed it."""
    found = max(float(jnp.sqrt((part.reshape(len(part), -1) ** 2).sum(-1).max())) for part in parts)
    if given is None:
        return found
    if found > given * (1 + 1e-6):
        raise ValueError(f"{name} = {given:g} is smaller than the largest norm in the data, {found:g}")
    return float(given)


def stability_profile(
    predict_fn: Callable[[Array, Array, Array], Array],
    x: ArrayLike,
    y: ArrayLike,
    q: ArrayLike,
    pool: tuple[Any, Any],
    *,
    sizes: Sequence[int] | None = None,
    beta: Real | None = None,
    V: Real | None = None,
    R_k: Real | None = None,
    R_q: Real | None = None,
) -> Float[np.ndarray, "sizes 2"]:
    """Largest change of a prediction when any one example is replaced by any of a pool, next to `stability_bound`.

    Parameters
    ----------
    predict_fn : (x, y, q) -> predictions (m,) or (m, ...), in jax.
    x, y : (n, d), (n,) or (n, ...) examples.
    q : (m, d) queries.
    pool : (x, y) of the replacements, (p, d) and (p, ...).
    sizes : the first so many examples are the context; default: all n.
    beta : inverse temperature, if predict_fn is softmax attention; without it no bound is known (infinity).
    V, R_k, R_q : largest norms for the bound; default: those of the data.

    Returns
    -------
    (len(sizes), 2): measured eps, bound

    Raises
    ------
    ValueError: shapes, sizes outside 1..n, or a norm in the data above V, R_k or R_q.
    """
    x, y, q = checks.finite(x, "x"), checks.finite(y, "y"), checks.finite(q, "q")
    pool_x, pool_y = checks.finite(pool[0], "pool x"), checks.finite(pool[1], "pool y")
    if x.ndim != 2 or q.ndim != 2 or q.shape[1] != x.shape[1] or len(y) != len(x):
        raise ValueError(f"x, y, q must have shapes (n, d), (n, ...), (m, d), got {x.shape}, {y.shape}, {q.shape}")
    if pool_x.shape[1:] != x.shape[1:] or pool_y.shape[1:] != y.shape[1:] or not 0 < len(pool_x) == len(pool_y):
        raise ValueError(f"pool must have rows like x {x.shape} and y {y.shape}, got {pool_x.shape} and {pool_y.shape}")
    sizes = (len(x),) if sizes is None else tuple(sizes)
    if not sizes:
        raise ValueError("sizes must not be empty")
    for size in sizes:
        checks.count(size, "sizes", 1, len(x))
    radii = (_largest("V", V, y, pool_y), _largest("R_k", R_k, x, pool_x), _largest("R_q", R_q, q))

    @jax.jit
    def largest_change(x: Array, y: Array) -> Array:
        z = predict_fn(x, y, q)

        def replaced(j: Array) -> Array:
            others = jax.vmap(lambda key, value: predict_fn(x.at[j].set(key), y.at[j].set(value), q))(pool_x, pool_y)
            return jnp.sqrt(((others - z).reshape(len(pool_x), len(q), -1) ** 2).sum(-1).max())

        return jax.lax.map(replaced, jnp.arange(len(x))).max()

    measured = [float(largest_change(x[:size], y[:size])) for size in sizes]
    bounds = [float("inf") if beta is None else float(stability_bound(size, *radii, beta)) for size in sizes]
    return np.stack([measured, bounds], axis=1)
