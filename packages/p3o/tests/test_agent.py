"""P3O and PPO as a user meets them: identity with plain PPO, seeds, paths, checkpoints, errors."""

import math

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import PLAIN, SMALL, FixedStart, JaxPendulum
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from icml25.p3o import P3O, PPO
from icml25.p3o.baselines import ContinualBackprop, PlainReset, ReDo, ShrinkPerturb
from icml25.p3o.envs import CartPole, Pendulum

STEPS = 128  # of one iteration


def same(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if tolerance:
            np.testing.assert_allclose(x, y, **tolerance)
        else:
            np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def trained():
    agent = P3O(CartPole(horizon=20), **SMALL)
    return agent, agent.learn(9 * STEPS)


def test_log(trained):
    agent, log = trained
    assert log["step"].tolist() == [STEPS * i for i in range(1, 10)] and agent.step == 9 * STEPS
    assert log["event"].tolist() == [False, True] * 4 + [False]
    assert log["kl_after_reset"].notna().tolist() == log["event"].tolist()
    events = log[log["event"]]
    assert (events["distance"] <= 0.01).all() and events["distill_converged"].all()
    assert (events["distance"] <= events["kl_after_reset"]).all()
    assert (events["distill_epochs"] == events["distill_steps"] / 2).all()  # 128 states, minibatches of 64
    assert agent.cycles == 1
    assert all((np.asarray(layer) == 1).all() for layer in agent.state.plasticity.resets)
    assert log[["policy_loss", "value_loss", "entropy", "grad_norm", "weight_norm"]].notna().all(axis=None)
    assert log["dormant"].between(0, 1).all()


def test_resets_only_at_events(trained):
    """Until the first event P3O is PPO bit for bit."""
    _, log = trained
    plain = PPO(CartPole(horizon=20), **PLAIN)
    without = plain.learn(3 * STEPS)
    assert plain.plasticity is None and "event" not in without
    for name in ("return", "policy_loss", "value_loss", "grad_norm", "weight_norm"):
        np.testing.assert_array_equal(log[name].to_numpy()[:1], without[name].to_numpy()[:1])
    assert log["policy_loss"][2] != without["policy_loss"][2]
    never = P3O(CartPole(horizon=20), **SMALL | {"reset_every": 100})
    never.learn(3 * STEPS)
    same(never.state.params, plain.state.params)
    same(never.state.opt_state, plain.state.opt_state)


def test_training_resumes_bit_for_bit(trained, tmp_path):
    whole, log = trained
    first = P3O(CartPole(horizon=20), **SMALL)
    a = first.learn(4 * STEPS)
    first.save(tmp_path / "agent.safetensors")
    second = P3O.load(tmp_path / "agent.safetensors", CartPole(horizon=20))
    assert second.step == 4 * STEPS
    obs = np.array([0.01, 0.2, -0.03, 0.1])
    assert second.predict(obs, deterministic=True) == first.predict(obs, deterministic=True)
    b = second.learn(5 * STEPS)
    same(second.state, whole.state)
    same(second._walk, whole._walk)
    for name in log:
        np.testing.assert_array_equal(np.concatenate([a[name], b[name]]), log[name])
    with pytest.raises(ValueError, match="does not fit"):
        P3O.load(tmp_path / "agent.safetensors", Pendulum())
    with pytest.raises(ValueError, match="does not fit"):
        P3O.load(tmp_path / "agent.safetensors", CartPole(horizon=20), hidden=(8, 8))


def test_callback_stops_and_sees_every_row(trained):
    _, log = trained
    agent, seen = P3O(CartPole(horizon=20), **SMALL), []
    agent.learn(9 * STEPS, lambda row: seen.append(row["policy_loss"]) or len(seen) < 3)
    assert len(seen) == 3 and agent.step == 3 * STEPS
    np.testing.assert_array_equal(seen, log["policy_loss"][:3])


def test_seeds_are_single_runs(trained):
    _, log = trained
    both = P3O(CartPole(horizon=20), **SMALL, num_seeds=2)
    rows = both.learn(3 * STEPS)
    assert rows.groupby("seed")["step"].apply(list).tolist() == [[STEPS, 2 * STEPS, 3 * STEPS]] * 2
    first = rows[rows["seed"] == 0]
    for name in ("return", "value_loss", "kl_after_reset", "weight_norm"):
        np.testing.assert_allclose(first[name], log[name][:3], rtol=1e-3, atol=1e-5)
    assert not np.allclose(first["value_loss"], rows[rows["seed"] == 1]["value_loss"], rtol=1e-3)
    assert both.predict(np.zeros(4), member=1).shape == () and both.cycles == 0


def test_gymnasium_path_is_the_jitted_path():
    settings = SMALL | {"log_std": "free"}
    jitted = P3O(FixedStart(horizon=24), **settings)
    python = P3O(JaxPendulum, **settings)
    assert jitted.jitted and not python.jitted
    ours, theirs = jitted.learn(4 * STEPS), python.learn(4 * STEPS)
    for name in ("return", "length", "episodes", "value_loss", "kl_after_reset", "weight_norm"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-3, atol=1e-4)
    same(jitted.state.obs_stats, python.state.obs_stats, rtol=1e-3, atol=1e-4)
    assert python.state.params["actor"]["log_std"].shape == (1,)
    action = python.predict(np.zeros((5, 3)))
    assert action.shape == (5, 1) and (np.abs(action) <= 2).all()
    assert python.predict([1.0, 0.0, 8.0], deterministic=True).shape == (1,)


def test_gymnasium_training_goes_on_without_a_reset():
    settings = SMALL | {"reset_every": 100, "num_envs": 1, "num_minibatches": 1}
    whole, parts = (P3O(JaxPendulum(), **settings) for _ in range(2))
    log = whole.learn(4 * 32)
    again = [parts.learn(2 * 32) for _ in range(2)]
    np.testing.assert_array_equal(log["value_loss"], np.concatenate([p["value_loss"] for p in again]))
    assert log["length"].dropna().unique().tolist() == [24.0]


class Endless(gymnasium.Env):
    """Rewards or observations that turn bad at step 40."""

    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)
    bad = ""

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        late = self.steps == 40
        obs = np.full(2, math.nan if late and self.bad == "observation" else 0.5, np.float32)
        return obs, math.nan if late and self.bad == "reward" else 1.0, False, False, {}


class BadReward(Endless):
    bad = "reward"


class BadObservation(Endless):
    bad = "observation"


@pytest.mark.parametrize("env", [BadReward, BadObservation])
def test_nan_is_refused_with_its_iteration(env):
    agent = PPO(env, **PLAIN | {"num_envs": 1, "num_minibatches": 1, "n_epochs": 1})
    with pytest.raises(FloatingPointError, match=rf"{env.bad} is not finite in iteration 2"):
        agent.learn(3 * 32)
    with pytest.raises(FloatingPointError, match="observation"):
        agent.predict([math.nan, 0.0])
    with pytest.raises(ValueError, match="shape"):
        agent.predict(np.zeros(3))
    with pytest.raises(ValueError, match="total_timesteps"):
        agent.learn(0)


@pytest.mark.parametrize(
    "bad",
    [
        {"reset_rate": 0.0},
        {"reset_rate": 1.5},
        {"alpha": 2.0},
        {"reset_every": 0},
        {"num_minibatches": 7},
        {"n_steps": 0},
        {"num_envs": 0},
        {"num_seeds": 0},
        {"learning_rate": 0.0},
        {"gamma": 1.1},
        {"gae_lambda": -0.1},
        {"clip_range": 0.0},
        {"hidden": ()},
        {"log_std": "fixed"},
        {"adam_count": "none"},
        {"order": "sorted"},
        {"outgoing": "drop"},
    ],
    ids=str,
)
def test_bad_numbers(bad):
    [(name, _)] = bad.items()
    with pytest.raises(ValueError, match=name):
        P3O(CartPole(horizon=20), **SMALL | bad)


def test_bad_threshold_and_seeds():
    with pytest.raises(ValueError, match="threshold"):
        P3O(CartPole(horizon=20), distill_threshold=-0.1)
    with pytest.raises(TypeError, match="reset_rate"):
        PPO(CartPole(horizon=20), reset_rate=0.1)
    with pytest.raises(ValueError, match="num_seeds"):
        P3O("CartPole-v1", **SMALL, num_seeds=2)


def test_environments_of_gymnasium():
    assert P3O("CartPole-v1", **SMALL).num_envs == 4
    assert P3O(gymnasium.make("CartPole-v1"), **SMALL | {"num_envs": None}).num_envs == 1
    with pytest.raises(ValueError, match="num_envs is 4, but env is one"):
        P3O(gymnasium.make("CartPole-v1"), **SMALL)
    makers = [lambda: gymnasium.make("CartPole-v1")] * 4
    same_step = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    assert P3O(same_step, **SMALL | {"num_envs": None}).num_envs == 4
    with pytest.raises(ValueError, match="num_envs is 2"):
        P3O(same_step, **SMALL | {"num_envs": 2})
    with pytest.raises(ValueError, match="SAME_STEP"):
        P3O(SyncVectorEnv(makers), **SMALL)
    with pytest.raises(TypeError, match="int"):
        P3O(3, **SMALL)


class Spaces(Endless):
    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ((Dict({"a": Box(0, 1)}), Discrete(2)), "observation space must be a Box"),
        ((Discrete(3), Discrete(2)), "observation space must be a Box"),
        ((Box(0, 1), MultiDiscrete([2, 2])), "action space must be"),
        ((Box(0, 1), Box(0, 1, (2, 2))), "action space must be"),
        ((Box(0, 1), Discrete(2, start=1)), "start at 0"),
    ],
    ids=["dict", "discrete", "multidiscrete", "matrix", "start"],
)
def test_other_spaces_are_refused(spaces, message):
    with pytest.raises(TypeError, match=message):
        P3O(Spaces(*spaces), **SMALL | {"num_envs": 1})


class Unhashable:
    """An environment in JAX that cannot be a key of a cache."""

    __hash__ = None
    observation_size, action_space = 4, CartPole().action_space
    reset, step = CartPole().reset, CartPole().step


def test_environments_in_jax():
    agent = PPO(Unhashable(), **PLAIN)
    assert agent.jitted and agent.predict(np.zeros(4)).shape == ()


def test_missed_thresholds_are_warned_of(trained):
    agent = P3O(CartPole(horizon=20), **SMALL)
    agent.learn(2 * STEPS)
    memory = agent.state.plasticity
    agent.state = agent.state._replace(plasticity=memory._replace(missed=memory.events))
    with pytest.warns(UserWarning, match=r"at 1 of 2 events"):
        agent.learn(2 * STEPS)


# baselines: masks by hand


@pytest.fixture(scope="module")
def network():
    def apply(params, x):
        h = jnp.maximum(x @ params["a"]["kernel"] + params["a"]["bias"], 0)
        return h @ params["b"]["kernel"], [h]

    kernel = jnp.eye(4).at[2, 2].set(0.0)
    params = {"a": {"kernel": kernel, "bias": jnp.zeros(4)}, "b": {"kernel": jnp.arange(1.0, 9.0).reshape(4, 2)}}
    return params, apply, jnp.abs(jax.random.normal(jax.random.key(0), (64, 4))) + 0.5


def test_redo_renews_dormant_units(network):
    params, apply, x = network
    _, after, mask, info = ReDo().regenerate(jax.random.key(0), 1, (), params, apply, x)
    assert info["renewed_units"] == 1 and mask["a"]["bias"].tolist() == [False, False, True, False]
    assert not np.asarray(after["b"]["kernel"])[2].any() and np.asarray(after["a"]["kernel"])[:, 2].any()
    assert np.array_equal(after["b"]["kernel"][:2], params["b"]["kernel"][:2])


def test_continual_backprop_renews_at_its_rate(network):
    params, apply, x = network
    method = ContinualBackprop(rate=0.01, maturity=15, steps=10)
    state, renewed = method.init(params), []
    run = jax.jit(lambda key, t, state, params: method.regenerate(key, t, state, params, apply, x))
    for t in range(1, 12):
        state, params, _, info = run(jax.random.fold_in(jax.random.key(0), t), t, state, params)
        renewed.append(int(info["renewed_units"]))
        if t == 4:
            assert float(state.age[0][2]) == 0 and float(state.age[0][0]) == 40  # the useless unit went first
    # 4 mature units from t = 2 on, 0.4 due each time: the first whole unit is due at t = 4
    assert renewed[:4] == [0, 0, 0, 1] and 2 <= sum(renewed) <= 4


def test_shrink_and_perturb(network):
    params, apply, x = network
    key = jax.random.key(0)
    _, fresh, mask, _ = PlainReset().regenerate(key, 1, (), params, apply, x)
    assert all(np.asarray(m).all() for m in jax.tree.leaves(mask))
    assert not np.allclose(fresh["a"]["kernel"], params["a"]["kernel"])
    _, mixed, _, _ = ShrinkPerturb(0.75).regenerate(key, 1, (), params, apply, x)
    same(mixed, jax.tree.map(lambda p, q: 0.75 * p + 0.25 * q, params, fresh), rtol=1e-6)


def test_baselines_train_on_the_same_loop(tmp_path):
    settings = PLAIN | {"l2_init": 1e-3, "layer_norm": True}
    agent = PPO(CartPole(horizon=20), plasticity=ReDo(reset_every=2), **settings)
    log = agent.learn(2 * STEPS)
    assert log["event"].tolist() == [False, True] and log["renewed_units"].ge(0).all()
    with pytest.raises(TypeError, match="ReDo"):
        agent.save(tmp_path / "x")
