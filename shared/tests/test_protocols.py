"""The multi-view protocol."""

import numpy as np
import pytest

from icml25.shared.protocols.multiview import (
    accuracy_by_rejection,
    conflicting_views,
    scale_views,
    uncertainty_auroc,
    uncertainty_fpr95,
)


def make(n: int = 200, n_views: int = 3) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(n) % 4
    return [(y[:, None] + 10 * v + rng.random((n, 2)) / 2).astype(np.float32) for v in range(n_views)], y


def test_scaling_knows_the_training_rows_only() -> None:
    train = [np.array([[0.0, 5.0], [2.0, 5.0]])]
    test = [np.array([[4.0, 6.0]])]
    scaled, other = scale_views(train, test)
    np.testing.assert_array_equal(scaled[0], [[0, 0], [1, 0]])
    np.testing.assert_array_equal(other[0], [[2, 1]])  # not clipped; a constant feature is only shifted


def test_conflicts_come_from_another_class() -> None:
    views, y = make()
    out, touched = conflicting_views(views, y, (views, y), seed=1, noise_ratio=0.0, conflict_ratio=0.4)
    assert touched.sum() == 80 and (touched.sum(1) <= 1).all()
    for v, (before, after) in enumerate(zip(views, out, strict=True)):
        changed = (before != after).any(1)
        np.testing.assert_array_equal(changed, touched[:, v])
        donors = np.floor(after[changed, 0] - 10 * v)
        assert (donors != y[changed]).all()


def test_noise_has_its_size_and_leaves_one_view_alone() -> None:
    views, y = make(2000)
    out, touched = conflicting_views(views, y, (views, y), seed=1, noise_ratio=0.5, sigma=0.5, conflict_ratio=0.0)
    assert touched.any(1).sum() <= 1000 and (touched.sum(1) < 3).all()
    noise = np.concatenate([(b - a)[touched[:, v]].ravel() for v, (a, b) in enumerate(zip(views, out, strict=True))])
    assert noise.std() == pytest.approx(0.5, rel=0.1)


def test_the_seed_decides() -> None:
    views, y = make()
    one, same, other = (conflicting_views(views, y, (views, y), seed=s)[0] for s in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(one, same, strict=True))
    assert any((a != b).any() for a, b in zip(one, other, strict=True))


def test_uncertainty_scores() -> None:
    normal, conflict = np.linspace(0, 0.5, 100), np.linspace(0.51, 1, 100)
    assert uncertainty_auroc(normal, conflict) == 1
    assert uncertainty_fpr95(normal, conflict) == 0
    assert uncertainty_auroc(conflict, normal) == 0
    assert uncertainty_auroc(normal, normal) == 0.5
    assert uncertainty_fpr95(normal, normal) == pytest.approx(0.95)


def test_rejection_keeps_the_most_certain() -> None:
    correct = np.array([1, 1, 1, 0, 0, 1, 1, 1, 1, 1], dtype=bool)
    uncertainty = np.array([0, 0, 0, 9, 8, 1, 1, 1, 1, 7.0])
    assert accuracy_by_rejection(correct, uncertainty) == pytest.approx([0.8, 8 / 9, 1.0, 1.0])
