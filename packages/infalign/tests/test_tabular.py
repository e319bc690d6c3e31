"""Theorem 1 on finite problems, by direct optimisation; KL-RL; Algorithm 1."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from icml25.infalign import (
    BestOf,
    Standard,
    WorstOf,
    calibrated_reward,
    ctrl,
    exponential,
    identity,
    inference_distribution,
    kl_divergence,
    kl_rl,
    optimal_policy,
    policy_at_kl,
    win_rate,
)
from icml25.infalign.tabular import _fixed_point


def objective(p, ref, reward, procedure, beta):
    """W - beta KL class by class, for real or complex p (written anew: cdfs of the classes to the power N)."""
    N, up = procedure.N, isinstance(procedure, BestOf)
    served = []
    for q in (p, ref):
        if up:
            served.append([q[reward <= g].sum() ** N - q[reward < g].sum() ** N for g in np.unique(reward)])
        else:
            served.append([q[reward >= g].sum() ** N - q[reward > g].sum() ** N for g in np.unique(reward)])
    mine, other = map(np.array, served)
    return mine @ (np.cumsum(other) - other / 2) - beta * (p * np.log(p / ref)).sum()


def direct(ref, reward, procedure, beta, starts):
    """The best of several ascents in logits, with complex-step gradients."""

    def loss(z):
        p = np.exp(z - z.max())
        p = np.maximum(p / p.sum(), 1e-200)
        step = 1e-30
        gradient = [objective(p + 1j * step * e, ref, reward, procedure, beta).imag / step for e in np.eye(len(p))]
        return -objective(p, ref, reward, procedure, beta), -p * (np.array(gradient) - p @ np.array(gradient))

    ends = [minimize(loss, z, jac=True, method="BFGS", options={"gtol": 1e-11}) for z in starts]
    z = min(ends, key=lambda end: end.fun).x
    p = np.exp(z - z.max())
    return p / p.sum()


@pytest.mark.parametrize("seed", range(1000, 1016))
def test_theorem(seed):
    rng = np.random.default_rng(seed)
    A, N = int(rng.integers(4, 9)), int(rng.integers(2, 5))
    ref, beta = rng.dirichlet(np.ones(A)), float(10 ** rng.uniform(-1, 0.5))
    reward = rng.integers(0, 4, A).astype(float) if seed % 2 else rng.normal(size=A)
    starts = [np.log(ref), *(np.log(ref) + 3 * rng.normal(size=(4, A)))]
    for procedure in (BestOf(N), WorstOf(N)):
        pi = optimal_policy(ref, reward, procedure, beta)
        np.testing.assert_allclose(pi, direct(ref, reward, procedure, beta, starts), atol=1e-6)
        R = procedure.gradient(pi, ref, reward)
        np.testing.assert_allclose(kl_rl(ref, R, beta), pi, atol=1e-9)  # it is the KL-RL solution of R = dW/dpi


@given(st.integers(0, 10**6), st.floats(-3, 1), st.sampled_from([BestOf, WorstOf]))
def test_the_coupled_equations_hold_at_every_beta(seed, log_beta, kind):
    rng = np.random.default_rng(seed)
    A = int(rng.integers(2, 12))
    ref, reward = rng.dirichlet(np.full(A, 0.5)), rng.integers(0, 6, A).astype(float)
    procedure, beta = kind(int(rng.integers(1, 9))), 10**log_beta
    pi = optimal_policy(ref, reward, procedure, beta)  # raises where R is off
    W = win_rate(procedure.apply(pi, reward), procedure.apply(ref, reward), reward)
    assert W - beta * kl_divergence(pi, ref) >= 0.5 - 1e-12  # that of pi_ref


def test_worst_of_n_may_have_several_solutions():
    """Two responses, (.85, .15), beta = .1: iterating from pi_ref stops at a solution that is worse by 0.31."""
    ref, reward, procedure, beta = np.array([0.85, 0.15]), np.array([0.0, 1.0]), WorstOf(4), 0.1

    def value(pi):
        return objective(pi, ref, reward, procedure, beta)

    s = _fixed_point(ref, lambda pi: procedure.gradient(pi, ref, reward), beta, np.zeros(2), 1e-10, 1000)
    local = kl_rl(ref, s, 1)
    best = optimal_policy(ref, reward, procedure, beta)
    p = np.linspace(1e-9, 1 - 1e-9, 100_001)
    values = np.array([value(np.array([1 - x, x])) for x in p[::50]])
    assert local[1] == pytest.approx(0.16094374, abs=1e-7) and value(best) - value(local) == pytest.approx(
        0.31, abs=1e-3
    )
    assert values.max() <= value(best) + 1e-12 and best[1] > 0.999


def test_a_procedure_of_ones_own():
    """Served by best-of-2 half of the time: the damped iteration solves it, and the mixture's optimum is no other's."""

    class Half:
        N = 2

        def apply(self, pi, reward):
            return (pi + BestOf(2).apply(pi, reward)) / 2

        def gradient(self, pi, pi_ref, reward):
            served = self.apply(pi_ref, reward)
            best, h = BestOf(2), 1e-6
            C = calibrated_reward(served, reward)
            slopes = [
                ((best.apply((pi + h * e) / (1 + h), reward) * (1 + h) ** 2 - best.apply(pi, reward)) / h)
                for e in np.eye(len(pi))
            ]
            return C / 2 + np.stack(slopes) @ C / 2

        def win_rate(self, F):
            raise NotImplementedError

        def derivative(self, F):
            raise NotImplementedError

    rng = np.random.default_rng(0)
    ref, reward = rng.dirichlet(np.ones(5)), rng.normal(size=5)
    procedure = Half()
    pi = optimal_policy(ref, reward, procedure, 0.3, tol=1e-8)

    def value(p):
        return win_rate(procedure.apply(p, reward), procedure.apply(ref, reward), reward) - 0.3 * kl_divergence(p, ref)

    for _ in range(200):
        other = np.exp(np.log(pi) + 0.1 * rng.normal(size=5))
        assert value(other / other.sum()) < value(pi)


def test_the_standard_optimum_is_kl_rl_of_the_calibrated_reward():
    rng = np.random.default_rng(1)
    ref, reward = rng.dirichlet(np.ones(7), size=3), rng.integers(0, 4, (3, 7)).astype(float)
    expected = ctrl(ref, reward, identity(), 0.2)
    np.testing.assert_allclose(optimal_policy(ref, reward, Standard(), 0.2), expected, atol=1e-10)
    np.testing.assert_allclose(kl_rl(ref, calibrated_reward(ref, reward), 0.2), expected, atol=1e-15)


def test_kl_rl():
    ref = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(kl_rl(ref, np.log([2.0, 1, 3]), 1), np.array([1, 0.3, 0.6]) / 1.9)
    np.testing.assert_allclose(kl_rl(ref, np.array([1e6, 0, 0]), 1e-3), [1, 0, 0])
    np.testing.assert_allclose(kl_rl(ref, np.array([1e300, 0, 0]), math.inf), ref)
    np.testing.assert_allclose(kl_rl(np.array([0, 0.5, 0.5]), np.array([9.0, 0, 0]), 0.1), [0, 0.5, 0.5])
    shift = kl_rl(ref, np.array([1.0, 2, 3]) + 100, 0.5)
    np.testing.assert_allclose(shift, kl_rl(ref, np.array([1.0, 2, 3]), 0.5), rtol=1e-12)


def test_kl_divergence():
    assert kl_divergence(np.array([0.5, 0.5]), np.array([0.25, 0.75])) == pytest.approx(
        0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    )
    assert kl_divergence(np.array([0, 1.0]), np.array([0, 1.0])) == 0
    assert kl_divergence(np.array([0.5, 0.5]), np.array([0, 1.0])) == math.inf


def test_policy_at_kl():
    rng = np.random.default_rng(2)
    ref, R = rng.dirichlet(np.ones(50), size=8), 1e4 * rng.normal(size=(8, 50))
    pi, beta = policy_at_kl(ref, R, 0.5)
    assert kl_divergence(pi, ref).mean() == pytest.approx(0.5, rel=1e-9)
    np.testing.assert_allclose(pi, kl_rl(ref, R, beta), rtol=1e-9)
    np.testing.assert_allclose(policy_at_kl(ref, R, 0)[0], ref, rtol=1e-13)
    most = -np.log(ref[np.arange(8), R.argmax(1)]).mean()
    with pytest.raises(ValueError, match="cannot be reached") as error:
        policy_at_kl(ref, R, most + 0.01)
    assert f"{most:.6g}" in str(error.value)
    with pytest.raises(ValueError, match="kl must be >= 0"):
        policy_at_kl(ref, R, -1)


def test_ctrl_with_rollouts():
    rng = np.random.default_rng(3)
    ref, reward = rng.dirichlet(np.ones(40), size=30), rng.normal(size=(30, 40))
    exact = ctrl(ref, reward, exponential(10), 0.2)
    errors = [
        np.abs(ctrl(ref, reward, exponential(10), 0.2, K=K, seed=0) - exact).sum(-1).mean() for K in (10, 100, 10_000)
    ]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.05
    first, again, other = (ctrl(ref, reward, identity(), 0.2, K=20, seed=s) for s in (4, 4, 5))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    monotone = ctrl(ref, np.exp(3 * reward), exponential(10), 0.2)
    np.testing.assert_allclose(monotone, exact, rtol=1e-12)  # only the order of rewards matters


def test_training_for_the_procedure_pays():
    """On many responses: the transform for best-of-4 wins under best-of-4 and loses under one draw, and the reverse."""
    rng = np.random.default_rng(4)
    ref, reward = rng.dirichlet(np.ones(300), size=20), rng.normal(size=(20, 300))
    C = calibrated_reward(ref, reward)
    rates = {}
    for name, transform in (("u", identity()), ("best", exponential(10)), ("worst", exponential(-10))):
        pi, _ = policy_at_kl(ref, transform(C), 0.5)
        for T in (Standard(), BestOf(4), WorstOf(4)):
            served = (inference_distribution(p, reward, T) for p in (pi, ref))
            rates[name, type(T).__name__] = win_rate(*served, reward).mean()
    assert rates["best", "BestOf"] > rates["u", "BestOf"] + 0.05 > rates["worst", "BestOf"] + 0.1
    assert rates["worst", "WorstOf"] > rates["u", "WorstOf"] + 0.04 > rates["best", "WorstOf"] + 0.1
    assert rates["u", "Standard"] > max(rates["best", "Standard"], rates["worst", "Standard"]) + 0.03


@pytest.mark.parametrize("beta", [0, -1, math.nan])
def test_bad_beta(beta):
    ref, reward = np.array([0.5, 0.5]), np.array([0.0, 1.0])
    for call in (
        lambda: kl_rl(ref, reward, beta),
        lambda: ctrl(ref, reward, identity(), beta),
        lambda: optimal_policy(ref, reward, BestOf(2), beta),
    ):
        with pytest.raises(ValueError, match=r"beta must lie in \(0, inf\]"):
            call()


@pytest.mark.parametrize("ref", [[0.5, 0.6], [1.5, -0.5]])
def test_bad_pi_ref(ref):
    for call in (
        lambda p, r: kl_rl(p, r, 1),
        lambda p, r: ctrl(p, r, identity(), 1),
        lambda p, r: optimal_policy(p, r, BestOf(2), 1),
        lambda p, r: policy_at_kl(p, r, 0.1),
        lambda p, r: win_rate(p, np.array([0.5, 0.5]), r),
    ):
        with pytest.raises(ValueError, match=r"sum to 1|negative"):
            call(np.array(ref), np.array([0.0, 1.0]))


def test_bad_K():
    with pytest.raises(ValueError, match="K must be an integer >= 1"):
        ctrl(np.array([0.5, 0.5]), np.array([0.0, 1.0]), identity(), 1, K=0)
