"""Cycle reset and inner distillation: which entries change, to what, and back to which function."""

import math
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.p3o import SBP, Gaussian, alpha_dkl, cycle_reset, per_entry_adam
from icml25.p3o.networks import MLP, Actor, functional
from icml25.p3o.sbp import cycle_length, distill, find_layers

KEY = jax.random.key(3)
lecun, normal = jax.nn.initializers.lecun_normal(), jax.nn.initializers.normal()


@pytest.fixture(scope="module")
def params(mlp):
    init, _ = mlp
    return jax.tree.map(lambda p: p + 0.37, init(jax.random.key(0)))  # biases away from the 0 that a reset gives


@pytest.fixture(scope="module")
def reset():
    return jax.jit(cycle_reset, static_argnames=("K", "outgoing", "initializers"))


def block(n, p, K):
    return np.arange(math.floor(p * n / K), math.floor((p + 1) * n / K))


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.15, 0.2, 0.3, 1 / 3, 1 / 7, 0.5, 0.7, 1.0])
def test_cycle_length(rate):
    exact = Fraction(rate).limit_denominator(1000)
    assert cycle_length(rate) == math.ceil(1 / exact)


@given(st.integers(1, 40), st.integers(1, 60))
@settings(deadline=None, max_examples=10)
def test_blocks_partition_the_units(n, K):
    from icml25.p3o.sbp import _block

    masks = np.asarray(jax.vmap(lambda p: _block(jnp.arange(n), p, K))(jnp.arange(K)))
    assert (masks.sum(0) == 1).all()
    assert all(np.array_equal(np.flatnonzero(mask), block(n, p, K)) for p, mask in enumerate(masks))


@pytest.mark.parametrize("outgoing", ["reinit", "zero", "keep"])
def test_exactly_the_masked_entries_change(reset, params, outgoing):
    K, renewed = 4, {0: np.zeros(12, int), 1: np.zeros(9, int)}
    for p in range(K):
        after, mask = reset(KEY, params, p, K, outgoing=outgoing)
        first, second = block(12, p, K), block(9, p, K)
        expected = {name: {k: np.zeros(v.shape, bool) for k, v in layer.items()} for name, layer in params.items()}
        expected["layer_0"]["kernel"][:, first] = expected["layer_0"]["bias"][first] = True
        expected["layer_1"]["kernel"][:, second] = expected["layer_1"]["bias"][second] = True
        if outgoing != "keep":
            expected["layer_1"]["kernel"][first] = expected["layer_2"]["kernel"][second] = True
        for name, layer in expected.items():
            for k, wanted in layer.items():
                assert np.array_equal(mask[name][k], wanted)
                assert np.array_equal(np.asarray(after[name][k] != params[name][k]), wanted)
        assert not np.asarray(after["layer_0"]["bias"])[first].any()
        if outgoing == "zero":
            assert not np.asarray(after["layer_2"]["kernel"])[second].any()
        renewed[0][first] += 1
        renewed[1][second] += 1
    assert (renewed[0] == 1).all() and (renewed[1] == 1).all()


def test_zero_outgoing_deletes_the_units(reset, params, mlp):
    _, apply = mlp
    x = jax.random.normal(KEY, (30, 5))
    after, _ = reset(KEY, params, 1, 3, outgoing="zero")
    first, second = np.delete(np.arange(12), block(12, 1, 3)), np.delete(np.arange(9), block(9, 1, 3))
    p = jax.tree.map(np.asarray, params)
    h = np.tanh(x @ p["layer_0"]["kernel"][:, first] + p["layer_0"]["bias"][first])
    h = np.tanh(h @ p["layer_1"]["kernel"][np.ix_(first, second)] + p["layer_1"]["bias"][second])
    expected = h @ p["layer_2"]["kernel"][second] + p["layer_2"]["bias"]
    assert np.allclose(apply(after, x)[0], expected, atol=1e-5)
    assert not np.allclose(apply(params, x)[0], expected, atol=1e-2)


@pytest.mark.parametrize("initializer", [None, lecun], ids=["orthogonal", "lecun"])
def test_redrawn_columns_have_the_fresh_scale(initializer):
    params = {"a": {"kernel": jnp.ones((40, 10))}, "b": {"kernel": jnp.ones((10, 4))}}

    def draw(key):
        after, _ = cycle_reset(key, params, 1, 5, initializer, "zero")
        return after["a"]["kernel"][:, 2:4]

    columns = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(KEY, 1000)))
    assert abs(columns.mean()) < 4 * columns.std() / math.sqrt(columns.size)
    variance = 2 / 40 if initializer is None else 1 / 40
    assert columns.var() == pytest.approx(variance, rel=0.03)
    if initializer is None:
        assert np.allclose(np.linalg.norm(columns, axis=1), math.sqrt(2), rtol=1e-4)
        assert np.abs((columns[:, :, 0] * columns[:, :, 1]).sum(1)).max() < 1e-4


def test_one_initializer_per_layer(params):
    constants = tuple(jax.nn.initializers.constant(c) for c in (7.0, 8.0, 9.0))
    after, mask = cycle_reset(KEY, params, 0, 3, constants)
    for number, name in enumerate(params):
        assert (np.asarray(after[name]["kernel"])[np.asarray(mask[name]["kernel"])] == 7.0 + number).all()
    with pytest.raises(ValueError, match="initializers"):
        cycle_reset(KEY, params, 0, 3, constants[:2])


def test_layer_norm_and_log_std():
    init, _ = functional(lambda rngs: Actor(3, (6, 6), 2, log_std="free", layer_norm=True, rngs=rngs))
    params = jax.tree.map(lambda p: p + 0.5, init(KEY))
    after, mask = cycle_reset(KEY, params, 0, 2)
    for name in ("norm_0", "norm_1"):
        assert np.allclose(after[name]["scale"], [1, 1, 1, 1.5, 1.5, 1.5])
        assert np.allclose(after[name]["bias"], [0, 0, 0, 0.5, 0.5, 0.5])
    assert np.array_equal(after["log_std"], params["log_std"]) and not mask["log_std"].any()
    assert np.array_equal(after["layer_2"]["bias"], params["layer_2"]["bias"])


def test_all_tree_forms_agree(params):
    expected, _ = cycle_reset(KEY, params, 1, 3)
    as_list = {"net": [dict(layer) for layer in params.values()]}
    after, _ = cycle_reset(KEY, as_list, 1, 3)
    assert all(np.array_equal(a["kernel"], b["kernel"]) for a, b in zip(after["net"], expected.values(), strict=True))
    model = MLP(5, (12, 9), 3, rngs=nnx.Rngs(0))
    state = nnx.state(model)
    nnx.replace_by_pure_dict(state, params)
    after, mask = cycle_reset(KEY, state, 1, 3)
    assert isinstance(after, nnx.State)
    assert jax.tree.structure(mask) == jax.tree.structure(after)
    nnx.update(model, after)
    assert np.array_equal(model.layer_1.kernel[...], expected["layer_1"]["kernel"])
    renamed = {"z": params["layer_0"], "head": params["layer_2"], "a": params["layer_1"], "other": {"w": jnp.ones(2)}}
    after, _ = cycle_reset(KEY, renamed, 1, 3, layers=["z", "a", "head"])
    assert np.array_equal(after["a"]["kernel"], expected["layer_1"]["kernel"])


def test_layers_are_sorted_by_number():
    deep = {f"layer_{i}": {"kernel": jnp.zeros((4, 4)), "bias": jnp.zeros(4)} for i in range(12)}
    assert [layer.name for layer in find_layers(deep)] == [f"layer_{i}" for i in range(12)]


def test_other_networks_are_refused(params):
    with pytest.raises(TypeError, match="hidden layers"):
        cycle_reset(KEY, {"only": params["layer_0"]}, 0, 2)
    with pytest.raises(TypeError, match="'conv'"):
        cycle_reset(KEY, {**params, "conv": {"kernel": jnp.zeros((3, 3, 1, 4))}}, 0, 2)
    with pytest.raises(TypeError, match="'layer_2' takes 9 inputs"):
        cycle_reset(KEY, {"layer_0": params["layer_0"], "layer_2": params["layer_2"]}, 0, 2)
    with pytest.raises(TypeError, match="'x' has no kernel"):
        cycle_reset(KEY, params, 0, 2, layers=["layer_0", "x"])
    with pytest.raises(TypeError, match="LayerNorms"):
        cycle_reset(KEY, {**params, "norm": {"scale": jnp.ones(12)}}, 0, 2)
    with pytest.raises(ValueError, match="outgoing"):
        cycle_reset(KEY, params, 0, 2, outgoing="drop")


@pytest.mark.parametrize(
    "bad",
    [
        {"reset_rate": 0.0},
        {"reset_rate": 1.1},
        {"alpha": -0.1},
        {"alpha": 1.1},
        {"threshold": -1e-9},
        {"threshold": math.nan},
        {"reset_every": 0},
        {"max_steps": -1},
        {"minibatch": 0},
        {"order": "sorted"},
        {"outgoing": "drop"},
        {"loss": "l1"},
    ],
    ids=str,
)
def test_bad_numbers(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        SBP(**bad)


def test_fewer_units_than_blocks(params):
    with pytest.warns(UserWarning, match=r"layer_1 \(9\)"):
        SBP(reset_rate=0.1).init(params)


# distillation


@pytest.fixture(scope="module")
def policy(gaussian_actor):
    init, apply = gaussian_actor
    params = init(jax.random.key(1))
    params["layer_2"]["kernel"] = 30 * params["layer_2"]["kernel"]  # an action scale as after training
    return params, apply, jax.random.normal(KEY, (512, 4))


@pytest.fixture(scope="module")
def distilled(policy):
    params, apply, x = policy
    after, _ = cycle_reset(KEY, params, 0, 4)

    @jax.jit
    def run(teacher, start, threshold, max_steps):
        options = {"threshold": threshold, "max_steps": max_steps}
        return distill(KEY, teacher, start, apply, x, partial(alpha_dkl, alpha=0.4), **options)

    return after, run


def test_distillation_returns_to_the_policy(policy, distilled):
    params, apply, x = policy
    after, run = distilled
    renewed, info = run(params, after, 0.01, 800)

    def gap(network):
        return float(alpha_dkl(apply(params, x)[0], apply(network, x)[0], 0.4).mean())

    assert info["kl_after_reset"] == pytest.approx(gap(after), rel=1e-4) and gap(after) > 0.03
    assert info["distance"] == pytest.approx(gap(renewed), rel=1e-4) and gap(renewed) <= 0.01
    assert info["distill_converged"] and 0 < info["distill_steps"] < 800 and info["distill_steps"] % 8 == 0
    total_variation = np.sqrt(np.asarray(apply(params, x)[0].kl(apply(renewed, x)[0])) / 2).mean()
    assert total_variation < math.sqrt(0.01 / 0.4 / 2)  # Pinsker


def test_step_limit_and_check(policy, distilled):
    params, _, _ = policy
    after, run = distilled
    _, info = run(params, after, 0.0, 5)
    assert info["distill_steps"] == 5 and not info["distill_converged"]
    assert info["distance"] < info["kl_after_reset"]
    _, longer = run(params, after, 0.0, 40)
    assert longer["distill_steps"] == 40 and longer["distance"] < info["distance"]
    same, info = run(params, after, 0.0, 0)
    assert info["distill_steps"] == 0 and np.array_equal(same["layer_0"]["kernel"], after["layer_0"]["kernel"])


def test_nothing_to_distil(policy, distilled):
    params, _, _ = policy
    _, run = distilled
    same, info = run(params, params, 0.0, 800)
    assert info["distill_steps"] == 0 and info["distance"] == 0 and info["distill_converged"]
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(same), jax.tree.leaves(params), strict=True))


def test_teacher_gets_no_gradient(policy):
    params, apply, x = policy
    start, _ = cycle_reset(KEY, params, 0, 4, normal)

    def end(teacher):
        options = {"threshold": 0.0, "max_steps": 2}
        return distill(KEY, teacher, start, apply, x[:64], partial(alpha_dkl, alpha=0.4), **options)[0]

    _, tangent = jax.jvp(end, (params,), (jax.tree.map(jnp.ones_like, params),))
    assert all(not np.asarray(t).any() for t in jax.tree.leaves(tangent))


def test_free_log_std_stays():
    init, apply = functional(lambda rngs: Actor(4, (8, 8), 2, log_std="free", rngs=rngs))
    params, x = init(KEY), jax.random.normal(KEY, (64, 4))
    params["layer_2"]["kernel"] = 30 * params["layer_2"]["kernel"]
    sbp = SBP(0.5, 1, 0.0, alpha=1.0, max_steps=20, initializers=normal)
    _, renewed, _, info = jax.jit(partial(sbp.regenerate, apply_fn=apply))(
        KEY, 1, sbp.init(params), params=params, batch=x
    )
    assert info["distill_steps"] == 20 and np.array_equal(renewed["log_std"], params["log_std"])
    free = SBP(0.5, 1, 0.0, alpha=1.0, max_steps=20, frozen=(), initializers=normal)
    _, moved, _, _ = jax.jit(partial(free.regenerate, apply_fn=apply))(
        KEY, 1, free.init(params), params=params, batch=x
    )
    assert np.asarray(moved["log_std"] > params["log_std"]).all()  # the forward divergence inflates sigma


# the schedule


def hidden_and_mse(params, x):
    h = jnp.tanh(x @ params["a"]["kernel"] + params["a"]["bias"])
    return h @ params["b"]["kernel"] + params["b"]["bias"], [h]


@pytest.fixture(scope="module")
def tiny():
    keys = jax.random.split(KEY, 2)
    params = {"a": {"kernel": jax.random.normal(keys[0], (3, 7)), "bias": jnp.ones(7)}}
    params["b"] = {"kernel": jax.random.normal(keys[1], (7, 2)), "bias": jnp.ones(2)}
    return params, jax.random.normal(KEY, (50, 3))


@pytest.mark.parametrize("order", ["cycle", "random", "utility"])
def test_every_unit_once_per_cycle(tiny, order):
    params, x = tiny
    sbp = SBP(0.3, 2, 10.0, "mse", order=order, initializers=normal)  # K = 4 blocks of 1 or 2 units
    state, opt_state = sbp.init(params), per_entry_adam(0.1).init(params)
    step = jax.jit(partial(sbp.step, apply_fn=hidden_and_mse, batch=x))
    orders = []
    for t in range(1, 25):
        before = state
        state, params, opt_state, info = step(jax.random.fold_in(KEY, t), t, state, params, opt_state)
        assert int(state.events) == t // 2 and int(state.index) == t // 2 % 4
        assert np.isnan(info["kl_after_reset"]) == bool(t % 2)
        renewed = np.asarray(state.resets[0] - before.resets[0])
        assert renewed.sum() == (0 if t % 2 else len(block(7, (t // 2 - 1) % 4, 4)))
        assert (np.asarray(state.renewed_at[0])[renewed == 1] == t).all()
        if t % 2 == 0:
            orders.append(np.flatnonzero(renewed).tolist())
        if t % 8 == 0:
            assert (np.asarray(state.resets[0]) == t // 8).all()
    ages = 24 - np.asarray(state.renewed_at[0])
    assert sorted(set(ages.tolist())) == [0, 2, 4, 6]  # uniform over {0 .. K-1} F
    cycles = [[unit for units in orders[i : i + 4] for unit in units] for i in (0, 4, 8)]
    assert all(sorted(cycle) == list(range(7)) for cycle in cycles)
    assert (cycles[0] == cycles[1] == cycles[2] == list(range(7))) == (order == "cycle")
    if order == "random":
        assert cycles[0] != cycles[1]


def test_utility_takes_the_weakest_first(tiny):
    params, x = tiny
    weak = {**params, "a": {"kernel": params["a"]["kernel"].at[:, 4].mul(0.01), "bias": jnp.ones(7).at[4].set(0.0)}}
    sbp = SBP(0.3, 1, 10.0, "mse", order="utility", initializers=normal)
    state, _, _, _ = sbp.regenerate(KEY, 1, sbp.init(weak), weak, hidden_and_mse, x)
    assert np.flatnonzero(state.resets[0]).tolist() == [4]
    with pytest.raises(TypeError, match="hidden"):
        sbp.regenerate(KEY, 1, sbp.init(weak), weak, lambda p, x: hidden_and_mse(p, x)[0], x)


def test_step_between_events_and_at_one(tiny):
    params, x = tiny
    sbp, tx = (
        SBP(0.5, 3, 0.05, "mse", max_steps=300, learning_rate=0.03, minibatch=10, initializers=normal),
        per_entry_adam(0.1),
    )
    opt_state = tx.init(params)
    _, opt_state = tx.update(jax.tree.map(jnp.ones_like, params), opt_state)
    step = jax.jit(partial(sbp.step, apply_fn=hidden_and_mse, batch=x))
    state, same, same_opt, info = step(KEY, 2, sbp.init(params), params, opt_state)
    for a, b in zip(jax.tree.leaves((same, same_opt)), jax.tree.leaves((params, opt_state)), strict=True):
        assert np.array_equal(a, b)
    assert info["distill_converged"] and info["distill_steps"] == 0 and int(state.events) == 0
    state, renewed, cleared, info = step(KEY, 3, state, params, opt_state)
    assert info["distill_converged"] and info["kl_after_reset"] > 0.5 and int(state.missed) == 0
    error = ((hidden_and_mse(renewed, x)[0] - hidden_and_mse(params, x)[0]) ** 2).mean()
    assert error == pytest.approx(float(info["distance"]), rel=1e-4) and error <= 0.05
    fresh = block(7, 0, 2)
    for tree in (cleared.count, cleared.mu, cleared.nu):
        assert not np.asarray(tree["a"]["kernel"])[:, fresh].any() and not np.asarray(tree["b"]["kernel"])[fresh].any()
        assert np.asarray(tree["a"]["kernel"])[:, len(fresh) :].all() and np.asarray(tree["b"]["bias"]).all()
    hopeless = SBP(0.5, 1, 1e-9, "mse", max_steps=3, initializers=normal)
    state, *_ = hopeless.regenerate(KEY, 1, hopeless.init(params), params, hidden_and_mse, x)
    assert int(state.missed) == 1


def test_distances(tiny):
    params, x = tiny
    teacher, output = hidden_and_mse(params, x)[0], hidden_and_mse(params, x + 0.1)[0]
    p, q = jax.nn.softmax(teacher), jax.nn.softmax(output)
    assert np.allclose(SBP(loss="kl").distance(teacher, output), (p * jnp.log(p / q)).sum(-1), atol=1e-6)
    assert np.allclose(SBP(loss="mse").distance(teacher, output), ((teacher - output) ** 2).mean(-1))
    assert SBP(loss=lambda a, b: a[:, 0] - b[:, 0]).distance(teacher, output).shape == (50,)
    gaussians = Gaussian(teacher, output), Gaussian(output, teacher)
    assert np.allclose(SBP(alpha=0.2).distance(*gaussians), alpha_dkl(*gaussians, 0.2))


def test_wrong_output_for_the_loss(tiny):
    params, x = tiny
    with pytest.raises(TypeError, match="Gaussian"):
        SBP(0.5, 1).regenerate(KEY, 1, SBP(0.5).init(params), params, hidden_and_mse, x)


def test_double_precision_and_half():
    half = {"a": {"kernel": jnp.ones((3, 4), jnp.bfloat16)}, "b": {"kernel": jnp.ones((4, 2), jnp.bfloat16)}}
    after, _ = cycle_reset(KEY, half, 0, 2)
    assert after["a"]["kernel"].dtype == jnp.bfloat16
    with jax.enable_x64(True):
        double = jax.tree.map(lambda p: p.astype(jnp.float64), half)
        after, _ = cycle_reset(KEY, double, 0, 2)
        assert after["a"]["kernel"].dtype == jnp.float64
        norms = np.linalg.norm(np.asarray(after["a"]["kernel"])[:, :2], axis=0)
        assert not np.allclose(norms, math.sqrt(3))


def test_optimizers_of_optax_work(tiny):
    params, x = tiny
    sbp, tx = SBP(0.5, 1, 10.0, "mse", initializers=normal), optax.adamw(1e-3)
    _, _, opt_state, _ = sbp.step(KEY, 1, sbp.init(params), params, tx.init(params), hidden_and_mse, x)
    tx.update(jax.tree.map(jnp.ones_like, params), opt_state, params)
