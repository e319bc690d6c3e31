"""Stability and generalization against brute force, adversaries and simulated tables."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icml25.icl_hopfield import Memory, generalization_bound, posterior_predict, stability_bound, stability_profile

close = np.testing.assert_allclose


def attention(keys: np.ndarray, values: np.ndarray, q: np.ndarray, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights (..., n) and answers (..., v)."""
    p = np.exp(beta * (keys @ q))
    p /= p.sum(-1, keepdims=True)
    return p, (p[..., None] * values).sum(-2)


def sphere(rng: np.random.Generator, *shape: int) -> np.ndarray:
    x = rng.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@given(st.integers(0, 10**6), st.integers(2, 30), st.floats(0.05, 3))
def test_replacing_an_example(seed: int, n: int, beta: float) -> None:
    rng = np.random.default_rng(seed)
    keys, values, q = sphere(rng, n, 3), sphere(rng, n, 2), sphere(rng, 3)
    keys2, values2, j = keys.copy(), values.copy(), rng.integers(n)
    keys2[j], values2[j] = sphere(rng, 3), sphere(rng, 2)
    (p, z), (p2, z2) = attention(keys, values, q, beta), attention(keys2, values2, q, beta)
    m = attention(np.delete(keys, j, 0), np.delete(values, j, 0), q, beta)[1]
    close(z - z2, p[j] * (values[j] - m) - p2[j] * (values2[j] - m), atol=1e-12)
    assert p.max() <= 1 / (1 + (n - 1) * math.exp(-2 * beta)) * (1 + 1e-12)
    assert np.linalg.norm(z - z2) <= stability_bound(n, 1.0, 1.0, 1.0, beta)


@pytest.mark.parametrize(("n", "beta"), [(1, 1.0), (2, 0.3), (5, 1.0), (40, 2.0)])
def test_no_adversary_exceeds_the_bound_by_much_room(n: int, beta: float) -> None:
    """The worst context: one example at the query, all others opposite; flipping its value moves half the bound."""
    q = np.array([1.0, 0.0])
    keys = np.concatenate([[q], -np.ones((n - 1, 1)) * q])
    values = np.concatenate([[[1.0]], -np.ones((n - 1, 1))])
    bound, worst = stability_bound(n, 1.0, 1.0, 1.0, beta), 0.0
    rng = np.random.default_rng(0)
    for _ in range(2000):
        keys2, values2 = keys.copy(), values.copy()
        keys2[0], values2[0] = sphere(rng, 2), rng.uniform(-1, 1)
        change = abs(attention(keys, values, q, beta)[1] - attention(keys2, values2, q, beta)[1])[0]
        assert change <= bound
        worst = max(worst, change)
    flipped = attention(keys, np.concatenate([[[-1.0]], values[1:]]), q, beta)[1]
    worst = max(worst, abs(flipped - attention(keys, values, q, beta)[1])[0])
    close(worst, bound / 2, rtol=1e-9)


def test_bound_in_numbers() -> None:
    assert stability_bound(1, 3.0, 1.0, 2.0, 0.5) == 12
    close(stability_bound(np.array([1, 8, 1024]), 1.0, 2.0, 0.5, 1.5), 4 / (1 + np.array([0, 7, 1023]) * math.exp(-3)))
    assert (stability_bound(np.arange(1, 99), 1, 1, 1, 1) <= 4 * math.exp(2) / np.arange(1, 99)).all()
    assert stability_bound(10, 1.0, 1000.0, 1000.0, 1.0) == 4


def test_profile_is_brute_force() -> None:
    rng = np.random.default_rng(0)
    x, y, q, pool = rng.normal(size=(5, 2)), rng.normal(size=(5, 2)), rng.normal(size=(3, 2)), rng.normal(size=(4, 4))
    pool_x, pool_y, beta = pool[:, :2], pool[:, 2:], 0.4
    worst = {}
    for size in (3, 5):
        changes = []
        for j in range(size):
            for key, value in zip(pool_x, pool_y, strict=True):
                keys, values = x[:size].copy(), y[:size].copy()
                keys[j], values[j] = key, value
                changes += [
                    np.linalg.norm(attention(keys, values, a, beta)[1] - attention(x[:size], y[:size], a, beta)[1])
                    for a in q
                ]
        worst[size] = max(changes)

    def predict(x, y, q):
        return Memory(x, y, beta).retrieve(q)

    found = stability_profile(predict, x, y, q, (pool_x, pool_y), sizes=(3, 5), beta=beta)
    close(found[:, 0], [worst[3], worst[5]], rtol=1e-5)
    radii = [max(np.linalg.norm(a, axis=1).max() for a in pair) for pair in ((y, pool_y), (x, pool_x), (q,))]
    close(found[:, 1], stability_bound(np.array([3, 5]), *radii, beta), rtol=1e-5)
    given_radii = stability_profile(predict, x, y, q, (pool_x, pool_y), beta=beta, V=9.0, R_k=9.0, R_q=9)
    assert given_radii.shape == (1, 2) and given_radii[0, 1] == stability_bound(5, 9.0, 9.0, 9.0, beta)


def test_profile_of_any_predictor_and_scalar_labels() -> None:
    rng = np.random.default_rng(0)
    x, y, q = rng.normal(size=(6, 2)), rng.normal(size=6), rng.normal(size=(3, 2))
    found = stability_profile(lambda x, y, q: posterior_predict(x, y, q, noise_var=1.0)[0], x, y, q, (x[:2], y[:2]))
    assert found[0, 0] > 0 and np.isinf(found[0, 1])


def test_one_example_decides_alone() -> None:
    x, y = np.array([[1.0, 0.0]]), np.array([1.0])
    found = stability_profile(lambda x, y, q: Memory(x, y, 1.0).retrieve(q), x, y, x, (-x, -y), beta=1.0)
    close(found, [[2.0, 4.0]], rtol=1e-6)


def test_eps_falls_as_one_over_n() -> None:
    rng = np.random.default_rng(0)
    x, y, q = sphere(rng, 256, 3), rng.uniform(-1, 1, 256), sphere(rng, 4, 3)
    pool, sizes = (sphere(rng, 8, 3), rng.uniform(-1, 1, 8)), (16, 64, 256)
    found = stability_profile(lambda x, y, q: Memory(x, y, 1.0).retrieve(q), x, y, q, pool, sizes=sizes, beta=1.0)
    assert (found[:, 0] <= found[:, 1]).all()
    assert -1.15 < np.polyfit(np.log(sizes), np.log(found[:, 0]), 1)[0] < -0.85


# Generalization

SETTING = {"V": 1.0, "R_k": 1.0, "R_q": 1.0, "beta": 0.2}


def test_generalization_bound_in_numbers() -> None:
    K = 4 * 0.5 * math.exp(0.4)
    first = (2 + K * (1 + math.log(10))) * math.sqrt(math.log(2 / 0.1) / (2 * 10 * 7))
    close(generalization_bound(10, 7, 2, 0.5, delta=0.1, **SETTING), first)
    second = 2 * 0.5 * 0.3 + (2 + K * (1 + math.log(10))) * math.sqrt((math.log(2 / 0.1) + 5) / (2 * 10 * 7))
    close(generalization_bound(10, 7, 2, 0.5, delta=0.1, log_cover=5, tau=0.3, **SETTING), second)
    assert generalization_bound(10, 7, 2, 0.5, delta=0.1, **(SETTING | {"beta": 1e4})) == math.inf
    no_context = 2 * math.sqrt(math.log(2 / 0.1) / (2 * 10 * 7))
    close(generalization_bound(10, 7, 2, 0, delta=0.1, **(SETTING | {"beta": 1e4})), no_context)


def risks(tables: int, T: int, n: int, seed: int) -> np.ndarray:
    """Empirical risks of softmax attention: absolute error clipped at 1, each example predicted from those before it."""
    x, w = sphere(np.random.default_rng(seed), tables, T, n, 3), sphere(np.random.default_rng(0), T, 3)
    y = np.einsum("btnd,td->btn", x, w)
    logits = np.einsum("btnd,btmd->btnm", x, x) * SETTING["beta"]
    p = np.exp(logits) * np.tri(n, k=-1)
    z = (p * y[:, :, None]).sum(-1) / np.maximum(p.sum(-1), 1e-300)
    return np.minimum(abs(z - y), 1).mean((1, 2))


def test_generalization_bound_holds_in_simulated_tables() -> None:
    delta, T, n = 0.2, 60, 12
    found, truth = risks(500, T, n, 1), risks(2000, T, n, 2).mean()
    bound = generalization_bound(n, T, 1, 1, delta=delta, **SETTING)
    assert bound < 1  # the loss itself is below 1
    assert (abs(found - truth) > bound).mean() <= delta


@pytest.mark.parametrize("delta", [0.05, 0.2])
def test_generalization_bound_is_tight_but_for_a_factor_of_two(delta: float) -> None:
    """A loss of 0 or 1 that no prediction changes (L = 0): half the bound is exceeded more often than delta."""
    T, n, tables = 60, 12, 20_000
    deviation = abs(np.random.default_rng(0).binomial(n * T, 0.5, tables) / (n * T) - 0.5)
    bound = generalization_bound(n, T, 1, 0, delta=delta, **SETTING)
    assert 0 < (deviation > bound).mean() <= delta < (deviation > bound / 2).mean()


@pytest.mark.parametrize("n", [5, 12, 50])
def test_one_example_moves_the_risk_as_the_bound_says(n: int) -> None:
    """What bounded differences rest on: (B + K (1 + log n)) / n per task, of which an adversary reaches a third."""
    beta, B, L = 1e-3, 2.0, 1.0
    of_one = 2 * math.exp(-2)  # log(2 / delta) = 2: the root is 1 / sqrt(n)
    limit = generalization_bound(n, 1, B, L, delta=of_one, **(SETTING | {"beta": beta})) / math.sqrt(n)

    def risk(x, y):
        z = [0.0] + [attention(x[:i], y[:i, None], x[i], beta)[1][0] for i in range(1, n)]
        return abs(z - y).mean()

    rng = np.random.default_rng(0)
    for _ in range(30):
        x, y = sphere(rng, n, 2), rng.uniform(-1, 1, n)
        x2, y2, j = x.copy(), y.copy(), rng.integers(n)
        x2[j], y2[j] = sphere(rng, 2), rng.uniform(-1, 1)
        assert abs(risk(x, y) - risk(x2, y2)) <= limit
    same = -np.ones(n)  # the first label is wrong, and tells on all later predictions
    worst = abs(risk(x, same) - risk(x, np.where(np.arange(n) == 0, 1.0, same)))
    assert limit / 3.5 < worst <= limit


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"R_k": 0.5}, "R_k = 0.5 is smaller than the largest norm in the data, 2"),
        ({"R_q": 0.5}, "R_q = 0.5 is smaller"),
        ({"V": 0.5}, "V = 0.5 is smaller than the largest norm in the data, 3"),
        ({"sizes": (0,)}, "sizes must be >= 1 and <= 2, got 0"),
        ({"sizes": (3,)}, "sizes must be >= 1 and <= 2, got 3"),
        ({"sizes": ()}, "sizes"),
        ({"pool": (np.ones((1, 3)), np.ones(1))}, "pool must have rows like x"),
        ({"pool": (np.ones((0, 2)), np.ones(0))}, "pool must have rows"),
        ({"q": np.ones((1, 3))}, "x, y, q must have shapes"),
        ({"y": np.ones(3)}, "x, y, q must have shapes"),
    ],
)
def test_bad_profiles(change: dict, message: str) -> None:
    arguments = {"x": np.ones((2, 2)), "y": np.ones(2), "q": np.ones((1, 2))}
    arguments |= {"pool": (np.array([[2.0, 0.0]]), np.array([3.0])), "beta": 1.0} | change
    with pytest.raises(ValueError, match=message):
        stability_profile(lambda x, y, q: jnp.zeros(len(q)), **arguments)


def test_bad_bounds() -> None:
    for arguments, message in (
        ((0, 1, 1, 1, 1), "n must be integers >= 1"),
        ((1.5, 1, 1, 1, 1), "n must be integers >= 1"),
        ((5, -1, 1, 1, 1), "V must be a finite number >= 0"),
        ((5, 1, 1, 1, 0), "beta must be a finite number > 0"),
        ((5, 1, math.nan, 1, 1), "R_k"),
    ):
        with pytest.raises(ValueError, match=message):
            stability_bound(*arguments)
    for change, message in (({"delta": 0.0}, "delta"), ({"delta": 1.5}, "delta"), ({"T": 0}, "T"), ({"B": -1}, "B")):
        with pytest.raises(ValueError, match=message):
            generalization_bound(**({"n": 5, "T": 5, "B": 1, "L": 1, "delta": 0.1} | SETTING | change))
