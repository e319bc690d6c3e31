"""The optimizers of the track, all with momentum 0.9 and the learning rate as a schedule.

Learning rates of the problems without a grid are the best of each method's own grid (fewest steps to a training loss of
0.1, lowest training loss, lowest validation loss) on seed 1000, which is not reported; ``python -m icml25.modular_duality.track.benchmark_utils.tune``
repeats the search.
"""

import jax
import jax.numpy as jnp
import optax

from icml25.modular_duality import norms, scale_by_modular_dual

GRIDS = {  # five learning rates each; the transfer of the learning rate is put to the first four
    "modular-duality": (0.03, 0.1, 0.3, 1.0, 3.0),
    "SGD": (0.03, 0.1, 0.3, 1.0, 3.0),
    "Adam": (0.001, 0.003, 0.01, 0.03, 0.1),
    "AdamW": (0.001, 0.003, 0.01, 0.03, 0.1),
    "Muon": (0.01, 0.03, 0.1, 0.3, 1.0),
    "spectral": (0.03, 0.1, 0.3, 1.0, 3.0),
}
TUNED = {
    "digits": {"modular-duality": 0.3, "SGD": 0.1, "Adam": 0.03, "AdamW": 0.03, "Muon": 0.3},
    "erasure": {"modular-duality": 0.3, "spectral": 1.0},
    "text": {"modular-duality": 0.1, "AdamW": 0.01},
}


def spectral_normalization(specs):
    """Gradients scaled to the same norm as by modular duality, but with their own singular values: the control."""

    def scaled(spec, g):
        return g * spec.mass / spec.sensitivity_after / (spec.norm(g) + 1e-30)

    mass = sum(spec.mass for spec in specs)
    return optax.stateless(lambda updates, _: [scaled(s, g) / mass for s, g in zip(specs, updates, strict=True)])


def _orthogonalized_by_muon(spec):
    """Muon is for hidden matrices; it leaves embedding and readout to AdamW (marked by their place, see ``muon``)."""
    return optax.contrib.MuonDimensionNumbers(spec.in_axes, spec.out_axes) if isinstance(spec, norms.Linear) else None


def muon(learning_rate, specs):
    """optax.contrib.muon on the hidden matrices, its AdamW on the first and the last weights."""
    axes = [None, *(_orthogonalized_by_muon(spec) for spec in specs[1:-1]), None]
    return optax.contrib.muon(
        learning_rate, muon_weight_dimension_numbers=axes, adam_learning_rate=lambda t: 0.1 * learning_rate(t)
    )


def make(name, learning_rate, specs, momentum=0.9):
    """An optimizer by name, for weights with these norms."""
    descend = optax.scale_by_learning_rate(learning_rate)
    if name == "modular-duality":
        return optax.chain(optax.trace(momentum), scale_by_modular_dual(specs), descend)
    if name == "spectral":
        return optax.chain(optax.trace(momentum), spectral_normalization(specs), descend)
    if name == "SGD":
        return optax.sgd(learning_rate, momentum)
    if name == "Adam":
        return optax.adam(learning_rate)
    if name == "AdamW":
        return optax.adamw(learning_rate, weight_decay=0.01)
    return muon(learning_rate, specs)


def stable_rank(matrix):
    """||D||_F^2 / ||D||_2^2."""
    sigma = jnp.linalg.svd(matrix, compute_uv=False)
    return jnp.sum(sigma**2) / jnp.max(sigma) ** 2


def linear_decay(learning_rate, steps):
    """From the learning rate to zero in so many steps."""
    return lambda count: learning_rate * jnp.maximum(0, 1 - count / steps)


def cross_entropy(logits, labels):
    """Mean loss of next symbols or classes."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def run(name, network, batches, steps, *, momentum=0.9, measured=None):
    """A compiled training run ``learning_rate, weights, data -> (weights, values per step)``, the same for all seeds.

    ``batches(data, step)`` gives inputs and labels; ``measured(data, weights, gradient, update)`` the values.
    """
    specs = network.norm_specs()

    def train(learning_rate, weights, data):
        optimizer = make(name, linear_decay(learning_rate, steps), specs, momentum)

        def step(carry, count):
            weights, state = carry
            x, labels = batches(data, count)
            gradient = jax.grad(lambda w: cross_entropy(network(w, x), labels))(weights)
            update, state = optimizer.update(gradient, state, weights)
            weights = optax.apply_updates(weights, update)
            return (weights, state), measured(data, weights, gradient, update) if measured else None

        (end, _), values = jax.lax.scan(step, (weights, optimizer.init(weights)), jnp.arange(steps))
        return end, values

    return jax.jit(train)
