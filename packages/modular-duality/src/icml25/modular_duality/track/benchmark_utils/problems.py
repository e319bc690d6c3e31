"""Each problem of the track, solved by the optimizer that ``params["optimizer"]`` names."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from icml25.modular_duality import GPT, MLP, residual
from icml25.modular_duality.modules import Linear, ReLU
from icml25.modular_duality.track.benchmark_utils.optimizers import GRIDS, TUNED, cross_entropy, run, stable_rank


def warm_up():
    """Start JAX before the clock does; what one seed has compiled, the next ones take from the run's cache."""
    if folder := os.environ.get("BENCHOPT_CACHE"):
        jax.config.update("jax_compilation_cache_dir", str(Path(folder) / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.block_until_ready(jnp.zeros(1) + 1)


def network_of(scaling, size, n_in, n_out):
    """A perceptron of three layers and this width, or this many residual blocks of width 64."""
    if scaling == "width":
        return MLP(n_out, n_in, size, 3)
    blocks = residual(Linear(64, 64) @ ReLU() @ Linear(64, 64), size) ** size
    return Linear(n_out, 64) @ blocks.tare(2.0) @ Linear(64, n_in)


def data_of(x, labels, seed):
    """What a run reads: rows, labels, the key of its batches."""
    return jnp.asarray(x), jnp.asarray(labels), jax.random.key(seed)


def random_batches(batch):
    """Random rows at each step."""

    def batches(data, step):
        x, labels, key = data
        rows = jax.random.randint(jax.random.fold_in(key, step), (batch,), 0, len(x))
        return x[rows], labels[rows]

    return batches


def evaluation(network):
    """Compiled ``weights, x, labels -> mean loss, accuracy``."""

    def evaluate(weights, x, labels):
        logits = network(weights, x)
        return cross_entropy(logits, labels), (logits.argmax(-1) == labels).mean()

    return jax.jit(evaluate)


def transfer(arrays, params):
    """Final training loss and test accuracy (sizes, learning rates) over the method's own grid."""
    x, labels, sizes = arrays["x"], arrays["y"], arrays["sizes"].tolist()
    grid = GRIDS[params["optimizer"]][:4]
    data = data_of(x, labels, params["seed"])
    loss, accuracy = np.zeros((2, len(sizes), len(grid)))
    for i, size in enumerate(sizes):
        network = network_of(params["scaling"], size, x.shape[1], 10)
        weights = network.init(jax.random.key(params["seed"]))
        train = run(params["optimizer"], network, random_batches(params["batch"]), params["steps"])
        evaluate = evaluation(network)
        for j, learning_rate in enumerate(grid):
            end, _ = train(learning_rate, weights, data)
            loss[i, j], _ = evaluate(end, x, labels)
            _, accuracy[i, j] = evaluate(end, arrays["x_test"], arrays["y_test"])
    return {"loss": loss, "accuracy": accuracy}


def curve(arrays, params):
    """Training loss after each step, at the learning rate tuned before."""
    x, labels = arrays["x"], arrays["y"]
    network = network_of("width", params["width"], x.shape[1], 10)
    weights = network.init(jax.random.key(params["seed"]))
    full_loss = lambda data, w, g, u: cross_entropy(network(w, data[0]), data[1])  # noqa: E731
    train = run(params["optimizer"], network, random_batches(params["batch"]), params["steps"], measured=full_loss)
    learning_rate = params.get("learning_rate") or TUNED["digits"][params["optimizer"]]
    end, losses = train(learning_rate, weights, data_of(x, labels, params["seed"]))
    _, accuracy = evaluation(network)(end, arrays["x_test"], arrays["y_test"])
    return {"curve": np.asarray(losses), "accuracy": float(accuracy)}


def erasure(arrays, params):
    """The hidden matrix before and after training, marked with ``mask`` at first, and stable ranks of what moves it."""
    x, labels, mask = arrays["x"], arrays["y"], jnp.asarray(arrays["mask"])
    network = network_of("width", len(mask), x.shape[1], 10)
    first, hidden, last = network.init(jax.random.key(params["seed"]))
    marked = hidden * (1 + 2 * mask)
    weights = [first, marked / network.norm_specs()[1].norm(marked), last]
    ranks = lambda data, w, g, u: (stable_rank(g[1]), stable_rank(u[1]))  # noqa: E731
    train = run(params["optimizer"], network, random_batches(params["batch"]), params["steps"], measured=ranks)
    learning_rate = params.get("learning_rate") or TUNED["erasure"][params["optimizer"]]
    end, (of_gradient, of_update) = train(learning_rate, weights, data_of(x, labels, params["seed"]))
    return {
        "before": np.asarray(weights[1]),
        "after": np.asarray(end[1]),
        "gradient_ranks": np.asarray(of_gradient),
        "update_ranks": np.asarray(of_update),
        "loss": float(evaluation(network)(end, x, labels)[0]),
    }


def text(arrays, params):
    """Loss of each symbol of the held-out windows after training a small GPT."""
    train_text, windows = jnp.asarray(arrays["train"]).astype(int), jnp.asarray(arrays["held_out"]).astype(int)
    d, heads, length = params["d"], params["heads"], windows.shape[1] - 1
    network = GPT(params["vocabulary"], heads, d, d // heads, d // heads, params["blocks"])
    weights = network.init(jax.random.key(params["seed"]))

    def batches(data, step):
        text, key = data
        starts = jax.random.randint(jax.random.fold_in(key, step), (params["batch"], 1), 0, len(text) - length)
        rows = text[starts + jnp.arange(length + 1)]
        return rows[:, :-1], rows[:, 1:]

    train = run(params["optimizer"], network, batches, params["steps"], momentum=0.95)
    learning_rate = params.get("learning_rate") or TUNED["text"][params["optimizer"]]
    end, _ = train(learning_rate, weights, (train_text, jax.random.key(params["seed"])))
    logits = jax.jit(network.__call__)(end, windows[:, :-1])
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), windows[:, 1:, None], -1)
    return {"losses": -np.asarray(picked[..., 0])}
