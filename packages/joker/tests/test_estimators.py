import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.svm import SVC, SVR, LinearSVC, LinearSVR
from sklearn.utils.estimator_checks import parametrize_with_checks

from icml25.joker import (
    EpsilonInsensitive,
    Hinge,
    Huber,
    JokerClassifier,
    JokerRegressor,
    Logistic,
    Loss,
    Squared,
    SquaredHinge,
    solve_dual,
)
from icml25.joker.rows import TensorRows
from icml25.joker.solver import KernelDual, alpha_box, descend, initial_alpha, partition
from icml25.joker.trust_region import minimise_block

LOSSES = [Squared(), Huber(0.5), EpsilonInsensitive(), SquaredHinge(), Hinge(), Logistic()]
EXACT = {"dtype": "float64", "random_state": 0, "radius_decay": 1.0}


@parametrize_with_checks(
    [
        JokerRegressor(),
        JokerClassifier(),
        JokerRegressor("huber", n_features=200),
        JokerClassifier("logistic", n_features=200),
    ]
)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X), y


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return scale(X), scale(y)


@pytest.fixture(scope="module")
def some(cancer):
    """A part of the cancer data, for tests that need no more."""
    return cancer[0][:220], cancer[1][:220]


def psi(model, X):
    """The features, from their definition."""
    phase = (X - X.mean(0)) @ model.random_weights_ + model.random_offset_
    return np.sqrt(2 / model.n_features) * np.cos(phase)


@pytest.mark.parametrize("block_size", [37, 64, 1000])
def test_squared_loss_is_kernel_ridge(diabetes, block_size):
    X, y = diabetes[0][:150], diabetes[1][:150]
    model = JokerRegressor(C=0.5, block_size=block_size, tol=1e-10, max_epochs=2000, center_y=False, **EXACT).fit(X, y)
    peer = KernelRidge(alpha=2.0, kernel="rbf", gamma=model.gamma_).fit(X, y)
    scale_of_alpha = np.abs(peer.dual_coef_).max()
    np.testing.assert_allclose(model.dual_coef_[:, 0], peer.dual_coef_, atol=1e-5 * scale_of_alpha)
    np.testing.assert_allclose(model.predict(X), peer.predict(X), atol=1e-5)


REGRESSION_PEERS = {
    "squared": lambda C: Ridge(alpha=1 / C, fit_intercept=False),
    "epsilon_insensitive": lambda C: LinearSVR(C=C, epsilon=0.1, fit_intercept=False, tol=1e-12, max_iter=10**6),
}
CLASSIFICATION_PEERS = {
    "squared_hinge": lambda C: LinearSVC(C=C / 2, loss="squared_hinge", fit_intercept=False, tol=1e-12, max_iter=10**6),
    "hinge": lambda C: LinearSVC(C=C, loss="hinge", fit_intercept=False, tol=1e-9, max_iter=10**6),
    "logistic": lambda C: LogisticRegression(C=C, fit_intercept=False, tol=1e-12, max_iter=10**5),
}


@pytest.mark.parametrize("loss", [*REGRESSION_PEERS, *CLASSIFICATION_PEERS])
def test_features_make_a_linear_model(loss, cancer, diabetes):
    kind, (X, y), peers = (
        (JokerRegressor, diabetes, REGRESSION_PEERS)
        if loss in REGRESSION_PEERS
        else (JokerClassifier, cancer, CLASSIFICATION_PEERS)
    )
    model = kind(loss, C=0.5, n_features=300, tol=1e-13, block_size=1000, max_epochs=300, **EXACT)
    if kind is JokerRegressor:
        model.set_params(center_y=False)
    model.fit(X, y)
    peer = peers[loss](0.5).fit(psi(model, X), y)
    np.testing.assert_allclose(model.coef_[:, 0], peer.coef_.ravel(), atol=2e-6)


def test_kernel_machines_agree_with_libsvm(cancer, diabetes):
    X, y = cancer
    hinge = JokerClassifier("hinge", block_size=1000, tol=1e-8, **EXACT).fit(X, y)
    peer = SVC(gamma=hinge.gamma_, tol=1e-8).fit(X, y)  # LIBSVM has a bias, so only the labels are comparable
    assert np.mean(hinge.predict(X) == peer.predict(X)) > 0.985
    X, y = diabetes
    tube = JokerRegressor("epsilon_insensitive", tol=1e-8, max_epochs=500, **EXACT).fit(X, y)
    peer = SVR(gamma=tube.gamma_, tol=1e-8).fit(X, y)
    assert np.corrcoef(tube.predict(X), peer.predict(X))[0, 1] > 0.995


@pytest.mark.parametrize(("loss", "block_size", "most"), [("squared_hinge", 100, 120), ("logistic", 100, 60)])
def test_several_blocks_reach_a_tiny_gap_in_the_expected_epochs(cancer, loss, block_size, most):
    model = JokerClassifier(loss, block_size=block_size, tol=1e-7, max_epochs=most, **EXACT).fit(*cancer)
    assert model.relative_gap_ <= 1e-7


@pytest.mark.slow
def test_hinge_reaches_a_tiny_gap_in_the_expected_epochs(cancer):
    model = JokerClassifier("hinge", block_size=64, tol=1e-7, max_epochs=420, **EXACT).fit(*cancer)
    assert model.relative_gap_ <= 1e-7


@pytest.mark.parametrize("loss", ["squared", "huber", "epsilon_insensitive", "squared_hinge", "hinge", "logistic"])
def test_every_loss_certifies_its_gap(loss, cancer, diabetes):
    kind, data = (
        (JokerRegressor, diabetes) if loss in ("squared", "huber", "epsilon_insensitive") else (JokerClassifier, cancer)
    )
    model = kind(loss, block_size=256, tol=5e-3, **EXACT).fit(*data)
    assert 0 <= model.relative_gap_ <= 5e-3
    assert all(row["primal"] >= row["dual"] for row in model.history_)  # weak duality
    assert (np.diff([row["dual"] for row in model.history_]) >= 0).all()  # the dual only rises
    single = kind(loss, random_state=0).fit(*data)
    assert abs(single.relative_gap_) <= 1e-3


def test_huber_without_a_corner_is_squared(diabetes):
    X, y = diabetes
    huber = JokerRegressor("huber", delta=1e6, tol=1e-10, **EXACT).fit(X, y)
    np.testing.assert_allclose(huber.predict(X), JokerRegressor(tol=1e-10, **EXACT).fit(X, y).predict(X), atol=1e-6)


def test_a_tube_of_no_width_interpolates(diabetes):
    X, y = diabetes[0][:40], diabetes[1][:40]
    model = JokerRegressor("epsilon_insensitive", epsilon=0.0, C=1e4, gamma=0.5, tol=1e-5, max_epochs=50, **EXACT)
    np.testing.assert_allclose(model.fit(X, y).predict(X), y, atol=1e-3)


def test_hinges_agree_on_separable_data():
    X = np.r_[np.full((20, 1), -2.0), np.full((20, 1), 2.0)] + np.linspace(-0.5, 0.5, 40)[:, None]
    y = np.repeat([0, 1], 20)
    for loss in ("hinge", "squared_hinge"):
        assert JokerClassifier(loss, C=10.0).fit(X, y).score(X, y) == 1.0


@pytest.mark.parametrize("kernel", ["rbf", "laplace", "student"])
def test_random_features_approach_the_exact_machine(diabetes, kernel):
    X, y = diabetes
    exact = JokerRegressor(kernel=kernel, gamma=0.02, tol=1e-8, **EXACT).fit(X, y).predict(X)
    approximate = JokerRegressor(kernel=kernel, gamma=0.02, n_features=20_000, tol=1e-8, **EXACT).fit(X, y).predict(X)
    assert np.abs(exact - approximate).mean() < 0.03 * exact.std()


def test_a_callable_kernel_sees_the_data_as_they_are(diabetes):
    X, y = diabetes
    X = X + 5
    model = JokerRegressor(kernel=lambda x, z: x @ z.T, C=2.0, tol=1e-12, center_y=False, **EXACT).fit(X, y)
    np.testing.assert_allclose(model.predict(X), Ridge(alpha=0.5, fit_intercept=False).fit(X, y).predict(X), atol=1e-5)


def test_classes_are_sorted_and_probabilities_follow_them():
    x = np.repeat([-2.0, -1.5, 2.0, 1.5], 5)[:, None]
    y = np.where(x[:, 0] < 0, "z", "a")
    model = JokerClassifier("logistic", gamma=1.0, C=10.0).fit(x, y)
    p = model.predict_proba(x)
    assert model.classes_.tolist() == ["a", "z"]
    assert (p[x[:, 0] < 0, 1] > 0.5).all()
    assert ((model.decision_function(x) > 0) == (model.predict(x) == "z")).all()
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-9)
    order = np.random.default_rng(0).permutation(len(x))
    again = JokerClassifier("logistic", gamma=1.0, C=10.0, random_state=3).fit(x[order], y[order])
    np.testing.assert_allclose(again.predict_proba(x), p, atol=1e-2)


def test_several_classes_in_any_order_of_appearance():
    X, y = load_digits(return_X_y=True)
    names = np.array(list("jihgfedcba"))[y]
    model = JokerClassifier("logistic", n_features=300, block_size=1000, random_state=0).fit(X[:900], names[:900])
    p = model.predict_proba(X[900:])
    assert model.classes_.tolist() == sorted("abcdefghij")
    assert model.decision_function(X[900:]).shape == (897, 10)
    assert (model.classes_[p.argmax(1)] == model.predict(X[900:])).all()
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-9)
    assert model.score(X[900:], names[900:]) > 0.9


def test_probabilities_are_for_the_logistic_loss_alone():
    assert not hasattr(JokerClassifier("hinge"), "predict_proba")
    assert hasattr(JokerClassifier(Logistic()), "predict_proba")


def test_columns_are_independent(diabetes):
    X, y = diabetes
    Y = np.c_[y, -3 * y, y**2]
    both = JokerRegressor(tol=1e-10, **EXACT).fit(X, Y)
    assert both.predict(X).shape == Y.shape
    for column in range(3):
        alone = JokerRegressor(tol=1e-10, **EXACT).fit(X, Y[:, column])
        np.testing.assert_allclose(both.predict(X)[:, column], alone.predict(X), atol=1e-5)


@pytest.mark.parametrize("n_features", [None, 200])
def test_the_answer_does_not_depend_on_units(diabetes, n_features):
    X, y = diabetes[0][:150], diabetes[1][:150]
    options = {"n_features": n_features, "block_size": 80, **EXACT}
    plain = JokerRegressor(**options).fit(X, y)
    small = JokerRegressor(**options).fit(X * 1e3 + 1e5, y * 1e-6)
    np.testing.assert_allclose(small.predict(X * 1e3 + 1e5) * 1e6, plain.predict(X), atol=1e-5)
    assert small.n_epochs_ == plain.n_epochs_


@pytest.mark.parametrize("n_features", [None, 200])
def test_float32_agrees_with_float64(some, n_features):
    X, y = some
    options = {"n_features": n_features, "random_state": 0, "tol": 1e-5}
    values = [
        JokerClassifier(dtype=d, **options).fit(X + 100, y).decision_function(X + 100) for d in ("float32", "float64")
    ]
    np.testing.assert_allclose(values[0], values[1], atol=1e-3)


@pytest.mark.parametrize("n_features", [None, 200])
def test_same_seed_same_model(some, n_features):
    models = [JokerClassifier(n_features=n_features, block_size=64, random_state=s).fit(*some) for s in (0, 0, 1)]
    assert (models[0].dual_coef_ == models[1].dual_coef_).all()
    assert (models[0].dual_coef_ != models[2].dual_coef_).any()


def test_theta_is_the_sum_of_its_parts(some):
    X, y = some
    model = JokerClassifier(n_features=150, block_size=64, max_epochs=60, random_state=0, check_every=20).fit(X, y)
    theta = psi(model, X).T @ model.dual_coef_
    assert np.abs(theta - model.coef_).max() <= 1e-4 * np.abs(theta).max()


def make(n_features):
    return JokerClassifier("logistic", n_features=n_features, block_size=128, tol=1e-12, **EXACT)


@pytest.mark.parametrize("n_features", [None, 150])
@pytest.mark.parametrize("saved", [False, True])
def test_training_resumes_as_if_uninterrupted(some, n_features, saved, tmp_path):
    X, y = some
    model = make(n_features).set_params(warm_start=True, max_epochs=2)
    with pytest.warns(ConvergenceWarning, match="relative duality gap"):
        model.fit(X, y)
    if saved:
        model.save(tmp_path / "checkpoint")
        model = JokerClassifier.load(tmp_path / "checkpoint")
    with pytest.warns(ConvergenceWarning):
        model.set_params(max_epochs=3).fit(X, y)
    with pytest.warns(ConvergenceWarning):
        whole = make(n_features).set_params(max_epochs=5).fit(X, y)
    assert (model.n_epochs_, model.n_iter_) == (whole.n_epochs_, whole.n_iter_)
    np.testing.assert_allclose(model.dual_coef_, whole.dual_coef_, rtol=0, atol=0 if n_features else 1e-9)


@pytest.mark.parametrize("n_features", [None, 100])
@pytest.mark.parametrize("labels", [[0, 1], ["no", "yes"]])
def test_save_and_load_are_exact(cancer, n_features, labels, tmp_path):
    X, y = cancer
    model = JokerClassifier(n_features=n_features, random_state=0).fit(
        X, np.array(labels, dtype=object if "no" in labels else int)[y]
    )
    model.save(tmp_path / "model.npz")
    for again in (JokerClassifier.load(tmp_path / "model.npz"), pickle.loads(pickle.dumps(model))):
        assert (again.decision_function(X) == model.decision_function(X)).all()
        assert (again.predict(X) == model.predict(X)).all()
        assert again.get_params() == model.get_params()
        assert again.history_ == model.history_
    assert [p.name for p in tmp_path.iterdir()] == ["model.npz"]
    with pytest.raises(ValueError, match="JokerClassifier, expected a JokerRegressor"):
        JokerRegressor.load(tmp_path / "model.npz")


def test_save_refuses_what_it_cannot_restore(cancer, tmp_path):
    model = JokerClassifier(Logistic(), random_state=0).fit(*cancer)
    with pytest.raises(ValueError, match="cannot save a parameter"):
        model.save(tmp_path / "model.npz")


def test_a_lean_model_drops_the_dual(cancer):
    X, y = cancer
    model = JokerClassifier(n_features=50, keep_dual=False, random_state=0).fit(X, y)
    assert not hasattr(model, "dual_coef_")
    assert len(pickle.dumps(model)) < 50 * (30 + 2) * 4 + 6000
    assert model.score(X, y) > 0.9


def test_exact_mode_keeps_a_reference(cancer):
    X, y = cancer
    assert np.shares_memory(JokerClassifier().fit(X, y).X_fit_, X)


def test_callback_sees_each_check_and_stops(cancer):
    rows = []
    model = JokerClassifier(block_size=64, tol=1e-9, callback=lambda _, row: rows.append(row) or len(rows) == 3).fit(
        *cancer
    )
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert model.n_epochs_ == 3
    assert set(rows[0]) == {"epoch", "primal", "dual", "gap", "relative_gap", "seconds", "tr_iterations", "products"}


def test_verbose_prints_the_gap(cancer, capsys):
    JokerClassifier(verbose=1).fit(*cancer)
    assert "relative gap" in capsys.readouterr().out


@pytest.mark.parametrize("order", ["permute", "random", "cyclic"])
@pytest.mark.parametrize("init", ["default", "random"])
def test_block_orders_and_starts_agree(some, order, init):
    X, y = some
    options = {"block_size": 120, "tol": 1e-3, "max_epochs": 300, **EXACT}
    model = JokerClassifier("hinge", block_order=order, init=init, **options).fit(X, y)
    whole = JokerClassifier("hinge", **options | {"block_size": 1000}).fit(X, y)
    assert model.history_[-1]["dual"] == pytest.approx(whole.history_[-1]["dual"], rel=2e-3)


def test_sorted_files_mix(cancer):
    X, y = cancer
    order = np.argsort(y, kind="stable")
    options = {"block_size": 128, **EXACT}
    model, mixed = JokerClassifier(**options).fit(X[order], y[order]), JokerClassifier(**options).fit(X, y)
    assert model.n_epochs_ <= 2 * mixed.n_epochs_


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, bool])
def test_numbers_of_any_kind(dtype):
    X, y = load_digits(n_class=2, return_X_y=True)
    cast = X.astype(dtype)
    model = JokerClassifier(random_state=0).fit(cast, y)
    assert model.score(cast, y) > 0.95
    same = JokerClassifier(random_state=0).fit(cast.astype(np.float64), y)
    np.testing.assert_allclose(model.decision_function(cast), same.decision_function(cast), atol=1e-5)


def test_tensors_and_arrays_give_the_same_model(cancer):
    X, y = cancer
    model = JokerClassifier(n_features=100, random_state=0).fit(X, y)
    tensors = JokerClassifier(n_features=100, random_state=0).fit(torch.from_numpy(X), torch.from_numpy(y))
    assert (tensors.coef_ == model.coef_).all()
    assert (tensors.predict(torch.from_numpy(X)) == model.predict(X)).all()


def test_sparse_rows_in_feature_mode():
    X, y = load_digits(n_class=3, return_X_y=True)
    sparse_model = JokerClassifier(n_features=300, random_state=0).fit(sparse.csr_matrix(X), y)
    dense_model = JokerClassifier(n_features=300, random_state=0).fit(X, y)
    assert sparse_model.gamma_ == pytest.approx(dense_model.gamma_, rel=1e-5)
    assert sparse_model.score(sparse.csr_array(X), y) == pytest.approx(dense_model.score(X, y), abs=0.01)


def test_pipelines_searches_and_clones(cancer):
    X, y = cancer
    pipeline = make_pipeline(StandardScaler(), JokerClassifier(n_features=100, random_state=0))
    search = GridSearchCV(pipeline, {"jokerclassifier__C": [0.1, 1.0]}, cv=3).fit(X, y)
    assert search.best_score_ > 0.93
    assert clone(search.best_estimator_).get_params()["jokerclassifier__C"] == search.best_params_["jokerclassifier__C"]
    assert cross_val_score(JokerRegressor(), *load_diabetes(return_X_y=True), cv=3).mean() > 0.3


@dataclass(frozen=True)
class Exponential(Loss):
    """exp(-y u): a boosting loss that the package does not have; f = -p + p log(p / C) with p = a y > 0."""

    task = "classification"

    def value(self, y, u):
        return (-y * u).exp()

    def conjugate(self, a, y, C):
        p = a * y
        return torch.xlogy(p, p / C) - p

    def gradient(self, a, y, C):
        return y * (a * y / C).log()

    def curvature(self, a, y, C):
        return 1 / (a * y)

    def box(self, y, C):
        tiny = torch.full_like(y, 1e-12)
        return torch.where(y > 0, tiny, -torch.inf), torch.where(y > 0, torch.inf, -tiny)

    def start(self, y, C):
        return y * C


@pytest.mark.parametrize("gram", [False, True])
def test_a_loss_of_the_user(cancer, gram):
    X, y = cancer
    features = torch.from_numpy(psi(JokerClassifier(n_features=80, random_state=0, max_epochs=200).fit(X, y), X))
    target = torch.from_numpy(2.0 * y - 1)
    result = solve_dual(
        features @ features.T if gram else features,
        target,
        Exponential(),
        gram=gram,
        C=0.1,
        block_size=200,
        tol=1e-9,
        max_epochs=300,
    )
    assert result.converged
    theta = (features.T @ result.alpha)[:, 0].requires_grad_()
    primal = theta.square().sum() / 2 + 0.1 * (-target * (features @ theta)).exp().sum()
    assert primal.item() == pytest.approx(result.primal, rel=1e-8)
    (slope,) = torch.autograd.grad(primal, theta)
    assert slope.abs().max() < 1e-3  # a stationary point of the primal
    assert JokerClassifier(Exponential(), dtype="float64", C=0.1).fit(X, y).score(X, y) > 0.95


def test_solve_dual_from_features_and_from_their_gram(diabetes):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 200, dtype=torch.float64, generator=generator)
    y = torch.randn(60, 2, dtype=torch.float64, generator=generator)
    options = {"C": 0.5, "block_size": 20, "tol": 1e-11, "max_epochs": 300}
    result = solve_dual(features, y, "squared", **options)
    exact = torch.linalg.solve(features @ features.T + 2 * torch.eye(60), y)
    torch.testing.assert_close(result.alpha, exact, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(result.theta, features.T @ exact, rtol=1e-5, atol=1e-6)
    from_gram = solve_dual(features @ features.T, y, "squared", gram=True, **options)
    torch.testing.assert_close(from_gram.alpha, exact, rtol=1e-5, atol=1e-6)
    assert from_gram.theta is None
    paused = solve_dual(features, y, "squared", **options | {"max_epochs": 3})
    resumed = solve_dual(
        features, y, "squared", **options | {"max_epochs": 4}, alpha=paused.alpha, epochs=paused.epochs
    )
    assert (resumed.alpha == solve_dual(features, y, "squared", **options | {"max_epochs": 7}).alpha).all()


@pytest.mark.parametrize(("loss", "n_features"), [("squared", None), ("squared", 200), ("huber", None)])
@pytest.mark.parametrize("factor", [1e-6, 1e3, 1e6])
def test_the_radius_follows_the_units_of_y(loss, n_features, factor):
    X, y = load_diabetes(return_X_y=True)
    options = {"n_features": n_features, "block_size": 200, "random_state": 0}
    plain = JokerRegressor(loss, delta=100.0, **options).fit(scale(X), y)
    scaled = JokerRegressor(loss, delta=100.0 * factor, **options).fit(scale(X), y * factor)
    assert scaled.n_epochs_ == plain.n_epochs_
    assert scaled.score(scale(X), y * factor) == pytest.approx(plain.score(scale(X), y), abs=1e-4)


def test_the_radius_follows_the_box(cancer):
    X, y = cancer
    for loss in ("logistic", "hinge"):
        model = JokerClassifier(loss, C=1e4, block_size=1000, max_epochs=3, random_state=0, dtype="float64").fit(X, y)
        assert model.relative_gap_ <= 1e-3


def test_sparse_and_dense_rows_meet_the_same_model():
    X = np.random.default_rng(0).normal(2, 1, size=(200, 4))
    y = np.sin(X[:, 0]) + X[:, 1]
    for fitted in (X, sparse.csr_matrix(X)):
        model = JokerRegressor(n_features=300, random_state=0).fit(fitted, y)
        np.testing.assert_allclose(model.predict(sparse.csr_matrix(X)), model.predict(X), atol=1e-5)
        assert model.score(X, y) > 0.8


@pytest.mark.parametrize("n_features", [None, 150])
def test_a_callback_can_score(some, n_features):
    X, y = some
    scores = []
    model = JokerClassifier(n_features=n_features, block_size=64, tol=1e-6, max_epochs=4, random_state=0)
    model.set_params(callback=lambda e, _: scores.append((e.score(X, y), e.n_epochs_, e.predict(X))))
    for first in (0, 4):
        with pytest.warns(ConvergenceWarning):
            model.fit(X, y)
        assert [s[1] for s in scores[first:]] == [1, 2, 3, 4]
        assert (scores[-1][2] == model.predict(X)).all()
        X, y = X[::-1, :20], 1 - y[::-1]
    assert min(score for score, _, _ in scores) > 0.9


@pytest.mark.parametrize("second", [None, 80])
@pytest.mark.parametrize("stop_at", [0, 2])
def test_an_interrupted_fit_leaves_one_model(cancer, second, stop_at, monkeypatch):
    X, y = cancer[0][:200], cancer[1][:200]
    model = JokerClassifier(n_features=50, block_size=64, random_state=0).fit(X, y)
    before = model.decision_function(X)
    seen = []

    def callback(estimator, row):
        seen.append(estimator.decision_function(X[:, :5]))
        if row["epoch"] == stop_at:
            raise KeyboardInterrupt

    def broken(*_args, **_kwargs):
        raise KeyboardInterrupt

    model.set_params(callback=callback)
    if stop_at:
        model.set_params(n_features=second, tol=1e-9, random_state=1)
    else:
        monkeypatch.setattr("icml25.joker.solver.minimise_block", broken)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:, :5], np.where(y > 0, "a", "b"))
    if stop_at:
        assert model.n_epochs_ == len(model.history_) == 2
        assert (model.decision_function(X[:, :5]) == seen[-1]).all()
        assert list(model.classes_) == ["a", "b"]
        assert hasattr(model, "coef_") == (second is not None)
    else:
        assert (model.decision_function(X) == before).all()
        assert list(model.classes_) == [0, 1]


def test_theta_is_kept_up_to_date_between_checks():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 20, dtype=torch.float64, generator=generator)
    y = torch.randn(60, 1, dtype=torch.float64, generator=generator)
    result = solve_dual(features, y, "squared", block_size=7, tol=1e-14, max_epochs=5, check_every=20)
    theta = features.T @ result.alpha
    primal = theta.square().sum() / 2 + (y - features @ theta).square().sum() / 2
    assert result.primal == pytest.approx(primal.item(), rel=1e-12)


def test_the_radius_halves_every_thousand_steps_down_to_its_floor():
    features, y = torch.eye(4, dtype=torch.float64), torch.full((4, 1), 1e3, dtype=torch.float64)
    lengths = [
        solve_dual(
            features, y, "squared", C=1e9, max_radius=0.016, max_tr_iter=1, max_epochs=1, epochs=epochs
        ).alpha.norm().item()
        for epochs in (0, 999, 1000, 2000, 1_000_000)
    ]  # fmt: skip
    assert lengths == pytest.approx([4.0, 4.0, 2.0, 1.0, 0.25])


def test_a_resumed_alpha_is_put_in_the_box():
    features, y = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)), torch.ones(40)
    outside = torch.full((40, 1), 7.0)
    options = {"block_size": 2, "block_order": "random", "max_epochs": 1}
    result = solve_dual(features, y, "hinge", alpha=outside, **options)
    assert result.alpha.min() >= 0
    assert result.alpha.max() <= 1


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_random_starts_lie_in_the_box(loss):
    y = torch.tensor([[1.0], [-1.0]]).repeat(200, 1)
    lo, hi = alpha_box(loss, y, 3.0)
    start = initial_alpha(loss, y, 3.0, "random", 0)
    assert ((start >= lo) & (start <= hi)).all()
    if torch.isfinite(hi - lo).all():
        share = (start - lo) / (hi - lo)
        assert share.min() < 0.05
        assert share.max() > 0.95


def test_an_exact_answer_is_certified_afresh():
    class Drifting(KernelDual):
        def update(self, change):
            super().update(change)
            self.beta *= 1 + 1e-4

    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 10, dtype=torch.float64, generator=generator)
    y = torch.randn(60, 1, dtype=torch.float64, generator=generator)
    rows, blocks = TensorRows(features), partition(60, 20, 0)
    for options in ({"max_epochs": 3, "tol": 1e-12}, {"tol": 0.05}):
        result = descend(Drifting(rows, blocks, lambda x, z: x @ z.T, y), rows, blocks, y, Squared(), **options)
        theta = features.T @ result.alpha
        primal = theta.square().sum() / 2 + (y - features @ theta).square().sum() / 2
        assert result.primal == pytest.approx(primal.item(), rel=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_interruption_between_checks_leaves_the_last_checked_model(some, dtype, monkeypatch):
    X, y = some
    seen = []

    def until_the_third_epoch(*args, **kwargs):
        calls.append(None)
        if len(calls) > 11:
            raise KeyboardInterrupt
        return minimise_block(*args, **kwargs)

    calls = []
    monkeypatch.setattr("icml25.joker.solver.minimise_block", until_the_third_epoch)
    model = JokerClassifier(n_features=50, block_size=50, tol=1e-9, dtype=dtype, random_state=0)
    model.set_params(callback=lambda e, _: seen.append(e.decision_function(X)))
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert len(seen) == model.n_epochs_ == 2
    assert (model.decision_function(X) == seen[-1]).all()
