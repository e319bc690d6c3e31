"""The generators."""

import jax
import numpy as np
import pytest

from icml25.feature_scales import ising_task, teacher_task


def test_ising_task():
    X, y = ising_task(jax.random.key(0), 4000, 50, 0.1)
    assert X.shape == (4000, 50) and set(np.unique(X)) == {-1.0, 1.0} and y.sum() == 0
    np.testing.assert_allclose((X * y[:, None]).mean(0), 0.2, atol=0.07)
    assert (X * y[:, None]).mean() == pytest.approx(0.2, abs=0.01)
    flips = X[y > 0] - X[y > 0].mean(0)
    np.testing.assert_allclose(flips.T @ flips / 2000, 0.96 * np.eye(50), atol=0.1)
    _, odd = ising_task(jax.random.key(0), 5)
    assert abs(odd.sum()) == 1


def test_teacher_task():
    X, y = teacher_task(jax.random.key(1), 2000, 4)
    u, residual, *_ = np.linalg.lstsq(X, y, rcond=None)
    assert np.linalg.norm(u) == pytest.approx(1) and residual.sum() < 1e-20
    np.testing.assert_allclose(X.T @ X / 2000, np.eye(4), atol=0.1)


@pytest.mark.parametrize("task", [ising_task, teacher_task])
def test_keys(task):
    one, two, other = task(jax.random.key(0), 9, 4), task(jax.random.key(0), 9, 4), task(jax.random.key(1), 9, 4)
    np.testing.assert_array_equal(one[0], two[0])
    assert (one[0] != other[0]).any()


def test_bad_input():
    with pytest.raises(ValueError, match="P=0"):
        ising_task(jax.random.key(0), 0)
    with pytest.raises(ValueError, match="D=0"):
        teacher_task(jax.random.key(0), 3, 0)
    with pytest.raises(ValueError, match=r"dp=0\.6"):
        ising_task(jax.random.key(0), 3, 3, 0.6)
