"""Adam with a step count per entry, and the moments of re-drawn entries."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

__all__ = ["L2ToInitState", "PerEntryAdamState", "l2_to_init", "per_entry_adam", "reset_moments"]


class PerEntryAdamState(NamedTuple):
    """Steps, first and second moments, each of the parameters' structure."""

    count: Any
    mu: Any
    nu: Any


def per_entry_adam(
    learning_rate: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Adam whose bias correction counts the steps of each entry since it was last re-drawn.

    With moments set to zero but a large global count, the first step of a re-drawn entry is
    lr (1 - b1) / sqrt(1 - b2) = 3.16 lr; here it is lr. Without resets it equals ``optax.adam`` up to rounding.

    Parameters
    ----------
    learning_rate, b1, b2, eps : as in ``optax.adam``.

    Returns
    -------
    optax.GradientTransformation, whose state :func:`reset_moments` knows how to clear.
    """

    def init(params: Any) -> PerEntryAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return PerEntryAdamState(jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.int32), params), zeros, zeros)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, PerEntryAdamState]:
        del params
        count = jax.tree.map(optax.safe_increment, state.count)
        mu = jax.tree.map(lambda g, m: (1 - b1) * g + b1 * m, updates, state.mu)
        nu = jax.tree.map(lambda g, v: (1 - b2) * g**2 + b2 * v, updates, state.nu)

        def step(n: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
            steps = n.astype(jnp.promote_types(m.dtype, jnp.float32))
            m_hat = m / -jnp.expm1(steps * math.log(b1)).astype(m.dtype)  # 1 - b1^n, faster and closer than a power
            v_hat = v / -jnp.expm1(steps * math.log(b2)).astype(v.dtype)
            return -learning_rate * (m_hat / (jnp.sqrt(v_hat) + eps))

        return jax.tree.map(step, count, mu, nu), PerEntryAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def reset_moments(opt_state: Any, mask: Any) -> Any:
    """Set the moments, and the counts, of re-drawn entries to zero.

    Parameters
    ----------
    opt_state : any optimiser state; every tree in it that has the mask's structure is cleared where the mask is true.
    mask : tree of bools of the parameters' structure, as :func:`icml25.p3o.cycle_reset` returns it.

    Returns
    -------
    The optimiser state; what has another structure (a global count) stays.
    """
    structure = jax.tree.structure(mask)

    def same(tree: Any) -> bool:
        return jax.tree.structure(tree) == structure

    def clear(tree: Any) -> Any:
        if not same(tree):
            return tree
        return jax.tree.map(lambda x, m: jnp.where(m, jnp.zeros_like(x), x), tree, mask)

    return jax.tree.map(clear, opt_state, is_leaf=same)


class L2ToInitState(NamedTuple):
    """The parameters at the start."""

    start: Any


def l2_to_init(coefficient: float) -> optax.GradientTransformation:
    """Gradient of coefficient / 2 times the squared distance from the initial parameters (regenerative L2)."""

    def init(params: Any) -> L2ToInitState:
        return L2ToInitState(params)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, L2ToInitState]:
        pull = jax.tree.map(lambda g, p, p0: g + coefficient * (p - p0), updates, params, state.start)
        return pull, state

    return optax.GradientTransformation(init, update)
