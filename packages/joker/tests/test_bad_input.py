import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning
from sklearn.utils.validation import NotFittedError

from icml25.joker import EpsilonInsensitive, Hinge, Huber, JokerClassifier, JokerRegressor, Squared, solve_dual
from icml25.joker.rows import RowSource

X = np.random.default_rng(0).normal(size=(30, 3))
Y = X[:, 0] + 0.1 * X[:, 1]
LABELS = (Y > 0).astype(int)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
@pytest.mark.parametrize("where", ["X", "y"])
def test_values_that_are_not_finite(value, where):
    data, target = X.copy(), Y.copy()
    if where == "X":
        data[7, 2] = value
    else:
        target[7] = value
    position = "row 7, column 2" if where == "X" else "Input y contains .*row 7"
    with pytest.raises(ValueError, match=position):
        JokerRegressor().fit(data, target)


def test_values_that_are_not_finite_at_prediction():
    model = JokerRegressor().fit(X, Y)
    bad = X.copy()
    bad[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"Input X contains NaN \(first at row 3, column 1\)"):
        model.predict(bad)


def test_sparse_values_that_are_not_finite():
    bad = sparse.random(20, 5, density=0.5, format="csr", random_state=0)
    bad.data[4] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        JokerRegressor(n_features=10).fit(bad, np.arange(20.0))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"C": 0}, ValueError, "C must be > 0 and finite, got 0"),
        ({"C": np.inf}, ValueError, "C must be > 0 and finite, got inf"),
        ({"C": "1"}, TypeError, "C must be a number, got '1'"),
        ({"delta": -1.0}, ValueError, r"delta must be > 0 and finite, got -1\.0"),
        ({"epsilon": -0.1}, ValueError, r"epsilon must be >= 0 and finite, got -0\.1"),
        ({"gamma": 0.0}, ValueError, r"gamma must be .* got 0\.0"),
        ({"gamma": "median"}, ValueError, "gamma must be one of .*'mean_sqdist'.* got 'median'"),
        ({"block_size": 0}, ValueError, "block_size must be >= 1 and finite, got 0"),
        ({"block_size": 2.5}, TypeError, r"block_size must be an integer, got 2\.5"),
        ({"n_features": 0}, ValueError, "n_features must be >= 1 and finite, got 0"),
        ({"tol": 0.0}, ValueError, r"tol must be > 0 and finite, got 0\.0"),
        ({"radius_decay": 1.5}, ValueError, r"radius_decay must be in \(0, 1\] and finite, got 1\.5"),
        ({"radius_decay": 0.0}, ValueError, r"radius_decay must be in \(0, 1\]"),
        (
            {"loss": "hinge"},
            ValueError,
            r"loss must be one of \['squared', 'huber', 'epsilon_insensitive'\], got 'hinge'",
        ),
        ({"loss": Hinge()}, ValueError, r"loss is for classification, got Hinge\(\) in JokerRegressor"),
        ({"kernel": "poly"}, ValueError, r"kernel must be one of \['rbf', 'laplace', 'student'\], got 'poly'"),
        ({"block_order": "cycle"}, ValueError, "block_order must be one of .*'cyclic'.*, got 'cycle'"),
        ({"init": "zeros"}, ValueError, "init must be one of"),
        ({"dtype": "float16"}, ValueError, r"dtype must be one of \['float32', 'float64'\], got 'float16'"),
        ({"n_features": True}, TypeError, "n_features must be an integer, got True"),
        ({"n_features": 2.5}, TypeError, r"n_features must be an integer, got 2\.5"),
        ({"gamma": True}, TypeError, "gamma must be a number, got True"),
        ({"C": np.nan}, ValueError, "C must be > 0 and finite, got nan"),
        pytest.param(
            {"kernel": lambda x, z: x @ z.T, "n_features": 5},
            NotImplementedError,
            r"shift-invariant kernel .* got the callable <function",
            id="callable kernel",
        ),
    ],
    ids=str,
)
def test_parameters(change, error, message):
    with pytest.raises(error, match=message):
        JokerRegressor(**change).fit(X, Y)


def test_a_regression_loss_in_a_classifier():
    with pytest.raises(ValueError, match=r"\['squared_hinge', 'hinge', 'logistic'\], got 'squared'"):
        JokerClassifier("squared").fit(X, LABELS)


def test_one_class():
    with pytest.raises(ValueError, match=r"one class only, .*4"):
        JokerClassifier().fit(X, np.full(30, 4))


def test_identical_rows_have_no_width():
    with pytest.raises(ValueError, match="zero spread"):
        JokerRegressor().fit(np.ones((10, 2)), np.arange(10.0))
    assert JokerRegressor(gamma=1.0).fit(np.ones((10, 2)), np.arange(10.0)).predict(np.ones((1, 2))) == pytest.approx(
        4.5
    )


def test_shapes_and_kinds():
    with pytest.raises(ValueError, match="0 sample"):
        JokerRegressor().fit(np.empty((0, 3)), np.empty(0))
    model = JokerRegressor().fit(X, Y)
    with pytest.raises(ValueError, match="2 features, but JokerRegressor is expecting 3"):
        model.predict(X[:, :2])
    with pytest.raises(ValueError, match="Complex data"):
        JokerRegressor().fit(X + 1j, Y)
    with pytest.raises(ValueError, match="Complex data"):
        JokerRegressor().fit(torch.from_numpy(X + 1j), Y)
    with pytest.raises((TypeError, ValueError)):
        JokerRegressor().fit(np.array([[{}]] * 30, dtype=object), Y)
    with pytest.raises(TypeError, match="Sparse data was passed"):
        JokerRegressor().fit(sparse.csr_matrix(X), Y)
    with pytest.raises(NotFittedError):
        JokerRegressor().predict(X)


def test_half_precision_warns():
    with pytest.warns(UserWarning, match="X is float16"):
        JokerRegressor().fit(X.astype(np.float16), Y)


def test_a_column_of_labels_is_flattened_with_a_warning():
    with pytest.warns(DataConversionWarning):
        model = JokerClassifier().fit(X, LABELS[:, None])
    assert model.predict(X).shape == (30,)


def test_an_unreached_tolerance_warns_with_the_gap():
    with pytest.warns(ConvergenceWarning, match=r"max_epochs=1 reached at a relative duality gap of \d.* > tol=1e-12"):
        JokerRegressor(block_size=5, C=100.0, max_epochs=1, tol=1e-12).fit(X, Y)


def test_a_restart_on_other_rows():
    model = JokerRegressor(warm_start=True).fit(X, Y)
    with pytest.raises(ValueError, match=r"dual_coef_ is \(30, 1\), the new targets \(20, 1\)"):
        model.fit(X[:20], Y[:20])


def test_data_too_large_for_the_gpu_go_block_by_block(monkeypatch):
    def full(*_args, **_kwargs):
        raise torch.cuda.OutOfMemoryError

    source = RowSource(X, torch.device("cuda"), torch.float32)
    monkeypatch.setattr(torch, "as_tensor", full)
    with pytest.warns(UserWarning, match="does not fit in the GPU memory"):
        assert source.resident() is source


def test_solve_dual_checks_its_input():
    psi, y = torch.randn(8, 3), torch.ones(8)
    with pytest.raises(ValueError, match="8 rows and y 7"):
        solve_dual(psi, y[:7], "squared")
    with pytest.raises(ValueError, match="loss must be one of"):
        solve_dual(psi, y, "absolute")
    with pytest.raises(ValueError, match=r"y must be -1 or \+1 for Hinge, got 0\.0"):
        solve_dual(psi, y * 0, "hinge")
    with pytest.raises(ValueError, match="needs a square matrix"):
        solve_dual(psi, y, "squared", gram=True)
    with pytest.raises(ValueError, match="expected the same dtype"):
        solve_dual(psi, y.double(), "squared")
    with pytest.raises(ValueError, match="psi_or_gram contains NaN"):
        solve_dual(psi * torch.nan, y, "squared")
    with pytest.raises(ValueError, match="block_order must be one of"):
        solve_dual(psi, y, "squared", block_order="sorted")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"C": -1.0}, "C must be > 0"),
        ({"C": np.nan}, "C must be > 0"),
        ({"tol": 0.0}, "tol must be > 0"),
        ({"max_epochs": 0}, "max_epochs must be >= 1"),
        ({"check_every": 0}, "check_every must be >= 1"),
        ({"block_size": 0}, "block_size must be >= 1"),
        ({"seed": -1}, "seed must be >= 0"),
        ({"epochs": -1}, "epochs must be >= 0"),
        ({"radius_decay": 2.0}, r"radius_decay must be in \(0, 1\]"),
        ({"init": "zeros"}, "init must be one of"),
        ({"alpha": torch.zeros(7, 1)}, r"alpha is torch.float32 of shape \(7, 1\); expected .* \(8, 1\)"),
        ({"alpha": torch.full((8, 1), torch.nan)}, "alpha contains NaN"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_solve_dual_checks_its_options(change, message):
    with pytest.raises(ValueError, match=message):
        solve_dual(torch.randn(8, 3), torch.ones(8), "squared", **change)


def test_losses_check_their_own_parameters():
    with pytest.raises(ValueError, match="delta must be > 0 and finite, got -1"):
        Huber(-1)
    with pytest.raises(ValueError, match="epsilon must be >= 0 and finite, got nan"):
        EpsilonInsensitive(np.nan)


def test_a_negative_gap_certifies_nothing():
    class Wrong(Squared):
        def conjugate(self, a, y, C):
            return super().conjugate(a, y, C) - 1

    result = solve_dual(torch.eye(4), torch.ones(4), Wrong(), max_epochs=3)
    assert result.relative_gap < -0.1
    assert result.epochs == 3
    assert not result.converged


@pytest.mark.parametrize("n_features", [None, np.int64(20)])
def test_numpy_scalars_are_numbers(n_features):
    options = {"block_size": 7, "max_epochs": 50, "C": 0.5}
    cast = {name: np.array(value)[()] for name, value in options.items()}
    plain = JokerRegressor(n_features=None if n_features is None else 20, random_state=0, **options).fit(X, Y)
    model = JokerRegressor(n_features=n_features, random_state=0, **cast).fit(X, Y)
    assert (model.predict(X) == plain.predict(X)).all()


def test_files_that_are_no_models(tmp_path):
    model = JokerRegressor(random_state=0).fit(X, Y)
    model.save(tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "garbage").write_bytes(b"not a model")
    (tmp_path / "empty").write_bytes(b"")
    np.save(tmp_path / "array.npy", X)
    np.savez(tmp_path / "other.npz", X=X)
    np.savez(tmp_path / "list.npz", meta=np.array("[1]"))
    for name in ("cut", "garbage", "empty", "array.npy", "other.npz", "list.npz"):
        with pytest.raises(ValueError, match=f"cannot load .*{name}"):
            JokerRegressor.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        JokerRegressor.load(tmp_path / "missing")


def test_a_memory_map_is_never_uploaded_whole(tmp_path, monkeypatch):
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    kept = JokerRegressor().fit(mapped[2:], Y[2:]).X_fit_
    assert np.shares_memory(kept, mapped)

    def uploaded(*_args, **_kwargs):
        raise AssertionError("uploaded")

    monkeypatch.setattr(torch, "as_tensor", uploaded)
    source = RowSource(kept, torch.device("cuda"), torch.float32)
    assert source.resident() is source
    with pytest.raises(AssertionError, match="uploaded"):
        RowSource(X, torch.device("cuda"), torch.float32).resident()
