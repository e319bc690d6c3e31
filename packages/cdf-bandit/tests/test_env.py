"""The environment, its regret, and gymnasium."""

import builtins

import numpy as np
import pytest
from conftest import A, beta22, sine, uniform_contexts

from icml25.cdf_bandit import (
    CallableBasis,
    CDFBandit,
    CVaR,
    Expectation,
    LogisticBasis,
    MixtureEnvironment,
    atoms,
    simulate,
)
from icml25.cdf_bandit.basis import invert_mixture


def test_rewards_follow_the_mixture(environment):
    X = np.full((6000, 1), 0.3)
    y = environment.reward(X, np.full(6000, 2), np.random.default_rng(0))
    s = np.linspace(0.05, 0.95, 10)
    truth = environment.mass @ environment.basis.cdf(X[:1], np.array([2]), environment.measure.points, s)[0]
    seen = (y[:, None] <= s).mean(0)
    assert (abs(seen - truth) < 4.5 * np.sqrt(truth * (1 - truth) / 6000) + 1e-9).all()
    mean = environment.value(X[:1], Expectation())[0, 2]
    assert abs(y.mean() - mean) < 4.5 * y.std() / np.sqrt(6000)
    worst = np.sort(y)[:1500]
    assert worst.mean() == pytest.approx(environment.value(X[:1], CVaR(0.25))[0, 2], abs=0.02)


def test_a_sampler_of_the_basis_is_used():
    class PointMass:
        domain = (0.0, 1.0)

        def cdf(self, x, a, w, s):
            s = s[:, None, :] if s.ndim == 2 else s[None, None, :]
            return np.broadcast_to((s >= w[None, :, None]) * 1.0, (len(x), len(w), s.shape[-1]))

        def sample(self, x, a, w, rng):
            return w

    env = MixtureEnvironment(PointMass(), [1.0, 3.0], uniform_contexts, 1, 0, measure=atoms([0.2, 0.7], [1, 1]))
    y = env.reward(env.context(4000), np.zeros(4000, int))
    assert set(y) == {0.2, 0.7}
    assert abs((y == 0.7).mean() - 0.75) < 4.5 * np.sqrt(0.75 * 0.25 / 4000)
    bisected = MixtureEnvironment(
        CallableBasis(PointMass().cdf), [1.0, 3.0], uniform_contexts, 1, 0, measure=env.measure
    )
    y = bisected.reward(env.context(500), np.zeros(500, int))
    assert np.isclose(y[:, None], [0.2, 0.7]).any(1).all()


def test_values_and_regret(environment):
    X = environment.context(50)
    values = environment.value(X, Expectation())
    assert values.shape == (50, A)
    best = values.argmax(1)
    np.testing.assert_array_equal(environment.regret(X, best, Expectation()), 0)
    worst = values.argmin(1)
    np.testing.assert_allclose(environment.regret(X, worst, Expectation()), np.ptp(values, axis=1))
    # moving the context by 1/A is moving to the next action
    np.testing.assert_allclose(environment.value(X + 1 / A, Expectation())[:, 0], values[:, 1])


def test_simulation_is_reproducible(environment, basis):
    bandit = CDFBandit(basis, A, Expectation(), exploration=0, first_epoch=3)
    one, two = (simulate(bandit, environment, 100, n_runs=2, seed=4) for _ in range(2))
    np.testing.assert_array_equal(one.regret, two.regret)
    assert (one.regret[0] != one.regret[1]).any()
    other = simulate(bandit, environment, 100, seed=4, utility=CVaR(0.1))
    assert other.regret[0, -1] != one.regret[0, -1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"theta": lambda w: -w}, "non-negative"),
        ({"theta": np.ones(3)}, "theta has shape"),
        ({"theta": lambda w: w * np.nan}, "theta has"),
        ({"context_sampler": lambda n, rng: rng.random(n)}, "X must be"),
        ({"context_sampler": lambda n, rng: rng.random((n + 1, 1))}, "context_sampler"),
        ({"n_actions": 0}, "n_actions"),
        ({"basis": CallableBasis(lambda x, a, w, s: np.zeros((len(x), len(w), s.shape[-1])))}, "not 1 at"),
    ],
    ids=range(7),
)
def test_bad_environments(basis, change, message):
    arguments = {"basis": basis, "theta": beta22, "context_sampler": uniform_contexts, "n_actions": A} | change
    with pytest.raises(ValueError, match=message):
        MixtureEnvironment(**arguments)


def test_bad_calls(environment, basis):
    with pytest.raises(ValueError, match="actions"):
        environment.reward([[0.1]], [A])
    with pytest.raises(TypeError, match="actions"):
        environment.regret([[0.1]], [0.5], Expectation())
    with pytest.raises(ValueError, match="horizon"):
        simulate(CDFBandit(basis, A, Expectation()), environment, 0)
    with pytest.raises(ValueError, match="n_runs"):
        simulate(CDFBandit(basis, A, Expectation()), environment, 10, n_runs=0)


@pytest.mark.filterwarnings("ignore:.*Box observation space")  # contexts have no known range
def test_gymnasium(environment):
    gymnasium = pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import check_env

    env = gymnasium.make(
        "icml25.cdf_bandit.gym:MixtureEnv-v0", environment=environment, utility=Expectation(), horizon=5
    )
    check_env(env.unwrapped, skip_render_check=True)
    x, _ = env.reset(seed=0)
    rewards, regrets = [], []
    for step in range(5):
        x, reward, terminated, truncated, info = env.step(1)
        assert env.observation_space.contains(x) and not terminated and truncated == (step == 4)
        rewards.append(reward)
        regrets.append(info["regret"])
    assert min(regrets) >= 0 and all(0 <= r <= 1 for r in rewards)
    env.reset(seed=0)
    assert [env.step(1)[1] for _ in range(5)] == rewards


def test_gymnasium_missing(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "icml25.cdf_bandit.gym", raising=False)
    with pytest.raises(ImportError, match=r"icml25-cdf-bandit\[gymnasium\]"):
        builtins.__import__("icml25.cdf_bandit.gym")


def test_heteroscedastic_actions_have_another_cvar_order():
    basis = LogisticBasis(
        lambda x, a, w: 0.5 + 0.05 * a[:, None] + 0.1 * w + 0 * x, lambda x, a, w: 0.02 + 0.06 * a[:, None]
    )
    env = MixtureEnvironment(basis, beta22, uniform_contexts, 3, 0)
    assert env.value([[0.5]], Expectation()).argmax() != env.value([[0.5]], CVaR(0.1)).argmax()
    assert sine(np.zeros((1, 1)), np.zeros(1), 0.0) == 0.5


def test_weights_are_those_of_the_density(environment):
    """Against Beta(2, 2): nu's weights count."""
    points = environment.measure.points
    assert environment.mass @ points == pytest.approx(0.5) and environment.mass @ points**2 == pytest.approx(0.3)


def test_quantiles_invert_the_cdf(environment):
    levels = np.array([[0.1, 0.5, 0.9]])
    arguments = environment.basis, np.array([[0.3]]), np.array([2]), environment.measure.points
    s = invert_mixture(*arguments, environment.mass, levels)
    assert (np.diff(s) > 0).all()
    np.testing.assert_allclose(environment.mass @ environment.basis.cdf(*arguments[1:], s[0])[0], levels[0], atol=1e-9)
