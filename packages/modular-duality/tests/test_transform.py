"""The optax transformation: structure, composition with optax, jit and scan, and the sizes of its steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from icml25.modular_duality import MLP, infer_norms, modular_sgd, scale_by_modular_dual
from icml25.modular_duality.norms import Bias, Embed, Frozen, Linear

PARAMS = {"a": {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)}, "e": {"embedding": jnp.ones((5, 4))}}
NORMS = infer_norms(PARAMS)


@pytest.fixture
def gradients(rng):
    return jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), PARAMS)


def update(tx, g, params=None):
    return tx.update(g, tx.init(PARAMS), params)[0]


def test_each_leaf_takes_its_share(gradients):
    found = update(scale_by_modular_dual(NORMS, "svd", target_norm=6.0), gradients)
    np.testing.assert_allclose(found["a"]["kernel"], 2 * Linear().dualize(gradients["a"]["kernel"], "svd"), atol=1e-5)
    np.testing.assert_allclose(found["a"]["bias"], 2 * Bias().dualize(gradients["a"]["bias"]), atol=1e-5)
    np.testing.assert_allclose(found["e"]["embedding"], 2 * Embed().dualize(gradients["e"]["embedding"]), atol=1e-5)


def test_mass_and_sensitivity(gradients):
    norms = {
        "a": {"kernel": Linear(mass=3.0, sensitivity_after=4.0), "bias": Bias(mass=0.0)},
        "e": {"embedding": Embed(sensitivity_after=0.5)},
    }
    found = update(scale_by_modular_dual(norms, "svd"), gradients)
    assert float(Linear().norm(found["a"]["kernel"])) == pytest.approx(3 / 4 / 4, rel=1e-4)
    assert float(Embed().norm(found["e"]["embedding"])) == pytest.approx(1 / 4 / 0.5, rel=1e-4)
    assert (found["a"]["bias"] == 0).all()


def test_schedule_reaches_the_matrices(gradients):
    exact, rough = (update(scale_by_modular_dual(NORMS, name), gradients)["a"]["kernel"] for name in ("svd", "muon"))
    assert float(jnp.abs(exact - rough).max()) > 0.01


def test_dual_norm_gives_steepest_descent(gradients):
    tx = scale_by_modular_dual(NORMS, "svd", scale="dual_norm")
    plain = update(scale_by_modular_dual(NORMS, "svd"), gradients)
    size = sum(
        float(spec.dual_norm(g)) / 3 for spec, g in zip(jax.tree.leaves(NORMS), jax.tree.leaves(gradients), strict=True)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, size * b, rtol=1e-4, atol=1e-5), update(tx, gradients), plain
    )
    twice = update(tx, jax.tree.map(lambda g: 2 * g, gradients))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, 2 * size * b, rtol=1e-4, atol=1e-5), twice, plain)


def test_composes_in_one_line(gradients):
    chain = optax.chain(optax.trace(0.9), scale_by_modular_dual(NORMS), optax.scale_by_learning_rate(0.1))
    alias = modular_sgd(0.1, NORMS)
    s1, s2 = chain.init(PARAMS), alias.init(PARAMS)
    for _ in range(2):
        u1, s1 = chain.update(gradients, s1)
        u2, s2 = alias.update(gradients, s2)
    jax.tree.map(np.testing.assert_array_equal, u1, u2)
    assert float(Linear().norm(u1["a"]["kernel"])) == pytest.approx(0.1 / 3, rel=0.01)
    assert float(jnp.vdot(u1["a"]["kernel"], gradients["a"]["kernel"])) < 0


def test_alias_options(gradients):
    decayed = update(modular_sgd(0.1, NORMS, 0.0, weight_decay=0.5), gradients, PARAMS)
    plain = update(modular_sgd(0.1, NORMS, 0.0), gradients)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b - 0.05, atol=1e-6), decayed, plain)
    assert not jax.tree.leaves(modular_sgd(0.1, NORMS, 0.0).init(PARAMS))  # the map itself has no state
    tx = modular_sgd(0.1, NORMS, 0.9, nesterov=True)
    other = jax.tree.map(jnp.flip, gradients)
    _, state = tx.update(gradients, tx.init(PARAMS))
    found, _ = tx.update(other, state)
    momentum = jax.tree.map(lambda g, o: o + 0.9 * (o + 0.9 * g), gradients, other)
    expected = update(modular_sgd(0.1, NORMS, 0.0), momentum)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


def test_jit_vmap_and_scan(gradients):
    tx = modular_sgd(0.1, NORMS, 0.9)
    eager = update(tx, gradients)
    jitted = jax.jit(tx.update)(gradients, tx.init(PARAMS))[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), jitted, eager)

    def step(carry, _):
        params, state = carry
        g = jax.grad(lambda p: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p)))(params)
        u, state = tx.update(g, state, params)
        return (optax.apply_updates(params, u), state), None

    run = jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), length=100)[0][0])
    one, two = run(gradients), run(gradients)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(one))
    half = jax.jit(lambda c: jax.lax.scan(step, c, length=50)[0])  # stop, go on: the same
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), half(half((gradients, tx.init(gradients))))[0], one
    )


def test_dtypes_are_kept(gradients, float64):
    mixed = {"a": {"kernel": gradients["a"]["kernel"].astype(jnp.bfloat16), "bias": jnp.ones(3, jnp.float64)}}
    mixed["e"] = {"embedding": gradients["e"]["embedding"]}
    for scale in (None, "dual_norm"):
        found = scale_by_modular_dual(NORMS, scale=scale).update(mixed, optax.EmptyState())[0]
        assert found["a"]["kernel"].dtype == jnp.bfloat16 and found["e"]["embedding"].dtype == jnp.float32
        assert found["a"]["bias"].dtype == jnp.float64


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite_stays_in_its_leaf(bad, gradients):
    for key, name in (("a", "kernel"), ("a", "bias"), ("e", "embedding")):
        broken = jax.tree.map(lambda g: g, gradients)
        broken[key][name] = broken[key][name].at[0].set(bad)
        found = update(scale_by_modular_dual(NORMS), broken)
        fine = {path: bool(jnp.isfinite(leaf).all()) for path, leaf in jax.tree_util.tree_leaves_with_path(found)}
        assert sum(fine.values()) == 2 and not bool(jnp.isfinite(found[key][name]).all())
    guarded = optax.apply_if_finite(scale_by_modular_dual(NORMS), 3)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(update(guarded, broken)))


def test_zero_leaf_and_zero_row_stay_put(gradients):
    gradients["a"]["kernel"] *= 0
    gradients["e"]["embedding"] = gradients["e"]["embedding"].at[2].set(0)
    found = update(scale_by_modular_dual(NORMS), gradients)
    assert (found["a"]["kernel"] == 0).all() and (found["e"]["embedding"][2] == 0).all()
    rows = np.asarray(found["e"]["embedding"])[[0, 1, 3, 4]]
    np.testing.assert_allclose(np.sqrt((rows**2).mean(-1)), 1 / 3, rtol=1e-5)


def test_frozen_leaves_of_any_dtype():
    params = {"kernel": jnp.eye(2), "count": jnp.arange(3)}
    norms = infer_norms(params, rules=[("count", Frozen())])
    found, _ = scale_by_modular_dual(norms).update(params, optax.EmptyState())
    assert found["count"].dtype == params["count"].dtype and (found["count"] == 0).all()
    np.testing.assert_allclose(found["kernel"], np.eye(2), atol=0.005)


def test_weight_decay_spares_what_has_no_mass():
    params = {"kernel": jnp.eye(2), "bias": jnp.ones(2), "count": jnp.full(3, 5)}
    norms = infer_norms(params, rules=[("bias", Bias(mass=0.0)), ("count", Frozen())])
    tx = modular_sgd(0.1, norms, weight_decay=0.5)
    found, _ = tx.update(jax.tree.map(jnp.ones_like, params), tx.init(params), params)
    after = optax.apply_updates(params, found)
    assert (after["count"] == 5).all() and (after["bias"] == 1).all() and (after["kernel"] != params["kernel"]).any()


def test_sharded_weights_are_mapped_where_they_are(rng):
    """The longer side is sharded: the same values, still sharded, and the only traffic is the sum of a Gram matrix."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("model",))
    layout = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "model"))
    g = {"kernel": jnp.asarray(rng.normal(size=(4, 8)), jnp.float32)}
    placed = {"kernel": jax.device_put(g["kernel"], layout)}
    tx = scale_by_modular_dual(infer_norms(g))
    update = jax.jit(lambda g: tx.update(g, optax.EmptyState())[0])
    found = update(placed)["kernel"]
    np.testing.assert_allclose(found, update(g)["kernel"], atol=1e-5)
    assert found.sharding.is_equivalent_to(layout, 2)
    text = update.lower(placed).compile().as_text()
    assert "all-reduce" in text and "all-gather" not in text


@pytest.mark.slow
def test_trains_a_module():
    module = MLP(1, 2, 8, 3)
    w = module.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (64, 2))
    loss = lambda w: jnp.mean((module(w, x)[:, 0] - x[:, 0] * x[:, 1]) ** 2)  # noqa: E731
    tx = modular_sgd(optax.linear_schedule(0.2, 0.0, 100), module.norm_specs())

    @jax.jit
    def step(w, state):
        u, state = tx.update(jax.grad(loss)(w), state)
        return optax.apply_updates(w, u), state

    state, start = tx.init(w), float(loss(w))
    for _ in range(100):
        w, state = step(w, state)
    assert float(loss(w)) < 0.2 * start


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: scale_by_modular_dual(NORMS, "fast"), "schedule must be 'svd'"),
        (lambda: scale_by_modular_dual(NORMS, target_norm=0.0), "target_norm must be above 0"),
        (lambda: scale_by_modular_dual({"a": Linear(mass=0.0), "b": Frozen()}), "are all 0"),
        (lambda: scale_by_modular_dual([]), "are all 0"),
        (lambda: modular_sgd(0.1, NORMS, 1.0), "momentum must be below 1"),
        (lambda: modular_sgd(0.1, NORMS, -0.5), "momentum must be at least 0"),
        (lambda: modular_sgd(0.1, NORMS, weight_decay=-1.0), "weight_decay must be at least 0"),
        (lambda: modular_sgd(float("nan"), NORMS), "learning_rate must be at least 0"),
        (lambda: modular_sgd(-0.1, NORMS), "learning_rate must be at least 0"),
        (lambda: scale_by_modular_dual({"x": Bias()}).init({"x": jnp.ones(0)}), r"x has shape \(0,\), which is empty"),
        (lambda: scale_by_modular_dual(NORMS).init({"a": PARAMS["a"]}), "differ in structure:\nPyTreeDef"),
        (lambda: scale_by_modular_dual(NORMS).update(PARAMS["a"], optax.EmptyState()), "differ in structure"),
        (lambda: scale_by_modular_dual({"x": Linear()}).init({"x": jnp.ones(3)}), r"x has shape \(3,\), but Linear"),
    ],
)
def test_bad_input(make, match):
    with pytest.raises(ValueError, match=match):
        make()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: scale_by_modular_dual({"a": 1.0}), "norms must hold norms"),
        (lambda: modular_sgd(0.1, {"a": 1.0}), "norms must hold norms"),
        (lambda: modular_sgd("fast", NORMS), "learning_rate"),
        (
            lambda: scale_by_modular_dual({"x": Bias()}).init({"x": 3.0}),
            "x must be of a real floating dtype, got float|W",
        ),
    ],
)
def test_wrong_types(make, match):
    with pytest.raises(TypeError, match=match):
        make()


def test_bad_scale_and_dtype():
    with pytest.raises((ValueError, TypeError), match="scale"):  # jaxtyping, when it checks, is first
        scale_by_modular_dual(NORMS, scale="norm")
    tx = scale_by_modular_dual({"x": {"y": Bias()}})
    for dtype in (jnp.int32, jnp.complex64):
        with pytest.raises(TypeError, match="x/y must be of a real floating dtype"):
            tx.init({"x": {"y": jnp.ones(3, dtype)}})
        with pytest.raises(TypeError, match="x/y must be of a real floating dtype"):
            tx.update({"x": {"y": jnp.ones(3, dtype)}}, optax.EmptyState())
