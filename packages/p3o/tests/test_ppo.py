"""GAE by brute force, the clipped surrogate's gradient, running moments, and what an update sees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import PLAIN
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.p3o import PPO, Categorical, gae
from icml25.p3o.envs import CartPole
from icml25.p3o.ppo import Moments, ppo_loss, rollout

WEIGHTS = {"clip_range": 0.2, "vf_coef": 0.0, "ent_coef": 0.0}
fast_gae = jax.jit(gae)


@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1))
@settings(deadline=None, max_examples=25)
def test_gae_is_the_sum_of_discounted_errors(seed, gamma, lam):
    rng = np.random.default_rng(seed)
    L, N = 7, 2
    rewards, values, final = rng.normal(size=(3, L, N)).astype(np.float32)
    last = rng.normal(size=N).astype(np.float32)
    ends = rng.choice(3, size=(L, N), p=[0.6, 0.2, 0.2])
    got, returns = fast_gae(rewards, values, last, ends == 1, ends == 2, final, gamma, lam)
    for n in range(N):
        for t in range(L):
            total, weight = 0.0, 1.0
            for k in range(t, L):
                after = last[n] if k == L - 1 else values[k + 1, n]
                after = {0: after, 1: 0.0, 2: final[k, n]}[ends[k, n]]
                total += weight * (rewards[k, n] + gamma * after - values[k, n])
                weight *= gamma * lam
                if ends[k, n]:
                    break
            assert got[t, n] == pytest.approx(total, abs=2e-5)
    assert np.allclose(returns, got + values, atol=1e-6)


def test_gae_of_one_environment():
    rewards, values = jnp.ones(3), jnp.zeros(3)
    no = jnp.zeros(3, bool)
    advantages, _ = gae(rewards, values, jnp.float32(10.0), no, no, values, 0.5, 1.0)
    assert np.allclose(advantages, [1.75 + 1.25, 1.5 + 2.5, 6.0])


def test_clip_stops_the_gradient_on_the_wrong_side_only():
    advantage = jnp.array([1.0, 1.0, -1.0, -1.0])
    ratio = jnp.array([1.5, 0.5, 1.5, 0.5])
    logits, action = jnp.zeros((4, 2)), jnp.zeros(4, jnp.int32)

    def loss(logits):
        old = jnp.log(0.5) - jnp.log(ratio)
        value = jnp.zeros(4)
        return ppo_loss(Categorical(logits), value, action, old, advantage, value, **WEIGHTS)[0]

    slope = np.abs(np.asarray(jax.grad(loss)(logits))).sum(1)
    assert slope[0] == slope[3] == 0  # up where A > 0, down where A < 0: already beyond the clip
    assert slope[1] > 0 and slope[2] > 0


def test_loss_parts():
    dist = Categorical(jnp.array([[0.0, 1.0], [2.0, 0.0], [0.5, 0.5]]))
    action, value, target = jnp.array([0, 1, 1]), jnp.array([1.0, 2.0, 3.0]), jnp.array([1.5, 2.0, 1.0])
    advantage = jnp.array([0.3, -2.0, 1.0])
    old = dist.log_prob(action)
    loss, parts = ppo_loss(dist, value, action, old, advantage, target, clip_range=0.2, vf_coef=0.5, ent_coef=0.1)
    assert parts["policy_loss"] == pytest.approx(0, abs=1e-6)  # ratio 1, advantages of mean 0
    assert parts["approx_kl"] == parts["clip_fraction"] == 0
    assert parts["value_loss"] == pytest.approx((0.25 + 0 + 4) / 3)
    assert parts["entropy"] == pytest.approx(float(dist.entropy().mean()))
    assert loss == pytest.approx(0.5 * (4.25 / 3) - 0.1 * float(dist.entropy().mean()), abs=1e-6)
    new = Categorical(dist.logits.at[0, 0].add(1.0))  # a likelier action of positive advantage
    better, _ = ppo_loss(new, value, action, old, advantage.at[0].set(3.0), target, **WEIGHTS)
    assert better < 0


def test_running_moments():
    rng = np.random.default_rng(0)
    data = rng.normal(3.0, 2.0, size=(900, 2)).astype(np.float32)
    stats = Moments.start((2,))
    for part in np.split(data, [100, 350]):
        stats = stats.update(jnp.asarray(part))
    assert np.allclose(stats.mean, data.mean(0), rtol=1e-4) and np.allclose(stats.var, data.var(0), rtol=1e-3)
    z = stats.standardise(jnp.asarray(data))
    assert np.allclose(z.mean(0), 0, atol=1e-3) and np.allclose(z.std(0), 1, atol=1e-3)
    assert stats.standardise(jnp.full(2, 1e6)).tolist() == [10.0, 10.0]


@pytest.fixture(scope="module")
def collected():
    """A learner after a few iterations, and a rollout under its policy."""
    agent = PPO(CartPole(horizon=20), **PLAIN)
    agent.learn(3 * 128)
    roll = jax.jit(lambda key, state, walk: rollout(agent.learner, agent.env, agent.action_space, key, state, walk))
    return agent, roll(jax.random.key(0), agent.state, agent._walk)


def test_ratio_is_one_at_the_first_minibatch(collected):
    agent, (_, batch, _) = collected
    x = agent.learner.normalize(agent.state, batch.obs)
    dist, _ = agent.learner.apply_actor(agent.state.params["actor"], x)
    assert np.allclose(dist.log_prob(batch.action), batch.log_prob, atol=1e-6)
    assert np.allclose(agent.learner.value(agent.state.params, x), batch.value, atol=1e-5)


def test_rollout_follows_the_environment(collected):
    agent, (walk, batch, row) = collected
    obs, final, ended = (np.asarray(a) for a in (batch.obs, batch.final_obs, batch.terminated | batch.truncated))
    assert np.array_equal(obs[1:][~ended[:-1]], final[:-1][~ended[:-1]])
    assert (np.abs(obs[1:][ended[:-1]]) <= 0.05).all()  # a new episode
    assert (np.abs(final[np.asarray(batch.terminated)][:, 2]) > 12 * np.pi / 180).all()
    assert not (np.asarray(batch.terminated) & np.asarray(batch.truncated)).any()
    assert ended.any() and int(row["episodes"]) == ended.sum()
    assert row["return"] == pytest.approx(float(row["length"]))  # a reward of 1 for each step
    lengths = np.asarray(agent._walk.lengths)
    total = lengths.sum() + batch.reward.sum() - np.asarray(walk.lengths).sum()
    assert float(row["return"]) * int(row["episodes"]) == pytest.approx(float(total))


def test_rewards_are_scaled_by_the_returns_spread(collected):
    agent, (_, batch, _) = collected
    scaled, running, stats = agent.learner._scale_rewards(agent.state, batch)
    assert np.allclose(scaled, batch.reward / np.sqrt(stats.var + 1e-8))
    running_now, returns = np.asarray(agent.state.running_return), []
    for t in range(len(batch.reward)):
        running_now = 0.99 * running_now + np.asarray(batch.reward[t])
        returns.append(running_now)
        running_now = np.where(batch.terminated[t] | batch.truncated[t], 0, running_now)
    assert np.allclose(running, running_now, rtol=1e-5)
    expected = agent.state.return_stats.update(jnp.asarray(np.array(returns).ravel()))
    assert np.allclose(stats.var, expected.var, rtol=1e-4)
