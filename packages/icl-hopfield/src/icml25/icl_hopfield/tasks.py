"""Families of regression tasks for prompts x_1, y_1, ..., x_k, y_k."""

from dataclasses import KW_ONLY, dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from icml25.icl_hopfield import checks
from icml25.icl_hopfield.checks import ArrayLike, Real

Key = PRNGKeyArray | UInt32[Array, "2"]


@dataclass(frozen=True)
class Task:
    """A family of functions of inputs from a mixture of two normals with unit covariance.

    The same key draws the same functions, noise and normals whatever the mixture and centres are: so a prompt's context and
    its query can be taken from two samples.

    Parameters
    ----------
    dim : d >= 1.
    mixture : probabilities of the two components.
    centres : mean of all coordinates in each.
    noise : >= 0, standard deviation of the labels' noise.
    """

    dim: int
    _: KW_ONLY
    mixture: tuple[Real, Real] = (1.0, 0.0)
    centres: tuple[Real, Real] = (0.0, 0.0)
    noise: Real = 0.0

    def __post_init__(self) -> None:
        checks.count(self.dim, "dim")
        if not (len(self.mixture) == 2 and min(self.mixture) >= 0 and np.isclose(sum(self.mixture), 1)):
            raise ValueError(f"mixture must be two probabilities that sum to 1, got {self.mixture}")
        if len(self.centres) != 2 or not np.isfinite(self.centres).all():
            raise ValueError(f"centres must be two finite numbers, got {self.centres}")
        checks.number(self.noise, "noise", 0)

    def labels(self, key: Key, x: Float[Array, "k d"]) -> Float[Array, " k"]:
        """Labels without noise of a function drawn by the key.

        Parameters
        ----------
        key : jax random key.
        x : (k, d) inputs.

        Returns
        -------
        (k,)
        """
        raise NotImplementedError(f"{type(self).__name__} defines no labels")

    def sample(self, key: Key, batch: int, k: int) -> tuple[Float[Array, "b k d"], Float[Array, "b k"]]:
        """Prompts, each of its own function.

        Parameters
        ----------
        key : jax random key.
        batch : b >= 1.
        k : >= 1, examples of a prompt.

        Returns
        -------
        x (b, k, d), y (b, k)
        """
        checks.count(batch, "batch")
        checks.count(k, "k")
        for_task, for_x, for_component, for_noise = jax.random.split(key, 4)
        second = jax.random.uniform(for_component, (batch, k, 1)) >= self.mixture[0]
        x = jax.random.normal(for_x, (batch, k, self.dim)) + jnp.where(second, self.centres[1], self.centres[0])
        y = jax.vmap(self.labels)(jax.random.split(for_task, batch), x)
        return x, y + self.noise * jax.random.normal(for_noise, y.shape)


@dataclass(frozen=True, kw_only=True)
class LinearRegressionTask(Task):
    """y = <w, x>, w ~ N(task_mean 1, task_std^2 I).

    Parameters
    ----------
    dim : d >= 1.
    mixture : probabilities of the two components of the inputs.
    centres : mean of all coordinates in each.
    noise : >= 0, standard deviation of the labels' noise.
    task_mean : of all coordinates of w.
    task_std : >= 0.
    """

    centres: tuple[Real, Real] = (-2.0, 2.0)
    task_mean: Real = 0.0
    task_std: Real = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number(self.task_mean, "task_mean", -float("inf"))
        checks.number(self.task_std, "task_std", 0)

    def labels(self, key: Key, x: Float[Array, "k d"]) -> Float[Array, " k"]:
        return x @ (self.task_mean + self.task_std * jax.random.normal(key, (self.dim,)))


@dataclass(frozen=True, kw_only=True)
class DecisionTreeTask(Task):
    """y = the leaf where x falls: each inner node asks for the sign of a random coordinate, leaves ~ N(0, 1).

    Parameters
    ----------
    dim : d >= 1.
    mixture : probabilities of the two components of the inputs.
    centres : mean of all coordinates in each.
    noise : >= 0, standard deviation of the labels' noise.
    depth : >= 1.
    """

    depth: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count(self.depth, "depth")

    def labels(self, key: Key, x: Float[Array, "k d"]) -> Float[Array, " k"]:
        for_nodes, for_leaves = jax.random.split(key)
        coordinate = jax.random.randint(for_nodes, (2**self.depth - 1,), 0, self.dim)
        node = jnp.zeros(len(x), dtype=int)
        for _ in range(self.depth):
            right = x[jnp.arange(len(x)), coordinate[node]] > 0
            node = 2 * node + 1 + right
        return jax.random.normal(for_leaves, (2**self.depth,))[node - len(coordinate)]


@dataclass(frozen=True, kw_only=True)
class ReLUNetTask(Task):
    """y = sqrt(2 / width) sum_i a_i relu(<w_i, x>), all weights standard normal.

    Parameters
    ----------
    dim : d >= 1.
    mixture : probabilities of the two components of the inputs.
    centres : mean of all coordinates in each.
    noise : >= 0, standard deviation of the labels' noise.
    width : >= 1.
    """

    width: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count(self.width, "width")

    def labels(self, key: Key, x: Float[Array, "k d"]) -> Float[Array, " k"]:
        for_inner, for_outer = jax.random.split(key)
        hidden = jax.nn.relu(x @ jax.random.normal(for_inner, (self.dim, self.width)))
        return hidden @ jax.random.normal(for_outer, (self.width,)) * jnp.sqrt(2 / self.width)


def flip_labels(y: ArrayLike, rho: Real, key: Key) -> Float[Array, "..."]:
    """Change the sign of each label with probability rho.

    Pass the context's labels only: the last one of a prompt is the truth that a prediction is compared with.

    Parameters
    ----------
    y : labels of any shape.
    rho : in [0, 1].
    key : jax random key; the labels flipped at a rho are flipped at every larger one.

    Returns
    -------
    of y's shape

    Raises
    ------
    ValueError: rho outside [0, 1].
    """
    y = checks.finite(y, "y")
    checks.number(rho, "rho", 0, 1)
    return jnp.where(jax.random.uniform(key, y.shape) < rho, -y, y)
