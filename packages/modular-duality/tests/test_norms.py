"""Norms, their duals and duality maps: closed forms, the defining identities, layouts, inference."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from icml25.modular_duality import infer_norms
from icml25.modular_duality.norms import Bias, Conv2D, Embed, Frozen, Linear, Scale

CASES = {
    "linear": (Linear(), (5, 3)),
    "heads": (Linear(out_axes=(-2, -1), in_axes=(-3,)), (6, 2, 2)),
    "stacked": (Linear(batch_axes=(0,)), (2, 3, 4)),
    "embed": (Embed(), (4, 6)),
    "embed across": (Embed(dim_axis=0), (6, 4)),
    "conv": (Conv2D(), (2, 3, 3, 4)),
    "bias": (Bias(), (5,)),
    "stacked biases": (Bias(batch_axes=(0,)), (3, 4)),
    "scale": (Scale(), (5,)),
}
every_case = pytest.mark.parametrize(("spec", "shape"), CASES.values(), ids=CASES)


def gaussian(shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def inner(G, T):
    return float(jnp.vdot(G, T))


@every_case
def test_duality(spec, shape):
    G = gaussian(shape)
    T = spec.dualize(G, "svd")
    assert T.shape == shape and T.dtype == G.dtype
    assert inner(G, T) == pytest.approx(float(spec.dual_norm(G)), rel=1e-5)
    assert float(spec.norm(T)) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(spec.dualize(7.5 * G, "svd"), T, atol=1e-5)
    np.testing.assert_allclose(spec.project(G, "svd"), T)
    assert float(spec.norm(spec.dualize(G))) == pytest.approx(1, abs=0.006)  # Newton-Schulz


@every_case
def test_no_direction_is_better(spec, shape):
    G = gaussian(shape)
    best = float(spec.dual_norm(G))
    T = spec.dualize(G, "svd")
    near = T + 0.1 * jnp.abs(T).mean() * gaussian((5000, *shape), 2)
    directions = jnp.concatenate([gaussian((5000, *shape), 1), near])
    gains = jax.vmap(lambda T: jnp.vdot(G, T) / spec.norm(T))(directions)
    assert float(gains.max()) <= best * (1 + 1e-5) and float(gains.max()) > 0.7 * best


@every_case
def test_zero_gradient_gives_zero(spec, shape):
    for schedule in ("six_step", "svd"):
        assert (spec.dualize(jnp.zeros(shape), schedule) == 0).all()
    assert float(spec.norm(jnp.zeros(shape))) == 0 and float(spec.dual_norm(jnp.zeros(shape))) == 0


@every_case
def test_initial_weights_have_norm_one(spec, shape):
    W = spec.initialize(jax.random.key(0), shape)
    assert W.shape == shape and float(spec.norm(W)) == pytest.approx(1, abs=1e-5)
    assert (spec.initialize(jax.random.key(0), shape) == W).all()
    assert (spec.initialize(jax.random.key(3), shape) != W).any()
    assert spec.initialize(jax.random.key(0), shape, jnp.bfloat16).dtype == jnp.bfloat16


@every_case
def test_tiny_and_short_gradients(spec, shape):
    G = gaussian(shape)
    np.testing.assert_allclose(spec.dualize(1e-30 * G), spec.dualize(G), atol=1e-4)
    short = spec.dualize(G.astype(jnp.bfloat16))
    assert short.dtype == jnp.bfloat16
    np.testing.assert_allclose(short.astype(jnp.float32), spec.dualize(G), atol=3e-2)


@every_case
def test_float64(spec, shape, float64):
    G = gaussian(shape, dtype=jnp.float64)
    T = spec.dualize(G, "svd")
    assert T.dtype == jnp.float64
    assert abs(float(spec.norm(T)) - 1) < 1e-12
    assert abs(inner(G, T) / float(spec.dual_norm(G)) - 1) < 1e-12


def test_linear_closed_form():
    G = jnp.asarray([[3.0, 0.0], [0.0, -2.0], [0.0, 0.0]])  # (in=3, out=2)
    np.testing.assert_allclose(
        Linear().dualize(G, "svd"), math.sqrt(2 / 3) * np.array([[1, 0], [0, -1], [0, 0]]), atol=1e-6
    )
    assert float(Linear().norm(G)) == pytest.approx(3 * math.sqrt(3 / 2))
    assert float(Linear().dual_norm(G)) == pytest.approx(5 * math.sqrt(2 / 3))


def test_linear_norm_is_that_of_rms_to_rms():
    W = gaussian((5, 3))
    rms = lambda v: jnp.sqrt(jnp.mean(v**2, -1))  # noqa: E731
    x = gaussian((20000, 5), 1)
    gain = rms(x @ W) / rms(x)
    assert 0.95 * float(Linear().norm(W)) < float(gain.max()) <= float(Linear().norm(W)) * (1 + 1e-5)


def test_vectors_closed_forms():
    G = jnp.asarray([[3.0, 4.0], [0.0, 0.0], [0.0, -5.0]])
    rms = 5 / math.sqrt(2)
    np.testing.assert_allclose(Embed().dualize(G), np.asarray(G) / rms, rtol=1e-6)
    assert float(Embed().norm(G)) == pytest.approx(rms)
    assert float(Embed().dual_norm(G)) == pytest.approx(math.sqrt(2) * 10)
    np.testing.assert_allclose(Bias().dualize(G[0]), np.asarray(G[0]) / rms, rtol=1e-6)
    assert float(Bias().dual_norm(G[0])) == pytest.approx(math.sqrt(2) * 5)
    np.testing.assert_array_equal(Scale().dualize(G[2]), [0, -1])
    assert float(Scale().norm(G[2])) == 5 and float(Scale().dual_norm(G[0])) == 7
    stacked = Bias(batch_axes=(0,))
    np.testing.assert_allclose(stacked.dualize(G), np.asarray(G) / rms, rtol=1e-6)
    assert float(stacked.dual_norm(G)) == pytest.approx(math.sqrt(2) * 10)


def test_conv_closed_form():
    G = gaussian((2, 2, 3, 5))  # height, width, in, out
    taps = [G[i, j] for i in range(2) for j in range(2)]
    assert float(Conv2D().norm(G)) == pytest.approx(4 * max(float(Linear().norm(t)) for t in taps), rel=1e-5)
    assert float(Conv2D().dual_norm(G)) == pytest.approx(sum(float(Linear().dual_norm(t)) for t in taps) / 4, rel=1e-5)
    np.testing.assert_allclose(Conv2D().dualize(G)[1, 0], Linear().dualize(G[1, 0]) / 4, atol=1e-6)


def test_conv_norm_bounds_the_largest_pixel():
    W = gaussian((3, 3, 2, 4))
    x = gaussian((50, 6, 6, 2), 1)
    pixel = lambda image: jnp.sqrt(jnp.mean(image**2, -1)).max((1, 2))  # noqa: E731
    x = x / pixel(x)[:, None, None, None]
    convolve = lambda x, W: jax.lax.conv_general_dilated(  # noqa: E731
        x, W, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    assert float(pixel(convolve(x, W)).max()) <= float(Conv2D().norm(W))
    ones = convolve(jnp.ones((1, 6, 6, 1)), jnp.ones((3, 3, 1, 1)))
    assert float(pixel(ones)[0]) == pytest.approx(float(Conv2D().norm(jnp.ones((3, 3, 1, 1))))) == 9


def test_layouts():
    G = gaussian((5, 3))
    paper = Linear(out_axes=(0,), in_axes=(1,))
    np.testing.assert_allclose(Linear().dualize(G), paper.dualize(G.T).T, atol=1e-6)
    assert float(jnp.abs(Linear().dualize(G) - paper.dualize(G)).max()) > 0.1  # the scale flips
    assert float(paper.norm(G.T)) == pytest.approx(float(Linear().norm(G)), rel=1e-5)
    K = gaussian((2, 3, 4, 5))
    oihw = Conv2D("OIHW").dualize(K.transpose(3, 2, 0, 1))
    np.testing.assert_allclose(oihw.transpose(2, 3, 1, 0), Conv2D().dualize(K), atol=1e-6)
    np.testing.assert_allclose(Conv2D().dualize(K[:1, :1])[0, 0], Linear().dualize(K[0, 0]), atol=1e-6)
    np.testing.assert_allclose(Embed().dualize(G), Embed(dim_axis=0).dualize(G.T).T, atol=1e-6)


def test_several_axes_are_flattened():
    G = gaussian((4, 2, 3))  # (features, heads, head_dim)
    into = Linear(out_axes=(-2, -1), in_axes=(0,)).dualize(G)
    np.testing.assert_allclose(into, Linear().dualize(G.reshape(4, 6)).reshape(4, 2, 3), atol=1e-6)
    out = Linear(out_axes=(-1,), in_axes=(0, 1)).dualize(G)
    np.testing.assert_allclose(out, Linear().dualize(G.reshape(8, 3)).reshape(4, 2, 3), atol=1e-6)


def test_stacked_layers_each_on_its_own():
    spec, G = Linear(batch_axes=(1,), in_axes=(0,), out_axes=(2,)), gaussian((4, 3, 5))
    loop = jnp.stack([Linear().dualize(G[:, k]) for k in range(3)], 1)
    np.testing.assert_allclose(spec.dualize(G), loop, atol=1e-6)
    assert float(spec.norm(G)) == pytest.approx(max(float(Linear().norm(G[:, k])) for k in range(3)), rel=1e-5)
    assert float(spec.dual_norm(G)) == pytest.approx(
        sum(float(Linear().dual_norm(G[:, k])) for k in range(3)), rel=1e-5
    )


@given(st.integers(0, 10**6))
def test_orthogonal_invariance(seed):
    rng = np.random.default_rng(seed)
    G = rng.normal(size=(4, 6))
    P, Q = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (4, 6))
    turned = Linear().dualize(jnp.asarray(P @ G @ Q, jnp.float32), "six_step")
    np.testing.assert_allclose(turned, P @ np.asarray(Linear().dualize(jnp.asarray(G, jnp.float32))) @ Q, atol=1e-3)


@given(st.permutations(range(4)))
def test_permutations_commute(order):
    order = np.array(order)
    G = gaussian((4, 6))
    np.testing.assert_allclose(Embed().dualize(G[order]), Embed().dualize(G)[order], atol=1e-6)
    K = gaussian((1, 4, 3, 2))
    np.testing.assert_allclose(Conv2D().dualize(K[:, order]), Conv2D().dualize(K)[:, order], atol=1e-6)


def test_frozen():
    W = jnp.arange(3)
    assert (Frozen().dualize(W) == 0).all() and Frozen().dualize(W).dtype == W.dtype
    assert float(Frozen().norm(W)) == 0 == float(Frozen().dual_norm(W)) and Frozen().mass == 0
    assert (Frozen().project(W) == W).all() and (Frozen().initialize(jax.random.key(0), (2,)) == 0).all()


def test_specs_are_hashable_and_static():
    assert hash(Linear()) == hash(Linear()) and Linear() == Linear() != Linear(mass=2.0)
    dualize = jax.jit(lambda spec, G: spec.dualize(G), static_argnums=0)
    np.testing.assert_allclose(dualize(Linear(), gaussian((5, 3))), Linear().dualize(gaussian((5, 3))), atol=1e-6)


class Net(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(7, 4)(tokens)
        x = nn.LayerNorm()(x)
        x = nn.Conv(3, (2, 2))(x[..., None])
        return nn.Dense(5)(x.reshape(-1))


def test_infer_flax_linen():
    params = jax.eval_shape(Net().init, jax.random.key(0), jnp.zeros(3, jnp.int32))
    norms = infer_norms(params)["params"]
    assert norms["Embed_0"] == {"embedding": Embed()}
    assert norms["LayerNorm_0"] == {"scale": Scale(), "bias": Bias()}
    assert norms["Conv_0"] == {"kernel": Conv2D(), "bias": Bias()}
    assert norms["Dense_0"] == {"kernel": Linear(), "bias": Bias()}


def test_infer_flax_nnx():
    model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    params = nnx.state(model, nnx.Param)
    norms = infer_norms(params, masses={"kernel$": 3.0})
    assert jax.tree.structure(norms) == jax.tree.structure(params)
    assert sorted(map(str, jax.tree.leaves(norms))) == sorted(map(str, [Bias(), Linear(mass=3.0)]))


def test_rules_and_masses():
    params = {
        "attn": {"query": {"kernel": jnp.ones((4, 2, 3))}},
        "head": {"weight": jnp.ones((3, 4))},
        "n": jnp.arange(2),
    }
    rules = [
        ("query/kernel$", Linear(out_axes=(1, 2), in_axes=(0,))),
        ("^n$", Frozen()),
        ("weight$", Linear(out_axes=(0,), in_axes=(1,))),
        ("", Bias()),
    ]
    norms = infer_norms(params, rules=rules, masses={"attn|head": 5.0, "head": 1.0})
    assert norms["attn"]["query"]["kernel"] == Linear(out_axes=(1, 2), in_axes=(0,), mass=2.5)
    assert norms["head"]["weight"] == Linear(out_axes=(0,), in_axes=(1,), mass=1.0) and norms["n"] == Frozen()
    with pytest.raises(ValueError, match="no leaf's path has 'tail'"):
        infer_norms(params, rules=rules, masses={"tail": 1.0})
    with pytest.raises(ValueError, match="all 0 and cannot be rescaled"):
        infer_norms(params, rules=rules, masses={"^n$": 1.0})
    with pytest.raises(ValueError, match="got -1"):
        infer_norms(params, rules=rules, masses={"head": -1.0})


def test_unknown_leaves_are_named():
    with pytest.raises(ValueError, match=r"attn/query/kernel, shape \(4, 2, 3\), is not known"):
        infer_norms({"attn": {"query": {"kernel": jnp.ones((4, 2, 3))}}})
    with pytest.raises(ValueError, match=r"layers/0/w, shape \(2,\)"):
        infer_norms({"layers": [{"w": jnp.ones(2)}]})
    with pytest.raises(TypeError, match="a/bias must be of a real floating dtype, got int32"):
        infer_norms({"a": {"bias": jnp.arange(3)}})
    with pytest.raises(TypeError, match="a/bias must be of a real floating dtype, got complex64"):
        infer_norms({"a": {"bias": jnp.ones(3, jnp.complex64)}})


@pytest.mark.parametrize(
    ("spec", "shape", "match"),
    [
        (Linear(), (3,), r"weights has shape \(3,\), but Linear"),
        (Linear(), (2, 3, 4), "do not name each axis once"),
        (Linear(out_axes=(0,), in_axes=(-2,)), (2, 3), "do not name each axis once"),
        (Linear(out_axes=(), in_axes=(0, 1)), (2, 3), "are not axes of it"),
        (Linear(out_axes=(2,)), (2, 3), "are not axes of it"),
        (Conv2D(), (2, 3), "Conv2D needs 4 axes"),
        (Embed(), (3,), "Embed needs 2 axes"),
        (Embed(dim_axis=2), (3, 4), "dim_axis=2"),
        (Bias(), (), "needs an axis"),
        (Bias(), (0,), "which is empty"),
        (Linear(), (0, 3), "which is empty"),
        (Bias(batch_axes=(0, -1)), (3,), "distinct"),
    ],
)
def test_wrong_axes(spec, shape, match):
    for method in ("norm", "dual_norm", "dualize"):
        with pytest.raises(ValueError, match=match):
            getattr(spec, method)(jnp.ones(shape))
    with pytest.raises(ValueError, match="path/to/leaf"):
        infer_norms({"path": {"to": {"leaf": jnp.ones(shape)}}}, rules=[("", spec)])


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Linear(mass=-1.0), "mass must be at least 0"),
        (lambda: Bias(mass=float("nan")), "mass must be at least 0"),
        (lambda: Linear(sensitivity_after=0.0), "sensitivity_after must be above 0"),
        (lambda: Linear(sensitivity_after=-1.0), "sensitivity_after must be above 0"),
        (lambda: Conv2D("HWII"), "layout must be"),
        (lambda: Frozen(mass=1.0), "mass of a frozen leaf must be 0"),
        (lambda: Embed(dim_axis=-3), "dim_axis must be at least -2"),
        (lambda: infer_norms(jnp.ones(3), rules=[("(", Bias())]), "rules: '\\(' is not a regular expression"),
        (lambda: infer_norms({"bias": jnp.ones(3)}, masses={"(": 1.0}), "masses: '\\(' is not a regular expression"),
    ],
)
def test_wrong_settings(make, match):
    with pytest.raises(ValueError, match=match):
        make()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Linear(mass="heavy"), "mass"),
        (lambda: Bias(mass=None), "mass"),
        (lambda: Scale(sensitivity_after="x"), "sensitivity_after"),
        (lambda: Linear(out_axes=0, in_axes=1), "out_axes"),
        (lambda: Linear(in_axes=[-2]), "in_axes"),
        (lambda: Bias(batch_axes=0), "batch_axes"),
        (lambda: Embed(dim_axis="x"), "dim_axis"),
        (lambda: Conv2D(3), "layout"),
        (lambda: infer_norms(jnp.ones(3), rules=["bias"]), "rules"),
        (lambda: infer_norms(jnp.ones(3), rules={"bias": Bias()}), "rules"),
        (lambda: infer_norms(jnp.ones(3), rules=[("bias", Bias)]), "rules"),
        (lambda: infer_norms({"bias": jnp.ones(3)}, masses=[1.0]), "masses"),
        (lambda: infer_norms({"bias": 3.0}), "bias must be of a real floating dtype, got float|W"),
    ],
)
def test_wrong_types(make, match):
    with pytest.raises((TypeError, ValueError), match=match):  # ValueError: layout
        make()
