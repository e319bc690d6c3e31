"""Algorithm 2: inverse gap weighting, epochs, the width, state."""

import json
import math

import numpy as np
import pytest
from conftest import A
from hypothesis import given, settings
from hypothesis import strategies as st

from icml25.cdf_bandit import (
    CDFBandit,
    CDFRegressor,
    CVaR,
    Expectation,
    MeanVariance,
    interval,
    inverse_gap_weighting,
    simulate,
)


@pytest.fixture
def small(basis):
    return CDFRegressor(basis, A, n_w=12, n_s=12)


def run(bandit, environment, rounds, seed=0):
    """Rounds in the batches that the epochs allow."""
    rng, done, actions = np.random.default_rng(seed), 0, []
    while done < rounds:
        X = environment.context(min(bandit.rounds_left_, rounds - done), rng)
        a, _ = bandit.act_batch(X)
        bandit.update_batch(X, a, environment.reward(X, a, rng))
        done += len(X)
        actions.append(a)
    return np.concatenate(actions)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), n_actions=st.integers(1, 7), eta=st.floats(0, 1e6))
def test_inverse_gap_weighting(seed, n_actions, eta):
    values = np.random.default_rng(seed).normal(size=(4, n_actions))
    p = inverse_gap_weighting(values, eta)
    gap = values.max(1, keepdims=True) - values
    np.testing.assert_allclose(p.sum(1), 1)
    others = gap > 0
    np.testing.assert_allclose(p[others], (1 / (n_actions + eta * gap))[others])
    assert (p >= 1 / (n_actions + eta * gap) - 1e-12).all()
    assert (p.argmax(1) == values.argmax(1)).all() or eta < 1e-6


def test_limits_of_the_weighting():
    values = np.array([[0.1, 0.9, 0.3], [2.0, 2.0, 1.0]])
    np.testing.assert_allclose(inverse_gap_weighting(values, 0), 1 / 3)
    np.testing.assert_allclose(inverse_gap_weighting(values, math.inf), [[0, 1, 0], [2 / 3, 1 / 3, 0]])
    np.testing.assert_allclose(inverse_gap_weighting(values, 10.0)[1], [1 - 1 / 3 - 1 / 13, 1 / 3, 1 / 13])


@pytest.mark.parametrize("width", ["theorem", "bound", "rank"])
def test_eta_is_the_formula(basis, environment, small, width):
    bandit = CDFBandit(
        basis, A, Expectation(), exploration=3.0, first_epoch=4, width=width, regressor=small, random_state=0
    )
    assert bandit.eta_ == 0 and bandit.rounds_left_ == 16
    run(bandit, environment, 16)
    for m, n in ((2, 16), (3, 32)):
        model, delta = bandit.regressor_, 0.05 / (2 * m**2)
        assert (bandit.epoch_, model.n_samples_, bandit.rounds_left_, bandit.n_fits_) == (m, n, 2 * n, m - 1)
        E = {
            "theorem": model.error_bound(delta),
            "bound": model.data_free_bound(delta),
            "rank": math.sqrt(model.rank_ * math.log(n / delta)),
        }[width]
        assert bandit.eta_ == pytest.approx(3 * math.sqrt(A * n) / E)
        run(bandit, environment, 2 * n)


def test_options_of_the_width(basis, environment, small):
    def eta(utility=None, **options):
        bandit = CDFBandit(basis, A, utility or CVaR(0.25), first_epoch=4, regressor=small, random_state=0, **options)
        run(bandit, environment, 16)
        return bandit.eta_

    assert eta(scale_by_lipschitz=True) == pytest.approx(eta() / 4)

    def named(F, s, m):
        return 1 - F @ m

    named.lipschitz = 2.0
    assert eta(named, scale_by_lipschitz=True) == pytest.approx(eta(named) / 2)
    with pytest.raises(ValueError, match="lipschitz"):
        eta(lambda F, s, m: F @ m, scale_by_lipschitz=True)
    assert eta(exploration=6) == pytest.approx(6 * eta())
    assert eta(width="bound", s0=100.0) < eta(width="bound")
    assert eta(delta=0.001) < eta()


def test_exploration_stops(basis, environment, small):
    """With sqrt(n) in eta it grows with the epochs; without, it would stay where it is."""
    bandit = CDFBandit(basis, A, Expectation(), first_epoch=4, regressor=small, random_state=0)
    etas = []
    for epoch in range(4):
        run(bandit, environment, 2 ** (4 + epoch))
        etas.append(bandit.eta_)
    assert etas == sorted(etas) and etas[-1] > 1.5 * etas[0]


def test_epochs_and_what_they_learn_from(basis, environment, small):
    last = CDFBandit(basis, A, Expectation(), first_epoch=3, regressor=small, random_state=0)
    everything = CDFBandit(basis, A, Expectation(), first_epoch=3, use_all_data=True, regressor=small, random_state=0)
    sizes = {id(last): [], id(everything): []}
    for bandit in (last, everything):
        for epoch in range(1, 5):
            assert bandit.epoch_ == epoch and bandit.rounds_left_ == 2 ** (2 + epoch)
            run(bandit, environment, 2 ** (2 + epoch))
            sizes[id(bandit)].append(bandit.regressor_.n_samples_)
    assert sizes[id(last)] == [8, 16, 32, 64]
    assert sizes[id(everything)] == [8, 24, 56, 120]
    assert last.n_fits_ == 4


@pytest.mark.parametrize("horizon", [64, 65, 1000, 1984])
def test_epochs_begun_are_the_logarithm(basis, environment, small, horizon):
    """ceil(log2(T/64 + 1)) epochs, the last one cut at T."""
    bandit = CDFBandit(basis, A, Expectation(), regressor=small, random_state=0)
    curve = simulate(bandit, environment, horizon, seed=0)
    assert len(curve.rounds) == math.ceil(math.log2(horizon / 64 + 1))
    assert curve.rounds[-1] == horizon
    np.testing.assert_array_equal(curve.rounds[:-1], 64 * (2 ** np.arange(1, len(curve.rounds)) - 1))


def test_one_by_one_equals_batches(basis, environment, small):
    X = environment.context(56, np.random.default_rng(0))
    one = CDFBandit(basis, A, CVaR(0.3), exploration=5, first_epoch=3, regressor=small, random_state=7)
    many = CDFBandit(basis, A, CVaR(0.3), exploration=5, first_epoch=3, regressor=small, random_state=7)
    for rows in (slice(0, 8), slice(8, 24), slice(24, 56)):
        a, p = many.act_batch(X[rows])
        np.testing.assert_allclose(p, many.probabilities(X[rows]))
        singles = []
        for x in X[rows]:
            np.testing.assert_allclose(one.probabilities(x).sum(), 1)
            singles.append(one.act(x))
            one.update(x, singles[-1], (x[0] + singles[-1]) % 1)
        many.update_batch(X[rows], a, (X[rows, 0] + a) % 1)
        np.testing.assert_array_equal(singles, a)
    assert one.eta_ == many.eta_ > 0


def test_reproducible(basis, environment, small):
    def actions(seed):
        return run(CDFBandit(basis, A, CVaR(0.3), first_epoch=3, regressor=small, random_state=seed), environment, 100)

    np.testing.assert_array_equal(actions(0), actions(0))
    assert (actions(0) != actions(1)).any()
    np.testing.assert_array_equal(actions(np.random.default_rng(0)), actions(0))


def test_actions_follow_the_probabilities(basis, environment, small):
    bandit = CDFBandit(basis, A, Expectation(), exploration=3, first_epoch=5, regressor=small, random_state=0)
    run(bandit, environment, 32)
    X = np.full((20_000, 1), 0.3)
    actions, p = bandit.act_batch(X)
    share = np.bincount(actions, minlength=A) / len(X)
    assert (abs(share - p[0]) < 4.5 * np.sqrt(p[0] * (1 - p[0]) / len(X)) + 1e-9).all()
    assert p[0].min() < 0.19 and p[0].max() > 0.25


@pytest.mark.parametrize("use_all_data", [False, True])
@pytest.mark.parametrize("measure", [None, interval(0, 1, 10, pieces=2)], ids=["default", "pieces"])
def test_saved_mid_epoch_has_the_same_future(basis, environment, use_all_data, measure):
    regressor = CDFRegressor(basis, A, n_w=10, n_s=10, decay="auto", measure=measure)
    options = {"exploration": 4, "first_epoch": 3, "use_all_data": use_all_data, "regressor": regressor}
    bandit = CDFBandit(basis, A, MeanVariance(1.0), random_state=3, **options)
    run(bandit, environment, 30)
    X = environment.context(3, np.random.default_rng(5))
    a, _ = bandit.act_batch(X)  # between act and update
    state = json.loads(json.dumps(bandit.to_dict()))
    other = CDFBandit.from_dict(state, basis, MeanVariance(1.0))
    for copy in (bandit, other):
        copy.update_batch(X, a, np.full(3, 0.4))
    assert (other.epoch_, other.rounds_left_, other.eta_) == (bandit.epoch_, bandit.rounds_left_, bandit.eta_)
    np.testing.assert_array_equal(run(bandit, environment, 90, 1), run(other, environment, 90, 1))
    assert other.eta_ == bandit.eta_
    np.testing.assert_array_equal(other.regressor_.theta_, bandit.regressor_.theta_)


def test_saved_before_the_first_round(basis):
    bandit = CDFBandit(basis, A, Expectation(), random_state=3)
    other = CDFBandit.from_dict(json.loads(json.dumps(bandit.to_dict())), basis, Expectation())
    assert [bandit.act([0.1]) for _ in range(20)] == [other.act([0.1]) for _ in range(20)]


def test_what_cannot_be_stored_or_restored(basis):
    bandit = CDFBandit(basis, A, Expectation(), random_state=np.random.Generator(np.random.MT19937(0)))
    with pytest.raises(ValueError, match="MT19937"):
        bandit.to_dict()
    state = CDFBandit(basis, A, Expectation(), random_state=0).to_dict()
    del state["epoch"]
    with pytest.raises(ValueError, match="epoch"):
        CDFBandit.from_dict(state, basis, Expectation())
    state = CDFBandit(basis, A, Expectation(), random_state=0).to_dict()
    state["rng"] = dict(state["rng"], bit_generator="system")
    with pytest.raises(ValueError, match="system"):
        CDFBandit.from_dict(state, basis, Expectation())


def test_learns_what_pays(basis, environment):
    """Regret below half of the uniform policy's, and the share of the best action grows."""
    regressor = CDFRegressor(basis, A, decay=0.5, n_w=24, n_s=24)
    for utility in (Expectation(), CVaR(0.25)):
        options = {"first_epoch": 6, "regressor": regressor}
        learned = simulate(CDFBandit(basis, A, utility, exploration=20, **options), environment, 960, 2, seed=0)
        uniform = simulate(CDFBandit(basis, A, utility, exploration=0, **options), environment, 960, 2, seed=0)
        assert learned.regret.shape == (2, 4)
        assert learned.regret[:, -1].mean() < 0.5 * uniform.regret[:, -1].mean()
        assert (np.diff(learned.regret) >= 0).all()


def test_uniform_policy_never_fits(basis, environment):
    bandit = CDFBandit(basis, A, Expectation(), exploration=0, first_epoch=2, random_state=0)
    run(bandit, environment, 28)
    assert bandit.n_fits_ == 0 and bandit.epoch_ == 4
    np.testing.assert_array_equal(bandit.probabilities([0.2]), np.full(A, 1 / A))


def test_greedy_policy(basis, environment, small):
    bandit = CDFBandit(basis, A, Expectation(), exploration=math.inf, first_epoch=5, regressor=small, random_state=0)
    run(bandit, environment, 32)
    X = environment.context(10)
    best = bandit.regressor_.predict_utility(X, Expectation()).argmax(1)
    np.testing.assert_array_equal(bandit.act_batch(X)[0], best)
    state = json.loads(json.dumps(bandit.to_dict()))
    np.testing.assert_array_equal(CDFBandit.from_dict(state, basis, Expectation()).act_batch(X)[0], best)


def test_fresh_copy_shares_nothing(basis, environment, small):
    bandit = CDFBandit(basis, A, Expectation(), first_epoch=3, regressor=small, random_state=0)
    run(bandit, environment, 12)
    other = bandit.fresh(1)
    assert other.epoch_ == 1 and other.rounds_left_ == 8 and bandit.epoch_ == 2 and bandit.rounds_left_ == 12
    run(other, environment, 8)
    assert bandit.regressor_ is not other.regressor_


def test_failure_at_the_end_of_an_epoch_can_be_repeated(environment):
    from conftest import sine

    from icml25.cdf_bandit import CallableBasis, LogisticBasis

    fails, plain = [True], LogisticBasis(sine, 0.08)

    def cdf(x, a, w, s):
        return plain.cdf(x, a, w, s) * (np.nan if fails[0] else 1)

    for use_all_data in (False, True):
        fails[0] = False
        bandit = CDFBandit(
            CallableBasis(cdf), A, Expectation(), first_epoch=2, use_all_data=use_all_data, random_state=0
        )
        run(bandit, environment, 4)
        X = environment.context(8, np.random.default_rng(0))
        a, _ = bandit.act_batch(X)
        fails[0] = True
        before = bandit.regressor_.theta_.copy()
        with pytest.raises(ValueError, match="not finite"):
            bandit.update_batch(X, a, np.full(8, 0.5))
        assert (bandit.epoch_, bandit.rounds_left_, bandit.n_fits_) == (2, 8, 1)
        np.testing.assert_array_equal(bandit.regressor_.theta_, before)
        fails[0] = False
        bandit.update_batch(X, a, np.full(8, 0.5))
        assert (bandit.epoch_, bandit.rounds_left_) == (3, 16)
        assert bandit.regressor_.n_samples_ == (12 if use_all_data else 8)


def test_state_is_strict_json(basis, environment):
    regressor = CDFRegressor(basis, A, n_w=6, n_s=6, norm_bound=3, clip=True)
    bandit = CDFBandit(
        basis, A, Expectation(), exploration=math.inf, first_epoch=2, regressor=regressor, random_state=0
    )
    run(bandit, environment, 5)
    # numpy's numbers, as they come from a grid search
    bandit.regressor.set_params(n_w=np.int64(6), norm_bound=np.float32(3))
    state = json.loads(json.dumps(bandit.to_dict(), allow_nan=False))
    other = CDFBandit.from_dict(state, basis, Expectation())
    assert other.exploration == other.eta_ == math.inf and other.rounds_left_ == bandit.rounds_left_
    np.testing.assert_array_equal(run(bandit, environment, 20), run(other, environment, 20))


@pytest.mark.parametrize(
    ("values", "eta", "message"),
    [
        ([[0.1, 0.2]], -5, "eta"),
        ([[0.1, 0.2]], math.nan, "eta"),
        ([[0.1, 0.2]], "1", "eta"),
        ([[1.0, math.nan]], 1, "values"),
        ([0.1, 0.2], 1, "values"),
        (np.zeros((2, 0)), 1, "values"),
        ([["a", "b"]], 1, "values"),
    ],
    ids=range(7),
)
def test_weighting_of_bad_values(values, eta, message):
    with pytest.raises((TypeError, ValueError), match=message):
        inverse_gap_weighting(values, eta)


def test_weighting_of_lists_and_integers():
    np.testing.assert_allclose(inverse_gap_weighting([[1, 0]], 2), [[0.75, 0.25]])
    np.testing.assert_allclose(inverse_gap_weighting([[1e308, -1e308]], 1e10), [[1, 0]])


def test_lipschitz_constant_knows_the_ends_of_the_domain(environment):
    from icml25.cdf_bandit import Entropic, LogisticBasis, Moment

    basis = LogisticBasis(lambda x, a, w: 90 + 10 * w + 0 * x, 1.0, domain=(90, 100))
    etas = []
    for scale in (False, True):
        bandit = CDFBandit(basis, A, Moment(2), first_epoch=2, scale_by_lipschitz=scale, random_state=0)
        X = environment.context(4, np.random.default_rng(0))
        bandit.update_batch(X, bandit.act_batch(X)[0], np.full(4, 95.0))
        etas.append(bandit.eta_)
    assert etas[0] / etas[1] == pytest.approx(2 * np.sqrt(10 * (100**3 - 90**3) / 3))
    with pytest.raises(ValueError, match="lipschitz"):
        CDFBandit(basis, A, Entropic(1e3), scale_by_lipschitz=True)
