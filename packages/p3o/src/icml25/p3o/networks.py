"""Actor and critic as flax.nnx modules, and their pure functions of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from icml25.p3o.distributions import Categorical, Distribution, Gaussian

__all__ = ["MLP", "Actor", "functional", "gains"]

LOG_STD_RANGE = (-5.0, 2.0)


@cache
def gains(hidden: tuple[int, ...], last: float) -> tuple[Callable[..., Array], ...]:
    """Orthogonal initialisers of an MLP's kernels: sqrt(2), and ``last`` for the output layer."""
    orthogonal = jax.nn.initializers.orthogonal
    return (*[orthogonal(math.sqrt(2))] * len(hidden), orthogonal(last))


class MLP(nnx.Module):
    """Dense layers ``layer_0`` ..., with LayerNorm ``norm_0`` ... before the activation if asked.

    Parameters
    ----------
    inputs, hidden, outputs : widths.
    last_gain : gain of the output layer's orthogonal initialiser; hidden layers have sqrt(2).
    activation : of hidden layers.
    layer_norm : whether hidden layers are normalised.
    rngs : nnx's generators.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        last_gain: float = 1.0,
        activation: Callable[[Array], Array] = jnp.tanh,
        layer_norm: bool = False,
        rngs: nnx.Rngs,
    ):
        self.depth, self.activation, self.layer_norm = len(hidden), activation, layer_norm
        widths = [inputs, *hidden, outputs]
        for i, kernel_init in enumerate(gains(tuple(hidden), last_gain)):
            setattr(self, f"layer_{i}", nnx.Linear(widths[i], widths[i + 1], kernel_init=kernel_init, rngs=rngs))
            if layer_norm and i < self.depth:
                setattr(self, f"norm_{i}", nnx.LayerNorm(widths[i + 1], rngs=rngs))

    def __call__(self, x: Float[Array, "*batch d"]) -> tuple[Any, list[Float[Array, "*batch _"]]]:
        """Return outputs (..., outputs) and the hidden activations, one (..., n_l) per layer."""
        features = []
        for i in range(self.depth):
            x = getattr(self, f"layer_{i}")(x)
            if self.layer_norm:
                x = getattr(self, f"norm_{i}")(x)
            x = self.activation(x)
            features.append(x)
        return getattr(self, f"layer_{self.depth}")(x), features


class Actor(MLP):
    """Policy network.

    Parameters
    ----------
    inputs, hidden, layer_norm, rngs : see :class:`MLP`.
    actions : dimensions of the action, or number of discrete actions.
    log_std : "head" (state dependent, within [-5, 2]), "free" (a parameter), or None for discrete actions.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        actions: int,
        *,
        log_std: str | None,
        layer_norm: bool = False,
        rngs: nnx.Rngs,
    ):
        outputs = 2 * actions if log_std == "head" else actions
        super().__init__(inputs, hidden, outputs, last_gain=0.01, layer_norm=layer_norm, rngs=rngs)
        self.kind = log_std
        if log_std == "free":
            self.log_std = nnx.Param(jnp.zeros(actions))

    def __call__(self, x: Float[Array, "*batch d"]) -> tuple[Distribution, list[Float[Array, "*batch _"]]]:
        """Return the distribution over actions and the hidden activations."""
        out, features = super().__call__(x)
        if self.kind is None:
            return Categorical(out), features
        if self.kind == "free":
            return Gaussian(out, jnp.broadcast_to(self.log_std[...], out.shape)), features
        mean, log_std = jnp.split(out, 2, axis=-1)
        return Gaussian(mean, jnp.clip(log_std, *LOG_STD_RANGE)), features


def functional(make: Callable[[nnx.Rngs], nnx.Module]) -> tuple[Callable[[Array], Any], Callable[[Any, Any], Any]]:
    """``init(key)`` to a dict of parameters, and ``apply(params, x)``, of a module."""
    graph = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))))[0]

    def init(key: Array) -> Any:
        return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(key))))

    def apply(params: Any, x: Any) -> Any:
        return nnx.merge(graph, params)(x)

    return init, apply
