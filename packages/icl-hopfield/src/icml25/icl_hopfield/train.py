"""Train a model on prompts of a task family, and measure its errors along a prompt."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float

from icml25.icl_hopfield import checks
from icml25.icl_hopfield.checks import ArrayLike, Real
from icml25.icl_hopfield.tasks import Key, Task

CHUNK = 100  # steps between reports


def adam(model: nnx.Module, steps: int, *, peak: Real = 1e-3, warmup: int = 100, clip: Real = 1.0) -> nnx.Optimizer:
    """Adam with clipped gradients, linear warm-up and cosine decay to zero.

    Parameters
    ----------
    model : what it will train.
    steps : of the whole schedule.
    peak : > 0, largest learning rate.
    warmup : >= 0, steps until then.
    clip : > 0, largest norm of a gradient.

    Returns
    -------
    nnx.Optimizer
    """
    checks.count(steps, "steps")
    checks.count(warmup, "warmup", 0)
    for name, value in (("peak", peak), ("clip", clip)):
        checks.number(value, name, 0, open_low=True)
    schedule = optax.warmup_cosine_decay_schedule(0.0 if warmup else peak, peak, warmup, max(steps, warmup + 1))
    return nnx.Optimizer(model, optax.chain(optax.clip_by_global_norm(clip), optax.adam(schedule)), wrt=nnx.Param)


def train(
    model: Any,
    task: Task,
    steps: int,
    *,
    key: Key,
    batch: int = 64,
    k: int = 13,
    optimizer: nnx.Optimizer | None = None,
    callback: Callable[[int, Float[np.ndarray, " n"]], Any] | None = None,
) -> Float[np.ndarray, " steps"]:
    """Minimise ``model.loss(x, y)`` over fresh prompts.

    To go on after a stop, keep the optimizer and pass it again: its step decides which prompts come, so that the result
    is that of one run.

    Parameters
    ----------
    model : `ICLTransformer`, `OneLayerAttention`, or any nnx module with a method ``loss(x, y)``; changed in place.
    task : anything with ``sample(key, batch, k)``.
    steps : >= 1, from where the optimizer is.
    key : jax random key.
    batch : prompts of a step.
    k : examples of a prompt, its query included.
    optimizer : default: adam(model, steps).
    callback : called with the step and the losses since the last call, every 100 steps; a true result stops.

    Returns
    -------
    losses (steps,), fewer if stopped

    Raises
    ------
    FloatingPointError: a loss is not finite.
    """
    checks.count(steps, "steps")
    if not hasattr(model, "loss"):
        raise TypeError(f"model must have a method loss(x, y), got {type(model).__name__}")
    optimizer = adam(model, steps) if optimizer is None else optimizer
    graph, state = nnx.split((model, optimizer))

    def step(i: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
        state, losses = carry
        model, optimizer = nnx.merge(graph, state)
        x, y = task.sample(jax.random.fold_in(key, optimizer.step[...]), batch, k)
        loss, gradient = nnx.value_and_grad(lambda m: m.loss(x, y))(model)
        optimizer.update(model, gradient)
        return nnx.state((model, optimizer)), losses.at[i].set(loss)

    @jax.jit
    def run(state: Any, n: Array) -> tuple[Any, Array]:
        return jax.lax.fori_loop(0, n, step, (state, jnp.zeros(CHUNK)))

    history: list[np.ndarray] = []
    for done in range(0, steps, CHUNK):
        n = min(CHUNK, steps - done)
        state, losses = run(state, jnp.asarray(n))
        history.append(np.asarray(losses)[:n])
        nnx.update((model, optimizer), state)
        if not np.isfinite(history[-1]).all():
            raise FloatingPointError(
                f"the loss is not finite within steps {done} to {done + n}; lower the learning rate"
            )
        if callback is not None and callback(done + n, history[-1]):
            break
    return np.concatenate(history)


def evaluate_prefix(model: Callable[[Array, Array], Array], x: ArrayLike, y: ArrayLike) -> Float[np.ndarray, " k"]:
    """Mean squared error of each label, predicted from the examples before it.

    Parameters
    ----------
    model : (x, y) -> predictions (b, k), such as an `ICLTransformer`.
    x, y : (b, k, d), (b, k) prompts.

    Returns
    -------
    (k,)
    """
    x, y = checks.finite(x, "x"), checks.finite(y, "y")
    if not x.size:
        raise ValueError(f"x must hold at least one prompt, got shape {x.shape}")
    predictions = model(x, y)
    if predictions.shape != y.shape:
        raise ValueError(f"model(x, y) must have shape {y.shape}, got {predictions.shape}")
    return np.asarray(((predictions - y) ** 2).mean(0))
