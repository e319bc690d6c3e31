"""The networks of critic and actors: h_0 = H x, h_l = relu(W_l h_{l-1}) / sqrt(m), output b' h_D.

The entries of H and W_l have variance 2, those of b variance 1, so that E||h_l||^2 = 2 m for every l and a unit-norm x.
The critic trains only W_1..W_D (linen's collection ``params``); H and b stay as they were drawn (collection ``fixed``).
"""

from __future__ import annotations

import math

import flax.linen as nn
import jax
from flax.linen.initializers import normal
from jaxtyping import Array, Float

__all__ = ["Critic", "LinearActor", "LinearCritic", "MLPActor", "MLPCritic", "NeuralActor", "output_scale"]


def output_scale(param: str, width: int) -> float:
    """1 for "paper"; 1 / sqrt(2 m) for "unit", under which the output has variance 1 at initialisation."""
    return 1.0 if param == "paper" else 1 / math.sqrt(2 * width)


class Critic(nn.Module):
    """Q(s, a; W) on the feature x of state and joint action.

    Parameters
    ----------
    width, depth : m and D.
    scale : factor of the output (``output_scale``).
    """

    width: int
    depth: int
    scale: float

    @nn.compact
    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        """Return Q; sows h_0..h_D in the collection ``intermediates``."""
        m = self.width
        H = self.variable("fixed", "H", lambda: normal(math.sqrt(2))(self.make_rng("params"), (m, x.shape[-1])))
        b = self.variable("fixed", "b", lambda: normal(1.0)(self.make_rng("params"), (m,)))
        h = x @ H.value.T
        self.sow("intermediates", "h", h)
        for l in range(1, self.depth + 1):  # noqa: E741
            W = self.param(f"W{l}", normal(math.sqrt(2)), (m, m))
            h = jax.nn.relu(h @ W.T) / math.sqrt(m)
            self.sow("intermediates", "h", h)
        return self.scale * (h @ b.value)


class NeuralActor(nn.Module):
    """Logits of pi^i(. | s): the same network on the state's feature, a column of b per action, all of it trained."""

    width: int
    depth: int
    scale: float
    n_actions: int

    @nn.compact
    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch a"]:
        """Return logits."""
        m = self.width
        h = x @ self.param("H", normal(math.sqrt(2)), (m, x.shape[-1])).T
        for l in range(1, self.depth + 1):  # noqa: E741
            h = jax.nn.relu(h @ self.param(f"W{l}", normal(math.sqrt(2)), (m, m)).T) / math.sqrt(m)
        return self.scale * (h @ self.param("b", normal(1.0), (m, self.n_actions)))


class MLPCritic(nn.Module):
    """An ordinary perceptron with biases, all of it trained (``param="standard"``)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        """Return Q."""
        for _ in range(self.depth):
            x = jax.nn.relu(nn.Dense(self.width)(x))
        return nn.Dense(1)(x)[..., 0]


class MLPActor(nn.Module):
    """An ordinary perceptron with biases (``param="standard"``)."""

    width: int
    depth: int
    n_actions: int

    @nn.compact
    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch a"]:
        """Return logits."""
        for _ in range(self.depth):
            x = jax.nn.relu(nn.Dense(self.width)(x))
        return nn.Dense(self.n_actions)(x)


class LinearCritic(nn.Module):
    """Q = w' x, from w = 0 (Zhang et al. 2018); a table of Q when x is one-hot."""

    @nn.compact
    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        """Return Q."""
        return x @ self.param("w", nn.initializers.zeros, (x.shape[-1],))


class LinearActor(nn.Module):
    """Logits theta' x, from theta = 0: a tabular softmax policy when x is one-hot."""

    n_actions: int

    @nn.compact
    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch a"]:
        """Return logits."""
        return x @ self.param("theta", nn.initializers.zeros, (x.shape[-1], self.n_actions))
