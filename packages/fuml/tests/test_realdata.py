"""The paper's own data, where they are present (ICML25_DATA)."""

import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from icml25.fuml import FUMLClassifier, corrupt_views, load_mat

pytestmark = pytest.mark.realdata


def path(name):
    folder = os.environ.get("ICML25_DATA")
    if not folder or not (Path(folder) / name).is_file():
        pytest.skip(f"ICML25_DATA does not hold {name}")
    return Path(folder) / name


def test_handwritten_digits():
    """HW: 2000 digits in 6 views, 30 epochs, one seed fixed in advance."""
    with np.load(path("multiview/uci_mfeat.npz")) as data:
        y = data["y"].astype(int)
        views = {name: data[name].astype(np.float32) for name in ("pix", "fou", "fac", "zer", "kar", "mor")}
    train, test = train_test_split(np.arange(2000), test_size=0.2, stratify=y, random_state=0)
    clf = FUMLClassifier(epochs=30, random_state=0).fit({k: v[train] for k, v in views.items()}, y[train])
    normal = {k: v[test] for k, v in views.items()}
    assert clf.score(normal, y[test]) >= 0.98

    scaled = {k: s.transform(v) for (k, v), s in zip(views.items(), clf.scalers_, strict=True)}
    conflicting, touched = corrupt_views(
        {k: v[test] for k, v in scaled.items()},
        y[test],
        random_state=0,
        reference=({k: v[train] for k, v in scaled.items()}, y[train]),
    )
    conflicting = {k: s.inverse_transform(v) for (k, v), s in zip(conflicting.items(), clf.scalers_, strict=True)}
    u = clf.uncertainty(conflicting)
    assert u.mean() > clf.uncertainty(normal).mean() + 0.05
    assert u[touched.any(1)].mean() > u[~touched.any(1)].mean() + 0.1
    assert clf.score(conflicting, y[test]) >= 0.96


def test_land_use_file():
    views, y = load_mat(path("multiview/LandUse_21.mat"))
    assert [v.shape for v in views] == [(2100, 20), (2100, 59), (2100, 40)]
    assert np.array_equal(np.bincount(y), np.full(21, 100))
    clf = FUMLClassifier(epochs=2, random_state=0).fit(views, y)
    assert clf.score(views, y) > 2 / 21
