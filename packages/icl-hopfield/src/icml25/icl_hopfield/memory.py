"""Modern Hopfield memories, and how examples in the context reshape their energy landscape.

lse(q) = log sum_i exp(beta <k_i, q>) of a set of memories decides everything here: the energy is -lse/beta + |q|^2/2, and
a set of memories O joined by a context C answers with the mean of both answers, weighted by sigmoid(lse_C - lse_O).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import logsumexp, sigmoid, softmax, softplus
from jaxtyping import Array, Float

from icml25.icl_hopfield import checks
from icml25.icl_hopfield.checks import ArrayLike, Scalar

BLOCK = 2**16  # memories at a time
LOGITS = 2**22  # held at once

Attended = tuple[Float[Array, "..."], Float[Array, "... v"]]  # lse (...), mean value


def _merge(first: Attended, second: Attended) -> Attended:
    """lse and answer of a union: z = (1 - gamma) z_1 + gamma z_2 with gamma = sigmoid(lse_2 - lse_1)."""
    (l1, z1), (l2, z2) = first, second
    gamma = sigmoid(l2 - l1)[..., None]
    return jnp.logaddexp(l1, l2), (1 - gamma) * z1 + gamma * z2


@jax.jit
def _attend(
    keys: Float[Array, "M d"], values: Float[Array, "M v"], beta: Scalar, q: Float[Array, "B d"]
) -> tuple[Float[Array, " B"], Float[Array, "B v"]]:
    """lse and softmax mean of the values, in blocks of memories and chunks of queries of at most LOGITS logits."""
    size = min(len(keys), BLOCK)
    whole = len(keys) // size * size

    @jax.checkpoint
    def block(keys: Array, values: Array, q: Array) -> Attended:
        logits = beta * (q @ keys.T)
        return logsumexp(logits, axis=-1), softmax(logits, axis=-1) @ values

    def chunk(q: Array) -> Attended:
        state = block(keys[:size], values[:size], q)
        if whole > size:
            parts = [a[size:whole].reshape(-1, size, a.shape[1]) for a in (keys, values)]
            state, _ = jax.lax.scan(lambda s, part: (_merge(s, block(*part, q)), None), state, tuple(parts))
        return _merge(state, block(keys[whole:], values[whole:], q)) if whole < len(keys) else state

    at_once = max(1, LOGITS // size)
    if len(q) <= at_once:
        return chunk(q)
    return jax.lax.map(lambda row: jax.tree.map(lambda a: a[0], chunk(row[None])), q, batch_size=at_once)


@partial(jax.jit, static_argnames="steps")
def _iterate(keys: Float[Array, "M d"], beta: Scalar, q: Float[Array, "B d"], steps: int) -> Float[Array, "B d"]:
    return jax.lax.fori_loop(0, steps, lambda _, x: _attend(keys, keys, beta, x)[1], q)


@jax.jit
def _descend(
    keys: Float[Array, "n d"],
    beta: Scalar,
    q: Float[Array, "*b d"],
    energy: Float[Array, "*b"],
    lse: Float[Array, "*b"],
) -> Float[Array, "n *b"]:
    """Energies after each further key."""

    def add(state: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], Array]:
        energy, lse = state
        logit = beta * (q @ key)
        energy = energy - softplus(logit - lse) / beta
        return (energy, jnp.logaddexp(lse, logit)), energy

    return jax.lax.scan(add, (energy, lse), keys)[1]


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, init=False, eq=False)
class Memory:
    """A modern Hopfield network, or one attention head: keys with values, read by softmax.

    It is a pytree: pass it through jit, grad and vmap (vmap ``Memory`` itself for a batch of memories).

    Parameters
    ----------
    keys : (M, d) memories; integers become the default float. M = 0 is allowed for a context.
    values : (M, ...) what each memory returns; default: the keys (auto-association).
    beta : > 0, inverse temperature; default 1 / sqrt(d), that of attention.

    Raises
    ------
    ValueError: shapes that don't fit, NaN, beta that is no positive number. TypeError: complex numbers.
    """

    keys: Float[Array, "M d"]
    values: Float[Array, "M *v"]
    beta: float | Float[Array, ""]

    def __init__(
        self, keys: ArrayLike, values: ArrayLike | None = None, beta: Scalar | np.ndarray | None = None
    ) -> None:
        keys = checks.finite(keys, "keys")
        if keys.ndim != 2 or keys.shape[1] == 0:
            raise ValueError(f"keys must have shape (M, d) with d >= 1, got {keys.shape}")
        values = keys if values is None else checks.finite(values, "values")
        if values.ndim == 0 or len(values) != len(keys):
            raise ValueError(f"values must have as many rows as keys, got shapes {values.shape} and {keys.shape}")
        if beta is None:
            beta = 1 / math.sqrt(keys.shape[1])
        checks.number(beta, "beta", 0, open_low=True)
        self._set(keys, values, checks.floats(beta, "beta") if isinstance(beta, Array) else float(beta))

    def _set(self, *fields: object) -> None:
        for name, field in zip(("keys", "values", "beta"), fields, strict=True):
            object.__setattr__(self, name, field)

    def tree_flatten_with_keys(self) -> tuple[tuple, None]:
        """The pytree's leaves: keys, values, beta."""
        return tuple((jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in ("keys", "values", "beta")), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: tuple) -> "Memory":
        """A memory of these leaves, whatever they are."""
        memory = object.__new__(cls)
        memory._set(*leaves)
        return memory

    def __len__(self) -> int:
        return len(self.keys)

    def _queries(self, q: ArrayLike) -> Float[Array, "*b d"]:
        q = checks.finite(q, "q")
        if q.ndim == 0 or q.shape[-1] != self.keys.shape[1]:
            raise ValueError(f"q must have shape (..., {self.keys.shape[1]}) for keys {self.keys.shape}, got {q.shape}")
        return q.astype(jnp.result_type(q, self.keys))

    def _read(self, q: Float[Array, "*b d"], values: Float[Array, "M *v"]) -> tuple[Array, Array]:
        if not len(self):
            raise ValueError("no memories")
        flat = values.reshape(len(self), math.prod(values.shape[1:]))
        lse, z = _attend(self.keys, flat, self.beta, q.reshape(-1, q.shape[-1]))
        return lse.reshape(q.shape[:-1]), z.reshape(q.shape[:-1] + values.shape[1:])

    def _lse(self, q: Float[Array, "*b d"]) -> Float[Array, "*b"]:
        return self._read(q, self.keys[:, :0])[0]

    def _logits(self, q: ArrayLike) -> Float[Array, "*b M"]:
        if not len(self):
            raise ValueError("no memories")
        return self._queries(q) @ self.keys.T

    def energy(self, q: ArrayLike, normalised: bool = False) -> Float[Array, "*b"]:
        """E(q) = -lse(q) / beta + |q|^2 / 2, a landscape whose wells are the memories.

        Parameters
        ----------
        q : (..., d) queries.
        normalised : add log(M) / beta + max |k_i|^2 / 2, with which E >= 0.

        Returns
        -------
        (...,)
        """
        q = self._queries(q)
        energy = (q * q).sum(-1) / 2 - self._lse(q) / self.beta
        if normalised:
            energy = energy + math.log(len(self)) / self.beta + (self.keys**2).sum(-1).max() / 2
        return energy

    def retrieve(self, q: ArrayLike, steps: int = 1) -> Float[Array, "..."]:
        """z(q) = sum_i p_i v_i with p = softmax(beta K q): one attention, or one step down the energy if values are keys.

        Parameters
        ----------
        q : (..., d) queries.
        steps : >= 1; all but the last step replace the query by what it retrieves of the keys.

        Returns
        -------
        (..., *v)
        """
        checks.count(steps, "steps")
        x = self._queries(q)
        if steps > 1 and len(self):
            x = _iterate(self.keys, self.beta, x.reshape(-1, x.shape[-1]), steps - 1).reshape(x.shape)
        return self._read(x, self.values)[1]

    def weights(self, q: ArrayLike) -> Float[Array, "*b M"]:
        """p = softmax(beta K q), the attention paid to each memory.

        Parameters
        ----------
        q : (..., d) queries.

        Returns
        -------
        (..., M)
        """
        return softmax(self.beta * self._logits(q), axis=-1)

    def condition(self, context: "Memory") -> "Memory":
        """The union with a context, an empty one included.

        Parameters
        ----------
        context : of the same dimensions and beta.

        Returns
        -------
        Memory: of M + n memories, these first.
        """
        _check_pair(self, context)
        if self.values.shape[1:] != context.values.shape[1:]:
            raise ValueError(f"values must agree in shape, got {self.values.shape} and {context.values.shape}")
        keys = jnp.concatenate([self.keys, context.keys])
        return Memory(keys, jnp.concatenate([self.values, context.values]), self.beta)

    def share(self, context: "Memory", q: ArrayLike) -> Float[Array, "*b"]:
        """The context's share of the attention, `context_share`.

        Parameters
        ----------
        context : of the same dimension and beta.
        q : (..., d) queries.

        Returns
        -------
        (...,) in [0, 1]
        """
        return context_share(self, context, q)

    def margin(self, q: ArrayLike, index: int | None = None) -> Float[Array, "*b"]:
        """delta(q) = <k_mu, q> - max_{nu != mu} <k_nu, q>, infinite for a single memory.

        Parameters
        ----------
        q : (..., d) queries.
        index : mu; default: the memory nearest to each query.

        Returns
        -------
        (...,)
        """
        scores = self._logits(q)
        if index is None:
            mu = scores.argmax(-1)
        else:
            checks.count(index, "index", 0, len(self) - 1)
            mu = jnp.full(scores.shape[:-1], index)
        own = jnp.take_along_axis(scores, mu[..., None], -1)[..., 0]
        others = jnp.where(jnp.arange(len(self)) == mu[..., None], -jnp.inf, scores)
        return own - others.max(-1)

    def retrieval_error_bound(self, q: ArrayLike, index: int) -> Float[Array, "*b"]:
        """2 m (M - 1) exp(-beta delta(q)), m the largest norm of a value: an upper bound of |z(q) - v_index|.

        Parameters
        ----------
        q : (..., d) queries.
        index : the memory that should come back.

        Returns
        -------
        (...,)
        """
        margin = self.margin(q, index)
        largest = jnp.sqrt((self.values.reshape(len(self), -1) ** 2).sum(-1).max())
        return 2 * largest * (len(self) - 1) * jnp.exp(-self.beta * margin)


def _check_pair(base: Memory, context: Memory) -> None:
    if not isinstance(context, Memory):
        raise TypeError(f"context must be a Memory, got {type(context).__name__}")
    if base.keys.shape[1] != context.keys.shape[1]:
        raise ValueError(f"keys must agree in dimension, got shapes {base.keys.shape} and {context.keys.shape}")
    if checks.known(base.beta, context.beta) and not np.isclose(base.beta, context.beta, rtol=1e-6, atol=0):
        raise ValueError(f"beta must agree, got {base.beta} and {context.beta}")


def _lse_gain(base: Memory, context: Memory, q: ArrayLike) -> Float[Array, "*b"]:
    """lse_C - lse_O."""
    _check_pair(base, context)
    q = base._queries(q)
    return (context._lse(q) if len(context) else -jnp.inf) - base._lse(q)


def energy_shift(base: Memory, context: Memory, q: ArrayLike) -> Float[Array, "*b"]:
    """E_{O u C}(q) - E_O(q) = -softplus(lse_C - lse_O) / beta <= 0: wells deepen where the query matches the examples.

    Parameters
    ----------
    base, context : memories of the same dimension and beta; the context may be empty.
    q : (..., d) queries.

    Returns
    -------
    (...,)

    Raises
    ------
    ValueError: dimensions or betas differ, or base is empty.
    """
    return -softplus(_lse_gain(base, context, q)) / base.beta


def context_share(base: Memory, context: Memory, q: ArrayLike) -> Float[Array, "*b"]:
    """gamma(q) = sigmoid(lse_C - lse_O), with which z(q | O u C) = (1 - gamma) z(q | O) + gamma z(q | C).

    It is the sum of the attention weights of the context's examples in the union.

    Parameters
    ----------
    base, context : memories of the same dimension and beta; the context may be empty.
    q : (..., d) queries.

    Returns
    -------
    (...,) in [0, 1]

    Raises
    ------
    ValueError: dimensions or betas differ, or base is empty.
    """
    return sigmoid(_lse_gain(base, context, q))


def energy_path(base: Memory, context: Memory, q: ArrayLike) -> Float[Array, "n_plus_1 *b"]:
    """Energies as the examples come one by one: E_{t+1} = E_t - softplus(beta <k, q> - l_t) / beta, l_t the lse so far.

    The last one does not depend on the order of the examples, those on the way do.

    Parameters
    ----------
    base, context : memories of the same dimension and beta; the context may be empty.
    q : (..., d) queries.

    Returns
    -------
    (n + 1, ...), falling; the first is that of base.

    Raises
    ------
    ValueError: dimensions or betas differ, or base is empty.
    """
    _check_pair(base, context)
    q = base._queries(q)

    start = base.energy(q)
    path = _descend(context.keys.astype(q.dtype), base.beta, q, start, base._lse(q))
    return jnp.concatenate([start[None], path])


def ghost_examples(context: Memory, predictor: Callable[[Array], ArrayLike]) -> Memory:
    """The same keys with the values that a predictor gives without the context: more tokens, and nothing learned.

    Parameters
    ----------
    context : the examples.
    predictor : from keys (n, d) to values of the context's shape.

    Returns
    -------
    Memory

    Raises
    ------
    ValueError: predictor returns another shape.
    """
    values = checks.finite(predictor(context.keys), "predictor(keys)")
    if values.shape != context.values.shape:
        raise ValueError(f"predictor(keys) must have shape {context.values.shape}, got {values.shape}")
    return Memory(context.keys, values, context.beta)


def reshaping_effect(context: Memory, q: ArrayLike, predictor: Callable[[Array], ArrayLike]) -> Float[Array, "..."]:
    """z(q | examples) - z(q | ghosts) = sum_i p_i (v_i - predictor(k_i)): what the examples' values do.

    Parameters
    ----------
    context : the examples.
    q : (..., d) queries.
    predictor : from keys (n, d) to values of the context's shape.

    Returns
    -------
    (..., *v)
    """
    ghosts = ghost_examples(context, predictor)
    return Memory(context.keys, context.values - ghosts.values, context.beta).retrieve(q)
