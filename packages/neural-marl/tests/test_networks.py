"""The networks at initialisation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml25.neural_marl.networks import (
    Critic,
    LinearActor,
    LinearCritic,
    MLPActor,
    MLPCritic,
    NeuralActor,
    output_scale,
)


def unit(d: int) -> jnp.ndarray:
    x = np.random.default_rng(0).normal(size=d)
    return jnp.asarray(x / np.linalg.norm(x), jnp.float32)


def test_layers_keep_the_norm() -> None:
    critic, x = Critic(1024, 3, 1.0), unit(5)

    @jax.jit
    def squares(key):
        variables = critic.init(key, x)
        own = {name: variables[name] for name in ("params", "fixed")}
        _, sown = critic.apply(own, x, mutable=["intermediates"])
        return jnp.stack([(h**2).sum() for h in sown["intermediates"]["h"]])

    norms = np.mean([np.asarray(squares(jax.random.key(k))) for k in range(30)], 0)
    assert norms.shape == (4,)
    np.testing.assert_allclose(norms / 2048, 1, atol=0.1)


@pytest.mark.parametrize(("param", "variance"), [("paper", 2 * 64), ("unit", 1)])
def test_output_variance(param, variance: float) -> None:
    critic, x = Critic(64, 3, output_scale(param, 64)), unit(5)
    values = jax.jit(jax.vmap(lambda key: critic.init_with_output(key, x)[0]))(jax.random.split(jax.random.key(0), 300))
    assert np.mean(np.asarray(values) ** 2) / variance == pytest.approx(1, abs=0.4)


def test_by_hand() -> None:
    critic, x = Critic(4, 2, 0.5), unit(3)
    variables = critic.init(jax.random.key(1), x)
    assert set(variables["params"]) == {"W1", "W2"} and set(variables["fixed"]) == {"H", "b"}
    W, fixed = jax.tree.map(np.asarray, (variables["params"], variables["fixed"]))
    h1 = np.maximum(W["W1"] @ (fixed["H"] @ x), 0) / 2
    h2 = np.maximum(W["W2"] @ h1, 0) / 2
    assert float(critic.apply(variables, x)) == pytest.approx(0.5 * float(fixed["b"] @ h2), rel=1e-5)


def test_unit_is_paper_scaled() -> None:
    x = unit(3)
    values = {
        p: Critic(16, 2, output_scale(p, 16)).init_with_output(jax.random.key(0), x)[0] for p in ("unit", "paper")
    }
    assert float(values["unit"]) == pytest.approx(float(values["paper"]) / math.sqrt(32), rel=1e-6)


def test_actor_trains_everything() -> None:
    m, depth, d, n = 8, 3, 5, 4
    actor = NeuralActor(m, depth, 1.0, n)
    variables = actor.init(jax.random.key(0), unit(d))
    assert set(variables) == {"params"}
    assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == m * (depth * m + d + n)
    assert actor.apply(variables, jnp.ones((2, 3, d))).shape == (2, 3, n)


def test_batches_and_plain_networks() -> None:
    x = jnp.stack([unit(5), -unit(5)])
    for module in (Critic(8, 2, 1.0), MLPCritic(8, 2), LinearCritic()):
        variables = module.init(jax.random.key(0), x[0])
        both = module.apply(variables, x)
        np.testing.assert_allclose(both, [module.apply(variables, row) for row in x], rtol=1e-5, atol=1e-6)
    for actor in (MLPActor(8, 2, 3), LinearActor(3)):
        assert actor.apply(actor.init(jax.random.key(0), x[0]), x).shape == (2, 3)
