"""Algorithm 1: truncated least squares, projection, bounds, predictions."""

import numpy as np
import pytest
from conftest import A, beta22
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from icml25.cdf_bandit import CDFRegressor, CVaR, Expectation, MixtureEnvironment, estimate_decay, interval
from icml25.cdf_bandit.regression import project


def criterion(theta, kernel, moment, weights):
    """<theta, U theta> - 2 <b, theta>, Eq. 2."""
    v = weights * theta
    return v @ kernel @ v - 2 * v @ moment


def test_error_bound_of_two_atoms(powers):
    model = CDFRegressor(**powers, decay=1.0).fit(np.zeros((4, 1)), np.zeros(4, int), [0.1, 0.35, 0.8, 0.9])
    assert model.rank_ == 1
    assert model.threshold_ == pytest.approx(4 ** (-2 / 3))
    largest = 8 / 30 + np.sqrt((2 / 30) ** 2 + 1 / 16)
    assert model.eigenvalues_[0] == pytest.approx(largest) and largest == pytest.approx(0.52540291)
    expected = np.sqrt(2 * (2 * np.log(20) + np.log(1 + 4 * largest))) + 4 ** (1 / 3) * 2
    assert model.error_bound(0.05, norm=2) == pytest.approx(expected, rel=1e-12)
    assert model.error_bound(0.05, norm=2) == pytest.approx(6.949292, abs=1e-6)
    assert model.error_bound(0.05, norm=3) > model.error_bound(0.05, norm=2) < model.error_bound(0.01, norm=2)
    s0 = model.eigenvalues_.sum()
    lemma = 2 * np.sqrt(np.log(20)) + (2 * np.sqrt(s0 * np.log(5)) + 2) * 4 ** (1 / 3)
    assert model.data_free_bound(0.05, norm=2) == pytest.approx(lemma)
    assert model.data_free_bound(0.05, norm=2, s0=4) > lemma
    assert model.error_bound(0.05) == model.error_bound(0.05, norm=max(1, np.sqrt((model.theta_**2).sum())))
    limited = CDFRegressor(**powers, norm_bound=3.0).fit(np.zeros((4, 1)), np.zeros(4, int), [0.1, 0.35, 0.8, 0.9])
    assert limited.error_bound(0.05) == limited.error_bound(0.05, norm=3)


@pytest.mark.parametrize("decay", [0.1, 0.5, 1.0])
def test_threshold_and_rank(basis, data, decay):
    model = CDFRegressor(basis, A, decay=decay, n_w=16, n_s=16).fit(*data)
    assert model.threshold_ == pytest.approx(600 ** (-2 / (decay + 2)))
    assert model.rank_ == (model.eigenvalues_ >= model.threshold_).sum()
    full = CDFRegressor(basis, A, decay=decay, truncate=False, n_w=16, n_s=16).fit(*data)
    assert full.rank_ == (full.eigenvalues_ >= 1e-12 * full.eigenvalues_[0]).sum() > model.rank_


def test_one_row_keeps_the_first_eigenvalue(basis):
    model = CDFRegressor(basis, A, n_w=8).fit([[0.3]], [0], [0.5])
    assert model.threshold_ == 1.0 and model.rank_ == 1


def test_auto_decay(basis, step_basis, data):
    assert CDFRegressor(basis, A, decay="auto", n_w=32).fit(*data).decay_ == 0.0
    y = np.random.default_rng(0).random(3000)
    model = CDFRegressor(step_basis, 1, decay="auto", n_w=64, n_s=128).fit(np.zeros((3000, 1)), np.zeros(3000, int), y)
    closed_form = estimate_decay(4 / ((2 * np.arange(1, 1000) - 1) ** 2 * np.pi**2), 3000)
    assert 0.4 < closed_form < 0.5
    assert model.decay_ == pytest.approx(closed_form, abs=0.02)
    assert model.threshold_ == pytest.approx(3000 ** (-2 / (model.decay_ + 2)))


def test_least_squares_beats_the_span(basis, data):
    """Thm 3.4: no other element of span(e_1..e_N) has a smaller criterion; and it lies in that span."""
    model = CDFRegressor(basis, A, n_w=16, n_s=16, project=False).fit(*data)
    kernel, moment, weights = model._kernel, model._moment, model.weights_
    coefficients = model.eigenfunctions_.T @ (weights * model.theta_)
    np.testing.assert_allclose(coefficients[model.rank_ :], 0, atol=1e-9)
    best = criterion(model.theta_, kernel, moment, weights)
    rng = np.random.default_rng(0)
    for scale in (1e-3, 0.1, 1.0):
        for _ in range(10):
            step = model.eigenfunctions_[:, : model.rank_] @ rng.normal(size=model.rank_) * scale
            assert criterion(model.theta_ + step, kernel, moment, weights) > best
    np.testing.assert_array_equal(model.theta_, model.theta_unprojected_)


def random_problem(seed, G, zero_rank=0):
    rng = np.random.default_rng(seed)
    values = np.sort(rng.random(G) * 0.5 ** np.arange(G))[::-1]
    values[G - zero_rank :] = 0
    q, _ = np.linalg.qr(rng.normal(size=(G, G)))
    d = np.sqrt(rng.dirichlet(np.full(G, 5.0)))
    return rng, np.sqrt(values)[:, None] * q.T, d


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), G=st.integers(2, 8))
def test_projection_is_the_independent_program(seed, G):
    rng, root, d = random_problem(seed, G)
    t = rng.normal(size=G)
    u = project(t, root, d)
    assert u.min() >= 0 and d @ u == pytest.approx(1, abs=1e-12)
    # KKT: gradient + multiplier d >= 0, zero on the support
    gradient = root.T @ (root @ (u - t))
    multiplier = -(u @ gradient) / (u @ d)
    residual = gradient + multiplier * d
    assert residual.min() >= -1e-6 and abs(u * residual).max() <= 1e-6
    by_slsqp = minimize(
        lambda v: ((root @ (v - t)) ** 2).sum(),
        d / (d @ d),
        jac=lambda v: 2 * root.T @ (root @ (v - t)),
        method="SLSQP",
        bounds=[(0, None)] * G,
        constraints={"type": "eq", "fun": lambda v: d @ v - 1, "jac": lambda v: d},
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    assert np.linalg.norm(root @ (u - by_slsqp.x)) <= 1e-5
    assert np.linalg.norm(root @ (u - t)) <= np.linalg.norm(root @ (by_slsqp.x - t)) + 1e-8


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), G=st.integers(2, 8))
def test_projection_does_not_expand(seed, G):
    """Lemma D.1."""
    rng, root, d = random_problem(seed, G)
    s, t = rng.normal(size=(2, G))
    apart = np.linalg.norm(root @ (project(s, root, d) - project(t, root, d)))
    assert apart <= np.linalg.norm(root @ (s - t)) + 1e-5


def test_projection_of_a_density_is_itself():
    rng, root, d = random_problem(0, 6)
    t = rng.dirichlet(np.ones(6)) / d
    np.testing.assert_array_equal(project(t, root, d), t)
    u = project(rng.normal(size=6), root, d)
    np.testing.assert_allclose(project(u, root, d), u, atol=1e-10)
    far = project(-t * 1e6, root, d)
    assert far.min() >= 0 and d @ far == pytest.approx(1)


def test_projection_takes_the_least_norm_among_ties():
    """Only the mass is seen by a zero operator: the least norm is the uniform density."""
    d = np.sqrt(np.full(4, 0.25))
    np.testing.assert_allclose(project(np.array([5.0, -1, 0, 0]), np.zeros((4, 4)), d), d, atol=1e-8)


@pytest.mark.parametrize("bound", [1.0, 1.05, 1.3])
def test_norm_ball(bound):
    rng, root, d = random_problem(3, 6)
    t = 3 * rng.normal(size=6)
    free = project(t, root, d)
    assert np.linalg.norm(free) > 1.3
    u = project(t, root, d, bound)
    assert np.linalg.norm(u) <= bound * (1 + 1e-6)
    assert np.linalg.norm(u) == pytest.approx(bound, rel=1e-5)
    assert u.min() >= 0 and d @ u == pytest.approx(1)
    by_slsqp = minimize(
        lambda v: ((root @ (v - t)) ** 2).sum(),
        d,
        method="SLSQP",
        bounds=[(0, None)] * 6,
        constraints=[
            {"type": "eq", "fun": lambda v: d @ v - 1},
            {"type": "ineq", "fun": lambda v: bound**2 - v @ v},
        ],
        options={"ftol": 1e-14, "maxiter": 500},
    )
    if bound > 1:
        assert np.linalg.norm(root @ (u - by_slsqp.x)) <= 1e-4
    assert np.linalg.norm(root @ (project(t, root, d, 100.0) - free)) <= 1e-12


def test_fit_projects_with_the_whole_operator(basis, data):
    """The truncated operator would give another estimate."""
    model = CDFRegressor(basis, A, n_w=16, n_s=16).fit(*data)
    d = np.sqrt(model.weights_)
    root = np.sqrt(model.eigenvalues_)[:, None] * (model.eigenfunctions_ * d[:, None]).T
    t = model.theta_unprojected_ * d
    np.testing.assert_allclose(model.theta_ * d, project(t, root, d), atol=1e-9)
    truncated = root.copy()
    truncated[model.rank_ :] = 0
    assert abs(project(t, truncated, d) - model.theta_ * d).max() > 1e-3
    bounded = CDFRegressor(basis, A, n_w=16, n_s=16, norm_bound=1.05).fit(*data)
    assert np.sqrt(bounded.weights_ @ bounded.theta_**2) <= 1.05 + 1e-6 < np.sqrt(model.weights_ @ model.theta_**2)


def test_large_sample_finds_the_cdf(environment, basis):
    rng = np.random.default_rng(5)
    X, a = environment.context(20_000, rng), rng.integers(A, size=20_000)
    model = CDFRegressor(basis, A, decay=0.1, n_w=24, n_s=24).fit(X, a, environment.reward(X, a, rng))
    assert model.design_error(beta22) ** 2 < 1e-4
    assert model.design_error(beta22(model.nodes_)) == model.design_error(beta22)
    assert model.design_error(model.theta_) == 0
    assert np.sqrt(20_000) * model.design_error(beta22) < model.error_bound(0.05)
    truth = environment.value(X[:50], CVaR(0.25))
    np.testing.assert_allclose(model.predict_utility(X[:50], CVaR(0.25)), truth, atol=0.02)
    # design_error is the mean integrated squared error of the CDF over the data
    s = interval(0, 1, 24)
    phi = basis.cdf(X[:2000], a[:2000], model.nodes_, s.points)
    gap = np.matmul(model.weights_ * (model.theta_ - beta22(model.nodes_)), phi)
    part = CDFRegressor(basis, A, n_w=24, n_s=24).fit(X[:2000], a[:2000], X[:2000, 0])
    part.theta_ = model.theta_
    assert part.design_error(beta22) ** 2 == pytest.approx((gap**2 @ s.weights).mean(), rel=1e-8)


def test_predicted_cdf(basis, data):
    X, a, _ = data
    model = CDFRegressor(basis, A, n_w=16, n_s=16).fit(*data)
    s = np.array([-0.5, -1e-9, 0.0, 0.2, 0.5, 0.8, 1.0, 2.0])
    F = model.predict_cdf(X[:30], a[:30], s)
    assert (np.diff(F, axis=1) >= 0).all()
    assert (F[:, :2] == 0).all() and (F[:, -2:] == 1).all() and (F[:, 2] <= 1e-12).all()
    by_hand = np.einsum("g,ngs->ns", model.weights_ * model.theta_, basis.cdf(X[:30], a[:30], model.nodes_, s[3:6]))
    np.testing.assert_allclose(F[:, 3:6], by_hand, atol=1e-12)
    rowwise = model.predict_cdf(X[:30], a[:30], np.tile(s, (30, 1)))
    np.testing.assert_allclose(rowwise, F, atol=1e-12)
    small = CDFRegressor(basis, A, n_w=16, n_s=16, chunk_bytes=1).fit(*data)
    np.testing.assert_allclose(small.predict_cdf(X[:30], a[:30], s), F, atol=1e-7)


def test_theta_between_the_nodes(basis, data):
    model = CDFRegressor(basis, A, n_w=16, n_s=16, measure=interval(0, 1, 16, pieces=2)).fit(*data)
    np.testing.assert_allclose(model.theta(model.nodes_), model.theta_)
    assert model.theta([0.5]).shape == (1,)


def test_samples_follow_the_predicted_cdf(basis, data):
    X, a, _ = data
    model = CDFRegressor(basis, A, n_w=16, n_s=16).fit(*data)
    y = model.sample(X[:2], a[:2], 4000, seed=0)
    assert y.shape == (2, 4000)
    F = model.predict_cdf(X[:2], a[:2], y)
    for row in F:  # uniform, by Kolmogorov's distance: 4 s.e. and more
        assert abs(np.sort(row) - np.arange(1, 4001) / 4000).max() < 2.2 / np.sqrt(4000)
    np.testing.assert_array_equal(y, model.sample(X[:2], a[:2], 4000, seed=0))


def test_utility_of_every_action(basis, data):
    X, _, _ = data
    model = CDFRegressor(basis, A, n_w=16, n_s=16).fit(*data)
    values = model.predict_utility(X[:7], Expectation())
    assert values.shape == (7, A)
    fine = interval(0, 1, 16)
    for action in (0, 3):
        F = model.predict_cdf(X[:7], np.full(7, action), fine.points)
        np.testing.assert_allclose(values[:, action], 1 - F @ fine.weights, atol=1e-12)
    np.testing.assert_allclose(model.predict_utility(X[:7], lambda F, s, m: 1 - F @ m), values)


def test_wide_units_change_nothing_but_the_unit(environment):
    """Outcomes in another unit: the same CDFs."""
    from conftest import sine

    from icml25.cdf_bandit import LogisticBasis

    rng = np.random.default_rng(2)
    X, a = environment.context(300, rng), rng.integers(A, size=300)
    y = environment.reward(X, a, rng)
    unit = CDFRegressor(LogisticBasis(sine, 0.08), A).fit(X, a, y)
    for scale in (1e-9, 1e9):
        wide = LogisticBasis(lambda x, a, w, c=scale: c * sine(x, a, w), 0.08 * scale, domain=(0, scale))
        model = CDFRegressor(wide, A).fit(X, a, y * scale)
        np.testing.assert_allclose(model.predict_cdf(X, a, [0.3 * scale]), unit.predict_cdf(X, a, [0.3]), atol=1e-6)


def test_ties_and_constant_columns(basis):
    X = np.full((50, 1), 0.3)
    model = CDFRegressor(basis, A, n_w=12, n_s=16).fit(X, np.zeros(50, int), np.full(50, 0.5))
    F = model.predict_cdf(X[:1], [0], [0.0, 0.5, 1.0])
    assert np.isfinite(F).all()
    twice = MixtureEnvironment(basis, beta22, lambda n, rng: np.full((n, 1), 0.3), A)
    assert twice.context(3).shape == (3, 1)


def test_scikit_learn_clone_and_params(basis):
    from sklearn.base import clone

    model = CDFRegressor(basis, A, n_w=9, norm_bound=2.0)
    assert clone(model).get_params()["n_w"] == 9


@pytest.mark.parametrize("seed", [0, 1])
def test_diabetes(seed):
    """Real data: the target's distribution by age, bins of the body mass index as actions."""
    from sklearn.datasets import load_diabetes

    from icml25.cdf_bandit import LogisticBasis

    X, y = load_diabetes(return_X_y=True)
    y = (y - y.min()) / np.ptp(y)
    bins = np.digitize(X[:, 2], np.quantile(X[:, 2], [1 / 3, 2 / 3]))
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[:300], order[300:]
    basis = LogisticBasis(lambda x, a, w: w + 0.15 * (a[:, None] - 1) + 0 * x, 0.1)
    model = CDFRegressor(basis, 3, decay="auto", n_w=32, n_s=32).fit(X[train, :1], bins[train], y[train])
    s = np.linspace(0, 1, 101)
    seen = y[test, None] <= s
    marginal = (y[train, None] <= s).mean(0)
    crps = ((model.predict_cdf(X[test, :1], bins[test], s) - seen) ** 2).mean()
    assert crps < ((marginal - seen) ** 2).mean()


def distance_to_optimum(u, t, root, d):
    """Upper bound on |root (u - u*)| from the KKT residual r: its square is at most r'(u - u*)."""
    gradient = root.T @ (root @ (u - t))
    residual = gradient - (u @ gradient) / (u @ d) * d
    return np.sqrt(max(0.0, u @ np.maximum(residual, 0) + max(0.0, (-residual / d).max())))


@pytest.mark.parametrize("G", [3, 16, 64])
def test_projection_is_exact(G):
    for seed in range(5):
        for scale in (0.3, 3.0, 100.0):
            rng, root, d = random_problem(seed, G)
            t = scale * rng.normal(size=G)
            assert distance_to_optimum(project(t, root, d), t, root, d) < 1e-5


@pytest.mark.parametrize("decay", [0.1, 1.0])
def test_projection_of_fits_is_exact(basis, data, decay):
    model = CDFRegressor(basis, A, decay=decay, n_w=32, n_s=16).fit(*data)
    d = np.sqrt(model.weights_)
    root = np.sqrt(model.eigenvalues_)[:, None] * (model.eigenfunctions_ * d[:, None]).T
    assert abs(model.theta_unprojected_ - model.theta_).max() > 1e-3
    assert distance_to_optimum(model.theta_ * d, model.theta_unprojected_ * d, root, d) < 1e-5


def test_what_is_refused_changes_nothing(basis, data):
    X, a, y = data
    model = CDFRegressor(basis, A, n_w=8, n_s=8).fit(X, a, y)
    state = {key: np.copy(value) for key, value in vars(model).items() if isinstance(value, (np.ndarray, float, int))}
    bound = model.error_bound()
    for call in (
        lambda: model.fit(X, a, y + 1),
        lambda: model.partial_fit(X, a, y + 1),
        lambda: model.fit(np.hstack([X, X]), a, y - 5),
        lambda: model.fit(X, a + 9, y),
    ):
        with pytest.raises(ValueError):
            call()
        assert model.error_bound() == bound
        for key, value in state.items():
            np.testing.assert_array_equal(getattr(model, key), value)
    assert model.partial_fit(X, a, y).n_samples_ == 2 * len(y)


def test_least_eigenvalues_are_noise_at_any_threshold(basis, data):
    """Not normalised, on a domain so long that all eigenvalues exceed n^(-2/(gamma+2))."""
    from conftest import sine

    from icml25.cdf_bandit import LogisticBasis

    wide = LogisticBasis(lambda x, a, w: 1e20 * sine(x, a, w), 0.08e20, domain=(0, 1e20))
    X, a, y = data
    model = CDFRegressor(wide, A, normalize=False, n_w=32, n_s=32).fit(X, a, y * 1e20)
    assert model.rank_ == (model.eigenvalues_ >= 1e-12 * model.eigenvalues_[0]).sum()
    assert model.rank_ < (model.eigenvalues_ >= model.threshold_).sum()


def test_galerkin_takes_twice_the_nodes(basis, data):
    model = CDFRegressor(basis, A, n_w=6, n_s=8, method="galerkin").fit(*data)
    assert len(model.nodes_) == 12 and (model.eigenvalues_[6:] < 1e-12).all()


def test_repeated_contexts_are_predicted_once(basis, data):
    from icml25.cdf_bandit import CallableBasis

    seen = []

    def cdf(x, a, w, s):
        seen.append(len(x))
        return basis.cdf(x, a, w, s)

    model = CDFRegressor(CallableBasis(cdf), A, n_w=8, n_s=8).fit(*data)
    X = np.random.default_rng(0).integers(10, size=(3000, 1)) / 10
    seen.clear()
    values = model.predict_utility(X, Expectation())
    assert sum(seen) == 10 * A
    np.testing.assert_array_equal(
        values[X[:, 0] == 0.3],
        np.broadcast_to(model.predict_utility([[0.3]], Expectation()), values[X[:, 0] == 0.3].shape),
    )


def test_predictions_and_draws_are_in_chunks():
    from icml25.cdf_bandit import CallableBasis

    sizes = []

    def uniform(x, a, w, s):
        sizes.append(8 * len(x) * len(w) * s.shape[-1])
        return np.broadcast_to(np.atleast_2d(s)[:, None], (len(x), len(w), s.shape[-1]))

    basis = CallableBasis(uniform)
    model = CDFRegressor(basis, A, n_w=64, n_s=8).fit([[0.1], [0.7]], [0, 1], [0.2, 0.5])
    environment = MixtureEnvironment(basis, beta22, lambda n, rng: rng.random((n, 1)), A)
    X, actions = np.linspace(0, 1, 5000)[:, None], np.zeros(5000, int)
    sizes.clear()
    environment.reward(X, actions)
    environment.value(X, Expectation())
    model.sample(X, actions, 2)
    model.sample(X[:1], actions[:1], 5000)
    model.predict_cdf(X[:1], [0], np.linspace(0, 1, 50_000))
    model.predict_utility(X, Expectation())
    assert max(sizes) <= 2**20
