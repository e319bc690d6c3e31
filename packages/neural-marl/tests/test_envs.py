"""Environments against brute force."""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from conftest import random_policy

from icml25.neural_marl import GridSpread, GridState, NetworkedMDP, NeuralDAC


def joint(policy: list[np.ndarray]) -> np.ndarray:
    """Product policy (S, A) by loops."""
    shape = tuple(table.shape[1] for table in policy)
    out = np.ones((len(policy[0]), int(np.prod(shape))))
    for index in range(out.shape[1]):
        for table, a in zip(policy, np.unravel_index(index, shape), strict=True):
            out[:, index] *= table[:, a]
    return out


def uneven() -> NetworkedMDP:
    rng = np.random.default_rng(0)
    return NetworkedMDP(
        rng.dirichlet(np.ones(4), (4, 6)), rng.normal(size=(2, 4, 6)), [0.1, 0.2, 0.3, 0.4], 0.7, (2, 3)
    )


def test_exact_by_iteration() -> None:
    env = uneven()
    policy = random_policy(env, 1)
    J, Q, visitation = env.exact(policy)
    pi, r = joint(policy), env.R.mean(0)
    V, d, total = np.zeros(4), env.rho.copy(), np.zeros(4)
    for t in range(200):
        V = (pi * (r + 0.7 * env.P @ V)).sum(1)
        total += 0.3 * 0.7**t * d
        d = np.einsum("s,sa,sat->t", d, pi, env.P)
    assert pytest.approx(env.rho @ V, rel=1e-10) == J
    np.testing.assert_allclose(Q, r + 0.7 * env.P @ V, rtol=1e-10)
    np.testing.assert_allclose(visitation, total, rtol=1e-10)
    assert pytest.approx((visitation[:, None] * pi * r).sum() / 0.3, rel=1e-10) == J


def test_optimum_by_enumeration() -> None:
    env = uneven()
    best = -np.inf
    for index in range(0, 6**4, 5):
        a1, a2 = np.unravel_index(np.unravel_index(index, (6,) * 4), (2, 3))
        best = max(best, env.exact([np.eye(2)[a1], np.eye(3)[a2]])[0])
    J, V = env.optimal()
    assert J - 1 < best <= J + 1e-9
    greedy = np.unravel_index((env.R.mean(0) + 0.7 * env.P @ V).argmax(1), (2, 3))
    assert env.exact([np.eye(2)[greedy[0]], np.eye(3)[greedy[1]]])[0] == pytest.approx(J, rel=1e-9)


def test_joint_index_is_row_major() -> None:
    env = uneven()
    for a in np.ndindex(2, 3):
        assert int(env.joint_index(jnp.array(a))) == np.ravel_multi_index(a, (2, 3))
        x = env.features(jnp.array(2), jnp.array(a))
        assert int(x.argmax()) == 2 * 6 + np.ravel_multi_index(a, (2, 3)) and float(x.sum()) == 1


def test_steps_follow_P_and_R() -> None:
    env = uneven()
    a = jnp.array([1, 2])
    s_next, r = jax.vmap(lambda key: env.step(key, jnp.int32(3), a))(jax.random.split(jax.random.key(0), 20_000))
    np.testing.assert_allclose(np.bincount(s_next, minlength=4) / 20_000, env.P[3, 5], atol=0.02)
    np.testing.assert_allclose(r[0], env.R[:, 3, 5], rtol=1e-6)
    starts = jax.vmap(env.reset)(jax.random.split(jax.random.key(1), 20_000))
    np.testing.assert_allclose(np.bincount(starts, minlength=4) / 20_000, env.rho, atol=0.02)


def test_random_mdp() -> None:
    env = NetworkedMDP.random(2, 5, 3, additive=True, seed=4)
    own = env.R.reshape(2, 5, 3, 3)
    assert np.ptp(own[0], axis=2).max() == 0 and np.ptp(own[1], axis=1).max() == 0 and np.ptp(own[0], axis=1).min() > 0
    assert env.R.min() >= 0 and env.R.max() <= 4
    full = NetworkedMDP.random(2, 5, 3, additive=False, seed=4)
    assert np.ptp(full.R.reshape(2, 5, 3, 3)[0], axis=2).min() > 0
    np.testing.assert_array_equal(full.P, NetworkedMDP.random(2, 5, 3, additive=False, seed=4).P)


def test_value_iteration_by_hand() -> None:
    # cells 0 1 2, landmark on 0, episodes of two steps: from 2 the reward is -1, then 0
    env = GridSpread(1, 3, 1, reset_every=2, landmarks=[(0, 0)], gamma=0.5)
    J, V = env.optimal()
    assert pytest.approx(-(1 / 3) / (1 - 0.25)) == J
    np.testing.assert_allclose(V, np.array([0, 0, -1]) + 0.25 * J)


def test_moves() -> None:
    env = GridSpread(2, 3, 2, landmarks=[(0, 0), (2, 1)])
    s = GridState(jnp.array([1, 5]), jnp.int32(0))  # (1, 0) and (2, 1)
    after = [env.step(jax.random.key(0), s, jnp.array([a, a]))[0].cells.tolist() for a in range(5)]
    assert after == [[1, 2], [4, 5], [0, 4], [2, 5], [1, 5]]  # up, down, left, right, stay


def test_rewards() -> None:
    env = GridSpread(2, 5, 3, landmarks=[(0, 0), (4, 2)])
    np.testing.assert_array_equal(env.rewards(jnp.array([0, 14])), 0)
    np.testing.assert_array_equal(env.rewards(jnp.array([14, 0])), 0)
    np.testing.assert_array_equal(env.rewards(jnp.array([0, 0])), [0, -12])
    shared = GridSpread(2, 5, 3, landmarks=[(0, 0), (4, 2)], private=False)
    cells = jnp.asarray(env.states.cells)
    np.testing.assert_allclose(env.rewards(cells).mean(1), shared.rewards(cells)[:, 0])
    np.testing.assert_array_equal(shared.rewards(cells)[:, 0], shared.rewards(cells)[:, 1])


def test_features_have_norm_one() -> None:
    env = GridSpread(3, 4, 2)
    s = env.reset(jax.random.key(0))
    a = jnp.array([0, 4, 2])
    assert float(jnp.linalg.norm(env.features(s, a))) == pytest.approx(1)
    assert float(jnp.linalg.norm(env.state_features(s))) == pytest.approx(1)
    x = np.asarray(env.features(s, a)) * 3
    np.testing.assert_allclose(x[-15:].reshape(3, 5).argmax(1), a)
    np.testing.assert_allclose(x[:12].reshape(3, 4).argmax(1), np.asarray(s.cells) % 4)


def test_exact_grid_by_brute_force() -> None:
    """Positions and step of the episode as one chain, solved as a linear system."""
    env = GridSpread(2, 2, 1, reset_every=3, landmarks=[(0, 0), (1, 0)], gamma=0.9)
    policy = random_policy(env, 0)
    pi, S, H = joint(policy), 4, 3
    P, r = np.zeros((H * S, H * S)), np.zeros((H, S, 25))
    for s in range(S):
        cells = np.unravel_index(s, (2, 2))
        for index in range(25):
            moved = [env._move[c, a] for c, a in zip(cells, np.unravel_index(index, (5, 5)), strict=True)]
            reward = -sum(min(abs(c - landmark) for c in moved) for landmark in (0, 1))
            for t in range(H):
                r[t, s, index] = reward
                if t + 1 < H:
                    P[t * S + s, (t + 1) * S + np.ravel_multi_index(moved, (2, 2))] += pi[s, index]
                else:
                    P[t * S + s, :S] += pi[s, index] / S
    rho = np.repeat([1 / S, 0], [S, (H - 1) * S])
    r_pi = (r * pi).sum(2).ravel()
    V = np.linalg.solve(np.eye(H * S) - 0.9 * P, r_pi)
    d = 0.1 * np.linalg.solve((np.eye(H * S) - 0.9 * P).T, rho)
    J, Q, visitation = env.exact(policy)
    assert pytest.approx(rho @ V) == J
    np.testing.assert_allclose(visitation, d.reshape(H, S).sum(0))
    V_pi = (d * V).reshape(H, S).sum(0) / visitation
    np.testing.assert_allclose((pi * Q).sum(1), V_pi)


def test_episodes_end() -> None:
    env = GridSpread(1, 5, 5, reset_every=3)
    s = GridState(jnp.array([12]), jnp.int32(2))
    stay = jnp.array([4])
    after = jax.vmap(lambda key: env.step(key, s, stay)[0])(jax.random.split(jax.random.key(0), 5000))
    assert (after.t == 0).all()
    np.testing.assert_allclose(np.bincount(after.cells[:, 0], minlength=25) / 5000, 1 / 25, atol=0.015)
    again, _ = env.step(jax.random.key(0), s._replace(t=jnp.int32(0)), stay)
    assert again.t == 1 and again.cells.tolist() == [12]


def test_straight_walks_of_the_spec() -> None:
    """Random placement of two agents costs 8.3 a step on 13 x 5 cells, the optimum about 2.8."""
    values = [(e.rewards(jnp.asarray(e.states.cells)).mean(), e.optimal()[0] * 0.01) for e in map(_grid, range(12))]
    placed, best = np.mean(values, 0)
    assert placed == pytest.approx(-8.3, abs=0.8) and best == pytest.approx(-2.8, abs=0.5)


def _grid(seed: int) -> GridSpread:
    return GridSpread(2, 13, 5, seed=seed)


def test_too_big_for_exact_methods() -> None:
    env = GridSpread(4, 5, 3)
    with pytest.raises(ValueError, match="31640625 state-action pairs"):
        env.optimal()
    with pytest.raises(ValueError, match="31640625 state-action pairs"):
        env.exact([])
    with pytest.raises(ValueError, match="31640625"):
        NeuralDAC(env, nx.cycle_graph(4), critic="exact")
    algo = NeuralDAC(env, nx.cycle_graph(4), width=8, depth=1, critic_steps=2, actor_batch=2)
    assert algo.sample(5)["r"].shape == (5, 4)
    log = algo.train(2, log_every=1)
    assert log["gap"].isna().all() and np.isfinite(log["J"].iloc[1:]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"P": np.full((2, 4, 2), 0.4)}, r"P\[0, 0\] is no distribution: it sums to 0\.8"),
        ({"P": np.tile([1.5, -0.5], (2, 4, 1))}, r"P\[0, 0\]"),
        ({"P": np.ones((2, 4, 3))}, r"P has shape \(2, 4, 3\)"),
        ({"R": np.where(np.arange(8).reshape(1, 2, 4) == 5, np.nan, np.zeros((2, 2, 4)))}, r"R\[0, 1, 1\] is nan"),
        ({"R": np.zeros((2, 4))}, r"R has shape \(2, 4\)"),
        ({"rho": [0.5, 0.6]}, r"rho is no distribution: it sums to 1\.1"),
        ({"rho": [1.0]}, r"rho has shape \(1,\)"),
        ({"gamma": 1.0}, r"gamma is 1\.0"),
        ({"gamma": -0.1}, r"gamma is -0\.1"),
        ({"n_actions": (2, 3)}, r"n_actions is \(2, 3\) for 2 agents and 4 joint actions"),
    ],
)
def test_mdp_refuses(change: dict, message: str) -> None:
    good = {"P": np.full((2, 4, 2), 0.5), "R": np.zeros((2, 2, 4)), "rho": [0.5, 0.5], "gamma": 0.9}
    NetworkedMDP(**good)
    with pytest.raises(ValueError, match=message):
        NetworkedMDP(**{**good, **change})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_agents": 0}, "n_agents is 0"),
        ({"reset_every": 0}, "reset_every is 0"),
        ({"gamma": 1.0}, "gamma is 1.0"),
        ({"n_agents": 7, "width": 3, "height": 2}, "7 landmarks do not fit on 6 cells"),
        ({"landmarks": [(0, 0), (0, 0)]}, "2 distinct cells"),
        ({"landmarks": [(0, 0), (13, 0)]}, "2 distinct cells"),
    ],
)
def test_grid_refuses(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GridSpread(**settings)


def test_policies_that_are_refused() -> None:
    env = uneven()
    good = random_policy(env, 0)
    with pytest.raises(ValueError, match="1 tables for 2 agents"):
        env.exact(good[:1])
    with pytest.raises(ValueError, match=r"policy\[0\] has shape \(4, 3\); expected \(4, 2\)"):
        env.exact(good[::-1])
    with pytest.raises(ValueError, match=r"policy\[1\] has rows that are no probabilities"):
        env.exact([good[0], good[1] * 1.1])
