"""The inner loop: projection, TD steps, running mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.neural_marl import Critic, project, td_phase

K, N, D = 5, 2, 4
GAMMA, BETA = 0.9, 0.1


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    x, x_next = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in rng.normal(size=(2, K, D)))
    r = rng.normal(size=(K, N))
    critic = Critic(6, 2, 0.3)
    variables = critic.init(jax.random.key(0), jnp.zeros(D))

    def q(W, x):
        return critic.apply({"params": W, "fixed": variables["fixed"]}, x)

    W0 = variables["params"]
    stacked = jax.tree.map(lambda w: jnp.stack([w, 1.1 * w]), W0)
    return q, W0, stacked, tuple(jnp.asarray(v, jnp.float32) for v in (x, r, x_next))


def by_hand(problem, steps: int, radius: float = np.inf, mixing=None, every: int = 0):
    """All iterates W(0..K) of both agents, in plain loops."""
    q, W0, stacked, (x, r, x_next) = problem
    agents = [jax.tree.map(lambda w: w[i], stacked) for i in range(N)]  # noqa: B023
    history, deltas = [agents], []
    for k in range(steps):
        new, delta = [], []
        for i, W in enumerate(agents):
            error = float(r[k, i] + GAMMA * q(W, x_next[k]) - q(W, x[k]))
            gradient = jax.grad(q)(W, x[k])
            W = jax.tree.map(lambda w, g: w + BETA * error * g, W, gradient)  # noqa: B023
            for name, w0 in W0.items():
                distance = float(jnp.linalg.norm(W[name] - w0))
                if distance > radius:
                    W[name] = w0 + (W[name] - w0) * radius / distance
            new.append(W)
            delta.append(error)
        if every and (k + 1) % every == 0:
            new = [jax.tree.map(lambda a, b: row[0] * a + row[1] * b, *new) for row in mixing]  # noqa: B023
        agents = new
        history.append(agents)
        deltas.append(delta)
    return history, np.array(deltas)


def run(problem, **settings):
    q, W0, stacked, (x, r, x_next) = problem
    return td_phase(q, stacked, W0, x, r, x_next, **{"gamma": GAMMA, "beta": BETA, **settings})


def assert_close(got, agents, tol: float = 1e-5) -> None:
    for i, W in enumerate(agents):
        for name, w in W.items():
            np.testing.assert_allclose(got[name][i], w, rtol=tol, atol=tol)


def mean(history):
    return [jax.tree.map(lambda *w: sum(w) / len(w), *[step[i] for step in history]) for i in range(N)]


def test_mean_of_all_iterates(problem) -> None:
    history, deltas = by_hand(problem, K)
    W, delta, broken = run(problem)
    assert_close(W, mean(history))
    np.testing.assert_allclose(delta, deltas, rtol=1e-4, atol=1e-6)
    assert broken.tolist() == [K, K]


def test_last_iterate(problem) -> None:
    history, _ = by_hand(problem, K)
    assert_close(run(problem, average=False)[0], history[-1])


def test_one_step_is_half_way(problem) -> None:
    q, W0, stacked, (x, r, x_next) = problem
    history, _ = by_hand(problem, 1)
    W, _, _ = td_phase(q, stacked, W0, x[:1], r[:1], x_next[:1], gamma=GAMMA, beta=BETA)
    half = [jax.tree.map(lambda a, b: (a + b) / 2, history[0][i], history[1][i]) for i in range(N)]
    assert_close(W, half)


def test_no_step_size_no_change(problem) -> None:
    W, _, _ = run(problem, beta=0.0)
    for name, w in problem[2].items():
        np.testing.assert_allclose(W[name], w, rtol=1e-6)


def test_projected_steps(problem) -> None:
    history, _ = by_hand(problem, K, radius=0.05)
    W, _, _ = run(problem, radius=0.05, average=False)
    assert_close(W, history[-1])
    for name, w0 in problem[1].items():
        assert (np.linalg.norm(np.asarray(W[name] - w0), axis=(1, 2)) <= 0.05 * (1 + 1e-5)).all()


def test_consensus_within_the_loop(problem) -> None:
    A = np.array([[0.7, 0.3], [0.3, 0.7]])
    history, _ = by_hand(problem, K, mixing=A, every=2)
    W, _, _ = run(problem, mixing=jnp.asarray(A), mix_every=2)
    assert_close(W, mean(history))


def test_where_a_critic_breaks(problem) -> None:
    q, W0, stacked, (x, r, x_next) = problem
    r = r.at[2, 1].set(jnp.inf)
    _, _, broken = td_phase(q, stacked, W0, x, r, x_next, gamma=GAMMA, beta=BETA)
    assert broken.tolist() == [K, 2]


@settings(deadline=None, max_examples=30)
@given(radius=st.floats(0.1, 10), far=st.floats(0, 30), seed=st.integers(0, 100))
def test_projection_of_each_layer(radius: float, far: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    centre = {"W1": rng.normal(size=(3, 3)), "W2": rng.normal(size=(3, 3))}
    push = rng.normal(size=(3, 3))
    push *= far / np.linalg.norm(push)
    near = rng.normal(size=(3, 3))
    near *= 0.5 * radius / np.linalg.norm(near)
    W = {"W1": centre["W1"] + push, "W2": centre["W2"] + near}
    W, centre = jax.tree.map(jnp.float32, (W, centre))
    P = project(W, centre, radius)
    np.testing.assert_array_equal(P["W2"], W["W2"])  # a far layer does not shrink a near one
    distance = float(jnp.linalg.norm(P["W1"] - centre["W1"]))
    assert distance == pytest.approx(min(far, radius), rel=1e-4, abs=1e-4)
    if far <= radius * (1 - 1e-5):
        np.testing.assert_array_equal(P["W1"], W["W1"])
    elif far > 1e-3:
        direction = np.asarray(P["W1"] - centre["W1"]) / distance
        np.testing.assert_allclose(direction, push / far, atol=1e-4)
    again = project(P, centre, radius)
    np.testing.assert_allclose(again["W1"], P["W1"], rtol=1e-5, atol=1e-6)
    assert project(W, centre, np.inf) is W
