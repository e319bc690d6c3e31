"""Retrieval, energies and their identities, against other libraries, autodiff and brute force."""

import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params

from icml25.icl_hopfield import (
    Memory,
    context_share,
    energy_path,
    energy_shift,
    ghost_examples,
    memory,
    reshaping_effect,
)

BETA = 1.7
close = np.testing.assert_allclose
seeds = st.integers(0, 10**6)


def draw(seed: int = 0, scale: float = 1.0) -> tuple[Memory, Memory, np.ndarray]:
    """Seven prior memories, four examples and five queries in three dimensions, with two values each."""
    rng = np.random.default_rng(seed)
    base = Memory(scale * rng.normal(size=(7, 3)), rng.normal(size=(7, 2)), beta=BETA)
    context = Memory(scale * rng.normal(size=(4, 3)), rng.normal(size=(4, 2)), beta=BETA)
    return base, context, scale * rng.normal(size=(5, 3))


def plain(keys: np.ndarray, values: np.ndarray, q: np.ndarray, beta: float = BETA) -> tuple[np.ndarray, np.ndarray]:
    """lse and retrieval, as the formulas stand."""
    p = np.exp(beta * q @ np.asarray(keys, float).T)
    return np.log(p.sum(-1)), p @ np.asarray(values, float) / p.sum(-1, keepdims=True)


def test_retrieve_is_attention() -> None:
    base, _, q = draw()
    q, keys, values = (jnp.asarray(a, jnp.float32)[None, :, None] for a in (q, base.keys, base.keys))
    expected = jax.nn.dot_product_attention(q, keys, values, scale=BETA)[0, :, 0]
    close(Memory(base.keys, beta=BETA).retrieve(q[0, :, 0]), expected, atol=1e-6)
    close(base.retrieve(q[0, :, 0]), base.weights(q[0, :, 0]) @ base.values, atol=1e-6)


def test_default_beta_is_that_of_attention() -> None:
    keys = np.random.default_rng(0).normal(size=(6, 16)).astype(np.float32)
    q = keys[None, :2, None]
    expected = jax.nn.dot_product_attention(q, keys[None, :, None], keys[None, :, None])[0, :, 0]
    close(Memory(keys).retrieve(keys[:2]), expected, atol=1e-6)


def test_energy_and_retrieval_as_the_formulas_stand() -> None:
    base, _, q = draw()
    lse, z = plain(base.keys, base.values, q)
    close(base.energy(q), -lse / BETA + (q**2).sum(-1) / 2, atol=1e-5)
    close(base.retrieve(q), z, atol=1e-5)
    shift = math.log(7) / BETA + (np.asarray(base.keys) ** 2).sum(-1).max() / 2
    close(base.energy(q, normalised=True) - base.energy(q), shift, rtol=1e-5)


def test_leading_axes_and_values_of_any_shape() -> None:
    base, _, q = draw()
    cube = np.broadcast_to(q, (2, 5, 3))
    close(base.retrieve(cube), np.broadcast_to(base.retrieve(q), (2, 5, 2)), rtol=1e-6)
    assert base.energy(q[0]).shape == () and base.retrieve(q[0]).shape == (2,)
    labels = Memory(base.keys, base.values[:, 0], BETA)
    close(labels.retrieve(cube), base.retrieve(cube)[..., 0], rtol=1e-6)
    tensors = Memory(base.keys, base.values.reshape(7, 1, 2), BETA)
    close(tensors.retrieve(q)[:, 0], base.retrieve(q), rtol=1e-6)


@given(seeds)
def test_retrieval_is_a_gradient_step_down_the_energy(seed: int) -> None:
    auto, q = Memory(draw(seed)[0].keys, beta=BETA), jnp.asarray(draw(seed)[2], jnp.float32)
    retrieved = auto.retrieve(q)
    close(retrieved, q - jax.grad(lambda x: auto.energy(x).sum())(q), atol=2e-6)
    assert (auto.energy(retrieved) <= auto.energy(q) + 1e-5).all()
    assert (auto.energy(q, normalised=True) >= -1e-5).all()


def test_more_steps() -> None:
    base, _, q = draw()
    auto = Memory(base.keys, beta=BETA)
    close(base.retrieve(q, steps=3), base.retrieve(auto.retrieve(auto.retrieve(q))), atol=1e-6)
    settled = auto.retrieve(q, steps=500)
    close(auto.retrieve(settled), settled, atol=1e-4)


@given(seeds)
def test_mixing(seed: int) -> None:
    base, context, q = draw(seed)
    gamma = base.share(context, q)[:, None]
    union = base.condition(context)
    close(union.retrieve(q), (1 - gamma) * base.retrieve(q) + gamma * context.retrieve(q), atol=2e-6)
    close(gamma[:, 0], union.weights(q)[:, 7:].sum(-1), atol=1e-6)
    weight = np.exp(BETA * q @ np.asarray(union.keys, float).T)
    close(gamma[:, 0], weight[:, 7:].sum(-1) / weight.sum(-1), atol=1e-6)


@given(seeds)
def test_energy_shift_and_force(seed: int) -> None:
    base, context, q = draw(seed)
    q = jnp.asarray(q, jnp.float32)
    shift = energy_shift(base, context, q)
    close(shift, base.condition(context).energy(q) - base.energy(q), atol=1e-5)
    assert (shift < 0).all()
    force = -jax.grad(lambda x: energy_shift(base, context, x).sum())(q)
    step = Memory(context.keys, beta=BETA).retrieve(q) - Memory(base.keys, beta=BETA).retrieve(q)
    close(force, context_share(base, context, q)[:, None] * step, atol=1e-5)


@given(seeds)
def test_energy_path(seed: int) -> None:
    base, context, q = draw(seed)
    path = energy_path(base, context, q)
    assert path.shape == (5, 5) and (np.diff(path, axis=0) <= 0).all()
    keys = np.concatenate([base.keys, context.keys]).astype(float)
    for t in range(5):
        close(path[t], (q**2).sum(-1) / 2 - plain(keys[: 7 + t], keys[: 7 + t], q)[0] / BETA, atol=1e-5)
    backwards = energy_path(base, Memory(context.keys[::-1], context.values[::-1], BETA), q)
    close(path[-1], backwards[-1], atol=1e-5)
    assert np.abs(path[1] - backwards[1]).max() > 1e-4


def test_order_of_the_examples_does_not_matter() -> None:
    base, context, q = draw()
    shuffled = Memory(context.keys[np.array([2, 0, 3, 1])], context.values[np.array([2, 0, 3, 1])], BETA)
    close(base.condition(context).retrieve(q), base.condition(shuffled).retrieve(q), atol=1e-6)


def test_wells_deepen_only_where_the_examples_are() -> None:
    base, example = Memory(np.eye(6)[:3], beta=8.0), Memory(np.eye(6)[4:5], beta=8.0)
    there, elsewhere = energy_shift(base, example, np.eye(6)[[4, 0]])
    assert there < -0.8 and -0.01 < elsewhere < 0


def test_limits_of_beta() -> None:
    base, _, q = draw()
    cold = Memory(base.keys, base.values, beta=1e4).retrieve(q)
    close(cold, np.asarray(base.values)[(q @ np.asarray(base.keys).T).argmax(-1)], atol=1e-5)
    close(Memory(base.keys, base.values, beta=1e-6).retrieve(q), np.tile(base.values.mean(0), (5, 1)), atol=1e-4)


def test_no_overflow() -> None:
    base, context, q = draw(scale=100.0)
    assert np.abs(BETA * q @ np.asarray(base.keys).T).max() > 1e4
    found = energy_shift(base, context, q), base.share(context, q), base.condition(context).retrieve(q)
    assert all(np.isfinite(value).all() for value in found)
    reach = (q @ np.asarray(context.keys).T).max(-1) - (q @ np.asarray(base.keys).T).max(-1)
    close(found[0], np.minimum(-reach, 0), atol=0.1, rtol=1e-5)  # the energy follows the nearest memory
    assert ((np.asarray(found[1]) > 0.5) == (reach > 0)).all()


def test_empty_context_changes_nothing() -> None:
    base, context, q = draw()
    empty = Memory(context.keys[:0], context.values[:0], BETA)
    assert (base.condition(empty).retrieve(q) == base.retrieve(q)).all()
    assert (energy_shift(base, empty, q) == 0).all() and (base.share(empty, q) == 0).all()
    assert energy_path(base, empty, q).shape == (1, 5)


# CASES.md: the stored pattern does not come back


def test_stored_pattern_weights() -> None:
    keys, q = np.eye(8)[:5], np.eye(8)[0]
    e = math.e
    close(Memory(keys, beta=1).weights(q), np.array([e, 1, 1, 1, 1]) / (e + 4), rtol=1e-6)
    close(Memory(keys).weights(q), [0.26255306] + [0.18436174] * 4, rtol=1e-6)
    close(Memory(keys, beta=50).retrieve(q), q, atol=1e-6)


@pytest.mark.parametrize("beta", [1.0, None, 5.0, 50.0])
def test_stored_pattern_error_is_below_its_bound(beta: float | None) -> None:
    stored = Memory(np.eye(8)[:5], beta=beta)
    error, bound = (
        np.linalg.norm(stored.retrieve(np.eye(8)[0]) - np.eye(8)[0]),
        stored.retrieval_error_bound(np.eye(8)[0], 0),
    )
    assert error <= bound + 1e-6
    if beta == 1:
        close([error, bound], [0.6657, 2.943], atol=1e-3)


def test_images() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 784)).astype(np.uint8)
    stored = Memory(images)
    assert stored.keys.dtype == jnp.float32 and np.isfinite(stored.energy(images)).all()
    close(stored.retrieve(images), images, rtol=1e-6)


@given(seeds)
def test_retrieval_error_bound(seed: int) -> None:
    base, _, q = draw(seed)
    for index in range(7):
        error = np.linalg.norm(np.asarray(base.retrieve(q) - base.values[index]), axis=-1)
        assert (error <= base.retrieval_error_bound(q, index) * (1 + 1e-5)).all()


def test_margin() -> None:
    base, _, q = draw()
    scores = np.sort(q @ np.asarray(base.keys, float).T, axis=-1)
    close(base.margin(q), scores[:, -1] - scores[:, -2], atol=1e-5)
    own = q @ np.asarray(base.keys, float)[2]
    others = (q @ np.delete(np.asarray(base.keys, float), 2, 0).T).max(-1)
    close(base.margin(q, 2), own - others, atol=1e-5)
    single = Memory(base.keys[:1], beta=BETA)
    assert np.isinf(single.margin(q)).all() and (single.retrieval_error_bound(q, 0) == 0).all()


# Ghosts


def test_ghosts_and_the_reshaping_effect() -> None:
    base, context, q = draw()

    def predictor(keys: jax.Array) -> jax.Array:
        return jnp.stack([keys.sum(-1), keys[:, 0] ** 2], -1)

    ghosts = ghost_examples(context, predictor)
    assert (ghosts.keys == context.keys).all() and (ghosts.values == predictor(context.keys)).all()
    close(reshaping_effect(context, q, predictor), context.retrieve(q) - ghosts.retrieve(q), atol=1e-6)
    assert (reshaping_effect(ghosts, q, predictor) == 0).all()
    gamma = base.share(context, q)[:, None]
    change = base.condition(context).retrieve(q) - base.condition(ghosts).retrieve(q)
    close(change, gamma * reshaping_effect(context, q, predictor), atol=1e-6)
    with pytest.raises(ValueError, match=r"predictor\(keys\) must have shape \(4, 2\), got \(4,\)"):
        ghost_examples(context, lambda keys: keys[:, 0])


# Scale


def test_blocks_and_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    keys, values, q = (jnp.asarray(rng.normal(size=shape)) for shape in ((23, 3), (23, 2), (11, 3)))
    lse, z = plain(keys, values, np.asarray(q, float))

    def total(keys: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        found = memory._attend.__wrapped__(keys, values, BETA, q)
        return found[1].sum() + found[0].sum(), found

    _, slope = jax.jit(jax.value_and_grad(total, has_aux=True))(keys)
    monkeypatch.setattr(memory, "BLOCK", 5)  # four blocks and three memories over
    monkeypatch.setattr(memory, "LOGITS", 20)  # four queries at a time
    (_, in_parts), slope_in_parts = jax.jit(jax.value_and_grad(lambda keys: total(keys), has_aux=True))(keys)
    close(in_parts[0], lse, atol=1e-5)
    close(in_parts[1], z, atol=1e-5)
    close(slope_in_parts, slope, atol=1e-5)


def test_a_million_memories_and_ten_thousand_queries_fit() -> None:
    shapes = [(10**6, 4), (10**6, 4), (), (10**4, 4)]
    jaxpr = jax.make_jaxpr(memory._attend)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            yield from (math.prod(out.aval.shape) for out in equation.outvars)
            for inner in jaxprs_in_params(equation.params):
                yield from sizes(inner)

    found = list(sizes(jaxpr.jaxpr))
    assert 2**20 < max(found) <= memory.LOGITS


# jax


def test_jit_vmap_and_gradients() -> None:
    base, context, q = draw()
    q = jnp.asarray(q, jnp.float32)
    close(jax.jit(lambda b, c, q: b.condition(c).retrieve(q))(base, context, q), base.condition(context).retrieve(q))
    keys = jnp.stack([base.keys, base.keys[::-1] + 1])
    batch = jax.vmap(lambda keys: Memory(keys, base.values, BETA))(keys)
    found = jax.vmap(lambda m, x: m.retrieve(x))(batch, jnp.stack([q, q]))
    close(found[1], Memory(keys[1], base.values, BETA).retrieve(q), atol=1e-6)
    slope = jax.grad(lambda m: m.energy(q).sum())(base)
    assert isinstance(slope, Memory) and slope.keys.shape == (7, 3) and (slope.values == 0).all()
    for name, eps in (("keys", 1e-2), ("beta", 1e-2)):
        bumped = [
            Memory(base.keys.at[0, 0].add(h), base.values, BETA) if name == "keys" else Memory(base.keys, beta=BETA + h)
            for h in (eps, -eps)
        ]
        numeric = (bumped[0].energy(q).sum() - bumped[1].energy(q).sum()) / (2 * eps)
        close(slope.keys[0, 0] if name == "keys" else slope.beta, numeric, rtol=2e-2, atol=1e-3)


def test_dtypes() -> None:
    base, context, q = draw()
    assert base.retrieve(q.astype(np.float32)).dtype == jnp.float32
    half = Memory(base.keys.astype(jnp.bfloat16), base.values.astype(jnp.bfloat16), BETA)
    assert half.retrieve(q.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    close(half.retrieve(q.astype(jnp.bfloat16)).astype(np.float32), base.retrieve(q), atol=0.05)
    assert Memory(np.array([[1, 2], [3, 4]])).keys.dtype == jnp.float32
    assert Memory(np.array([[2**40]])).keys == 2.0**40  # more than the integers of jax hold
    with jax.enable_x64(True):
        exact, example = (Memory(np.float64(m.keys), np.float64(m.values), BETA) for m in (base, context))
        assert exact.retrieve(q).dtype == jnp.float64
        assert Memory(np.array([[1, 2], [3, 4]])).keys.dtype == jnp.float64
        lse, z = plain(exact.keys, exact.values, q)
        close(exact.retrieve(q), z, rtol=1e-12)
        close(exact.energy(q), -lse / BETA + (q**2).sum(-1) / 2, rtol=1e-12)
        close(
            energy_shift(exact, example, q),
            -np.log1p(np.exp(plain(example.keys, example.values, q)[0] - lse)) / BETA,
            rtol=1e-12,
        )
    close(base.retrieve(q), z, atol=1e-5)


def test_copies(tmp_path) -> None:
    base, _, q = draw()
    again = pickle.loads(pickle.dumps(base))
    assert (again.retrieve(q) == base.retrieve(q)).all() and again.beta == base.beta
    np.savez(tmp_path / "memory.npz", keys=base.keys, values=base.values, beta=base.beta)
    with np.load(tmp_path / "memory.npz") as arrays:
        assert (Memory(**arrays).retrieve(q) == base.retrieve(q)).all()
    with pytest.raises(AttributeError):
        base.beta = 2.0
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(base)]
    assert paths == [".keys", ".values", ".beta"] and len(base) == 7


# Bad input


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"keys": np.ones(3)}, ValueError, r"keys must have shape \(M, d\) with d >= 1, got \(3,\)"),
        ({"keys": np.ones((3, 0))}, ValueError, "keys must have shape"),
        ({"values": np.ones((3, 2))}, ValueError, r"as many rows as keys, got shapes \(3, 2\) and \(2, 2\)"),
        ({"values": 1.0}, ValueError, "as many rows"),
        ({"keys": [[1.0, np.nan]]}, ValueError, "keys must be finite"),
        ({"values": [np.inf, 0.0]}, ValueError, "values must be finite"),
        ({"keys": np.ones((2, 2)) * 1j}, TypeError, "keys must be real, got complex"),
        ({"values": np.ones(2) * 1j}, TypeError, "values must be real"),
        ({"beta": 0.0}, ValueError, "beta must be a finite number > 0, got 0"),
        ({"beta": -1}, ValueError, "beta"),
        ({"beta": float("nan")}, ValueError, "beta must be a finite number > 0, got nan"),
        ({"beta": float("inf")}, ValueError, "beta"),
        ({"beta": np.ones(2)}, ValueError, "beta"),
        ({"beta": "1"}, TypeError, "beta"),
        ({"keys": [[1.0], [1.0, 2.0]]}, TypeError, "keys must hold real numbers, got list"),
    ],
)
def test_bad_memories(arguments: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        Memory(**({"keys": np.ones((2, 2))} | arguments))


def test_bad_queries_and_contexts() -> None:
    base, context, q = draw()
    with pytest.raises(ValueError, match=r"q must have shape \(\.\.\., 3\) for keys \(7, 3\), got \(5, 2\)"):
        base.retrieve(q[:, :2])
    with pytest.raises(ValueError, match=r"got \(\)"):
        base.energy(1.0)
    with pytest.raises(TypeError, match="q must be real"):
        base.weights(q * 1j)
    for function in (base.condition, lambda c: energy_shift(base, c, q), lambda c: energy_path(base, c, q)):
        with pytest.raises(ValueError, match=r"beta must agree, got 1\.7 and 1\.0"):
            function(Memory(context.keys, context.values, 1.0))
        with pytest.raises(ValueError, match=r"dimension, got shapes \(7, 3\) and \(4, 2\)"):
            function(Memory(context.keys[:, :2], context.values, BETA))
    with pytest.raises(ValueError, match=r"values must agree in shape, got \(7, 2\) and \(4, 3\)"):
        base.condition(Memory(context.keys, beta=BETA))
    for steps, error in ((0, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="steps"):
            base.retrieve(q, steps=steps)
    for index, error in ((-1, ValueError), (7, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="index"):
            base.margin(q, index)
    for bad in (np.full(3, np.nan), np.full(3, 1e39)):  # the second is infinite in float32
        with pytest.raises(ValueError, match=r"q must be finite, got NaN or infinity \(in float32\)"):
            base.retrieve(bad)
    with pytest.raises(TypeError, match="q must hold real numbers, got str"):
        base.energy("q")
    with pytest.raises(TypeError, match="context"):
        base.condition(q)


def test_empty_memory() -> None:
    empty, (_, context, q) = Memory(np.ones((0, 3)), np.ones((0, 2)), beta=BETA), draw()
    for function in (
        *(empty.retrieve, empty.energy, empty.weights, empty.margin),
        lambda q: empty.retrieval_error_bound(q, 0),
    ):
        with pytest.raises(ValueError, match="no memories"):
            function(q)
    with pytest.raises(ValueError, match="no memories"):
        energy_shift(empty, context, q)
    close(empty.condition(context).retrieve(q), context.retrieve(q))
