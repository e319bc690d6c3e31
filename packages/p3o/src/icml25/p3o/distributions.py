"""Policies' distributions and alpha-DKL, the mixture of forward and backward Kullback-Leibler divergence."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

__all__ = ["Categorical", "Distribution", "Gaussian", "alpha_dkl"]


class Gaussian(NamedTuple):
    """Diagonal Gaussian over actions.

    A tanh-squashed policy is compared by its base Gaussians: the bijector cancels in the divergence.

    Attributes
    ----------
    mean : (..., d).
    log_std : (..., d) or (d,), logarithm of the standard deviations.
    """

    mean: Array
    log_std: Array

    def sample(self, key: Array) -> Float[Array, "*batch d"]:
        """Draw one action per row."""
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def mode(self) -> Float[Array, "*batch d"]:
        """Return the mean."""
        return self.mean

    def log_prob(self, action: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        """Log density of an action."""
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return -(0.5 * z**2 + self.log_std + 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Float[Array, "*batch"]:
        """Differential entropy in nats."""
        return (jnp.broadcast_to(self.log_std, self.mean.shape) + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def kl(self, other: Gaussian) -> Float[Array, "*batch"]:
        """KL(self || other) = sum_i [log(s2/s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2]."""
        log_ratio = self.log_std - other.log_std
        z = (self.mean - other.mean) * jnp.exp(-other.log_std)
        return 0.5 * (jnp.expm1(2 * log_ratio) - 2 * log_ratio + z**2).sum(-1)


class Categorical(NamedTuple):
    """Distribution over k actions.

    Attributes
    ----------
    logits : (..., k), unnormalised log probabilities.
    """

    logits: Array

    def sample(self, key: Array) -> Int[Array, "*batch"]:
        """Draw one action per row."""
        return jax.random.categorical(key, self.logits)

    def mode(self) -> Int[Array, "*batch"]:
        """Return the most likely action."""
        return jnp.argmax(self.logits, -1)

    def log_prob(self, action: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
        """Log probability of an action."""
        return jnp.take_along_axis(jax.nn.log_softmax(self.logits), action[..., None], -1)[..., 0]

    def entropy(self) -> Float[Array, "*batch"]:
        """Shannon entropy in nats."""
        log_p = jax.nn.log_softmax(self.logits)
        return -(jnp.exp(log_p) * log_p).sum(-1)

    def kl(self, other: Categorical) -> Float[Array, "*batch"]:
        """KL(self || other) = sum p log(p / q)."""
        log_p, log_q = jax.nn.log_softmax(self.logits), jax.nn.log_softmax(other.logits)
        return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)


Distribution = Gaussian | Categorical


def alpha_dkl(dist_a: Distribution, dist_b: Distribution, alpha: float) -> Float[Array, "*batch"]:
    """Mixture alpha KL(a || b) + (1 - alpha) KL(b || a), in nats per row; a is the teacher in inner distillation.

    Parameters
    ----------
    dist_a, dist_b : two Gaussians or two Categoricals of equal shapes.
    alpha : in [0, 1]; 1 is the forward (mode covering) divergence, 0 the backward one.

    Returns
    -------
    (B,): zero if and only if the two are equal.

    Raises
    ------
    ValueError: alpha outside [0, 1].
    TypeError: the distributions are of different kinds.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be in [0, 1], got {alpha}")
    if isinstance(dist_a, Gaussian) and isinstance(dist_b, Gaussian):
        return alpha * dist_a.kl(dist_b) + (1 - alpha) * dist_b.kl(dist_a)
    if isinstance(dist_a, Categorical) and isinstance(dist_b, Categorical):
        return alpha * dist_a.kl(dist_b) + (1 - alpha) * dist_b.kl(dist_a)
    raise TypeError(f"two Gaussians or two Categoricals are compared, got {type(dist_a)} and {type(dist_b)}")
