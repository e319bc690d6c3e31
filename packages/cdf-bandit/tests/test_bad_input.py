"""What users do: an answer, or an error that names the argument, what came and what was expected."""

import numpy as np
import pandas as pd
import pytest
from conftest import A, sine
from sklearn.exceptions import NotFittedError

from icml25.cdf_bandit import (
    CallableBasis,
    CDFBandit,
    CDFRegressor,
    CVaR,
    Expectation,
    GaussianBasis,
    KumaraswamyBasis,
    LogisticBasis,
    atoms,
    box,
    interval,
)

X, ACTIONS, Y = np.linspace(0, 1, 12)[:, None], np.arange(12) % A, np.linspace(0.1, 0.9, 12)


@pytest.fixture
def model(basis):
    return CDFRegressor(basis, A, n_w=8, n_s=8)


def without(array, value, at=0):
    array = array.astype(float)
    array.flat[at] = value
    return array


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X, ACTIONS, without(Y, 1.5)), ValueError, r"y has 1 of 12 value\(s\) outside .* \[0, 1\].* 1\.5"),
        ((X, ACTIONS, without(Y, np.nan)), ValueError, r"y has 1 value\(s\) that are NaN"),
        ((X, ACTIONS, Y[:5]), ValueError, "y must have shape"),
        ((X, ACTIONS, Y[:, None]), ValueError, "y must have 1 dimension"),
        ((X, ACTIONS, Y.astype(str)), TypeError, "y must hold real numbers"),
        ((X, ACTIONS, Y + 0j), TypeError, "y must hold real numbers"),
        ((X, without(ACTIONS, 0), Y), TypeError, "actions must be integers"),
        ((X, ACTIONS > 2, Y), TypeError, "actions must be integers"),
        ((X, ACTIONS + 1, Y), ValueError, r"actions must be in 0\.\.4"),
        ((X, ACTIONS - 1, Y), ValueError, "actions must be in"),
        ((X, ACTIONS[:3], Y), ValueError, "actions must have shape"),
        ((X[:, 0], ACTIONS, Y), ValueError, r"X must be \(n, d\)"),
        ((X[:0], ACTIONS[:0], Y[:0]), ValueError, "X is empty"),
        ((X[:, :0], ACTIONS, Y), ValueError, "X is empty"),
        ((without(X, np.inf), ACTIONS, Y), ValueError, "X has 1 value"),
        ((pd.DataFrame({"x": list("abcdefghijkl")}), ACTIONS, Y), TypeError, "X must hold real numbers"),
        (
            (pd.DataFrame({"x": X[:, 0]}, dtype=object), ACTIONS, Y),
            TypeError,
            "X must hold real numbers, got dtype object",
        ),
        (([[1.0], [2.0, 3.0]], ACTIONS, Y), ValueError, "X is no array"),
    ],
    ids=range(18),
)
def test_bad_data(model, arguments, error, message):
    with pytest.raises(error, match=message):
        model.fit(*arguments)
    assert not hasattr(model, "theta_")


def test_sparse_contexts(model):
    from scipy.sparse import csr_matrix

    with pytest.raises(TypeError, match="sparse"):
        model.fit(csr_matrix(X), ACTIONS, Y)


def test_clip_is_opt_in(basis):
    clipped = CDFRegressor(basis, A, clip=True, n_w=8).fit(X, ACTIONS, without(Y, 1.5))
    edge = CDFRegressor(basis, A, n_w=8).fit(X, ACTIONS, without(Y, 1.0))
    np.testing.assert_array_equal(clipped.theta_, edge.theta_)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decay": 0}, "decay"),
        ({"decay": 0.0}, "decay"),
        ({"decay": 1.1}, "decay"),
        ({"decay": -0.5}, "decay"),
        ({"decay": float("nan")}, "decay"),
        ({"decay": True}, "decay"),
        ({"decay": "fast"}, "decay"),
        ({"n_w": 0}, "n_w"),
        ({"n_w": 8.0}, "n_w"),
        ({"n_s": 0}, "n_s"),
        ({"method": "ritz"}, "method"),
        ({"norm_bound": 0.9}, "norm_bound"),
        ({"norm_bound": float("nan")}, "norm_bound"),
        ({"n_actions": 0}, "n_actions"),
        ({"chunk_bytes": 0}, "chunk_bytes"),
        ({"method": "galerkin", "measure": atoms([0.5], [1.0])}, "galerkin"),
        ({"method": "galerkin", "measure": interval(0, 1, 4), "n_w": 8}, "n_w=8"),
        ({"measure": "uniform"}, "measure"),
    ],
    ids=range(18),
)
def test_bad_settings(basis, settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        CDFRegressor(**{"basis": basis, "n_actions": A} | settings).fit(X, ACTIONS, Y)


@pytest.mark.parametrize(("normalize", "least"), [(True, 1.0), (False, 2**-0.5)])
def test_norm_bound_of_an_empty_set(basis, normalize, least):
    """No density on [0, 2] of Lebesgue measure has a norm below 1/sqrt(2)."""
    options = {"measure": interval(0, 2, 8), "normalize": normalize}
    with pytest.raises(ValueError, match="norm_bound"):
        CDFRegressor(basis, A, norm_bound=least * 0.99, **options).fit(X, ACTIONS, Y)
    model = CDFRegressor(basis, A, norm_bound=least, **options).fit(X, ACTIONS, Y)
    np.testing.assert_allclose(model.theta_, model.theta_.mean(), rtol=1e-3)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (
            lambda x, a, w, s: np.broadcast_to(1 - np.atleast_2d(s)[:, None], (len(x), len(w), s.shape[-1])),
            "nondecreasing",
        ),
        (
            lambda x, a, w, s: np.broadcast_to(np.atleast_2d(s)[:, None] / 2, (len(x), len(w), s.shape[-1])),
            "not 1 at s = 1",
        ),
        (
            lambda x, a, w, s: np.broadcast_to(2 * np.atleast_2d(s)[:, None] - 1, (len(x), len(w), s.shape[-1])),
            "negative",
        ),
        (lambda x, a, w, s: np.full((len(x), len(w), s.shape[-1]), np.nan), "not finite"),
    ],
    ids=range(4),
)
def test_basis_that_is_no_cdf(fn, message):
    with pytest.raises(ValueError, match=message + r".*x=\[.*a=.*w="):
        CDFRegressor(CallableBasis(fn), A).fit(X, ACTIONS, Y)


def test_basis_of_wrong_shape():
    wrong = CallableBasis(lambda x, a, w, s: np.ones((len(w), len(x), s.shape[-1])))
    with pytest.raises(ValueError, match=r"expected \(n, G, Q\)"):
        CDFRegressor(wrong, A).fit(X, ACTIONS, Y)
    tail = CallableBasis(LogisticBasis(sine, 0.1).cdf, tail_integral=lambda x, a, w, y: np.zeros(3))
    with pytest.raises(ValueError, match="tail_integral"):
        CDFRegressor(tail, A).fit(X, ACTIONS, Y)


@pytest.mark.parametrize("n_w", [8, 12])
def test_rows_and_nodes_mixed_up(n_w):
    """a (n,) instead of a[:, None] would be read as the nodes' axis when n equals G."""
    mixed = LogisticBasis(lambda x, a, w: 0.5 + 0.01 * a + 0.1 * w + 0 * x, 0.1)
    with pytest.raises(ValueError):
        CDFRegressor(mixed, A, n_w=n_w).fit(X, ACTIONS, Y)
    only_actions = LogisticBasis(lambda x, a, w: 0.01 * a, 0.1)
    with pytest.raises(ValueError, match=r"location.*\(n, G\)"):
        CDFRegressor(only_actions, A, n_w=n_w).fit(X, ACTIONS, Y)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LogisticBasis(0.5, 0.1),
        lambda: LogisticBasis(sine, 0),
        lambda: LogisticBasis(sine, -1.0),
        lambda: GaussianBasis(sine, float("inf")),
        lambda: LogisticBasis(sine, 0.1, domain=(1, 0)),
        lambda: LogisticBasis(sine, 0.1, domain=(0, np.inf)),
        lambda: LogisticBasis(sine, 0.1, domain=3),
        lambda: KumaraswamyBasis(1, 2),
        lambda: CallableBasis("fn"),
        lambda: CallableBasis(sine, tail_integral=3),
        lambda: LogisticBasis(sine, lambda x, a, w: 0 * w).cdf(X, ACTIONS, np.array([0.5]), np.array([0.5])),
        lambda: KumaraswamyBasis(sine, lambda x, a, w: 0 * w + 0 * x).cdf(X, ACTIONS, np.array([0.5]), np.array([0.5])),
        lambda: interval(1, 0, 4),
        lambda: interval(0, np.nan, 4),
        lambda: interval(0, 1, 0),
        lambda: interval(0, 1, 7, pieces=2),
        lambda: box([0, 0], [1], 3),
        lambda: box([0, 0], [1, 0], 3),
        lambda: box([0], [1], 3, rule="simpson"),
        lambda: atoms([0.0, 1.0], [1.0]),
        lambda: atoms([0.0, 1.0], [1.0, 0.0]),
        lambda: atoms([], []),
        lambda: CDFRegressor("basis", A).fit(X, ACTIONS, Y),
    ],
    ids=range(23),
)
def test_bad_bases_and_measures(make):
    with pytest.raises((TypeError, ValueError)):
        make()


def test_tensor_grid_in_three_dimensions():
    with pytest.raises(ValueError, match="sobol"):
        box([0, 0, 0], [1, 1, 1], 8, rule="gauss")


def test_before_fit(model):
    for call in (
        lambda: model.predict_cdf(X, ACTIONS, [0.5]),
        lambda: model.predict_utility(X, Expectation()),
        lambda: model.sample(X, ACTIONS, 2),
        lambda: model.error_bound(),
        lambda: model.data_free_bound(),
        lambda: model.design_error(lambda w: w),
        lambda: model.theta([0.5]),
    ):
        with pytest.raises(NotFittedError):
            call()


def test_bad_predictions(model):
    model.fit(X, ACTIONS, Y)
    for call, message in (
        (lambda: model.predict_cdf(X, ACTIONS, [np.nan]), "s has"),
        (lambda: model.predict_cdf(X, ACTIONS, np.ones((3, 2))), "s must be"),
        (lambda: model.predict_cdf(np.ones((12, 2)), ACTIONS, [0.5]), "X has 2 column"),
        (lambda: model.partial_fit(np.ones((12, 2)), ACTIONS, Y), "X has 2 column"),
        (lambda: model.predict_utility(X, lambda F, s, m: F), "returned shape"),
        (lambda: model.predict_utility(X, lambda F, s, m: F[..., 0] * np.nan), "not finite"),
        (lambda: model.predict_utility(X, "mean"), "utility"),
        (lambda: model.error_bound(0), "delta"),
        (lambda: model.error_bound(1), "delta"),
        (lambda: model.error_bound(norm=-1), "norm"),
        (lambda: model.design_error(np.ones(3)), "theta_true"),
        (lambda: model.sample(X, ACTIONS, 0), "size"),
        (lambda: CDFRegressor(model.basis, A, project=False).fit(X, ACTIONS, Y).sample(X, ACTIONS, 1), "project"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call()


def test_utility_is_named(model):
    def wrong_one(F, s, m):
        return F[..., :2]

    with pytest.raises(ValueError, match="wrong_one"):
        model.fit(X, ACTIONS, Y).predict_utility(X, wrong_one)


def test_forms_of_the_same_data(model):
    """Lists, integers, frames with odd indices, Fortran order, read-only arrays: the same fit, and nothing is changed."""
    theta = model.fit(X, ACTIONS, Y).theta_
    index = np.arange(12)[::-1] * 7
    frozen = [np.array(part) for part in (X, ACTIONS, Y)]
    for part in frozen:
        part.flags.writeable = False
    forms = [
        (X.tolist(), ACTIONS.tolist(), Y.tolist()),
        (pd.DataFrame({"x": X[:, 0]}, index=index), pd.Series(ACTIONS, index=index), pd.Series(Y, index=index[::-1])),
        (np.asfortranarray(X), ACTIONS.astype(np.uint8), Y),
        frozen,
        (np.repeat(X, 2, axis=1)[:, ::2], np.repeat(ACTIONS, 2)[::2], np.repeat(Y, 2)[::2]),
    ]
    for form in forms:
        np.testing.assert_array_equal(model.fit(*form).theta_, theta)
    integers = model.fit(np.arange(12)[:, None], ACTIONS, (Y > 0.5).astype(int))
    assert np.isfinite(integers.theta_).all()


def test_inputs_are_not_modified(model, basis):
    copies = [np.array(part) for part in (X, ACTIONS, Y)]
    model.fit(*copies)
    s = np.array([-1.0, 0.5, 2.0])
    model.predict_cdf(copies[0], copies[1], s)
    bandit = CDFBandit(basis, A, Expectation(), first_epoch=2, random_state=0)
    a, _ = bandit.act_batch(copies[0][:4])
    bandit.update_batch(copies[0][:4], a, copies[2][:4])
    for copy, original in zip([*copies, s], [X, ACTIONS, Y, [-1.0, 0.5, 2.0]], strict=True):
        np.testing.assert_array_equal(copy, original)


def test_later_changes_of_the_users_arrays_do_not_reach_in(basis):
    bandits = []
    for overwrite in (False, True):
        bandit = CDFBandit(basis, A, Expectation(), first_epoch=2, random_state=0)
        x, y = X[:2].copy(), Y[:2].copy()
        a, _ = bandit.act_batch(x)
        bandit.update_batch(x, a, y)
        if overwrite:
            x[:], y[:] = 0.9, 0.1
        a, _ = bandit.act_batch(X[2:4])
        bandit.update_batch(X[2:4], a, Y[2:4])
        bandits.append(bandit)
    np.testing.assert_array_equal(bandits[0].regressor_.theta_, bandits[1].regressor_.theta_)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exploration": -1}, "exploration"),
        ({"exploration": float("nan")}, "exploration"),
        ({"delta": 0}, "delta"),
        ({"delta": 1}, "delta"),
        ({"first_epoch": -1}, "first_epoch"),
        ({"first_epoch": 2.5}, "first_epoch"),
        ({"width": "wide"}, "width"),
        ({"s0": -1}, "s0"),
        ({"utility": "cvar"}, "utility"),
        ({"regressor": 3}, "regressor"),
        ({"basis": 3}, "basis"),
        ({"n_actions": 0}, "n_actions"),
        ({"n_actions": True}, "n_actions"),
        ({"random_state": -1}, "non-negative"),
    ],
    ids=range(14),
)
def test_bad_bandits(basis, settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        CDFBandit(**{"basis": basis, "n_actions": A, "utility": CVaR(0.1)} | settings)


def test_bad_rounds(basis):
    bandit = CDFBandit(basis, A, Expectation(), first_epoch=2, random_state=0)
    x = [0.3]
    with pytest.raises(ValueError, match="acted last was nothing"):
        bandit.update(x, 0, 0.5)
    a = bandit.act(x)
    with pytest.raises(ValueError, match="strict=False"):
        bandit.update(x, (a + 1) % A, 0.5)
    with pytest.raises(ValueError, match="strict=False"):
        bandit.update([0.4], a, 0.5)
    with pytest.raises(TypeError, match="actions must be integers"):
        bandit.update(x, float(a), 0.5)
    with pytest.raises(ValueError, match="y has"):
        bandit.update(x, a, 1.5)
    with pytest.raises(ValueError, match="y has"):
        bandit.update(x, a, float("nan"))
    assert bandit.rounds_left_ == 4
    bandit.update(x, a, 0.5)  # what was refused left no trace
    assert bandit.rounds_left_ == 3
    with pytest.raises(ValueError, match="acted last was nothing"):
        bandit.update(x, a, 0.5)
    with pytest.raises(ValueError, match=r"X has 2 column\(s\), expected 1"):
        bandit.act([0.3, 0.4])
    with pytest.raises(ValueError, match="x must have 1 dimension"):
        bandit.act([[0.3]])
    with pytest.raises(ValueError, match="NaN"):
        bandit.act([np.nan])
    X = np.full((4, 1), 0.3)
    a, _ = bandit.act_batch(X)
    with pytest.raises(ValueError, match=r"3 round\(s\) left"):
        bandit.update_batch(X, a, np.full(4, 0.5))
    loose = CDFBandit(basis, A, Expectation(), first_epoch=2, strict=False, random_state=0)
    loose.update_batch(X, [0, 1, 2, 3], np.full(4, 0.5))
    assert loose.epoch_ == 2


@pytest.mark.parametrize("tail", [-0.5, 1.5, np.nan])
def test_tail_integral_out_of_range(basis, tail):
    wrong = CallableBasis(basis.cdf, tail_integral=lambda x, a, w, y: np.full((len(x), len(w)), tail))
    with pytest.raises(ValueError, match="tail_integral must lie between 0 and hi - y"):
        CDFRegressor(wrong, A, n_w=8).fit(X, ACTIONS, Y)


def test_masked_arrays(model):
    for at in range(3):
        arguments = [X, ACTIONS, Y]
        arguments[at] = np.ma.masked_array(arguments[at], mask=np.zeros(arguments[at].shape, bool))
        with pytest.raises(TypeError, match="masked"):
            model.fit(*arguments)


@pytest.mark.parametrize("domain", [(0, 1e-300), (0, 1e300), (-1e308, 1e308), (1.0, 1 + 1e-12)], ids=range(4))
def test_domains_that_do_not_compute(domain):
    with pytest.raises(ValueError, match="domain must"):
        LogisticBasis(sine, 0.1, domain=domain)


def test_messages_do_not_contradict_themselves(model):
    with pytest.raises(ValueError, match=r"delta must be in \(0, 1\), got 1"):
        model.fit(X, ACTIONS, Y).error_bound(1)
    with pytest.raises(TypeError, match="lo must be a number, got 'a'"):
        interval("a", 1, 4)


def test_operator_of_zero():
    def step(x, a, w, s):
        s = s[:, None, :] if s.ndim == 2 else s[None, None, :]
        return np.broadcast_to((s >= w[None, :, None]) * 1.0, (len(x), len(w), s.shape[-1]))

    with pytest.raises(ValueError, match="operator is zero"):
        CDFRegressor(CallableBasis(step), A, measure=atoms([1.0], [1.0])).fit(X, ACTIONS, Y)


def test_basis_that_fails_for_a_late_action():
    from icml25.cdf_bandit import MixtureEnvironment

    def cdf(x, a, w, s):
        value = np.broadcast_to(np.atleast_2d(s)[:, None], (len(x), len(w), s.shape[-1]))
        return np.where(a[:, None, None] == A - 1, 1 - value, value)

    with pytest.raises(ValueError, match="a=4"):
        MixtureEnvironment(CallableBasis(cdf), lambda w: 0 * w + 1, lambda n, rng: rng.random((n, 1)), A)


def test_basis_that_fails_at_one_row():
    rows = np.linspace(0, 1, 500)[:, None]

    def cdf(x, a, w, s):
        value = np.array(np.broadcast_to(np.atleast_2d(s)[:, None], (len(x), len(w), s.shape[-1])))
        value[abs(x[:, 0] - rows[300, 0]) < 1e-9] = np.nan
        return value

    actions = np.zeros(500, int)
    with pytest.raises(ValueError, match="not finite"):
        CDFRegressor(CallableBasis(cdf), A, n_w=8).fit(rows, actions, np.full(500, 0.5))
    fitted = CDFRegressor(CallableBasis(cdf), A, n_w=8).fit(rows[:290], actions[:290], np.full(290, 0.5))
    for call in (
        lambda: fitted.predict_cdf(rows, actions, [0.5]),
        lambda: fitted.predict_utility(rows, Expectation()),
        lambda: fitted.sample(rows, actions, 1),
    ):
        with pytest.raises(ValueError, match="not finite"):
            call()
