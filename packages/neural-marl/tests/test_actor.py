"""Weights, directions and steps of the actors."""

import itertools

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from icml25.neural_marl import NetworkedMDP, NeuralDAC, advantage_weights, direction, normalise


@pytest.fixture(scope="module")
def exact():
    """A policy away from uniform, batches of independent samples under it, and the true Q of each agent."""
    env = NetworkedMDP.random(2, 3, 2, additive=False, seed=5, gamma=0.8)
    algo = NeuralDAC(env, nx.path_graph(2), critic="exact", normalize=None, alpha=1.0, sampling="stationary")
    theta = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 2)), jnp.float32)
    algo.state = algo.state._replace(actors={"theta": theta})
    tables = algo.policy_tables()
    own = [NetworkedMDP(env.P, R[None].repeat(2, 0), env.rho, env.gamma, env.n_actions) for R in env.R]
    Q = np.stack([e.exact(tables)[1] for e in own])  # (N, S, A)
    batch = jax.vmap(lambda key: algo._stationary(key, {"theta": theta}, 200))(jax.random.split(jax.random.key(0), 200))
    algo.train(1)
    d = algo.state.actors["theta"] - theta
    return env, tables, Q, jax.tree.map(np.asarray, batch), np.asarray(d), theta


def weights(exact, kind: str) -> np.ndarray:
    _, tables, Q, batch, _, _ = exact
    pi = np.einsum("sa,sb->sab", *tables).reshape(3, 4)
    here, there = (np.ravel_multi_index(np.moveaxis(a, -1, 0), (2, 2)) for a in (batch.a, batch.a_next))
    q_here, q_next = (np.moveaxis(Q[:, s, a], 0, -1) for s, a in ((batch.s, here), (batch.s_next, there)))
    V = (Q * pi).sum(2)
    if kind == "fresh":  # V(s) by one draw of the joint policy, independent of a
        rng = np.random.default_rng(1)
        drawn = (rng.random(batch.s.shape)[..., None] > pi.cumsum(1)[batch.s]).sum(-1)
        v_here, kind = np.moveaxis(Q[:, batch.s, np.minimum(drawn, 3)], 0, -1), "td"
    else:
        v_here = np.moveaxis(V[:, batch.s], 0, -1)
    if kind == "advantage":
        return q_here - v_here
    return np.asarray(advantage_weights(kind, *map(jnp.asarray, (batch.r, q_here, q_next, v_here)), 0.8))


def z_scores(exact, w: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Of the mean over 200 batches of the direction with consensual (here: averaged) weights."""
    _, _, _, batch, _, theta = exact

    def one(s, a, w):
        def log_policy(theta):
            log_pi = jax.nn.log_softmax(theta["theta"][:, s])
            return jnp.take_along_axis(log_pi, a.T[:, :, None], 2)[:, :, 0]

        return direction(log_policy, {"theta": theta}, w)[0]["theta"]

    consensual = np.broadcast_to(w.mean(-1, keepdims=True), w.shape)
    d = np.asarray(jax.vmap(one)(batch.s, batch.a, jnp.asarray(consensual, jnp.float32)))
    return (d.mean(0) - target) / (d.std(0) / np.sqrt(len(d)))


@pytest.mark.parametrize("kind", ["td", "fresh", "q", "advantage"])
def test_sampled_direction_is_unbiased(exact, kind: str) -> None:
    z = z_scores(exact, weights(exact, kind), exact[4])
    assert np.abs(z).max() < 4.5


def test_the_direction_is_seen(exact) -> None:
    assert np.abs(z_scores(exact, weights(exact, "td"), 0.0)).max() > 10


def test_sarsa_error_has_mean_zero(exact) -> None:
    w = weights(exact, "sarsa")
    z = z_scores(exact, w, 0.0)
    assert np.abs(z).max() < 4.5
    assert np.abs(w).mean() > 0.1
    flat = w.reshape(-1, 2)
    assert (np.abs(flat.mean(0) / flat.std(0) * np.sqrt(len(flat))) < 4.5).all()


def test_exact_direction_is_the_gradient() -> None:
    """(1 - gamma) grad J by autodiff through the value of the policy, in float64, also for uneven action sets."""
    rng = np.random.default_rng(3)
    env = NetworkedMDP(rng.dirichlet(np.ones(4), (4, 6)), rng.normal(size=(2, 4, 6)), np.full(4, 0.25), 0.9, (2, 3))
    with jax.enable_x64(True):
        for actor in ("linear", "neural"):
            algo = NeuralDAC(
                env, nx.path_graph(2), critic="exact", actor=actor, normalize=None, alpha=1.0, width=6, depth=2
            )
            before = algo.state.actors

            def J(actors, algo=algo):
                pi = jax.nn.softmax(algo._state_logits(actors))
                return env.evaluate_joint(env.joint_policy(pi))[0]

            gradient = jax.grad(J)(before)
            algo.train(1)
            assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(algo.state.actors))
            moved = jax.tree.map(lambda new, old: new - old, algo.state.actors, before)
            for d, g in zip(jax.tree.leaves(moved), jax.tree.leaves(gradient), strict=True):
                np.testing.assert_allclose(d, (1 - 0.9) * g, rtol=1e-5, atol=1e-10)


def norms(tree) -> np.ndarray:
    return np.sqrt(sum((np.asarray(leaf).reshape(len(leaf), -1) ** 2).sum(1) for leaf in jax.tree.leaves(tree)))


def test_normalised_lengths() -> None:
    rng = np.random.default_rng(0)
    d = {
        "a": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32),
        "b": jnp.asarray(rng.normal(size=(3, 2, 2)), jnp.float32),
    }
    norm = jnp.asarray(norms(d), jnp.float32)
    np.testing.assert_allclose(norms(normalise(d, norm, "agent")), 1, rtol=1e-6)
    together = normalise(d, norm, "joint")
    assert np.linalg.norm(norms(together)) == pytest.approx(1, rel=1e-6)
    ratio = np.asarray(together["b"] / d["b"])
    np.testing.assert_allclose(ratio, ratio[0, 0, 0], rtol=1e-5)
    assert normalise(d, norm, None) is d


@pytest.mark.parametrize("kind", ["agent", "joint"])
def test_zero_direction_is_no_step(kind: str) -> None:
    d = {"a": jnp.zeros((2, 3))}
    np.testing.assert_array_equal(normalise(d, jnp.zeros(2), kind)["a"], 0)


def test_weights_by_hand() -> None:
    r, q, q_next, v = (jnp.full((1, 2), x) for x in (1.0, 2.0, 4.0, 3.0))
    got = [float(advantage_weights(kind, r, q, q_next, v, 0.5)[0, 0]) for kind in ("td", "q", "sarsa")]
    assert got == [0.0, 2.0, 1.0]


def test_the_td_error_needs_a_value() -> None:
    with pytest.raises(ValueError, match="v_here is None"):
        advantage_weights("td", *[jnp.ones((1, 2))] * 3, None, 0.5)


def test_direction_by_differences() -> None:
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(2, 3))
    actions, w = np.array([[0, 2], [1, 1]]), rng.normal(size=(2, 2))  # (M, N)

    def log_policy(theta):
        log_pi = jax.nn.log_softmax(theta["t"])
        return jnp.stack([log_pi[i, actions[:, i]] for i in range(2)])

    d, norm = direction(log_policy, {"t": jnp.asarray(theta, jnp.float32)}, jnp.asarray(w, jnp.float32))
    for i, a in itertools.product(range(2), range(3)):
        pi = np.exp(theta[i]) / np.exp(theta[i]).sum()
        expected = np.mean([w[k, i] * ((actions[k, i] == a) - pi[a]) for k in range(2)])
        assert float(d["t"][i, a]) == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(norm, norms(d), rtol=1e-6)
