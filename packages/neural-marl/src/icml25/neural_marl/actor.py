"""The actors' outer loop: weights of the score, the policy-gradient direction, the normalised step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = ["action_probabilities", "advantage_weights", "direction", "masked_logits", "normalise"]


def masked_logits(logits: Float[Array, "N *batch a"], n_actions: tuple[int, ...]) -> Float[Array, "N *batch a"]:
    """Minus infinity for the actions that an agent does not have."""
    if len(set(n_actions)) == 1:
        return logits
    has = jnp.arange(logits.shape[-1]) < jnp.asarray(n_actions)[:, None]
    return jnp.where(has.reshape(len(n_actions), *(1,) * (logits.ndim - 2), -1), logits, -jnp.inf)


def action_probabilities(logits: Float[Array, "N *batch a"]) -> Float[Array, "N *batch a"]:
    """pi^i(. | s)."""
    return jax.nn.softmax(logits)


def advantage_weights(
    kind: str,
    r: Float[Array, "*batch N"],
    q_here: Float[Array, "*batch N"],
    q_next: Float[Array, "*batch N"],
    v_here: Float[Array, "*batch N"] | None,
    gamma: float,
) -> Float[Array, "*batch N"]:
    """delta^i_l before gossip.

    Parameters
    ----------
    kind : "td", r + gamma Q(s', a') - V(s), the TD error whose mean given (s, a) is the advantage. "q", Q(s, a).
        "sarsa", r + gamma Q(s', a') - Q(s, a), the weight as it is printed, with the sign of ascent: its mean given (s, a)
        is 0 once Q is true, so it works only while the critic lags behind the policy.
    q_here, q_next : Q(s, a) and Q(s', a') of each agent's critic.
    v_here : V(s) = E_{a ~ pi} Q(s, a) or an independent estimate of it; for "td" only.
    """
    if kind == "q":
        return q_here
    if kind == "sarsa":
        return r + gamma * q_next - q_here
    if v_here is None:
        raise ValueError("v_here is None; expected V(s) for the weight 'td'")
    return r + gamma * q_next - v_here


def direction(
    log_policy: Callable[[Any], Float[Array, "N M"]], actors: Any, weights: Float[Array, "M N"]
) -> tuple[Any, Float[Array, " N"]]:
    """d^i = (1/M) sum_l delta~^i_l grad log pi^i(a^i_l | s_l), and its norm.

    Parameters
    ----------
    log_policy : parameters of all actors -> log pi^i(a^i_l | s_l).
    actors : pytree with the agent on axis 0.
    weights : delta~ after gossip.
    """
    d = jax.grad(lambda theta: (log_policy(theta) * weights.T).sum() / len(weights))(actors)
    return d, agent_norms(d)


def agent_norms(d: Any) -> Float[Array, " N"]:
    """||d^i|| over all leaves, axis 0 the agent."""
    squares = [jnp.sum(leaf.reshape(len(leaf), -1) ** 2, 1) for leaf in jax.tree.leaves(d)]
    return jnp.sqrt(jnp.stack(squares).sum(0))


def normalise(d: Any, norm: Float[Array, " N"], kind: str | None) -> Any:
    """d^i / ||d^i|| ("agent"), d / ||d|| over all agents ("joint"), or d; no step where the norm is below 1e-12."""
    if kind is None:
        return d
    if kind == "joint":
        norm = jnp.broadcast_to(jnp.sqrt((norm**2).sum()), norm.shape)
    factor = jnp.where(norm < 1e-12, 0.0, 1 / jnp.maximum(norm, 1e-12))
    return jax.tree.map(lambda leaf: leaf * factor.reshape(-1, *(1,) * (leaf.ndim - 1)), d)


def sample_actions(key: Any, logits: Float[Array, "N a"]) -> Int[Array, " N"]:
    """a^i ~ pi^i(. | s), independently."""
    return jax.random.categorical(key, logits).astype(jnp.int32)
