"""Plasticity metrics on features made by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from icml25.p3o import plasticity_report
from icml25.p3o.metrics import dormant_units, effective_rank, saturated_units, unit_scores


def test_dormant_and_saturated():
    h = jnp.array([[1.0, 0.0, 0.02, -1.0], [-1.0, 0.0, -0.02, 1.0]])
    assert np.allclose(unit_scores(h), np.array([1, 0, 0.02, 1]) / 0.505)
    assert dormant_units(h).tolist() == [False, True, False, False]
    assert dormant_units(h, 0.05).tolist() == [False, True, True, False]
    assert saturated_units(h).tolist() == [True, False, False, True]
    mostly = jnp.ones((100, 1)).at[:4].set(0.0)  # mean 0.96, but 96% of the inputs saturate it
    assert saturated_units(mostly).all() and not saturated_units(mostly.at[4:7].set(0.0)).any()
    assert dormant_units(jnp.zeros((3, 2))).all()


def test_effective_rank():
    rng = np.random.default_rng(0)
    Q, _ = np.linalg.qr(rng.normal(size=(20, 6)))
    assert effective_rank(jnp.asarray(Q)) == (6, pytest.approx(6, rel=1e-5))
    assert effective_rank(jnp.asarray(Q[:, :3] @ rng.normal(size=(3, 6))))[0] <= 3
    weighted = Q * np.array([97.0, 2.0, 0.5, 0.25, 0.15, 0.1])
    p = np.array([97.0, 2.0, 0.5, 0.25, 0.15, 0.1]) / 100
    rank, entropy = effective_rank(jnp.asarray(weighted))
    assert rank == 2 and entropy == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-4)
    assert effective_rank(jnp.zeros((4, 3))) == (0, 0.0)


def test_report(mlp):
    init, apply = mlp
    params, x = init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (40, 5))

    def loss(params):
        return (apply(params, x)[0] ** 2).mean()

    report = plasticity_report(params, apply, x, loss=loss, ages=[np.arange(12), np.ones(9)])
    assert report["dormant"] == [0, 0] and len(report["saturated"]) == len(report["effective_rank"]) == 2
    assert report["effective_rank"][0] <= 5 + 7 and report["mean_age"] == [5.5, 1.0]
    squares = sum(float((np.asarray(p) ** 2).sum()) for p in jax.tree.leaves(params))
    assert report["weight_norm"] == pytest.approx(np.sqrt(squares), rel=1e-5)
    assert report["gradient_norm"] == pytest.approx(float(optax.tree.norm(jax.grad(loss)(params))), rel=1e-5)
    with pytest.raises(TypeError, match="hidden"):
        plasticity_report(params, lambda p, x: apply(p, x)[0], x)
