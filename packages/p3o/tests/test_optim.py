"""Adam with a count per entry against optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from icml25.p3o import per_entry_adam, reset_moments
from icml25.p3o.optim import l2_to_init

LR = 0.01


def run(tx, params, steps, state=None, offset=0):
    state = tx.init(params) if state is None else state

    @jax.jit
    def step(params, state, i):
        grads = jax.tree.map(lambda p: jnp.sin(jnp.arange(p.size, dtype=p.dtype).reshape(p.shape) + i) + p, params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for i in range(steps):
        params, state = step(params, state, i + offset)
    return params, state


def params():
    return {"kernel": jnp.linspace(-1, 1, 12).reshape(3, 4), "bias": jnp.zeros(4)}


def test_equals_optax_without_resets():
    ours, _ = run(per_entry_adam(LR), params(), 100)
    theirs, _ = run(optax.adam(LR), params(), 100)
    for name in ours:
        assert np.allclose(ours[name], theirs[name], rtol=0, atol=1e-5)
    with jax.enable_x64(True):
        double = jax.tree.map(lambda p: p.astype(jnp.float64), params())
        ours, _ = run(per_entry_adam(LR), double, 100)
        theirs, _ = run(optax.adam(LR), double, 100)
        for name in ours:
            assert ours[name].dtype == jnp.float64
            assert np.allclose(ours[name], theirs[name], rtol=0, atol=1e-12)


def test_first_step_after_a_reset():
    mask = {"kernel": jnp.zeros((3, 4), bool).at[:, 1].set(True), "bias": jnp.zeros(4, bool).at[1].set(True)}
    for tx, size in ((per_entry_adam(LR), 1.0), (optax.adam(LR), 0.1 / np.sqrt(0.001))):
        before, state = run(tx, params(), 3000)
        cleared = reset_moments(state, mask)
        after, _ = run(tx, before, 1, cleared, 3000)
        untouched, _ = run(tx, before, 1, state, 3000)
        for name, m in mask.items():
            moved = np.abs(np.asarray(after[name] - before[name]))[np.asarray(m)]
            assert np.allclose(moved, LR * size, rtol=0.05)  # the global count is at 3001: 3.16 steps at once
            assert np.array_equal(after[name][~m], untouched[name][~m])


def test_only_masked_moments_are_cleared():
    mask = {"kernel": jnp.zeros((3, 4), bool).at[0, 0].set(True), "bias": jnp.zeros(4, bool)}
    tx = optax.chain(optax.clip_by_global_norm(1.0), per_entry_adam(LR))
    _, state = run(tx, params(), 5)
    cleared = reset_moments(state, mask)
    assert jax.tree.structure(cleared) == jax.tree.structure(state)
    for before, after in zip(state[1], cleared[1], strict=True):
        for name, m in mask.items():
            assert np.array_equal(before[name][~m], after[name][~m])
            assert not after[name][m].any()
        assert before["kernel"][0, 0] != 0
    _, global_state = run(optax.adam(LR), params(), 5)
    assert reset_moments(global_state, mask)[0].count == 5


def test_dtypes_stay():
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params())
    after, state = run(per_entry_adam(LR), half, 3)
    assert after["kernel"].dtype == state.mu["kernel"].dtype == jnp.bfloat16
    assert state.count["kernel"].dtype == jnp.int32


def test_l2_to_init_pulls_back():
    tx = l2_to_init(0.5)
    start = params()
    moved = jax.tree.map(lambda p: p + 2.0, start)
    grads, _ = tx.update(jax.tree.map(jnp.zeros_like, start), tx.init(start), moved)
    assert np.allclose(grads["kernel"], 1.0)
