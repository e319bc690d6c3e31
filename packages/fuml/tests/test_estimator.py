"""The classifier: scikit-learn's contract, every kind of input, training that can be stopped and resumed."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.base import clone
from sklearn.datasets import load_iris, make_classification
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from icml25.fuml import FUMLClassifier, FusionReport
from icml25.fuml import estimator as estimator_module
from icml25.fuml.views import View

WEIGHTS = "mini-batches of weighted rows are other batches than those of repeated rows; see test_sample_weight_*"


@parametrize_with_checks(
    [FUMLClassifier(2, n_layers=2, hidden_width=16, head_bias=0.5, epochs=8, lr=3e-2, random_state=0)],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
        "check_sample_weight_equivalence_on_sparse_data": WEIGHTS,
    },
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    X, y = make_classification(90, 8, n_informative=6, n_redundant=0, n_classes=3, random_state=0)
    return X, y


def small(views=None, **parameters):
    return FUMLClassifier(views, **{"epochs": 5, "batch_size": 32, "random_state": 0} | parameters)


CUT = [(0, 3), (3, 8)]
OVERFIT = {"hidden_width": 32, "head_bias": 0.5, "lr": 0.03}  # the best validation loss comes early


def test_splitters_pipelines_and_searches_of_scikit_learn(data):
    X, y = data
    assert np.isfinite(cross_val_score(small(CUT, epochs=1), X, y, cv=2)).all()
    search = GridSearchCV(small(CUT, epochs=1), {"p": [2, 3]}, cv=2).fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert 0 <= make_pipeline(StandardScaler(), small(CUT)).fit(X, y).score(X, y) <= 1


def test_two_spellings_of_the_views_agree(data):
    X, y = data
    cut = small(CUT).fit(X, y).credibility(X)
    np.testing.assert_allclose(small().fit([X[:, :3], X[:, 3:]], y).credibility([X[:, :3], X[:, 3:]]), cut, atol=1e-6)
    np.testing.assert_allclose(small([[0, 1, 2], [3, 4, 5, 6, 7]]).fit(X, y).credibility(X), cut, atol=1e-6)
    np.testing.assert_allclose(small(CUT).fit([X[:, :3], X[:, 3:]], y).credibility(X), cut, atol=1e-6)


@pytest.mark.parametrize("convert", [np.asarray, pd.DataFrame, sp.csr_matrix, lambda X: X.tolist()])
def test_one_array_without_views_is_refused(data, convert):
    X, y = data
    with pytest.raises((TypeError, ValueError), match="view"):
        small().fit(convert(X), y)


def test_a_number_of_views_cuts_contiguous_blocks(data):
    X, y = data
    np.testing.assert_array_equal(
        small(3).fit(X, y).credibility(X), small([(0, 3), (3, 6), (6, 8)]).fit(X, y).credibility(X)
    )


@pytest.mark.parametrize("fmt", ["csr", "csc", "coo"])
def test_sparse_views(data, fmt):
    X, y = data
    X = np.where(np.abs(X) > 0.7, X, 0.0)
    dense, sparse = [X[:, :3], X[:, 3:]], [X[:, :3], sp.csr_array(X[:, 3:]).asformat(fmt)]
    expected = small().fit(dense, y)
    clf = small().fit(sparse, y)
    np.testing.assert_allclose(clf.credibility(sparse), expected.credibility(dense), atol=1e-6)
    whole = small(CUT).fit(sp.csr_matrix(X), y)
    np.testing.assert_allclose(whole.credibility(sp.csr_matrix(X)), expected.credibility(dense), atol=1e-6)


def test_rows_are_read_in_batches(data, monkeypatch):
    X, y = data
    sparse = [sp.csr_array(X[:, :3]), X[:, 3:]]
    sizes = []
    rows = View.rows

    def counted(self, index):
        out = rows(self, index)
        sizes.append(len(out))
        return out

    expected = small().fit(sparse, y).credibility(sparse)
    monkeypatch.setattr(View, "rows", counted)
    monkeypatch.setattr(estimator_module, "ROWS_AT_ONCE", 20)
    clf = small(batch_size=16, validation_fraction=0.2).fit(sparse, y)
    assert max(sizes) <= 20
    sizes.clear()
    clf.explain(sparse)
    assert max(sizes) <= 20
    assert sum(sizes) == 2 * len(y)
    np.testing.assert_allclose(small().fit(sparse, y).credibility(sparse), expected, atol=1e-6)


def test_mappings_are_matched_by_key(data):
    X, y = data
    views = {"left": X[:, :3], "right": X[:, 3:]}
    clf = small().fit(views, y)
    expected = small().fit(list(views.values()), y).credibility(list(views.values()))
    np.testing.assert_array_equal(clf.credibility({"right": X[:, 3:], "left": X[:, :3]}), expected)
    with pytest.raises(ValueError, match="keys"):
        clf.predict({"left": X[:, :3], "middle": X[:, 3:]})
    with pytest.raises(ValueError, match="sequence"):
        clf.predict([X[:, :3], X[:, 3:]])
    with pytest.raises(TypeError, match="keys"):
        small().fit({0: X[:, :3]}, y)


def test_frames_keep_their_names(data):
    X, y = data
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(8)])
    whole = small(CUT).fit(frame, y)
    assert list(whole.feature_names_in_) == list(frame.columns)
    views = [frame.iloc[:, :3], frame.iloc[:, 3:]]
    clf = small().fit(views, y)
    assert list(clf.feature_names_in_) == list(frame.columns)
    assert clf.n_features_in_ == 8
    np.testing.assert_array_equal(clf.predict(views), whole.predict(frame))
    with pytest.raises(ValueError, match="view 1 must have the columns"):
        clf.predict([views[0], views[1].iloc[:, ::-1]])


def test_names_are_kept_per_view(data, tmp_path):
    X, y = data
    frame = pd.DataFrame(X[:, 3:], columns=list("abcde"))
    clf = small().fit([X[:, :3], frame], y)
    clf.save(tmp_path / "m")
    for fitted in (clf, FUMLClassifier.load(tmp_path / "m")):
        np.testing.assert_array_equal(fitted.predict([X[:, :3], frame]), fitted.predict([X[:, :3], X[:, 3:]]))
        with pytest.raises(ValueError, match="view 1 must have the columns"):
            fitted.predict([X[:, :3], frame.iloc[:, ::-1]])
    cut = small([[7, 0], (2, 5)]).fit(pd.DataFrame(X, columns=list("abcdefgh")), y)
    views = [pd.DataFrame(X[:, [7, 0]], columns=list("ha")), pd.DataFrame(X[:, 2:5], columns=list("cde"))]
    np.testing.assert_array_equal(cut.credibility(views), cut.credibility(pd.DataFrame(X, columns=list("abcdefgh"))))
    with pytest.raises(ValueError, match="view 0 must have the columns"):
        cut.predict([views[0].iloc[:, ::-1], views[1]])


def test_labels_of_any_kind(data):
    X, y = data
    names = np.array(["cat", "dog", "eel"])[y]
    clf = small(CUT).fit(X, names)
    assert set(clf.predict(X)) <= set(names)
    np.testing.assert_array_equal(clf.predict(X), np.array(["cat", "dog", "eel"])[small(CUT).fit(X, y).predict(X)])
    np.testing.assert_array_equal(small(CUT).fit(X, pd.Series(names)).predict(X), clf.predict(X))


def test_outputs_agree_with_each_other(data):
    X, y = data
    clf = small(CUT, epochs=20).fit(X, y)
    c, m, report = clf.credibility(X), clf.membership(X), clf.explain(X)
    assert c.dtype == m.dtype == report.weights.dtype == np.float32
    assert isinstance(report, FusionReport)
    np.testing.assert_array_equal(clf.predict(X), clf.classes_[c.argmax(1)])
    np.testing.assert_array_equal(clf.predict(X), clf.classes_[m.argmax(1)])
    top2 = np.sort(m, axis=1)[:, -2:]
    np.testing.assert_allclose(c.max(1), (top2[:, 1] + 1 - top2[:, 0]) / 2, atol=1e-6)
    np.testing.assert_allclose(clf.predict_proba(X), c / c.sum(1, keepdims=True), atol=1e-6)
    np.testing.assert_array_equal(report.label, clf.predict(X))
    np.testing.assert_array_equal(report.uncertainty, clf.uncertainty(X))
    np.testing.assert_allclose(report.weights.sum(1), 1, atol=1e-6)
    gain = (1 - report.view_uncertainty) * (1 - report.conflict)
    np.testing.assert_allclose(report.weights, np.exp(gain) / np.exp(gain).sum(1, keepdims=True), atol=1e-6)
    assert report.view_label.shape == (90, 2)


def test_it_learns():
    X, y = load_iris(return_X_y=True)
    clf = FUMLClassifier(2, hidden_width=16, head_bias=0.5, epochs=40, lr=2e-2, random_state=0).fit(X, y)
    assert clf.score(X, y) > 0.93
    assert clf.history_[-1]["loss"] < 0.5 * clf.history_[0]["loss"]


def test_a_contradicting_view_raises_uncertainty_and_loses_weight():
    X, y = load_iris(return_X_y=True)
    clf = FUMLClassifier(2, hidden_width=16, head_bias=0.5, epochs=40, lr=2e-2, random_state=0).fit(X, y)
    wrong = X.copy()
    wrong[:, :2] = X[::-1, :2]  # view 0 of another class for the first and last 50 rows
    rows = np.r_[0:50, 100:150]
    assert clf.uncertainty(wrong)[rows].mean() > clf.uncertainty(X)[rows].mean() + 0.02
    assert clf.explain(wrong).conflict[rows].mean() > clf.explain(X).conflict[rows].mean()


@pytest.mark.parametrize("fusion", ["drf", "average", "uncertainty", "conflict"])
def test_fusion_modes(data, fusion):
    X, y = data
    report = small(3, fusion=fusion, epochs=2).fit(X, y).explain(X)
    gain = {
        "drf": (1 - report.view_uncertainty) * (1 - report.conflict),
        "average": np.zeros((90, 3)),
        "uncertainty": 1 - report.view_uncertainty,
        "conflict": 1 - report.conflict,
    }[fusion]
    np.testing.assert_allclose(report.weights, np.exp(gain) / np.exp(gain).sum(1, keepdims=True), atol=1e-6)


def test_scaling_is_fitted_on_the_training_rows_alone(data):
    X, y = data
    clf = small(CUT, validation_fraction=0.3).fit(X, y)
    assert [s.n_samples_seen_ for s in clf.scalers_] == [63, 63]
    ranges = [np.ptp(part, axis=0) for part in (X[:, :3], X[:, 3:])]
    assert all((s.data_range_ <= r).all() for s, r in zip(clf.scalers_, ranges, strict=True))
    assert clf.uncertainty(100 * X).shape == (90,)  # neither clipped nor refused
    assert small(CUT, scale=None).fit(X, y).scalers_ is None


@pytest.mark.parametrize(("dtype", "low", "high"), [("f2", 0, 1e-3), ("f2", -6e4, 6e4), ("f4", -3e38, 3e38)])
def test_scaling_works_in_double_precision(dtype, low, high):
    rng = np.random.default_rng(0)
    X, y = (low + (high - low) * rng.random((60, 4))).astype(dtype), np.arange(60) % 2
    clf = small(2).fit(X, y)
    np.testing.assert_array_equal(clf.credibility(X), small(2).fit(X.astype(float), y).credibility(X.astype(float)))
    for scaler, part in zip(clf.scalers_, (X[:, :2], X[:, 2:]), strict=True):
        np.testing.assert_allclose(np.ptp(part.astype(float) * scaler.scale_, axis=0), 1)


def test_a_range_that_overflows_is_refused(data):
    X = data[0].copy()
    X[:2, 4] = -1.5e308, 1.5e308
    with pytest.raises(ValueError, match=r"view 1 .* too large"):
        small(CUT).fit(X, data[1])


def test_numpy_scalars_are_numbers(data, tmp_path):
    X, y = data
    numbers = {"epochs": 3, "batch_size": 32, "n_layers": 2, "hidden_width": 4, "p": 2, "views": 2}
    numbers |= {"lr": 0.25, "dropout": 0.25, "weight_decay": 0.5, "validation_fraction": 0.25, "head_bias": 0.5}
    as_numpy = {k: np.int64(v) if isinstance(v, int) else np.float32(v) for k, v in numbers.items()}
    clf = small(**as_numpy, fusion=np.str_("drf"), warm_start=np.True_, random_state=np.int32(0)).fit(X, y)
    np.testing.assert_array_equal(clf.credibility(X), small(**numbers).fit(X, y).credibility(X))
    clf.save(tmp_path / "m")
    loaded = FUMLClassifier.load(tmp_path / "m")
    assert {k: loaded.get_params()[k] for k in numbers} == numbers
    np.testing.assert_array_equal(loaded.credibility(X), clf.credibility(X))
    grid = {"p": np.arange(2, 4), "dropout": np.float32([0, 0.1])}
    assert GridSearchCV(small(2, epochs=1), grid, cv=2, error_score="raise").fit(X, y).best_params_


def test_weight_decay_shrinks_the_weights(data):
    def norm(weight_decay):
        module = small(CUT, epochs=20, lr=1e-2, weight_decay=weight_decay).fit(*data).module_
        return sum(float(w.detach().square().sum()) for w in module.state_dict().values())

    assert norm(0.5) < 0.7 * norm(0.0)
    assert FUMLClassifier().weight_decay == 1e-5


def test_keeping_the_best_epoch_does_not_change_the_path_of_training(data, monkeypatch):
    X, y = data
    parameters = {"epochs": 12, "validation_fraction": 0.3, **OVERFIT, "lr": 0.1}
    losses = [r["loss"] for r in small(CUT, **parameters).fit(X, y).history_]
    falling = iter(range(0, -100, -1))  # as if every epoch were the best so far
    monkeypatch.setattr(FUMLClassifier, "_validate", lambda *_: {"validation_loss": next(falling)})
    assert [r["loss"] for r in small(CUT, **parameters).fit(X, y).history_] == losses


def test_the_best_epoch_on_the_validation_split_is_kept(data):
    X, y = data
    seen = {}

    def watch(clf, record):
        seen[record["epoch"]] = (record["validation_loss"], clf.credibility(X))

    clf = small(CUT, epochs=40, validation_fraction=0.3, **OVERFIT).fit(X, y, callback=watch)
    losses = [record["validation_loss"] for record in clf.history_]
    best = int(np.argmin(losses)) + 1
    assert best < 40
    np.testing.assert_array_equal(clf.credibility(X), seen[best][1])
    np.testing.assert_array_equal(seen[40][1], seen[best][1])  # a callback sees what fit would return
    assert not np.array_equal(seen[1][1], seen[best][1])
    assert all(0 <= record["validation_accuracy"] <= 1 for record in clf.history_)


def stop_at(epoch):
    return lambda _, record: record["epoch"] == epoch


@pytest.mark.parametrize("fraction", [0.0, 0.3])
@pytest.mark.parametrize("through_file", [False, True])
def test_a_stopped_run_resumes_to_the_same_result(data, fraction, through_file, tmp_path):
    X, y = data
    parameters = {"epochs": 16, "validation_fraction": fraction, **OVERFIT, "lr": 0.1}
    whole = small(CUT, **parameters).fit(X, y)
    clf = small(CUT, **parameters).fit(X, y, callback=stop_at(11))
    assert len(clf.history_) == 11
    assert (clf._current is not None) == (fraction > 0)  # stopped after the best epoch
    if through_file:
        clf.save(tmp_path / "half.safetensors")
        clf = FUMLClassifier.load(tmp_path / "half.safetensors")
    clf.resume(X, y)
    assert clf.history_ == whole.history_
    np.testing.assert_array_equal(clf.credibility(X), whole.credibility(X))
    assert clf.resume(X, y).history_ == whole.history_  # nothing left to do


def fail_in_step(monkeypatch, step, error):
    """Raise after some steps of the optimiser, in the middle of an epoch."""
    steps, original = [], torch.optim.Adam.step

    def counted(self, *args):
        original(self, *args)
        steps.append(1)
        if len(steps) == step:
            raise error

    monkeypatch.setattr(torch.optim.Adam, "step", counted)


@pytest.mark.parametrize("fraction", [0.0, 0.3])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("no memory")])
def test_an_interrupted_epoch_leaves_no_trace(data, monkeypatch, fraction, error):
    X, y = data
    parameters = {"epochs": 9, "batch_size": 30, "validation_fraction": fraction, **OVERFIT}
    four = small(CUT, **parameters).fit(X, y, callback=stop_at(4))
    whole = small(CUT, **parameters).fit(X, y)
    clf = small(CUT, **parameters)
    with monkeypatch.context() as patch:
        fail_in_step(patch, 4 * 3 + 2, error)
        with pytest.raises(type(error)):
            clf.fit(X, y)
    assert not clf.module_.training
    assert clf.history_ == four.history_
    np.testing.assert_array_equal(clf.credibility(X), four.credibility(X))
    np.testing.assert_array_equal(clf.resume(X, y).credibility(X), whole.credibility(X))


def test_a_callback_that_fails_keeps_its_epoch(data):
    X, y = data
    clf = small(CUT, epochs=6)
    with pytest.raises(ZeroDivisionError):
        clf.fit(X, y, callback=lambda _, record: 1 / (record["epoch"] - 3))
    assert len(clf.history_) == 3 and not clf.module_.training
    np.testing.assert_array_equal(clf.resume(X, y).credibility(X), small(CUT, epochs=6).fit(X, y).credibility(X))


def test_a_callback_may_return_a_numpy_bool(data):
    clf = small(CUT).fit(*data, callback=lambda *_: np.bool_(True))
    assert len(clf.history_) == 1


def test_a_failed_call_before_the_first_epoch_changes_nothing(data, monkeypatch):
    X, y = data
    bad = X.copy()
    bad[3, 5] = np.nan
    fresh = small(CUT)
    with pytest.raises(ValueError, match="NaN"):
        fresh.partial_fit(bad, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="not in classes_"):
        fresh.partial_fit(X, y + 1, classes=[0, 1, 2])
    assert vars(fresh) == vars(small(CUT))
    fresh.partial_fit(X, y, classes=[0, 1, 2])

    clf = small(CUT).fit(X, y)
    before, state = clf.credibility(X), vars(clf).copy()
    for views, target in ((bad, y), (X[:, :6], y), (X, np.zeros(90)), ([X, X[:80]], y), (X, np.linspace(0, 1, 90))):
        with pytest.raises(ValueError):
            clf.fit(views, target)
    with monkeypatch.context() as patch:
        fail_in_step(patch, 2, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            clf.fit(X, y)
        with pytest.raises(ValueError, match="not in classes_"):
            clf.set_params(warm_start=True).fit(X, y + 1)
    assert vars(clf) == state | {"warm_start": True}
    np.testing.assert_array_equal(clf.credibility(X), before)


def test_resume_refuses_other_targets(data, tmp_path):
    X, y = data
    clf = small(CUT).fit(X, y, callback=stop_at(2))
    clf.save(tmp_path / "m")
    for stopped in (clf, FUMLClassifier.load(tmp_path / "m")):
        for views, target, weight in ((X, y[::-1], None), (X[:80], y[:80], None), (X, y, np.ones(90))):
            with pytest.raises(ValueError, match="must be those of fit"):
                stopped.resume(views, target, weight)
        assert len(stopped.resume(X, list(y)).history_) == 5


def test_a_checkpoint_written_by_the_callback_resumes(data, tmp_path):
    X, y = data
    path = tmp_path / "checkpoint"
    whole = small(CUT, epochs=9).fit(X, y, callback=lambda clf, r: clf.save(path) if r["epoch"] == 4 else None)
    clf = FUMLClassifier.load(path).resume(X, y)
    np.testing.assert_array_equal(clf.credibility(X), whole.credibility(X))


def test_warm_start_trains_on(data):
    X, y = data
    long = small(CUT, epochs=10).fit(X, y)
    clf = small(CUT, warm_start=True).fit(X, y).fit(X, y)
    assert [r["epoch"] for r in clf.history_] == list(range(1, 11))
    np.testing.assert_array_equal(clf.credibility(X), long.credibility(X))
    cold = small(CUT).fit(X, y).fit(X, y)
    assert len(cold.history_) == 5


def test_partial_fit(data):
    X, y = data
    clf = small(CUT, epochs=1)
    with pytest.raises(ValueError, match="classes"):
        clf.partial_fit(X, y)
    for epoch in range(1, 9):
        clf.partial_fit(X, y, classes=[0, 1, 2])
        assert len(clf.history_) == epoch
    whole = small(CUT, epochs=8).fit(X, y)
    np.testing.assert_array_equal(clf.credibility(X), whole.credibility(X))
    clf.partial_fit(X[y == 1], y[y == 1])  # one class in a batch is fine
    with pytest.raises(ValueError, match="not in classes_"):
        clf.partial_fit(X, y + 1)
    with pytest.raises(ValueError, match="differs"):
        clf.partial_fit(X, y, classes=[0, 1])


def test_sample_weight_zero_leaves_rows_out(data):
    X, y = data
    w = np.ones(90)
    w[60:] = 0
    clf = small(CUT).fit(np.vstack([X[:60], 50 * X[60:]]), y, sample_weight=w)
    np.testing.assert_array_equal(clf.credibility(X), small(CUT).fit(X[:60], y[:60]).credibility(X))


def test_sample_weight_is_repetition_in_full_batches(data):
    X, y = data
    w = np.where(y == 0, 5, 1)
    parameters = {"dropout": 0.0, "batch_size": 1000, "epochs": 20, "lr": 1e-2}
    weighted = small(CUT, **parameters).fit(X, y, sample_weight=w).credibility(X)
    repeated = small(CUT, **parameters).fit(np.repeat(X, w, axis=0), np.repeat(y, w)).credibility(X)
    plain = small(CUT, **parameters).fit(X, y).credibility(X)
    np.testing.assert_allclose(weighted, repeated, atol=1e-4)
    assert np.abs(weighted - plain).max() > 1e-2


def test_same_seed_same_result_and_no_global_state(data):
    X, y = data
    state = torch.random.get_rng_state()
    first, same = (small(CUT).fit(X, y).credibility(X) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, small(CUT, random_state=1).fit(X, y).credibility(X))


@pytest.mark.parametrize(
    "views", [CUT, [[0, 2, 4], [1, 3]], 2, [(0, 3), [3, 7]], [np.array([0, 1]), np.array([5, 6, 7])]]
)
def test_save_and_load(data, tmp_path, views):
    X, y = data
    clf = small(views, validation_fraction=0.2).fit(pd.DataFrame(X, columns=list("abcdefgh")), np.array(list("xyz"))[y])
    path = tmp_path / "model.safetensors"
    clf.save(path)
    loaded = FUMLClassifier.load(path)
    frame = pd.DataFrame(X, columns=list("abcdefgh"))
    np.testing.assert_array_equal(loaded.predict(frame), clf.predict(frame))
    np.testing.assert_array_equal(loaded.credibility(frame), clf.credibility(frame))
    assert str(loaded.get_params()) == str(clf.get_params()) or isinstance(views[0], np.ndarray)
    assert loaded.history_ == clf.history_
    assert list(loaded.feature_names_in_) == list("abcdefgh")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors"]


def test_save_and_load_of_mappings_and_unscaled_input(data, tmp_path):
    X, y = data
    views = {"left": X[:, :3], "right": sp.csr_array(X[:, 3:])}
    clf = small(scale=None, random_state=np.random.RandomState(3)).fit(views, y)
    clf.save(tmp_path / "m")
    loaded = FUMLClassifier.load(tmp_path / "m")
    assert loaded.scalers_ is None
    np.testing.assert_array_equal(loaded.credibility(views), clf.credibility(views))


def test_loading_something_else(tmp_path):
    (tmp_path / "junk").write_bytes(b"not a model")
    with pytest.raises(ValueError, match="junk is not a readable safetensors file"):
        FUMLClassifier.load(tmp_path / "junk")
    save_file({"a": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(ValueError, match="other is not a saved FUMLClassifier"):
        FUMLClassifier.load(tmp_path / "other")


DAMAGES = {
    "no weight": lambda t, h: t.pop("module.backbones.0.head.bias"),
    "unknown weight": lambda t, h: t.update({"module.extra": torch.zeros(1)}),
    "unknown group": lambda t, h: t.update({"extra.a": torch.zeros(1)}),
    "unnamed group": lambda t, h: t.update({"extra": torch.zeros(1)}),
    "weight shape": lambda t, h: t.update({"module.backbones.0.head.bias": torch.zeros(2)}),
    "current shape": lambda t, h: t.update({"current.backbones.0.head.bias": torch.zeros(2)}),
    "no moment": lambda t, h: t.pop("optimizer.0.exp_avg"),
    "no optimizer": lambda t, h: [t.pop(key) for key in list(t) if key.startswith("optimizer")],
    "moment shape": lambda t, h: t.update({"optimizer.0.exp_avg": torch.zeros(2)}),
    "no scaler": lambda t, h: [t.pop(key) for key in list(t) if key.startswith("scaler")],
    "scaler shape": lambda t, h: t.update({"scaler.1": torch.zeros(2, 4, dtype=torch.float64)}),
    "one scaler": lambda t, h: t.pop("scaler.1"),
    "no parameter": lambda t, h: h["parameters"].pop("lr"),
    "unknown parameter": lambda t, h: h["parameters"].update(extra=1),
    "parameter out of range": lambda t, h: h["parameters"].update(dropout=2),
    "parameter of another type": lambda t, h: h.update(parameters=3),
    "views": lambda t, h: h["parameters"].update(views=[{"stop": 3}]),
    "widths": lambda t, h: h.update(widths=[3, 4]),
    "classes": lambda t, h: h["classes"]["values"].pop(),
    "dtype": lambda t, h: h["classes"].update(dtype="nothing"),
    "no history": lambda t, h: h.pop("history"),
    "no format": lambda t, h: h.pop("format"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_loading_a_damaged_file(data, tmp_path, damage):
    small(CUT, epochs=1).fit(*data).save(tmp_path / "model")
    with safe_open(tmp_path / "model", framework="pt") as file:
        header = json.loads(file.metadata()["icml25.fuml"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    damage(tensors, header)
    save_file(tensors, tmp_path / "bad", metadata={"icml25.fuml": json.dumps(header)})
    with pytest.raises(ValueError, match=r"bad is (damaged|not a saved)"):
        FUMLClassifier.load(tmp_path / "bad")


@pytest.mark.parametrize("header", ["{", "[]", "3"])
def test_loading_a_damaged_header(tmp_path, header):
    save_file({"a": torch.zeros(1)}, tmp_path / "bad", metadata={"icml25.fuml": header})
    with pytest.raises(ValueError, match="bad is not"):
        FUMLClassifier.load(tmp_path / "bad")


def test_pickle_and_clone(data):
    X, y = data
    clf = small(CUT, validation_fraction=0.2).fit(X, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(clf)).predict_proba(X), clf.predict_proba(X))
    assert clone(clf).get_params() == clf.get_params()


def test_verbose_prints_one_line_per_epoch(data, capsys):
    X, y = data
    small(CUT, verbose=True, validation_fraction=0.2).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("epoch 1, loss ")


def test_empty_input_gives_empty_output(data):
    X, y = data
    clf = small(CUT).fit(X, y)
    for empty in (X[:0], [X[:0, :3], X[:0, 3:]]):
        assert clf.predict(empty).shape == (0,)
        assert clf.credibility(empty).shape == clf.predict_proba(empty).shape == (0, 3)
        assert clf.uncertainty(empty).shape == (0,)
        assert clf.explain(empty).weights.shape == (0, 2)


def test_features_far_from_zero_keep_their_precision():
    rng = np.random.default_rng(0)
    X, y = rng.random((60, 4)), np.arange(60) % 2
    near, far = small(2).fit(X, y).credibility(X), small(2).fit(X + 1e9, y).credibility(X + 1e9)
    np.testing.assert_allclose(near, far, atol=1e-3)


# ---------------------------------------------------------------------- bad input


def test_views_of_different_lengths(data):
    X, y = data
    with pytest.raises(ValueError, match=r"same number of rows.*'0': 90, '1': 80"):
        small().fit([X[:, :3], X[:80, 3:]], y)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_nan_and_infinity_name_the_view(data, value, as_sparse):
    X, y = data
    clf = small().fit([X[:, :3], X[:, 3:]], y)
    bad = X[:, 3:].copy()
    bad[7, 1] = value
    views = [X[:, :3], sp.csr_array(bad) if as_sparse else bad]
    with pytest.raises(ValueError, match="view 1 contains NaN, infinity"):
        clf.predict(views)
    with pytest.raises(ValueError, match="view 1 contains NaN, infinity"):
        small(scale="minmax" if value != 1e300 else None).fit(views, y)
    with pytest.raises(ValueError, match="view 1 contains NaN, infinity"):
        small(CUT, scale=None).fit(np.hstack([X[:, :3], bad]), y)


def test_views_that_differ_from_fit(data):
    X, y = data
    clf = small().fit([X[:, :3], X[:, 3:]], y)
    with pytest.raises(ValueError, match="must hold 2 views as in fit, got 3"):
        clf.predict([X[:, :3], X[:, 3:], X])
    with pytest.raises(ValueError, match="view 1 must have 5 columns as in fit, got 4"):
        clf.predict([X[:, :3], X[:, 4:]])
    with pytest.raises(ValueError, match="8 features"):
        small(CUT).fit(X, y).predict(X[:, :7])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (np.zeros(90), "1 class"),
        (np.linspace(0, 1, 90), "continuous"),
        (np.arange(80) % 3, "same number of rows"),
        (np.r_[np.nan, np.ones(89)], "NaN"),
    ],
)
def test_bad_targets(data, target, message):
    with pytest.raises(ValueError, match=message):
        small(CUT).fit(data[0], target)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (np.zeros(90), "view 1 must be 2-D"),
        (np.full((90, 2), "a"), "view 1 must hold real numbers"),
        (np.full((90, 2), 1.0, dtype=object), "view 1 must hold real numbers"),
        (np.zeros((90, 2), dtype=complex), "view 1 must hold real numbers"),
        (np.zeros((90, 0)), "view 1 has no column"),
    ],
)
def test_bad_views(data, view, message):
    X, y = data
    with pytest.raises((TypeError, ValueError), match=message):
        small().fit([X, view], y)


def test_no_views(data):
    with pytest.raises(ValueError, match="no view"):
        small().fit([], data[1])
    with pytest.raises(TypeError, match="sequence or mapping"):
        small().fit("views", data[1])


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ([], "views is empty"),
        (0, "views=0"),
        (9, "n_features = 8"),
        ("ab", "views must be None"),
        ([(0, 9)], r"views\[0\] must be \(start, stop\)"),
        ([(3, 3)], r"views\[0\] must be \(start, stop\)"),
        ([(0, 3), (0, 3, 5)], r"views\[1\] must be \(start, stop\)"),
        ([[0, 8]], r"views\[0\] must hold column numbers in 0..7"),
        ([[-1]], r"views\[0\] must hold column numbers in 0..7"),
        ([[]], r"views\[0\]"),
        ([["a"]], r"views\[0\]"),
        ([np.array([], dtype=int)], r"views\[0\]"),
        (True, "views must be None"),
        ([[0, True]], r"views\[0\]"),
        ([(False, 3)], r"views\[0\]"),
    ],
)
def test_bad_cuts(data, views, message):
    with pytest.raises((TypeError, ValueError), match=message):
        small(views).fit(*data)


@pytest.mark.parametrize(
    "parameters",
    [
        {"p": 0},
        {"p": 0.5},
        {"p": -1},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"epochs": 0},
        {"epochs": 1.5},
        {"batch_size": 0},
        {"n_layers": 0},
        {"hidden_width": 0},
        {"head_bias": float("nan")},
        {"head_bias": True},
        {"head_bias": "0.5"},
        {"warm_start": "no"},
        {"dropout": False},
        {"device": "tpu"},
        {"device": "meta"},
        {"device": 0.5},
        {"fusion": "mean"},
        {"scale": "standard"},
        {"lr": 0},
        {"weight_decay": -1},
        {"validation_fraction": 1.0},
    ],
)
def test_bad_parameters(data, parameters):
    (name,) = parameters
    with pytest.raises(ValueError, match=rf"{name} must be"):
        small(CUT, **parameters).fit(*data)


@pytest.mark.parametrize("weight", [np.ones(80), -np.ones(90), np.zeros(90), np.full(90, np.nan), np.ones((90, 2))])
def test_bad_sample_weights(data, weight):
    with pytest.raises(ValueError, match="sample_weight must"):
        small(CUT).fit(*data, sample_weight=weight)


def test_diverging_training_says_so(data):
    with pytest.raises(ValueError, match=r"training diverged in epoch .* lower lr"):
        small(CUT, lr=1e38, epochs=50, scale=None).fit(*data)


@pytest.mark.parametrize("epochs", [1, 50])
def test_diverging_training_leaves_no_broken_predictor(data, epochs):
    X, y = data
    clf = small(CUT, lr=1e38, epochs=epochs, scale=None)
    with pytest.raises(ValueError, match="diverged"):
        clf.fit(X, y)
    assert not hasattr(clf, "module_")
    clf.set_params(lr=1e-3).fit(X, y)
    with pytest.raises(ValueError, match="diverged"):
        clf.set_params(lr=1e38, warm_start=True).fit(X, y)
    assert np.isfinite(clf.credibility(X)).all()


def test_an_overflow_of_the_network_is_refused(data):
    X, y = data
    clf = small(CUT, scale=None).fit(X, y)
    with torch.no_grad():
        clf.module_.backbones[1].head.weight.fill_(1e3)
    far = X.copy()
    far[:, 3:] = 3e38
    with pytest.raises(ValueError, match="view 1 holds values so large"):
        clf.predict(far)


@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_a_validation_split_without_all_classes_says_so(data, fraction):
    with pytest.raises(ValueError, match=r"validation_fraction=0\.\d+ doesn't split 90 rows"):
        small(CUT, validation_fraction=fraction).fit(*data)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cpu_and_cuda_agree(data):
    X, y = data
    clf = small(CUT, device="cpu").fit(X, y)
    expected = clf.credibility(X)
    np.testing.assert_allclose(clf.set_params(device="cuda").credibility(X), expected, atol=1e-5)
    small(CUT, device="cuda").fit(X, y).predict(X)
