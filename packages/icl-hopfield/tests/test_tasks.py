"""Prompts have the laws that they should."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml25.icl_hopfield import DecisionTreeTask, LinearRegressionTask, ReLUNetTask, Task, flip_labels

close = np.testing.assert_allclose
KEY = jax.random.key(0)


def test_linear_regression() -> None:
    task = LinearRegressionTask(3, mixture=(0.25, 0.75), centres=(-2.0, 1.0), task_mean=0.5, task_std=2.0)
    x, y = task.sample(KEY, 4000, 6)
    assert x.shape == (4000, 6, 3) and y.shape == (4000, 6) and x.dtype == y.dtype == jnp.float32
    w = np.linalg.lstsq(x[0], y[0])[0]
    close(x[0] @ w, y[0], atol=1e-4)
    weights = np.stack(
        [np.linalg.lstsq(a, b)[0] for a, b in zip(np.asarray(x[:2000]), np.asarray(y[:2000]), strict=True)]
    )
    close(weights.mean(0), 0.5, atol=0.15)
    close(np.cov(weights.T), 4 * np.eye(3), atol=0.4)
    second = np.asarray(x).mean(-1) > -0.5  # between the centres
    close(second.mean(), 0.75, atol=0.05)
    close(x.mean(), 0.25 * -2 + 0.75 * 1, atol=0.05)
    pure = np.asarray(LinearRegressionTask(3).sample(KEY, 4000, 6)[0]).reshape(-1, 3)
    close(pure.mean(0), -2, atol=0.03)
    close(np.cov(pure.T), np.eye(3), atol=0.04)


def test_noise() -> None:
    clean, noisy = LinearRegressionTask(3).sample(KEY, 4000, 6), LinearRegressionTask(3, noise=0.5).sample(KEY, 4000, 6)
    assert (clean[0] == noisy[0]).all()
    close(np.std(noisy[1] - clean[1]), 0.5, rtol=0.05)


def test_same_key_same_tasks_on_other_inputs() -> None:
    near = LinearRegressionTask(3).sample(KEY, 4000, 6)
    far = LinearRegressionTask(3, mixture=(0.0, 1.0)).sample(KEY, 4000, 6)
    close(far[0] - near[0], 4, atol=1e-5)
    for i in range(5):
        close(near[0][i] @ np.linalg.lstsq(far[0][i], far[1][i])[0], near[1][i], atol=1e-3)
    other = LinearRegressionTask(3).sample(jax.random.key(1), 4000, 6)
    assert (other[1] != near[1]).mean() > 0.99
    again = LinearRegressionTask(3).sample(KEY, 4000, 6)
    assert (again[0] == near[0]).all() and (again[1] == near[1]).all()


def test_decision_trees() -> None:
    task = DecisionTreeTask(3, depth=2)
    x, y = (np.asarray(a) for a in task.sample(KEY, 200, 64))
    close([x.mean(), x.std()], [0, 1], atol=0.03)
    assert max(len(np.unique(row)) for row in y) == 4  # leaves
    close(np.unique(y).std(), 1, atol=0.1)
    for signs, labels in zip(x > 0, y, strict=True):  # nothing but signs decides, by a tree of depth 2
        assert all(len(np.unique(labels[(signs == s).all(1)])) == 1 for s in np.unique(signs, axis=0))

        def explained(rows, depth, signs=signs, labels=labels):
            if len(np.unique(labels[rows])) <= 1:
                return True
            halves = [(rows & signs[:, j], rows & ~signs[:, j]) for j in range(3)]
            return depth > 0 and any(explained(a, depth - 1) and explained(b, depth - 1) for a, b in halves)

        assert explained(np.ones(64, dtype=bool), 2)
    assert max(len(np.unique(row)) for row in DecisionTreeTask(8).sample(KEY, 20, 300)[1]) > 8  # depth 4


def test_relu_nets() -> None:
    x, y = (np.asarray(a) for a in ReLUNetTask(4, width=50).sample(KEY, 3000, 8))
    close([x.mean(), x.std()], [0, 1], atol=0.03)
    close((y**2).mean(), (x**2).sum(-1).mean(), rtol=0.06)  # sqrt(2 / width) keeps the scale
    line = jnp.linspace(0, 2, 5)[:, None] * jnp.ones(4)
    close(jnp.diff(ReLUNetTask(4).labels(KEY, line), 2), 0, atol=1e-4)  # positively homogeneous
    ends = ReLUNetTask(4).labels(KEY, jnp.stack([line[1], -line[1]]))
    assert abs(ends.sum()) > 1e-3  # not odd


def test_flipped_labels() -> None:
    y = jnp.arange(1.0, 10_001.0).reshape(100, 100)
    for rho in (0.0, 0.1, 0.5, 1.0):
        flipped = flip_labels(y, rho, KEY)
        assert (abs(flipped) == y).all()
        close((flipped < 0).mean(), rho, atol=0.02)
    assert (flip_labels(y, 0.5, KEY)[flip_labels(y, 0.1, KEY) < 0] < 0).all()


@pytest.mark.parametrize("kind", [LinearRegressionTask, DecisionTreeTask, ReLUNetTask])
def test_tasks_are_settings(kind: type) -> None:
    assert kind(3) == kind(3) and hash(kind(3)) == hash(kind(3)) and kind(3) != kind(4)
    x, y = jax.eval_shape(lambda key: kind(3).sample(key, 2, 4), KEY)  # under jit
    assert x.shape == (2, 4, 3) and y.shape == (2, 4)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LinearRegressionTask(0), ValueError, "dim must be >= 1, got 0"),
        (lambda: LinearRegressionTask(2.0), TypeError, "dim"),
        (lambda: LinearRegressionTask(2, mixture=(0.5, 0.4)), ValueError, r"sum to 1, got \(0\.5, 0\.4\)"),
        (lambda: LinearRegressionTask(2, mixture=(1.5, -0.5)), ValueError, "two probabilities"),
        (lambda: LinearRegressionTask(2, mixture=(np.nan, 1.0)), ValueError, "two probabilities"),
        (lambda: LinearRegressionTask(2, centres=(0.0, np.nan)), ValueError, "centres"),
        (lambda: LinearRegressionTask(2, noise=-1.0), ValueError, "noise must be a finite number >= 0"),
        (lambda: LinearRegressionTask(2, task_std=-1.0), ValueError, "task_std"),
        (lambda: LinearRegressionTask(2, task_mean=np.inf), ValueError, "task_mean must be a finite number, got inf"),
        (lambda: flip_labels(np.full(3, np.nan), 0.1, KEY), ValueError, "y must be finite"),
        (lambda: DecisionTreeTask(2, depth=0), ValueError, "depth must be >= 1"),
        (lambda: ReLUNetTask(2, width=0), ValueError, "width must be >= 1"),
        (lambda: ReLUNetTask(2).sample(KEY, 1, 0), ValueError, "k must be >= 1, got 0"),
        (lambda: ReLUNetTask(2).sample(KEY, 0, 1), ValueError, "batch must be >= 1"),
        (lambda: flip_labels(np.ones(3), 1.1, KEY), ValueError, "rho must be a finite number >= 0 and <= 1, got 1.1"),
        (lambda: flip_labels(np.ones(3), -0.1, KEY), ValueError, "rho"),
        (lambda: Task(2).sample(KEY, 1, 1), NotImplementedError, "Task defines no labels"),
    ],
)
def test_bad_tasks(make, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make()
