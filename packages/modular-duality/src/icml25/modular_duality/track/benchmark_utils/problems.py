"""Each problem of the track, solved by the optimizer that ``params["optimizer"]`` names."""

import jax
import jax.numpy as jnp
import numpy as np

from icml25.modular_duality import GPT, MLP, residual
from icml25.modular_duality.modules import Linear, ReLU
from icml25.modular_duality.track.benchmark_utils.optimizers import GRIDS, TUNED, cross_entropy, run, stable_rank


def warm_up():
    """Start JAX before the clock does."""
    jax.block_until_ready(jnp.zeros(1) + 1)


def network_of(scaling, size, n_in, n_out):
    """A perceptron of three layers and this width, or this many residual blocks of width 64."""
    if scaling == "width":
        return MLP(n_out, n_in, size, 3)
    blocks = residual(Linear(64, 64) @ ReLU() @ Linear(64, 64), size) ** size
    return Linear(n_out, 64) @ blocks.tare(2.0) @ Linear(64, n_in)


def random_batches(x, labels, batch, seed):
    """Random rows at each step."""
    x, labels = jnp.asarray(x), jnp.asarray(labels)

    def batches(step):
        rows = jax.random.randint(jax.random.fold_in(jax.random.key(seed), step), (batch,), 0, len(x))
        return x[rows], labels[rows]

    return batches


def transfer(arrays, params):
    """Final training loss and test accuracy (sizes, learning rates) over the method's own grid."""
    x, labels, sizes = arrays["x"], arrays["y"], arrays["sizes"].tolist()
    grid = GRIDS[params["optimizer"]][:4]
    batches = random_batches(x, labels, params["batch"], params["seed"])
    loss, accuracy = np.zeros((2, len(sizes), len(grid)))
    for i, size in enumerate(sizes):
        network = network_of(params["scaling"], size, x.shape[1], 10)
        weights = jax.jit(network.init)(jax.random.key(params["seed"]))
        train = run(params["optimizer"], network, weights, batches, params["steps"])
        for j, learning_rate in enumerate(grid):
            end, _ = train(learning_rate)
            loss[i, j] = cross_entropy(network(end, jnp.asarray(x)), labels)
            accuracy[i, j] = (network(end, jnp.asarray(arrays["x_test"])).argmax(-1) == arrays["y_test"]).mean()
    return {"loss": loss, "accuracy": accuracy}


def curve(arrays, params):
    """Training loss after each step, at the learning rate tuned before."""
    x, labels = jnp.asarray(arrays["x"]), arrays["y"]
    network = network_of("width", params["width"], x.shape[1], 10)
    weights = jax.jit(network.init)(jax.random.key(params["seed"]))
    batches = random_batches(x, labels, params["batch"], params["seed"])
    full_loss = lambda w, g, u: cross_entropy(network(w, x), labels)  # noqa: E731
    train = run(params["optimizer"], network, weights, batches, params["steps"], measured=full_loss)
    end, losses = train(params.get("learning_rate") or TUNED["digits"][params["optimizer"]])
    accuracy = (network(end, jnp.asarray(arrays["x_test"])).argmax(-1) == arrays["y_test"]).mean()
    return {"curve": np.asarray(losses), "accuracy": float(accuracy)}


def erasure(arrays, params):
    """The hidden matrix before and after training, marked with ``mask`` at first, and stable ranks of what moves it."""
    x, labels, mask = arrays["x"], arrays["y"], jnp.asarray(arrays["mask"])
    network = network_of("width", len(mask), x.shape[1], 10)
    first, hidden, last = jax.jit(network.init)(jax.random.key(params["seed"]))
    marked = hidden * (1 + 2 * mask)
    weights = [first, marked / network.norm_specs()[1].norm(marked), last]
    batches = random_batches(x, labels, params["batch"], params["seed"])
    ranks = lambda w, g, u: (stable_rank(g[1]), stable_rank(u[1]))  # noqa: E731
    train = run(params["optimizer"], network, weights, batches, params["steps"], measured=ranks)
    end, (of_gradient, of_update) = train(params.get("learning_rate") or TUNED["erasure"][params["optimizer"]])
    return {
        "before": np.asarray(weights[1]),
        "after": np.asarray(end[1]),
        "gradient_ranks": np.asarray(of_gradient),
        "update_ranks": np.asarray(of_update[:-1]),  # the last one has learning rate nearly 0
        "loss": float(cross_entropy(network(end, jnp.asarray(x)), labels)),
    }


def text(arrays, params):
    """Loss of each symbol of the held-out windows after training a small GPT."""
    train_text, windows = jnp.asarray(arrays["train"]).astype(int), jnp.asarray(arrays["held_out"]).astype(int)
    d, heads, length = params["d"], params["heads"], windows.shape[1] - 1
    network = GPT(params["vocabulary"], heads, d, d // heads, d // heads, params["blocks"])
    weights = jax.jit(network.init)(jax.random.key(params["seed"]))

    def batches(step):
        key = jax.random.fold_in(jax.random.key(params["seed"]), step)
        starts = jax.random.randint(key, (params["batch"], 1), 0, len(train_text) - length)
        rows = train_text[starts + jnp.arange(length + 1)]
        return rows[:, :-1], rows[:, 1:]

    train = run(params["optimizer"], network, weights, batches, params["steps"], momentum=0.95)
    end, _ = train(params.get("learning_rate") or TUNED["text"][params["optimizer"]])
    logits = jax.jit(network.__call__)(end, windows[:, :-1])
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), windows[:, 1:, None], -1)
    return {"losses": -np.asarray(picked[..., 0])}
