"""The federated loop: its estimate against formulas, balanced payments, resuming, bad callbacks."""

import numpy as np
import pytest

from icml25.mshap import FedBRShap, FLGame, LinearFractional, MShap, sample_orders, shapley_shares
from icml25.mshap.fedbr import average, coalitions_of, draw_orders, estimate, extra_samples

TARGETS = np.array([[1.0, 0.0, 0.3], [0.5, 0.5, 0.1], [0.0, 1.0, 0.7], [0.2, 0.9, 0.0]])
CAPACITY, GAMMA = np.array([200.0, 120.0, 60.0, 10.0]), np.array([1e-3, 2e-3, 1e-4, 5e-4])
START = {"w": np.array([0.2, 0.1]), "b": np.array([0.0])}


def train(i, params, n_samples):
    pull = n_samples / (n_samples + 100)
    flat = np.concatenate([params["w"], params["b"]])
    flat = flat + pull * (TARGETS[i] - flat)
    return {"w": flat[:2], "b": flat[2:]}


def evaluate(i, params):
    return float(1 / (1 + np.sum((np.concatenate([params["w"], params["b"]]) - TARGETS[i]) ** 2)))


def make(**options):
    return FedBRShap(4, CAPACITY, GAMMA, **({"epsilon_samples": 20, "step": 2e4, "rounds": 3} | options))


def test_estimate_is_shapley_of_the_same_coalitions():
    rng, n = np.random.default_rng(0), 4
    values = rng.random(2**n)
    bits = 2 ** np.arange(n)
    orders, epsilon = draw_orders(n, None, 0), np.array([5.0, -3.0, 0.0, 2.0])
    slope = rng.random(n)
    totals = {
        (m, c): values[sum(bits[list(m)])] + (0 if c is None else slope[c] * epsilon[c])
        for m, c in coalitions_of(orders)
    }
    shares, gradient = estimate(orders, totals, epsilon)
    np.testing.assert_allclose(shares, shapley_shares(lambda m: values[m @ bits], n, "exact"), atol=1e-12)
    np.testing.assert_allclose(gradient, np.where(epsilon == 0, 0, slope), atol=1e-12)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_one_round_by_hand(weighting):
    """Two agents, both orders: every model and every difference written out."""
    tau, gamma, eps, step = np.array([100.0, 100.0]), np.array([1e-3, 2e-3]), 10, 50.0
    loop = FedBRShap(2, tau, gamma, epsilon_samples=eps, step=step, rounds=1, init=[30.0, 60.0], weighting=weighting)
    done = loop.run(train, evaluate, START)[0]
    n = np.array([30, 60])

    def mean(models, weights):
        w = np.array(weights if weighting == "samples" else [1.0] * len(models)) / sum(
            weights if weighting == "samples" else [1.0] * len(models)
        )
        return {k: sum(x * m[k] for x, m in zip(w, models, strict=True)) for k in START}

    def A(model):
        return evaluate(0, model) + evaluate(1, model)

    own, more = [train(i, START, n[i]) for i in range(2)], [train(i, START, n[i] + eps) for i in range(2)]
    both = mean(own, n)
    shares = [(A(own[i]) - A(START) + A(both) - A(own[1 - i])) / 2 for i in range(2)]
    np.testing.assert_allclose(done.shares, shares, atol=1e-12)
    varied = [mean([more[0], own[1]], n + np.array([eps, 0])), mean([own[0], more[1]], n + np.array([0, eps]))]
    gradient = [((A(more[i]) - A(own[i])) + (A(varied[i]) - A(both))) / (2 * eps) for i in range(2)]
    np.testing.assert_allclose(done.gradient, gradient, atol=1e-12)
    np.testing.assert_allclose(loop.contributions, np.clip(n + step * (np.array(gradient) - gamma), 0, tau))
    np.testing.assert_allclose(loop.params["w"], both["w"])
    assert np.abs(np.array(gradient)).max() > 1e-4


def test_payments_balance_in_each_round():
    for options in ({}, {"num_permutations": 3}, {"weighting": "samples"}):
        loop = make(**options)
        for done in loop.run(train, evaluate, START):
            assert abs(done.payments.sum()) < 1e-12
            np.testing.assert_allclose(done.payments, done.shares - done.gains)
            assert np.abs(done.payments).max() > 1e-3
        assert (loop.contributions >= 0).all() and (loop.contributions <= CAPACITY).all()
        assert loop.payments.shape == (4,)


def test_the_loop_finds_the_equilibrium_of_a_formula():
    """Models that carry the samples behind them make the loop's game a formula, solved elsewhere."""
    W = np.array([[0.2, 0.05, 0.02], [0.05, 0.2, 0.1], [0.1, 0.02, 0.1]])
    gamma, tau = np.array([0.01, 0.02, 0.015]), np.full(3, 1000.0)
    wanted = FLGame(LinearFractional(W), gamma, tau).solve(MShap()).contributions

    def count(i, params, n_samples):
        return np.eye(3)[i] * n_samples

    def score(i, params):
        z = W[i] @ params
        return z / (1 + z)

    class Sums(FedBRShap):
        def _coalition_model(self, members, changed, own, varied, samples, extra):
            return sum((varied[i] if i == changed else own[i] for i in members), np.zeros(3))

    loop = Sums(3, tau, gamma, epsilon_samples=1, step=200.0, rounds=300, init=[10.0] * 3)
    loop.run(count, score, np.zeros(3))
    assert np.abs(loop.contributions - wanted).max() < 2  # whole samples, and a difference of one sample


def test_resume_is_bit_for_bit(tmp_path):
    whole = make(rounds=4, num_permutations=5)
    whole.run(train, evaluate, START)
    half = make(rounds=2, num_permutations=5)
    half.run(train, evaluate, START)
    half.save(tmp_path / "state")
    other = make(rounds=4, num_permutations=5).restore(tmp_path / "state")
    assert len(other.run(train, evaluate)) == 4
    for name in ("contributions", "shares", "gradient", "payments", "accuracies", "gains"):
        for one, two in zip(whole.history, other.history, strict=True):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    np.testing.assert_array_equal(whole.contributions, other.contributions)
    np.testing.assert_array_equal(whole.params["w"], other.params["w"])
    assert other.history[3].number == 4
    with pytest.raises(ValueError, match=r"step: 20000.0 there, 1.0 here"):
        make(step=1.0).restore(tmp_path / "state")
    for changes, match in (
        ({"seed": 9}, "seed: 0 there, 9 here"),
        ({"num_permutations": 4}, "num_permutations: 5 there, 4 here"),
    ):
        with pytest.raises(ValueError, match=match):
            make(**({"num_permutations": 5} | changes)).restore(tmp_path / "state")
    with pytest.raises(ValueError, match=r"costs: \[0.001, 0.002, 0.0001, 0.0005\] there"):
        FedBRShap(4, CAPACITY, 2 * GAMMA, epsilon_samples=20, step=2e4, num_permutations=5).restore(tmp_path / "state")
    np.savez(tmp_path / "x.npz", a=np.zeros(2))
    with pytest.raises(ValueError, match="holds no state"):
        make().restore(tmp_path / "x.npz")


def test_save_before_the_first_round(tmp_path):
    make(init=[1.0, 2.0, 3.0, 4.0]).save(tmp_path / "state")
    other = make().restore(tmp_path / "state")
    assert other.params is None and other.history == [] and other.contributions.tolist() == [1, 2, 3, 4]


def test_epsilon_goes_where_there_are_samples():
    extra = extra_samples(np.array([10, 95, 100, 3, 0, 6]), np.array([100.0, 100.0, 100.0, 5.0, 0.0, 8.0]), 10)
    assert extra.tolist() == [10, -10, -10, -3, 0, -6]


def test_orders_of_the_loop():
    assert draw_orders(4, None, 0).shape == (24, 4) and len({tuple(o) for o in draw_orders(4, None, 0).tolist()}) == 24
    assert draw_orders(30, None, 0).shape == (102, 30)
    np.testing.assert_array_equal(draw_orders(6, 8, 3), sample_orders(6, 4, 3))
    assert draw_orders(6, 7, 3).shape == (7, 6)
    assert draw_orders(1, None, 0).tolist() == [[0]]


def test_average_keeps_structure_and_dtype():
    for model in (np.float32([1, 2]), [np.float32([1, 2])], (np.float32([1, 2]),), {"a": np.float32([1, 2])}):
        mean = average([model, model], np.array([1.0, 3.0]))
        assert type(mean) is type(model)
    assert average([np.float32([1]), np.float32([3])], np.array([1.0, 3.0])).dtype == np.float32
    assert average([np.array([1.0]), np.array([3.0])], np.array([1.0, 3.0])) == 2.5
    with pytest.raises(TypeError, match="params is str"):
        make().run(train, evaluate, "weights")


def test_callback_and_inputs_unchanged():
    seen, start = [], {k: v.copy() for k, v in START.items()}
    make().run(train, evaluate, start, callback=seen.append)
    assert [r.number for r in seen] == [1, 2, 3]
    np.testing.assert_array_equal(start["w"], START["w"])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"step": 0}, "step is 0"),
        ({"step": float("nan")}, "step is nan"),
        ({"epsilon_samples": 0}, "epsilon_samples is 0"),
        ({"rounds": 0}, "rounds is 0"),
        ({"num_permutations": 0}, "num_permutations is 0"),
        ({"weighting": "loss"}, "weighting is 'loss'"),
        ({"init": [1, 2, 3]}, "init has 3 entries; expected 4"),
        ({"init": [1, 2, 3, 11]}, r"init\[3\] is 11"),
    ],
)
def test_bad_settings(changes, match):
    with pytest.raises(ValueError, match=match):
        make(**changes)


def test_bad_callbacks():
    with pytest.raises(ValueError, match="params is None"):
        make().run(train, evaluate)
    with pytest.raises(ValueError, match=r"train\(0, ...\) returned NaN"):
        make().run(lambda i, p, n: {k: v * np.nan for k, v in p.items()}, evaluate, START)
    with pytest.raises(ValueError, match=r"train\(0, ...\) returned has arrays of shapes"):
        make().run(lambda i, p, n: {"w": p["w"], "b": np.zeros(())}, evaluate, START)
    with pytest.raises(ValueError, match="a model has arrays of shapes"):
        average([np.zeros(2), np.zeros(1)], np.ones(2))
    with pytest.raises(ValueError, match="another structure"):
        make().run(lambda i, p, n: {"w": p["w"]}, evaluate, START)
    with pytest.raises(ValueError, match=r"evaluate\(0, ...\) returned NaN"):
        make().run(train, lambda i, p: float("nan"), START)
