"""Models against what they are special cases of, and training."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from icml25.icl_hopfield import (
    ICLTransformer,
    LinearRegressionTask,
    Memory,
    OneLayerAttention,
    adam,
    evaluate_prefix,
    posterior_predict,
    train,
)

close = np.testing.assert_allclose
KEY = jax.random.key(1000)
TASK = LinearRegressionTask(3)


@pytest.fixture(scope="module")
def prompts() -> tuple[jax.Array, jax.Array]:
    return TASK.sample(KEY, 4, 6)


def one_layer(kind: str, query_map=None) -> OneLayerAttention:
    model = OneLayerAttention(3, kind, rngs=nnx.Rngs(1000))
    if query_map is not None:
        model.query_map[...] = jnp.asarray(query_map)
    return model


def test_softmax_layer_is_a_memory(prompts) -> None:
    x, y = prompts
    model = one_layer("softmax")
    expected = [Memory(x[b], y[b], 1.0).retrieve(model.query_map[...] @ x[b, 0]) for b in range(4)]
    close(model(x, y, x[:, 0]), expected, rtol=1e-5)
    close(model(x[0], y[0], x[0, 0]), expected[0], rtol=1e-5)


def test_linear_layer_is_a_gradient_step(prompts) -> None:
    x, y = prompts
    rate = 0.3
    w = -rate * jax.grad(lambda w: ((x[0] @ w - y[0]) ** 2).mean() / 2)(jnp.zeros(3))
    close(one_layer("linear", rate * np.eye(3))(x[0], y[0], x[0, 1]), w @ x[0, 1], rtol=1e-5)


def test_inverse_gram_layer_is_the_posterior_mean(prompts) -> None:
    x, y = prompts
    model = one_layer("inverse_gram", np.eye(3))
    model.log_ridge[...] = jnp.log(0.4)
    close(model(x, y, x[:, 2]), posterior_predict(x, y, x[:, 2], noise_var=0.2, prior_cov=0.5)[0], rtol=1e-4)


def test_one_layer_loss_is_that_of_the_last_label(prompts) -> None:
    x, y = prompts
    model = one_layer("softmax")
    close(model.loss(x, y), ((model(x[:, :5], y[:, :5], x[:, 5]) - y[:, 5]) ** 2).mean(), rtol=1e-5)


@pytest.fixture(scope="module")
def transformer() -> ICLTransformer:
    return ICLTransformer(3, width=8, heads=2, layers=1, max_examples=8, rngs=nnx.Rngs(1000))


def test_predictions_see_only_what_came_before(transformer, prompts) -> None:
    x, y = prompts
    alone, transformer = transformer.alone, nnx.cached_partial(nnx.jit(ICLTransformer.__call__), transformer)
    found = transformer(x, y)
    assert found.shape == (4, 6)
    changed = transformer(x, y.at[:, 2].add(1.0))
    close(changed[:, :3], found[:, :3], atol=1e-5)  # y_3 itself is not read at x_3
    assert (abs(changed - found)[:, 3:] > 1e-4).all()
    changed = transformer(x.at[:, 2].add(1.0), y)
    close(changed[:, :2], found[:, :2], atol=1e-5)
    assert (abs(changed - found)[:, 2:] > 1e-4).all()
    close(transformer(x, y.at[:, -1].set(99.0)), found, atol=1e-5)
    close(transformer(x[:, :4], y[:, :4]), found[:, :4], atol=1e-5)
    close(alone(x[:, 0]), found[:, 0], atol=1e-5)


def test_network_as_its_formulas_stand(prompts) -> None:
    """Pre-norm GPT-2 in numpy: h + attention(norm h), then h + W2 gelu(W1 norm h), read at the tokens of x."""
    model = ICLTransformer(3, width=8, heads=2, max_examples=8, rngs=nnx.Rngs(1000))
    for leaf in jax.tree.leaves(nnx.state(model), is_leaf=lambda v: isinstance(v, nnx.Variable)):
        leaf[...] += 0.3 * np.random.default_rng(leaf[...].size).normal(size=leaf[...].shape)  # no zeros, no ones
    found = model(*prompts)
    x, y = (np.asarray(a, float) for a in prompts)
    b, k, d = x.shape

    def linear(h, layer):
        return np.tensordot(h, np.asarray(layer.kernel[...]), 1) + np.asarray(layer.bias[...])

    def norm(h, layer):
        h = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-6)
        return h * np.asarray(layer.scale[...]) + np.asarray(layer.bias[...])

    tokens = np.zeros((b, 2 * k, d))
    tokens[:, ::2], tokens[:, 1::2, 0] = x, y / 5
    h = linear(tokens, model.embed) + np.asarray(model.position[...])[: 2 * k]
    for block in model.blocks:
        n = norm(h, block.norm_attention)
        q, keys, values = (
            linear(n, layer) for layer in (block.attention.query, block.attention.key, block.attention.value)
        )
        p = np.exp(np.einsum("bqhe,bkhe->bhqk", q, keys) / np.sqrt(4)) * np.tri(2 * k)
        mixed = np.einsum("bhqk,bkhe->bqhe", p / p.sum(-1, keepdims=True), values)
        out = block.attention.out
        h = h + np.einsum("bqhe,hew->bqw", mixed, out.kernel[...]) + np.asarray(out.bias[...])
        u = linear(norm(h, block.norm_network), block.up)
        h = h + linear(u / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3))), block.down)
    close(found, 5 * linear(norm(h, model.norm), model.read)[:, ::2, 0], rtol=1e-3, atol=1e-3)


def test_labels_are_padded_and_scaled(prompts) -> None:
    x, y = prompts
    small, large = (ICLTransformer(3, width=8, max_examples=8, scale=s, rngs=nnx.Rngs(0)) for s in (1.0, 5.0))
    close(large(x, 5 * y), 5 * small(x, y), rtol=1e-4)
    close(large.loss(x, 5 * y), small.loss(x, y), rtol=1e-4)
    seen = []
    embed = large.embed
    large.embed = lambda tokens: seen.append(tokens) or embed(tokens)
    large(x, y)
    close(seen[0][:, ::2], x)
    close(seen[0][:, 1::2, 0], y / 5, rtol=1e-6)
    assert (seen[0][:, 1::2, 1:] == 0).all()


def test_errors_along_the_prompt(prompts) -> None:
    x, y = prompts
    found = evaluate_prefix(lambda x, y: jnp.zeros_like(y), x, y)
    close(found, (np.asarray(y) ** 2).mean(0), rtol=1e-6)
    with pytest.raises(ValueError, match=r"model\(x, y\) must have shape \(4, 6\), got \(4, 5\)"):
        evaluate_prefix(lambda x, y: y[:, 1:], x, y)


def parameters(model: nnx.Module) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]


def test_training_stops_and_goes_on() -> None:
    """One run, a stopped run that goes on from its files, and a run that a callback stops."""
    calls, setting = [], {"key": KEY, "batch": 4, "k": 5}
    whole = one_layer("softmax")
    losses = train(whole, TASK, 130, callback=lambda step, losses: calls.append((step, len(losses))), **setting)
    assert calls == [(100, 100), (130, 30)] and losses.shape == (130,) and np.isfinite(losses).all()

    stopped = one_layer("softmax")
    optimizer = adam(stopped, 130)
    first = train(stopped, TASK, 130, optimizer=optimizer, callback=lambda *_: True, **setting)
    assert len(first) == 100 and optimizer.step[...] == 100
    saved = [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state((stopped, optimizer)))]
    resumed = one_layer("softmax")
    optimizer = adam(resumed, 130)
    structure = jax.tree.structure(nnx.state((resumed, optimizer)))
    nnx.update((resumed, optimizer), jax.tree.unflatten(structure, saved))
    rest = [train(resumed, TASK, steps, optimizer=optimizer, **setting) for steps in (7, 23)]
    close(np.concatenate([first, *rest]), losses, rtol=1e-5)
    for a, b in zip(parameters(resumed), parameters(whole), strict=True):
        close(a, b, atol=1e-6)
    other = train(one_layer("softmax"), TASK, 5, **(setting | {"key": jax.random.key(1001)}))
    assert (other != losses[:5]).all()


def test_training_learns() -> None:
    """A softmax layer finds the query map of its closed form: a multiple of the identity below 1."""
    model = one_layer("softmax")
    task = LinearRegressionTask(3, centres=(0.0, 0.0))
    losses = train(model, task, 300, key=KEY, k=65, optimizer=adam(model, 300, peak=0.03, warmup=10))
    assert losses[-50:].mean() < 0.6 * losses[:10].mean()
    found = model.query_map[...]
    scale = jnp.trace(found) / 3
    assert 0.2 < scale < 1 and jnp.linalg.norm(found - scale * jnp.eye(3)) < 0.4 * scale


def test_adam_follows_its_schedule() -> None:
    """With equal gradients Adam's step is the learning rate."""
    model = one_layer("softmax", np.zeros((3, 3)))
    optimizer = adam(model, 4, peak=0.1, warmup=2, clip=1.0)
    gradient = jax.tree.map(lambda a: jnp.full_like(a, 1e3), nnx.state(model, nnx.Param))
    path = [0.0]
    for _ in range(4):
        optimizer.update(model, gradient)
        path.append(float(model.query_map[0, 0]))
    close(-np.diff(path), [0, 0.05, 0.1, 0.05], atol=1e-5)


def test_adam_clips_gradients() -> None:
    """After gradients of norm 300 and .3 Adam remembers norms 1 and .3."""
    model = one_layer("softmax", np.zeros((3, 3)))
    optimizer = adam(model, 10, peak=0.1, warmup=0, clip=1.0)
    for size in (100.0, 0.1):
        optimizer.update(model, jax.tree.map(lambda a, s=size: jnp.full_like(a, s), nnx.state(model, nnx.Param)))
    m, v = 0.9 * 0.1 / 3 + 0.1 * 0.1, 0.999 * 0.001 / 9 + 0.001 * 0.01
    second = (m / (1 - 0.9**2)) / np.sqrt(v / (1 - 0.999**2))
    rate = 0.1 * (1 + np.cos(np.pi / 10)) / 2
    close(model.query_map[...], -0.1 - rate * second, rtol=1e-4)


def test_checkpoint(transformer, prompts, tmp_path) -> None:
    flat = dict(nnx.to_flat_state(nnx.state(transformer)))
    np.savez(tmp_path / "model.npz", **{"/".join(map(str, path)): leaf[...] for path, leaf in flat.items()})
    other = ICLTransformer(3, width=8, heads=2, layers=1, max_examples=8, rngs=nnx.Rngs(1))
    assert (other(*prompts) != transformer(*prompts)).all()
    with np.load(tmp_path / "model.npz") as arrays:
        state = nnx.state(other)
        for path, leaf in nnx.to_flat_state(state):
            leaf[...] = jnp.asarray(arrays["/".join(map(str, path))])
        nnx.update(other, state)
    assert (other(*prompts) == transformer(*prompts)).all()


def test_seeds() -> None:
    one, two, three = (ICLTransformer(3, width=8, rngs=nnx.Rngs(seed)) for seed in (0, 0, 1))
    assert all((a == b).all() for a, b in zip(parameters(one), parameters(two), strict=True))
    assert any((a != b).any() for a, b in zip(parameters(one), parameters(three), strict=True))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: OneLayerAttention(0, rngs=nnx.Rngs(0)), ValueError, "dim must be >= 1"),
        (lambda: one_layer("softmax")(jnp.ones((4, 2)), jnp.ones(4), jnp.ones(2)), ValueError, r"\(\.\.\., k, 3\)"),
        (
            lambda: one_layer("softmax")(jnp.ones((4, 3)), jnp.ones(4), jnp.ones(2)),
            ValueError,
            r"q must have shape \(3,\)",
        ),
        (lambda: one_layer("softmax")(jnp.ones((0, 3)), jnp.ones(0), jnp.ones(3)), ValueError, "k >= 1"),
        (
            lambda: ICLTransformer(3, width=7, heads=2, rngs=nnx.Rngs(0)),
            ValueError,
            "heads must divide width, got 2 and 7",
        ),
        (lambda: ICLTransformer(3, layers=0, rngs=nnx.Rngs(0)), ValueError, "layers must be >= 1"),
        (lambda: ICLTransformer(3, scale=0, rngs=nnx.Rngs(0)), ValueError, "scale must be"),
        (lambda: train(one_layer("softmax"), TASK, 0, key=KEY), ValueError, "steps must be >= 1"),
        (lambda: train(len, TASK, 1, key=KEY), TypeError, r"model must have a method loss\(x, y\)"),
        (
            lambda: evaluate_prefix(lambda x, y: y, np.ones((0, 5, 3)), np.ones((0, 5))),
            ValueError,
            "at least one prompt",
        ),
        (lambda: adam(one_layer("softmax"), 10, peak=0.0), ValueError, "peak must be"),
        (lambda: adam(one_layer("softmax"), 10, warmup=-1), ValueError, "warmup must be >= 0"),
    ],
)
def test_bad_models(make, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_bad_prompts(transformer) -> None:
    for x, y in itertools.product((np.ones((1, 9, 3)), np.ones((1, 4, 2))), (np.ones((1, 9)), np.ones((1, 4)))):
        with pytest.raises(ValueError, match="x must have"):
            transformer(jnp.asarray(x), jnp.asarray(y))


def test_a_loss_that_is_not_finite_stops() -> None:
    class Broken(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.zeros(()))

        def loss(self, x, y):
            return jnp.log(-1 - self.w[...] ** 2)

    with pytest.raises(FloatingPointError, match="not finite within steps 0 to 3"):
        train(Broken(), TASK, 3, key=KEY, batch=2, k=2)
