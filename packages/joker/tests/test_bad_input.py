import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning
from sklearn.utils.validation import NotFittedError

from icml25.joker import Hinge, JokerClassifier, JokerRegressor, solve_dual
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
    position = "row 7, column 2" if where == "X" else "y contains"
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
        ({"n_features": 0}, ValueError, "n_features must be None or an integer >= 1, got 0"),
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
        (
            {"kernel": lambda x, z: x @ z.T, "n_features": 5},
            NotImplementedError,
            "shift-invariant kernel .* got the callable <function",
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
    with pytest.raises(ValueError, match="one class only, .*4"):
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
