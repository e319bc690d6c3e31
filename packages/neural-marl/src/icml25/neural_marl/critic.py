"""The critic's inner loop: K steps of TD learning of the joint Q, each agent alone on its own reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = ["project", "td_phase"]

QFunction = Callable[[Any, Array], Array]  # (trained parameters W, features (..., d)) -> (...)


def project(W: Any, centre: Any, radius: float) -> Any:
    """Proj_B: the nearest point with ||W_l - centre_l||_F <= B, layer by layer.

    Parameters
    ----------
    W, centre : pytrees whose leaves are the layers.
    radius : B; infinity leaves W as it is.
    """
    if radius == float("inf"):
        return W

    def on_layer(w: Array, w0: Array) -> Array:
        distance = jnp.sqrt(jnp.sum((w - w0) ** 2))
        return jnp.where(distance > radius, w0 + (w - w0) * (radius / jnp.maximum(distance, radius)), w)

    return jax.tree.map(on_layer, W, centre)


def td_error(q: QFunction, W: Any, x: Array, r: Array, x_next: Array, gamma: float) -> Array:
    """delta = r + gamma Q(s', a'; W) - Q(s, a; W): the Sarsa error of step 1b."""
    return r + gamma * q(W, x_next) - q(W, x)


def td_phase(
    q: QFunction,
    W: Any,
    centre: Any,
    x: Float[Array, "K d"],
    r: Float[Array, "K N"],
    x_next: Float[Array, "K d"],
    *,
    gamma: float,
    beta: float,
    radius: float = float("inf"),
    average: bool = True,
    mixing: Float[Array, "N N"] | None = None,
    mix_every: int = 0,
) -> tuple[Any, Float[Array, "K N"], Int[Array, " N"]]:
    """W(k+1) = Proj_B(W(k) + beta delta grad Q(s, a; W(k))), and the mean of the K + 1 iterates.

    Parameters
    ----------
    q : (W, x) -> Q, of one agent.
    W : pytree of the agents' first iterates, axis 0 the agent.
    centre : W_0, common to all agents.
    x, x_next : features of (s_k, a_k) and (s_{k+1}, a_{k+1}); r the agents' rewards.
    mixing, mix_every : W <- A W after each ``mix_every`` steps (0: never; the paper's method does not).

    Returns
    -------
    the mean iterate (the last one when not ``average``), the TD errors, and for each agent the first step after which
    its parameters were not finite (K where they always were).
    """
    K, N = r.shape

    def step(carry: Any, inputs: Any) -> Any:
        W, mean, broken = carry
        k, x, r, x_next = inputs

        def one_agent(W: Any, r: Array) -> tuple[Any, Array]:
            value, gradient = jax.value_and_grad(q)(W, x)
            delta = r + gamma * q(W, x_next) - value  # the target is not differentiated
            stepped = jax.tree.map(lambda w, g: w + beta * delta * g, W, gradient)
            return project(stepped, centre, radius), delta

        W, delta = jax.vmap(one_agent)(W, r)
        if mix_every:
            mixed = jax.tree.map(lambda w: jnp.tensordot(jnp.asarray(mixing, w.dtype), w, 1), W)
            W = jax.tree.map(lambda new, old: jnp.where((k + 1) % mix_every == 0, new, old), mixed, W)
        total = sum(jnp.abs(w).reshape(N, -1).sum(1) for w in jax.tree.leaves(W))
        broken = jnp.where(~jnp.isfinite(total) & (broken == K), k, broken)
        mean = jax.tree.map(lambda m, w: ((k + 1) * m + w) / (k + 2), mean, W) if average else W
        return (W, mean, broken), delta

    steps = (jnp.arange(K), x, r, x_next)
    (_, output, broken), delta = jax.lax.scan(step, (W, W, jnp.full(N, K)), steps)
    return output, delta, broken
