"""The whole double loop."""

import math

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import pytest
from conftest import SMALL, small

from icml25.neural_marl import Batch, GridSpread, NetworkedMDP, NeuralDAC, baselines, consensus_matrix, td_phase


def assert_trees(got, expected, tol: float = 1e-5) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tol, atol=tol), got, expected)


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def shared(env: NetworkedMDP, reward: np.ndarray) -> NetworkedMDP:
    """The same transitions, one reward for all agents."""
    return NetworkedMDP(env.P, np.repeat(reward[None], env.n_agents, 0), env.rho, env.gamma, env.n_actions)


@pytest.fixture(scope="module")
def trained(mdp, path) -> NeuralDAC:
    algo = small(mdp, path)
    algo.train(6, log_every=3)
    return algo


@pytest.mark.parametrize("advantage", ["td", "q", "sarsa"])
def test_one_outer_step_by_hand(mdp, path, advantage: str) -> None:
    """Steps 1 to 7 on given transitions, in plain loops over agents and samples."""
    algo = small(mdp, path, advantage=advantage, beta=0.2, alpha=0.3)
    rng = np.random.default_rng(0)
    n, K, M, N = 7, 3, 4, 3
    s, s_next = rng.integers(4, size=(2, n)).astype(np.int32)
    a, a_next = rng.integers(2, size=(2, n, N)).astype(np.int32)
    r = rng.normal(size=(n, N)).astype(np.float32)
    start = algo.state
    after, record = algo._update(start, Batch(*map(jnp.asarray, (s, a, r, s_next, a_next))), jax.random.key(0))

    def q(W, s, a):
        return algo._critic.apply({"params": W, "fixed": start.fixed}, mdp.features(s, jnp.asarray(a)))

    means = []
    for i in range(N):
        W = start.centre
        iterates = [W]
        for k in range(K):
            delta = r[k, i] + 0.8 * q(W, s_next[k], a_next[k]) - q(W, s[k], a[k])
            W = jax.tree.map(lambda w, g: w + 0.2 * delta * g, W, jax.grad(q)(W, s[k], a[k]))  # noqa: B023
            iterates.append(W)
        means.append(jax.tree.map(lambda *w: sum(w) / (K + 1), *iterates))
    power = np.linalg.matrix_power(consensus_matrix(path), 2)
    critics = [jax.tree.map(lambda *w: sum(p * x for p, x in zip(row, w, strict=True)), *means) for row in power]  # noqa: B023
    assert_trees(after.critics, jax.tree.map(lambda *w: jnp.stack(w), *critics))

    weight = np.zeros((M, N))
    for l in range(M):  # noqa: E741
        sample = K + l
        pi = [np.asarray(p) for p in algo.policy(s[sample])]
        for i, W in enumerate(critics):
            here, there = (float(q(W, *at)) for at in ((s[sample], a[sample]), (s_next[sample], a_next[sample])))
            V = sum(
                np.prod([pi[j][b] for j, b in enumerate(joint)]) * float(q(W, s[sample], np.array(joint)))
                for joint in np.ndindex(2, 2, 2)
            )
            target = r[sample, i] + 0.8 * there
            weight[l, i] = {"td": target - V, "q": here, "sarsa": target - here}[advantage]
    consensual = weight @ power.T
    for i in range(N):
        theta = algo.actors[i]

        def weighted(theta, i=i):
            logits = algo._actor.apply({"params": theta}, jnp.eye(4)[s[K:]])
            return (jax.nn.log_softmax(logits)[np.arange(M), a[K:, i]] * consensual[:, i]).mean()

        d = jax.grad(weighted)(theta)
        length = math.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(d)))
        expected = jax.tree.map(lambda w, g: w + 0.3 * g / length, theta, d)  # noqa: B023
        assert_trees(jax.tree.map(lambda leaf: leaf[i], after.actors), expected, 1e-4)  # noqa: B023
    assert float(record["reward"]) == pytest.approx(r[K:].mean(), rel=1e-5)


def test_exact_averaging_is_one_central_critic(mdp) -> None:
    """TD is linear in r: with A = 11'/N and one TD step every critic is the critic of the mean reward."""
    settings = {**SMALL, "critic_steps": 1, "beta": 0.05}
    team = baselines.centralised(mdp, **settings)
    central = NeuralDAC(shared(mdp, mdp.R.mean(0)), nx.path_graph(3), **{**settings, "gossip_rounds": 0})
    team.train(100, log_every=100)
    central.train(100, log_every=100)
    assert_trees(team.critics, central.critics, 1e-5)
    assert not same(team.critics, jax.tree.map(lambda w: jnp.broadcast_to(w, (3, *w.shape)), team.state.centre))
    assert_trees(team.actors, central.actors, 1e-4)


def test_no_gossip_is_independent_learners(mdp, path) -> None:
    algo = small(mdp, path, gossip_rounds=0)
    algo.train(1)
    for i in (0, 2):
        alone = small(shared(mdp, mdp.R[i]), path, gossip_rounds=0)
        alone.train(1)
        assert_trees(jax.tree.map(lambda w: w[i], algo.critics), jax.tree.map(lambda w: w[i], alone.critics))  # noqa: B023
        assert_trees(algo.actors[i], alone.actors[i])
    assert algo.floats_per_step == 0


def test_critics_start_at_the_common_point(mdp, path) -> None:
    algo = small(mdp, path)
    for leaf, w0 in zip(jax.tree.leaves(algo.critics), jax.tree.leaves(algo.state.centre), strict=True):
        np.testing.assert_array_equal(leaf, np.broadcast_to(w0, leaf.shape))
    assert not np.array_equal(algo.actors[0]["H"], algo.actors[1]["H"])


def test_fixed_layers_stay(mdp, path, trained) -> None:
    fresh = small(mdp, path)
    assert same(trained.fixed, fresh.fixed) and same(trained.state.centre, fresh.state.centre)
    assert not same(trained.critics, fresh.critics) and not same(trained.actors, fresh.actors)
    assert set(trained.critics) == {"W1", "W2"} and set(trained.fixed) == {"H", "b"}


def test_step_lengths(mdp, path) -> None:
    for normalize in ("agent", "joint"):
        algo = small(mdp, path, normalize=normalize)
        before = algo.actors
        algo.train(1)
        squares = [
            sum(float(((x - y) ** 2).sum()) for x, y in zip(*map(jax.tree.leaves, pair), strict=True))
            for pair in zip(algo.actors, before, strict=True)
        ]
        if normalize == "agent":
            np.testing.assert_allclose(np.sqrt(squares), 0.2, rtol=1e-4)
        else:
            assert math.sqrt(sum(squares)) == pytest.approx(0.2, rel=1e-4)


def test_no_reward_no_step(path) -> None:
    env = shared(NetworkedMDP.random(3, 4, 2, seed=0), np.zeros((4, 8)))
    algo = small(env, path, critic="linear")
    before = algo.actors
    log = algo.train(2)
    assert same(before, algo.actors) and (log["direction_norm"].iloc[1:] == 0).all()


def test_symmetric_init(mdp, path) -> None:
    s, a = jnp.int32(1), jnp.array([0, 1, 1])
    assert np.abs(small(mdp, path).q_values(s, a)).min() > 0
    np.testing.assert_array_equal(small(mdp, path, symmetric_init=True).q_values(s, a), 0)


def test_scale_of_the_output(mdp, path) -> None:
    s, a = jnp.int32(1), jnp.array([0, 1, 1])
    unit, paper = (small(mdp, path, param=p) for p in ("unit", "paper"))
    np.testing.assert_allclose(unit.q_values(s, a), paper.q_values(s, a) / 4, rtol=1e-6)
    assert unit.beta == 0.01 and paper.beta == 0.01 / 16


def test_restarted_critics_forget(mdp, path) -> None:
    """The critic after an outer step does not depend on the one before it; a warm start does."""
    for warm in (False, True):
        one, other = (small(mdp, path, warm_start=warm) for _ in range(2))
        other.state = other.state._replace(critics=jax.tree.map(lambda w: w + 1, other.state.critics))
        one.train(1)
        other.train(1)
        assert same(one.critics, other.critics) is not warm


def test_restart_chain_visits_as_discounted(mdp, path, trained) -> None:
    samples = trained.sample(200_000, seed=3)
    visits = np.bincount(samples["s"], minlength=4) / 200_000
    visitation = mdp.exact(trained.policy_tables())[2]
    np.testing.assert_allclose(visits, visitation, atol=0.008)
    assert np.abs(visitation - mdp.rho).max() > 0.02
    s, joint = np.asarray(samples["s"]), np.ravel_multi_index(np.asarray(samples["a"]).T, (2, 2, 2))
    np.testing.assert_allclose(samples["r"], mdp.R[:, s, joint].T, rtol=1e-5)
    moved = np.asarray(samples["s_next"])
    assert (s[1:] != moved[:-1]).mean() == pytest.approx(0.2 * (1 - 0.25), abs=0.05)  # restarted elsewhere
    here = (s == 1) & (joint == 3)
    np.testing.assert_allclose(np.bincount(moved[here], minlength=4) / here.sum(), mdp.P[1, 3], atol=0.03)
    np.testing.assert_array_equal(samples["a"][1:][s[1:] == moved[:-1]].shape[1:], (3,))


def test_only_the_actors_samples_restart(mdp, path) -> None:
    np.testing.assert_allclose(small(mdp, path)._restarts(), [0, 0, 0, 0.2, 0.2, 0.2, 0.2])


def test_td_fixed_point_of_a_table() -> None:
    """A linear critic on one-hot features converges to Q^pi of the mean reward."""
    env = NetworkedMDP.random(2, 2, 2, additive=False, seed=0, gamma=0.5)
    algo = NeuralDAC(
        env,
        nx.path_graph(2),
        critic="linear",
        critic_steps=20_000,
        actor_batch=1,
        beta=0.05,
        gossip_rounds=30,
        alpha=0.0,
    )
    algo.train(2, log_every=1)
    _, Q, _ = env.exact(algo.policy_tables())
    for s, joint in np.ndindex(2, 4):
        got = algo.q_values(jnp.int32(s), jnp.array(np.unravel_index(joint, (2, 2)), jnp.int32))
        np.testing.assert_allclose(got, Q[s, joint], atol=0.12)
    assert np.ptp(Q) > 1


def test_exact_gradient_reaches_the_optimum() -> None:
    env = NetworkedMDP.random(2, 3, 2, seed=0)
    algo = baselines.exact_gradient(env, normalize="joint")
    log = algo.train(400, log_every=200)
    assert log["gap"].iloc[-1] < 0.05 * log["gap"].iloc[0] and (log["gap"] > -1e-6).all()


def test_opposed_rewards_need_the_team() -> None:
    """One state, two agents who each want the other's loss; the sum decides. Without gossip they pick what hurts."""
    R = np.zeros((2, 1, 4))
    for joint, (a, b) in enumerate(np.ndindex(2, 2)):
        R[0, 0, joint], R[1, 0, joint] = a - 3 * b, b - 3 * a  # action 1 pays its agent 1 and costs the other 3
    env = NetworkedMDP(np.ones((1, 4, 1)), R, [1.0], 0.5)
    settings = {"width": 16, "depth": 1, "critic_steps": 10, "actor_batch": 16, "beta": 0.1, "alpha": 0.05}
    ends = {}
    for rounds in (0, 5):
        algo = NeuralDAC(env, np.array([[0.7, 0.3], [0.3, 0.7]]), gossip_rounds=rounds, **settings)
        algo.train(200, log_every=200)
        ends[rounds] = [float(p[1]) for p in algo.policy(jnp.int32(0))]
    assert min(ends[0]) > 0.8 and max(ends[5]) < 0.2


def test_log(mdp, path) -> None:
    algo = small(mdp, path)
    rows = []
    log = algo.train(5, log_every=2, callback=rows.append)
    assert list(log.columns) == ["t", "J", "gap", "td_error", "consensus_error", "direction_norm", "floats_sent"]
    assert log["t"].tolist() == [0, 2, 4, 5] and len(rows) == 4
    J, optimum = mdp.exact(algo.policy_tables())[0], mdp.optimal()[0]
    assert log["J"].iloc[-1] == pytest.approx(J) and log["gap"].iloc[-1] == pytest.approx(optimum - J)
    # a path of three has two links, each used both ways; two rounds on 2 8x8 layers, two on 4 TD errors
    assert log["floats_sent"].tolist() == [t * 2 * 4 * (128 + 4) for t in (0, 2, 4, 5)]
    assert small(mdp, path, consensus_every=1).floats_per_step == 4 * (2 * 132 + 3 * 128)
    assert algo.train(2)["t"].tolist() == [6, 7]


def test_logging_does_not_change_the_run(mdp, path, trained) -> None:
    algo = small(mdp, path)
    algo.train(3, log_every=3)
    algo.train(3, log_every=3)
    assert same(algo.state.actors, trained.state.actors) and same(algo.critics, trained.critics)


def test_checkpoint_continues_bit_for_bit(mdp, path, trained, tmp_path) -> None:
    algo = small(mdp, path)
    algo.train(3, log_every=3)
    algo.save(tmp_path / "run.safetensors")
    other = small(mdp, path).load(tmp_path / "run.safetensors")
    assert other.t == 3
    other.train(3, log_every=3)
    assert same(other.state.actors, trained.state.actors) and same(other.critics, trained.critics)
    with pytest.raises(ValueError, match="actor_batch is 5 here, 4 in"):
        small(mdp, path, actor_batch=5).load(tmp_path / "run.safetensors")


def test_seeds_in_one_run_are_runs(mdp, path) -> None:
    both = small(mdp, path, num_seeds=2, seed=7)
    log = both.train(3)
    single = small(mdp, path, seed=8)
    alone = single.train(3)
    assert_trees(jax.tree.map(lambda leaf: leaf[1], both.actors), single.actors)
    np.testing.assert_allclose(log.loc[log["seed"] == 8, "J"], alone["J"], rtol=1e-5)
    assert not np.allclose(log.loc[log["seed"] == 7, "J"], alone["J"])
    np.testing.assert_allclose(both.policy(jnp.int32(0), index=1)[2], single.policy(jnp.int32(0))[2], rtol=1e-5)
    with pytest.raises(ValueError, match="index is 2"):
        both.policy(jnp.int32(0), index=2)


def test_seeds_over_devices(mdp, path, tmp_path) -> None:
    spread = small(mdp, path, num_seeds=2, seed=7, devices=jax.devices()[:2])
    together = small(mdp, path, num_seeds=2, seed=7)
    for algo in (spread, together):
        algo.train(3)
    leaf = spread.critics["W1"]
    assert leaf.sharding.device_set == set(jax.devices()[:2]) and leaf.addressable_shards[0].data.shape[0] == 1
    assert_trees(spread.actors, together.actors)
    spread.save(tmp_path / "run.safetensors")
    again = small(mdp, path, num_seeds=2, seed=7, devices=jax.devices()[:2]).load(tmp_path / "run.safetensors")
    assert again.critics["W1"].sharding.is_equivalent_to(leaf.sharding, leaf.ndim)


def test_problems_of_one_shape_share_a_program(path) -> None:
    """The environment's arrays are arguments: the second problem finds all its programs in the persistent cache."""
    events: list[str] = []
    jax.monitoring.register_event_listener(lambda name, **_: events.append(name.rpartition("/")[2]))
    gaps = []
    for seed in (11, 12):
        events.clear()
        gaps.append(small(NetworkedMDP.random(3, 4, 2, seed=seed, gamma=0.8), path).train(2)["gap"])
    assert events.count("cache_hits") >= 3 and "cache_misses" not in events
    assert not np.allclose(*gaps)


def test_optimiser_ascends(mdp, path) -> None:
    plain = small(mdp, path, normalize=None, alpha=0.5)
    sgd = small(mdp, path, optimizer=optax.sgd(0.5))
    plain.train(2)
    sgd.train(2)
    assert_trees(plain.actors, sgd.actors)
    adam = small(mdp, path, optimizer=optax.adam(1e-2))
    adam.train(2)
    assert int(adam.state.optimizer[0].count[0]) == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"exact_mean_limit": 7},
        {"param": "standard", "radius": 1.0},
        {"critic": "linear", "continue_chain": True},
        {"sampling": "stationary", "consensus_every": 1},
        {"critic_average": False, "alpha": optax.linear_schedule(0.1, 0.0, 10)},
    ],
)
def test_variants_run(mdp, path, settings: dict) -> None:
    algo = small(mdp, path, **settings)
    log = algo.train(2, log_every=1)
    assert np.isfinite(log["J"]).all() and log["J"].nunique() == 3


def test_baselines(mdp, path) -> None:
    assert baselines.linear(mdp, path).critic == "linear" and baselines.linear(mdp, path).actor == "linear"
    assert baselines.no_gossip(mdp, path).gossip_rounds == 0
    assert baselines.q_weighted(mdp, path).advantage == "q"
    np.testing.assert_array_equal(baselines.centralised(mdp).A, np.full((3, 3), 1 / 3))


def test_fresh_draw_estimates_the_value(mdp, path) -> None:
    """V(s) by one draw has the exact mean: the same weights on average over keys."""
    algo, drawn = small(mdp, path), small(mdp, path, exact_mean_limit=0)
    samples = Batch(*jax.tree.map(lambda x: x[:4], list(algo.sample(8).values())))
    x, x_next = (jax.vmap(mdp.features)(*at) for at in ((samples.s, samples.a), (samples.s_next, samples.a_next)))

    def weights(algo, key):
        return algo._weights(algo._q(algo.state), algo.critics, algo.state.actors, samples, x, x_next, key)

    exact = weights(algo, jax.random.key(0))
    many = jax.jit(jax.vmap(lambda key: weights(drawn, key)))(jax.random.split(jax.random.key(1), 4000))
    z = (np.mean(many, 0) - exact) / (np.std(many, 0) / math.sqrt(4000))
    assert np.abs(z).max() < 4.5 and np.std(many, 0).min() > 0


def test_evaluate(trained) -> None:
    env = GridSpread(2, 3, 2, seed=1)
    algo = NeuralDAC(env, nx.path_graph(2), width=8, depth=1)
    result = algo.evaluate(4000)
    J = env.exact(algo.policy_tables())[0] * (1 - 0.99**10)  # of one episode
    assert result["return"] == pytest.approx(J, abs=5 * result["return_se"])
    assert result["reward"] == pytest.approx(result["agent_rewards"].mean(), rel=1e-5)
    assert result["agent_rewards"].shape == (2,)


def test_act_follows_the_policy(trained) -> None:
    keys = jax.random.split(jax.random.key(0), 4000)
    actions = jax.vmap(lambda key: trained.act(key, jnp.int32(2)))(keys)
    np.testing.assert_allclose(actions.mean(0), [p[1] for p in trained.policy(jnp.int32(2))], atol=0.04)


def test_stacked_seeds_of_critics_share_nothing(mdp, path) -> None:
    algo = small(mdp, path, num_seeds=2)
    assert algo.critics["W1"].shape == (2, 3, 8, 8) and algo.actors[0]["W1"].shape == (2, 8, 8)
    assert not np.array_equal(algo.fixed["H"][0], algo.fixed["H"][1])


def test_td_phase_is_what_runs(mdp, path) -> None:
    """The critic of an outer step is td_phase on its first K transitions, then gossip."""
    algo = small(mdp, path)
    samples = Batch(*algo.sample(7, seed=1).values())
    x, x_next = (jax.vmap(mdp.features)(*at) for at in ((samples.s, samples.a), (samples.s_next, samples.a_next)))
    mean, _, _ = td_phase(
        algo._q(algo.state), algo.critics, algo.state.centre, x[:3], samples.r[:3], x_next[:3], gamma=0.8, beta=0.01
    )
    after, _ = algo._update(algo.state, samples, jax.random.key(0))
    power = np.linalg.matrix_power(algo.A, 2)
    assert_trees(after.critics, jax.tree.map(lambda w: np.tensordot(power, w, 1), mean))
