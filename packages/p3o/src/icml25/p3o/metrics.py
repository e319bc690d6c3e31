"""How much a network can still learn: dormant and saturated units, effective rank, norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

__all__ = ["dormant_units", "effective_rank", "plasticity_report", "saturated_units", "unit_scores"]


def unit_scores(hidden: Float[Array, "batch n"]) -> Float[Array, " n"]:
    """ReDo's score of each unit: mean |h_j| over the layer's average of it."""
    size = jnp.abs(hidden).mean(0)
    return size / jnp.maximum(size.mean(), jnp.finfo(size.dtype).tiny)


def dormant_units(hidden: Float[Array, "batch n"], threshold: float = 0.025) -> Bool[Array, " n"]:
    """Units whose score is at most ``threshold``."""
    return unit_scores(hidden) <= threshold


def saturated_units(hidden: Float[Array, "batch n"], level: float = 0.99, share: float = 0.95) -> Bool[Array, " n"]:
    """Units of a tanh layer with mean |h_j| over ``level``, or |h_j| over it on ``share`` of the inputs."""
    size = jnp.abs(hidden)
    return (size.mean(0) > level) | ((size > level).mean(0) >= share)


def effective_rank(features: Float[Array, "batch n"], share: float = 0.99) -> tuple[int, float]:
    """Rank of the features by their singular values.

    Returns
    -------
    The smallest k whose k largest singular values have ``share`` of the sum, and exp(entropy) of the normalised values;
    0 and 0.0 for features that are all zero.
    """
    values = np.linalg.svd(np.asarray(features, np.float64), compute_uv=False)
    if values.sum() == 0:
        return 0, 0.0
    p = values / values.sum()
    p = p[p > 0]
    k = int(np.searchsorted(np.cumsum(p), share * (1 - 1e-12))) + 1
    return min(k, len(p)), float(np.exp(-(p * np.log(p)).sum()))


def plasticity_report(
    params: Any,
    apply_fn: Callable[[Any, Any], Any],
    x: Any,
    *,
    loss: Callable[[Any], Array] | None = None,
    ages: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """Plasticity metrics of a network on a batch of inputs.

    Parameters
    ----------
    params : the network's parameters.
    apply_fn : ``apply_fn(params, x)`` returns (output, list of hidden activations (B, n_l)).
    x : a batch of inputs.
    loss : ``loss(params)``, a scalar, for the gradient norm; None leaves it out.
    ages : updates since each hidden unit was renewed, one array per layer; reported as their mean.

    Returns
    -------
    dict: per hidden layer ``dormant`` and ``saturated`` (shares of units), ``effective_rank``, ``entropy_rank``, with ages
        ``mean_age``; and ``weight_norm``, with a loss ``gradient_norm``.

    Raises
    ------
    TypeError: apply_fn does not return hidden activations.
    """
    _, hidden = with_hidden(apply_fn(params, x))
    if hidden is None:
        raise TypeError("plasticity_report needs apply_fn to return (output, list of hidden activations)")
    ranks = [effective_rank(h) for h in hidden]
    report: dict[str, Any] = {
        "dormant": [float(dormant_units(h).mean()) for h in hidden],
        "saturated": [float(saturated_units(h).mean()) for h in hidden],
        "effective_rank": [k for k, _ in ranks],
        "entropy_rank": [entropy for _, entropy in ranks],
        "weight_norm": float(optax.tree.norm(params)),
    }
    if loss is not None:
        report["gradient_norm"] = float(optax.tree.norm(jax.grad(loss)(params)))
    if ages is not None:
        report["mean_age"] = [float(np.mean(age)) for age in ages]
    return report


def with_hidden(output: Any) -> tuple[Any, list[Array] | None]:
    """Split what apply_fn returned into the output and the hidden activations, None where it gives none."""
    return output if type(output) is tuple else (output, None)  # distributions are named tuples
