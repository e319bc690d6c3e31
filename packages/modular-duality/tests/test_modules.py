"""The algebra of modules: composition rules, the defining identities, the first-order bound, bonds' sensitivities."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.modular_duality import GPT, MLP, Attention, modules, norms, residual, scale_by_modular_dual
from icml25.modular_duality.modules import (
    Add,
    ApplyAttentionScores,
    AttentionQK,
    AvgPool,
    CausalMask,
    Concatenation,
    Conv2D,
    Embed,
    Flatten,
    GeLU,
    Identity,
    Linear,
    MeanSubtract,
    MergeHeads,
    Mul,
    ReLU,
    RMSDivide,
    RoPE,
    Softmax,
    SplitIntoHeads,
)


def rms(x, axis=-1):
    return jnp.sqrt(jnp.mean(x**2, axis))


def gradient_like(module, seed=1):
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(module.init, jax.random.key(0))
    return [jnp.asarray(rng.normal(size=w.shape), w.dtype) for w in shapes]


def inner(g, d):
    return sum(float(jnp.vdot(a, b)) for a, b in zip(g, d, strict=True))


def random_module(rng, depth):
    """A random composition of square layers of width 3."""
    layer = Linear(3, 3).tare(float(rng.choice([0.0, 0.5, 1.0, 3.0]))) if rng.random() < 0.8 else ReLU()
    if depth == 0:
        return layer
    a, b = random_module(rng, depth - 1), random_module(rng, depth - 1)
    kind = rng.integers(5)
    if kind == 0:
        return a + b
    if kind == 1:
        return float(rng.choice([-0.5, 2.0])) * a
    if kind == 2:
        return residual(a, 3)
    return a @ b if kind == 3 else Add() @ (a, b, Identity())


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_random_compositions(seed):
    module = Linear(3, 3) @ random_module(np.random.default_rng(seed), 3)
    g = gradient_like(module)
    d = module.dualize(g, schedule="svd")
    assert float(module.norm(d)) == pytest.approx(1, abs=1e-5)
    assert inner(g, d) == pytest.approx(float(module.dual_norm(g)), rel=1e-4)
    specs = module.norm_specs()
    assert len(specs) == module.atoms and sum(spec.mass for spec in specs) == pytest.approx(module.mass)
    flat, _ = scale_by_modular_dual(specs, "svd").update(
        g, optax.EmptyState()
    )  # the flattened coefficients are those of the rules
    for one, two in zip(flat, d, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)
    for part, spec in zip(d, specs, strict=True):
        coefficient = spec.mass / module.mass / spec.sensitivity_after
        assert float(spec.norm(part)) == pytest.approx(coefficient, abs=1e-5)


def test_composition_rule_by_hand():
    one, two = Linear(3, 2).tare(1.0), Linear(4, 3).tare(3.0)
    last = Mul(-2.0) @ two
    module = last @ one
    assert module.mass == 4 and module.sensitivity == 2 and module.atoms == 2
    g = gradient_like(module)
    d = module.dualize(g, 5.0, "svd")
    spec = one.norm_specs()[0]
    np.testing.assert_allclose(d[0], 5 / 2 * 1 / 4 * spec.dualize(g[0], "svd"), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(d[1], 5 / 2 * 3 / 4 * spec.dualize(g[1], "svd"), rtol=1e-4, atol=1e-6)
    w = module.init(jax.random.key(0))
    assert float(module.norm(w)) == pytest.approx(2 * 4 / 1, rel=1e-5)  # the max of 2 (4 / 1) and 2 (4 / 3)
    by_hand = 1 / 2 * 1 / 4 * spec.dual_norm(g[0]) + 1 / 2 * 3 / 4 * spec.dual_norm(g[1])
    assert float(module.dual_norm(g)) == pytest.approx(float(by_hand), rel=1e-5)


def test_concatenation_rule_by_hand():
    one, two = Linear(3, 2).tare(1.0), Mul(3.0) @ Linear(2, 2)
    module = Concatenation((one, two))
    assert module.mass == 2 and module.sensitivity == 4
    g, x = gradient_like(module), jnp.ones((5, 2))
    d = module.dualize(g, schedule="svd")
    np.testing.assert_allclose(d[0], one.norm_specs()[0].dualize(g[0], "svd") / 2, atol=1e-6)
    np.testing.assert_allclose(d[1], one.norm_specs()[0].dualize(g[1], "svd") / 6, atol=1e-6)
    w = module.init(jax.random.key(0))
    y1, y2 = module(w, x)
    np.testing.assert_allclose(y1, x @ w[0].T, atol=1e-6)
    np.testing.assert_allclose(y2, 3 * x @ w[1].T, atol=1e-5)
    assert float(module.norm(w)) == pytest.approx(6, rel=1e-5)


def test_children_without_mass_do_not_move():
    module = Linear(3, 3).tare(0.0) @ Linear(3, 2) @ Linear(2, 2).tare(0.0)
    g = gradient_like(module)
    d = module.dualize(g)
    assert (d[0] == 0).all() and (d[2] == 0).all() and (d[1] != 0).any()
    assert float(module.norm([g[0] * 1e6, d[1], g[2] * 1e6])) == pytest.approx(1, abs=0.01)
    nothing = Linear(3, 3).tare(0.0) @ Linear(3, 3).tare(0.0)
    d = (Linear(3, 3) @ nothing).dualize(gradient_like(Linear(3, 3) @ nothing))
    assert (d[0] == 0).all() and (d[1] == 0).all() and jnp.isfinite(d[2]).all()


def test_perceptron_of_equal_masses_shares_the_step():
    module = MLP(5, 4, 6, 3)
    assert module.atoms == 3 and module.mass == 3 and module.sensitivity == 1
    g = gradient_like(module)
    for d, part, spec in zip(module.dualize(g), g, module.norm_specs(), strict=True):
        np.testing.assert_allclose(d, spec.dualize(part) / 3, atol=1e-6)
    w = gradient_like(module)
    assert [p.shape for p in w] == [(6, 4), (6, 6), (5, 6)]
    x = jnp.ones((2, 4))
    h = jax.nn.relu(jax.nn.relu(x @ w[0].T) @ w[1].T) @ w[2].T
    np.testing.assert_allclose(module(w, x), h, atol=1e-5)


def test_transformer_is_that_of_the_official_printout():
    module = GPT(65, 4, 32, 8, 8, 4)
    assert module.atoms == 26 and module.mass == pytest.approx(7) and module.sensitivity == pytest.approx(1)
    masses = [spec.mass for spec in module.norm_specs()]
    assert masses[0] == 1 == masses[-1] and masses[1:-1] == pytest.approx([5 / 24] * 24)
    assert GPT(65, 4, 32, 8, 8, 2, final_scale=3.0).sensitivity == pytest.approx(3)
    attention = Attention(2, 8, 4, 4)
    assert attention.sensitivity == pytest.approx(1) and attention.atoms == 4
    assert Attention(2, 8, 4, 4, scale=2.0).sensitivity == pytest.approx((1 + 4) / 3)


def test_transformer_is_causal_and_jits():
    module = GPT(7, 2, 8, 4, 4, 1)
    w = gradient_like(module)
    tokens = jnp.asarray([[1, 2, 3, 4, 5], [1, 2, 3, 6, 6]])
    y = jax.jit(module.__call__)(w, tokens)
    assert y.shape == (2, 5, 7) and bool(jnp.isfinite(y).all())
    np.testing.assert_allclose(y[0, :3], y[1, :3], atol=1e-6)
    assert float(jnp.abs(y[0, 3:] - y[1, 3:]).max()) > 1e-3
    free = Attention(2, 8, 4, 4, causal=False)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8)), jnp.float32)
    w = gradient_like(free)
    assert float(jnp.abs(free(w, x)[0] - free(w, x.at[3].add(1.0))[0]).max()) > 1e-5


def test_attention_against_plain_code():
    heads, d, d_q, d_v = 2, 6, 4, 3
    module = Attention(heads, d, d_q, d_v, scale=1.5)
    w = gradient_like(module)  # values first: applied first in the tuple (V, scores)
    v, q, k, out = w
    x = np.random.default_rng(0).normal(size=(5, d)).astype(np.float32)
    angles = np.arange(5)[:, None] * 10000.0 ** (-np.arange(2) / 2)
    result = []
    for h in range(heads):
        qh, kh = (x @ np.asarray(m[h * d_q : (h + 1) * d_q]).T for m in (q, k))
        qh, kh = ((z[:, :2] + 1j * z[:, 2:]) * np.exp(1j * angles) for z in (qh, kh))
        scores = 1.5 * (qh @ kh.conj().T).real / d_q
        scores[np.triu_indices(5, 1)] = -np.inf
        p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        result.append(p @ (x @ np.asarray(v[h * d_v : (h + 1) * d_v]).T))
    expected = np.concatenate(result, 1) @ np.asarray(out).T / 3
    np.testing.assert_allclose(module(w, jnp.asarray(x)), expected, atol=1e-5)


NETWORKS = {
    "perceptron": (MLP(4, 6, 8, 4), (64, 6)),
    "residual": (Linear(3, 6) @ residual(Linear(6, 8) @ ReLU() @ Linear(8, 6), 4) ** 4 @ Linear(6, 6), (64, 6)),
    "masses": (2.0 * Linear(4, 6).tare(3.0) @ (-0.5 * ReLU()) @ Linear(6, 6), (64, 6)),
    "transformer": (GPT(7, 2, 8, 4, 4, 2), None),
    "images": (Linear(3, 16) @ Flatten() @ AvgPool(2) @ ReLU() @ Conv2D(4, 2, 3), (8, 4, 4, 2)),
}


def unit(spec, g):
    """Weights of norm 1 without the package's code: equal singular values, rows of unit RMS."""
    g = np.asarray(g, np.float64)
    if isinstance(spec, norms.Embed):
        return g / np.sqrt((g**2).mean(-1, keepdims=True))
    if isinstance(spec, norms.Conv2D):
        U, _, Vt = np.linalg.svd(g, full_matrices=False)
        return U @ Vt * math.sqrt(g.shape[-1] / g.shape[-2]) / (g.shape[0] * g.shape[1])
    U, _, Vt = np.linalg.svd(g, full_matrices=False)
    return U @ Vt * math.sqrt(g.shape[0] / g.shape[1])


@pytest.mark.parametrize(("module", "shape"), NETWORKS.values(), ids=NETWORKS)
def test_first_order_bound(module, shape, float64):
    """A step of modular norm eta moves the output by at most eta, to first order, for inputs and weights in the unit balls."""
    rng = np.random.default_rng(0)
    w = [jnp.asarray(unit(spec, g)) for spec, g in zip(module.norm_specs(), gradient_like(module, 0), strict=True)]
    if shape is None:
        x = jnp.asarray(rng.integers(0, 7, (8, 6)))
    else:
        x = rng.normal(size=shape)
        size = np.sqrt((x**2).mean(-1)).reshape(len(x), -1).max(1)
        x = jnp.asarray(x / size.reshape(-1, *[1] * (len(shape) - 1)))
    eta, moved = 1e-4, 0.0
    call = jax.jit(module.__call__)
    before = np.asarray(call(w, x))
    for seed in (1, 2):
        shares = [eta * spec.mass / module.mass / spec.sensitivity_after for spec in module.norm_specs()]
        parts = zip(module.norm_specs(), shares, gradient_like(module, seed), strict=True)
        d = [share * unit(spec, g) for spec, share, g in parts]
        after = np.asarray(call([jnp.asarray(a + b) for a, b in zip(map(np.asarray, w), d, strict=True)], x))
        moved = max(moved, np.sqrt(((after - before) ** 2).mean(-1)).max())
    assert 0.01 * eta < moved <= eta * (1 + 1e-3)


def test_first_order_bound_is_attained(float64):
    """Two linear layers and one input: the step along the gradient of the output's size moves it by eta."""
    module = Linear(1, 4) @ Linear(4, 4)
    w = [part.astype(jnp.float64) for part in module.init(jax.random.key(0))]
    x = jnp.asarray(np.random.default_rng(0).normal(size=4))
    x = x / rms(x)
    x = x.at[:].set((w[0].T @ w[1][0]) / rms(w[0].T @ w[1][0]))
    g = jax.grad(lambda w: module(w, x)[0])(w)
    d = module.dualize(g, 1e-5, "svd")
    after = module([a + b for a, b in zip(w, d, strict=True)], x)
    assert float(after[0] - module(w, x)[0]) == pytest.approx(1e-5, rel=1e-4)


def slopes(bond, x, size=rms, after=rms):
    """Largest ratio of output to input change in random directions."""
    rng = np.random.default_rng(1)
    dx = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=(20, *a.shape))), x)
    ratio = lambda d: after(jax.jvp(bond.forward, (x,), (d,))[1]) / size(d)  # noqa: E731
    return float(jax.jit(jax.vmap(ratio))(dx).max())


def test_sensitivities_of_bonds(float64):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=6))
    for bond in (Identity(), ReLU(), GeLU(), Mul(-3.0), MeanSubtract()):
        assert slopes(bond, x) <= bond.sensitivity * (1 + 1e-4)
    assert slopes(Mul(-3.0), x) == pytest.approx(3)
    grid = jnp.linspace(-3, 3, 2001)
    steepest = jax.vmap(jax.grad(GeLU().forward))(grid).max()
    assert float(steepest) == pytest.approx(1, abs=1e-4)
    assert slopes(RMSDivide(), x / rms(x) * 2) <= 1
    image, pixel = jnp.asarray(rng.normal(size=(4, 4, 3))), lambda image: rms(image).max()
    assert slopes(AvgPool(2), image, pixel, pixel) <= 1 and slopes(Flatten(), image, pixel) <= 1
    assert slopes(Add(), (x, 2 * x), lambda d: rms(d[0]) + rms(d[1])) <= 1
    most = lambda a: rms(a).max()  # noqa: E731
    q, k = (jnp.asarray(z / rms(z)[:, None]) for z in rng.normal(size=(2, 5, 4)))
    largest = lambda a: jnp.abs(a).max()  # noqa: E731  (scores are measured by their largest entry)
    assert slopes(AttentionQK(), (q, k), lambda d: most(d[0]) + most(d[1]), largest) <= 1
    assert slopes(RoPE(), q, most, most) == pytest.approx(1, rel=0.2)
    scores = jnp.asarray(rng.normal(size=(5, 5)))
    assert slopes(Softmax(2.0), scores, largest, lambda a: jnp.abs(a).sum(-1).max()) <= 2


def test_values_of_bonds():
    x = jnp.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(MergeHeads().forward(SplitIntoHeads(2).forward(x)), x)
    np.testing.assert_array_equal(SplitIntoHeads(2).forward(x)[0, 1], x[0, :, 2:])
    assert Flatten().forward(x).shape == (24,)
    np.testing.assert_allclose(AvgPool(2).forward(jnp.arange(8.0).reshape(2, 4, 1))[..., 0], [[2.5, 4.5]])
    np.testing.assert_allclose(MeanSubtract().forward(x).mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(rms(RMSDivide().forward(x)), 1, rtol=1e-6)
    assert (RMSDivide().forward(jnp.zeros(3)) == 0).all()
    q, k = x[0], x[1]
    np.testing.assert_allclose(AttentionQK().forward((q, k)), q @ k.T / 4)
    masked = CausalMask().forward(jnp.ones((3, 3)))
    assert (jnp.isinf(masked) == jnp.asarray(np.triu(np.ones((3, 3)), 1), bool)).all()
    np.testing.assert_allclose(ApplyAttentionScores().forward((x[0], jnp.eye(3))), x[0])
    np.testing.assert_allclose(Softmax(2.0).forward(x[0]), jax.nn.softmax(2 * x[0], -1))
    turned = RoPE().forward((x[0], x[0]))
    np.testing.assert_allclose(rms(turned[1]), rms(x[0]), rtol=1e-6)
    np.testing.assert_allclose(turned[0][0], x[0, 0])


def test_operators():
    a, b, x = Linear(3, 3), Linear(3, 3), jnp.ones((2, 3))
    w = [jnp.eye(3) * 2, jnp.eye(3) * 5]
    np.testing.assert_allclose((a + b)(w, x), 7 * x)
    np.testing.assert_allclose((b @ a)(w, x), 10 * x)
    np.testing.assert_allclose((a * 0.5)([w[0]], x), x)
    np.testing.assert_allclose(((a, b) @ Mul(2.0))(w, x)[1], 10 * x)
    cube = a**3
    assert cube.atoms == 3 == cube.mass and (a**0) == Identity() and a**1 == a
    np.testing.assert_allclose(cube([w[0], w[0], w[1]], x), 20 * x)
    copies = cube.init(jax.random.key(0))
    assert (copies[0] != copies[1]).any() and (copies[1] != copies[2]).any()
    block = residual(Linear(3, 3) @ ReLU(), 4)
    assert block.sensitivity == pytest.approx(1)
    np.testing.assert_allclose(block([w[0]], x), 0.75 * x + 0.25 * 2 * x)


def test_modules_are_immutable():
    a = Linear(3, 3)
    module = a @ a.tare(3.0)
    heavier = module.tare(8.0)
    assert module.mass == 4 and heavier.mass == 8 and a.mass == 1
    assert [spec.mass for spec in heavier.norm_specs()] == [6, 2]
    with pytest.raises(AttributeError):
        a.n_out = 5
    assert hash(a) == hash(Linear(3, 3))


def test_project_and_init():
    module = Linear(2, 3) @ Flatten() @ Conv2D(3, 2, 1) @ Identity()
    w = module.init(jax.random.key(0))
    again = module.init(jax.random.key(0))
    assert all((a == b).all() for a, b in zip(w, again, strict=True))
    assert (module.init(jax.random.key(1))[0] != w[0]).any()
    for part, spec in zip(module.project([3 * part for part in w]), module.norm_specs(), strict=True):
        assert float(spec.norm(part)) == pytest.approx(1, abs=0.006)
    table = Embed(4, 6).init(jax.random.key(0))
    np.testing.assert_allclose(rms(table[0]), 1, rtol=1e-5)
    np.testing.assert_array_equal(Embed(4, 6)(table, jnp.asarray([[5, 0]]))[0, 0], table[0][5])
    semi = Linear(2, 8).init(jax.random.key(0))[0]
    np.testing.assert_allclose(semi @ semi.T, np.eye(2) * 2 / 8, atol=1e-5)


def test_weights_survive_a_file(tmp_path):
    module = MLP(3, 2, 4, 3)
    w = module.init(jax.random.key(0))
    np.savez(tmp_path / "w.npz", *w)
    stored = np.load(tmp_path / "w.npz")
    loaded = [jnp.asarray(stored[f"arr_{k}"]) for k in range(module.atoms)]
    x = jnp.ones((2, 2))
    assert (module(loaded, x) == module(w, x)).all()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Linear(3, 3) ** -1, "the power must be an integer"),
        (lambda: Mul(0.0), "factor must be finite and not 0"),
        (lambda: 0.0 * Linear(3, 3), "factor must be finite and not 0"),
        (lambda: Softmax(0.0), "scale must be above 0"),
        (lambda: Linear(0, 3), "n_out must be at least 1"),
        (lambda: Linear(3, 3).tare(-1.0), "absolute must be at least 0"),
        (lambda: ReLU().tare(1.0), "cannot be rescaled"),
        (lambda: Concatenation(()), "modules is empty"),
        (lambda: ReLU().dualize([]), "all masses of the module are 0"),
        (lambda: Linear(3, 3).tare(0.0).dualize([jnp.eye(3)]), "all masses of the module are 0"),
        (lambda: MLP(3, 3, 3, 3).dualize([jnp.eye(3)]), "expected 3 weight arrays, one per atom, got 1"),
        (lambda: (Linear(3, 3) @ Linear(3, 3)).norm([jnp.eye(3)]), "expected 2 weight arrays"),
        (lambda: Linear(3, 3).dualize([jnp.ones((3, 2))]), r"must have shape \(3, 3\), got \(3, 2\)"),
        (lambda: Linear(3, 3).dualize([jnp.eye(3)], schedule="fast"), "schedule must be 'svd'"),
        (lambda: MLP(3, 3, 3, 1), "depth must be at least 2"),
        (lambda: GPT(5, 1, 4, 2, 2, 0), "blocks must be at least 1"),
        (lambda: residual(Linear(3, 3), 1), "blocks must be at least 2"),
        (lambda: Attention(1, 4, 3, 2), "d_q must be even"),
        (lambda: AvgPool(2).forward(jnp.ones((3, 4, 1))), "must be multiples of window=2"),
        (lambda: Linear(3, 3).dualize([jnp.eye(3)], float("nan")), "target_norm must be at least 0"),
    ],
)
def test_bad_input(make, match):
    with pytest.raises(ValueError, match=match):
        make()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Linear(3, 4)([jnp.ones((3, 3))], jnp.ones(4)), "weights of Linear"),
        (lambda: Linear(3, 4)([jnp.ones((3, 4))], jnp.ones(3)), "4 features|shape"),
        (lambda: Conv2D(3, 4, 1)([jnp.ones((1, 1, 4, 3))], jnp.ones((2, 2, 3))), "4 features|shape"),
        (lambda: RoPE().forward(jnp.ones((2, 3))), "must be even"),
        (lambda: ReLU()([jnp.ones(3)], jnp.ones(3)), "expected 0 weight arrays"),
        (lambda: Embed(4, 5)([jnp.ones((5, 4))], jnp.ones(3)), "must be integers"),
        (lambda: Linear(3, 3).dualize(jnp.eye(3)), "weights|g"),
        (lambda: Linear(3, 3) @ 3, "expected a module|modules"),
        (lambda: Linear(3, 3) + 3, "expected a module|modules"),
        (lambda: "a" * Linear(3, 3), "factor"),
        (lambda: Linear(2.5, 3), "n_out"),
        (lambda: Linear(3, 3).tare("x"), "absolute"),
        (lambda: residual(Linear(3, 3), 1.5), "blocks"),
        (lambda: SplitIntoHeads(0), "heads"),
        (lambda: AvgPool(0), "window"),
    ],
)
def test_wrong_types_and_shapes(make, match):
    with pytest.raises((TypeError, ValueError), match=match):  # jaxtyping, when it checks, is first
        make()


def test_symbols_that_are_not_in_the_table_are_loud():
    table = [jnp.ones((5, 4))]
    assert jnp.isnan(Embed(4, 5)(table, jnp.asarray([4, 5]))).tolist() == [[False] * 4, [True] * 4]


def test_power_must_be_an_integer():
    with pytest.raises((ValueError, TypeError), match=r"power|copies"):  # jaxtyping, when it checks, is first
        Linear(3, 3) ** 0.5
    with pytest.raises(ValueError, match="power"):
        Linear(3, 3) ** True


def test_every_bond_is_exported():
    assert all(hasattr(modules, name) for name in modules.__all__)
    assert math.isclose(sum(m.mass for m in (Identity(), ReLU(), Add(), Mul(2.0))), 0)
