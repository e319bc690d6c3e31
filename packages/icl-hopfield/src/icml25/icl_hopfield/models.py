"""Models that learn in context: one layer of attention, and a small GPT-2 on interleaved prompts."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from icml25.icl_hopfield import checks
from icml25.icl_hopfield.checks import Real

Kind = Literal["softmax", "linear", "inverse_gram"]


class OneLayerAttention(nnx.Module):
    """One attention head on labelled examples, with a learned map A of the query.

    "softmax": sum_i softmax_i(<k_i, A q>) v_i, one retrieval from a Hopfield memory. "linear": v^T K A q / n, a step of
    gradient descent from zero. "inverse_gram": v^T K (K^T K + ridge I)^-1 A q, ridge regression at A = I.

    Parameters
    ----------
    dim : d >= 1.
    kind : "softmax", "linear" or "inverse_gram".
    rngs : of flax; A starts at random, ridge at 1.
    """

    def __init__(self, dim: int, kind: Kind = "softmax", *, rngs: nnx.Rngs) -> None:
        checks.count(dim, "dim")
        if kind not in ("softmax", "linear", "inverse_gram"):
            raise ValueError(f"kind must be 'softmax', 'linear' or 'inverse_gram', got {kind!r}")
        self.kind = kind
        self.query_map = nnx.Param(jax.random.normal(rngs.params(), (dim, dim)) / math.sqrt(dim))
        if kind == "inverse_gram":
            self.log_ridge = nnx.Param(jnp.zeros(()))

    def __call__(self, x: Float[Array, "*b n d"], y: Float[Array, "..."], q: Float[Array, "..."]) -> Float[Array, "*b"]:
        """Predict the label of a query.

        Parameters
        ----------
        x, y : (..., n, d), (..., n) examples.
        q : (..., d) queries.

        Returns
        -------
        (...,)
        """
        _check_prompt(x, y, self.query_map.shape[0])
        if q.shape != (*x.shape[:-2], x.shape[-1]):
            raise ValueError(f"q must have shape {(*x.shape[:-2], x.shape[-1])}, as x has {x.shape}, got {q.shape}")
        q = q @ self.query_map[...].T
        if self.kind == "inverse_gram":
            gram = x.mT @ x + jnp.exp(self.log_ridge[...]) * jnp.eye(x.shape[-1])
            q = jnp.linalg.solve(gram, q[..., None])[..., 0]
        scores = (x @ q[..., None])[..., 0]
        if self.kind == "softmax":
            scores = jax.nn.softmax(scores, axis=-1)
        elif self.kind == "linear":
            scores = scores / x.shape[-2]
        return (scores * y).sum(-1)

    def loss(self, x: Float[Array, "b k d"], y: Float[Array, "b k"]) -> Float[Array, ""]:
        """Mean squared error of the last label, predicted from those before it.

        Parameters
        ----------
        x, y : (b, k, d), (b, k) prompts.

        Returns
        -------
        scalar
        """
        return ((self(x[:, :-1], y[:, :-1], x[:, -1]) - y[:, -1]) ** 2).mean()


class _Block(nnx.Module):
    """Pre-norm attention and GELU network, each added to its input."""

    def __init__(self, width: int, heads: int, *, rngs: nnx.Rngs) -> None:
        self.norm_attention, self.norm_network = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, keep_rngs=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, h: Float[Array, "b t w"], mask: Array) -> Float[Array, "b t w"]:
        h = h + self.attention(self.norm_attention(h), mask=mask)
        return h + self.down(nnx.gelu(self.up(self.norm_network(h))))


class ICLTransformer(nnx.Module):
    """A GPT-2 that reads x_1, y_1, ..., x_k, y_k and predicts y_i at the token of x_i (Garg et al. 2022).

    Labels stand in the first coordinate of their tokens. Defaults are a model that trains in seconds; Garg et al. have
    width 256, 12 layers, 8 heads.

    Parameters
    ----------
    dim : d >= 1.
    width, layers, heads : of the network; heads divides width.
    max_examples : longest prompt.
    scale : labels are divided by it inside.
    rngs : of flax.
    """

    def __init__(
        self,
        dim: int,
        *,
        width: int = 32,
        layers: int = 2,
        heads: int = 2,
        max_examples: int = 64,
        scale: Real = 5.0,
        rngs: nnx.Rngs,
    ) -> None:
        sizes = {"dim": dim, "width": width, "layers": layers, "heads": heads, "max_examples": max_examples}
        for name, value in sizes.items():
            checks.count(value, name)
        if width % heads:
            raise ValueError(f"heads must divide width, got {heads} and {width}")
        checks.number(scale, "scale", 0, open_low=True)
        self.dim, self.max_examples, self.scale = dim, max_examples, scale
        self.embed = nnx.Linear(dim, width, rngs=rngs)
        self.position = nnx.Param(0.02 * jax.random.normal(rngs.params(), (2 * max_examples, width)))
        self.blocks = nnx.List([_Block(width, heads, rngs=rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.read = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x: Float[Array, "b k d"], y: Float[Array, "..."]) -> Float[Array, "b k"]:
        """Predict each label from the examples before it.

        Parameters
        ----------
        x, y : (b, k, d), (b, k) prompts; the last label is not read.

        Returns
        -------
        (b, k)
        """
        _check_prompt(x, y, self.dim)
        b, k, d = x.shape
        if k > self.max_examples:
            raise ValueError(f"x must have at most max_examples = {self.max_examples} examples, got shape {x.shape}")
        labels = jnp.zeros_like(x).at[:, :, 0].set(y / self.scale)
        tokens = jnp.stack([x, labels], axis=2).reshape(b, 2 * k, d)
        h = self.embed(tokens) + self.position[: 2 * k]
        mask = jnp.tril(jnp.ones((2 * k, 2 * k), dtype=bool))
        for block in self.blocks:
            h = block(h, mask)
        return self.scale * self.read(self.norm(h[:, ::2]))[..., 0]

    def alone(self, x: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Predict labels without any context, as the predictor of ghost examples.

        Parameters
        ----------
        x : (n, d) inputs.

        Returns
        -------
        (n,)
        """
        return self(x[:, None], jnp.zeros((len(x), 1), x.dtype))[:, 0]

    def loss(self, x: Float[Array, "b k d"], y: Float[Array, "b k"]) -> Float[Array, ""]:
        """Mean squared error over all positions, of labels divided by ``scale``.

        Parameters
        ----------
        x, y : (b, k, d), (b, k) prompts.

        Returns
        -------
        scalar
        """
        return ((self(x, y) - y) ** 2).mean() / self.scale**2


def _check_prompt(x: Array, y: Array, dim: int) -> None:
    if x.ndim < 2 or x.shape[-1] != dim or y.shape != x.shape[:-1] or not x.shape[-2]:
        raise ValueError(f"x must have shape (..., k, {dim}) with k >= 1, and y (..., k), got {x.shape} and {y.shape}")
