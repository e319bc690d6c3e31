"""MATLAB files in all the layouts that are about."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.io import savemat

from icml25.fuml import load_mat

rng = np.random.default_rng(0)
Y = np.array([3, 1, 2, 1, 3, 2])
VIEWS = [rng.random((6, 4)), rng.random((6, 2))]


def cell(views, shape):
    out = np.empty(shape, dtype=object)
    out.ravel()[:] = views
    return out


def write(path, **content):
    savemat(path, content)
    return path


@pytest.mark.parametrize("label_key", ["Y", "y", "gt"])
@pytest.mark.parametrize("shape", [(1, 2), (2, 1)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("labels", [Y, Y[:, None], Y.astype(np.uint8)])
def test_layouts(tmp_path, label_key, shape, transposed, labels):
    X = cell([v.T if transposed else v for v in VIEWS], shape)
    views, y = load_mat(write(tmp_path / "d.mat", X=X, **{label_key: labels}))
    assert len(views) == 2
    for got, expected in zip(views, VIEWS, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert y.dtype == np.int64
    assert y.tolist() == [2, 0, 1, 0, 2, 1]


@pytest.mark.parametrize("transposed", [False, True])
def test_sparse_cells(tmp_path, transposed):
    views = [sp.csc_array(v.T if transposed else v) for v in VIEWS]
    got, _ = load_mat(write(tmp_path / "d.mat", X=cell(views, (1, 2)), Y=Y))
    assert all(sp.issparse(g) and g.format == "csr" for g in got)
    np.testing.assert_array_equal(got[0].toarray(), VIEWS[0])


def test_a_square_view_follows_the_others(tmp_path):
    square = rng.random((6, 6))
    for views in ([square, VIEWS[0]], [square.T, VIEWS[0].T]):
        got, _ = load_mat(write(tmp_path / "d.mat", X=cell(views, (1, 2)), Y=Y))
        np.testing.assert_array_equal(got[0], square)
    with pytest.raises(ValueError, match="ambiguous"):
        load_mat(write(tmp_path / "d.mat", X=cell([square, VIEWS[0], VIEWS[1].T], (1, 3)), Y=Y))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"A": VIEWS[0], "Y": Y}, r"d\.mat must hold.*found the keys \['A', 'Y'\]"),
        ({"X": cell(VIEWS, (1, 2)), "labels": Y}, r"d\.mat must hold.*found the keys \['X', 'labels'\]"),
        ({"X": VIEWS[0], "Y": Y}, "X must be a cell array"),
        ({"X": cell([VIEWS[0], VIEWS[1][:5]], (1, 2)), "Y": Y}, "view 1 must be a matrix of numbers with 6"),
        ({"X": cell([VIEWS[0], "text"], (1, 2)), "Y": Y}, "view 1 must be a matrix"),
        ({"X": cell(VIEWS, (1, 2)), "Y": np.eye(6)}, "Y must be one column or row"),
    ],
)
def test_bad_content(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        load_mat(write(tmp_path / "d.mat", **content))


def test_bad_files(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_mat(tmp_path / "none.mat")
    path = tmp_path / "new.mat"
    header = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"
    path.write_bytes(header + b"\x00" * 384 + b"\x89HDF\r\n\x1a\n")
    with pytest.raises(ValueError, match=r"new\.mat is a MATLAB 7\.3 \(HDF5\) file"):
        load_mat(path)
    whole = write(tmp_path / "d.mat", X=cell(VIEWS, (1, 2)), Y=Y).read_bytes()
    (tmp_path / "cut.mat").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cut\.mat is not a readable MATLAB file"):
        load_mat(tmp_path / "cut.mat")
