"""The problem "inference" of the track "preference": worlds, exact win rates by enumeration, optima by another method."""

import itertools

import numpy as np
import pytest

from icml25.shared.protocols import inference_alignment as inference

WORLD = {"question": "world", "P": 6, "A": 40, "N": 3, "kl": 0.4}
SETTINGS = {
    "world": WORLD,
    "continuum": {"question": "continuum", "A": 101, "N": 2, "kl": 0.5},
    "theorem": {"question": "theorem", "problems": 2},
    "rollouts": WORLD | {"question": "rollouts", "sizes": [5, 20]},
    "lookup": {"question": "lookup", "P": 7, "K": 9, "n": 60},
}


def draw(question, seed=0, **changes):
    return inference.draw(SETTINGS[question] | changes, seed=seed, budget="smoke")


@pytest.mark.parametrize("question", SETTINGS)
def test_the_seed_decides(question):
    one, same, other = (draw(question, seed)[0] for seed in (0, 0, 1))
    arrays = [key for key, value in one.items() if isinstance(value, np.ndarray) and value.dtype == float]
    assert all((one[key] == same[key]).all() for key in arrays)
    assert any((one[key] != other[key]).any() for key in arrays)


def test_world():
    public, truth = draw("world", P=400, A=300)
    assert truth == {} and public["N"] == 3 and public["kl"] == 0.4
    np.testing.assert_allclose(public["pi_ref"].sum(1), 1)
    center = public["reward"] - public["reward"].mean(1, keepdims=True)
    skew = (center**3).mean(1) / (center**2).mean(1) ** 1.5
    assert abs(skew[1::2].mean()) < 0.1 and skew[::2].mean() == pytest.approx(2, abs=0.3)  # normal, exponential
    assert np.log(center.std(1)).std() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("N", [1, 2, 3])
def test_win_rates_are_those_of_all_draws(N):
    rng = np.random.default_rng(N)
    pi, ref, reward = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4)), np.array([1.0, 0.0, 1.0, 2.0])
    expected = {name: 0.0 for name in ("win_rate_best_of_n", "win_rate_worst_of_n")}
    for mine in itertools.product(range(4), repeat=N):
        for other in itertools.product(range(4), repeat=N):
            chance = pi[list(mine)].prod() * ref[list(other)].prod()
            for name, keep in zip(expected, (max, min), strict=True):
                a, b = keep(reward[list(mine)]), keep(reward[list(other)])
                expected[name] += chance * ((a > b) + 0.5 * (a == b))
    public = {"pi_ref": ref[None], "reward": reward[None], "N": N}
    found = inference._win_rates(pi[None], public)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12)
    if N == 1:
        assert found["win_rate_standard"] == pytest.approx(found["win_rate_best_of_n"])
    np.testing.assert_allclose([*inference._win_rates(ref[None], public).values()], 0.5)
    for procedure in inference.PROCEDURES:
        assert inference._served(pi, reward, N, procedure).sum() == pytest.approx(1)


def test_optimum_against_a_search_over_densities():
    """No power reward of the same KL does better, and none of degree up to 9 is far behind."""
    u = (np.arange(400) + 0.5) / 400
    for procedure in inference.PROCEDURES:
        best = inference._optimum(2, 0.5, procedure)
        for k in np.linspace(1, 9, 9):
            phi = u**k if procedure == "best_of_n" else -((1 - u) ** k)
            f = inference.policy_at_kl(np.full((1, 400), 1 / 400), phi[None], 0.5)[0] * 400
            F = np.cumsum(f) / 400 - f / 800
            W = 1 - 2 * (F**2 * u).mean() if procedure == "best_of_n" else 2 * ((1 - u) * (1 - F) ** 2).mean()
            assert best - 0.03 < W < best + 1e-5
    assert inference._optimum(2, 0.5, "best_of_n") == pytest.approx(0.8156, abs=1e-4)
    assert inference._optimum(4, 0.5, "worst_of_n") == pytest.approx(0.9479, abs=1e-4)


def test_direct_optimum_is_stationary_and_best():
    public, truth = draw("theorem", seed=5, problems=4)
    for i in range(4):
        used = public["pi_ref"][i] > 0
        p, q, r = truth["optimum"][i][used], public["pi_ref"][i][used], public["reward"][i][used]
        name = inference.PROCEDURES[int(public["worst"][i])]
        world = {"pi_ref": q[None], "reward": r[None], "N": int(public["N"][i])}

        def value(p, world=world, name=name, q=q, i=i):
            rate = inference._win_rates(p[None], world)[f"win_rate_{name}"]
            return rate - public["beta"][i] * (p * np.log(p / q)).sum()

        rng = np.random.default_rng(i)
        for size in (1e-3, 0.1, 1, 3):
            for _ in range(30):
                other = p * np.exp(size * rng.standard_normal(len(p)))
                assert value(other / other.sum()) <= value(p) + 1e-12
        assert 4 <= used.sum() <= 8 and truth["optimum"][i][~used].sum() == 0


def test_policy_at_kl():
    public, _ = draw("world")
    p = inference.policy_at_kl(public["pi_ref"], public["reward"], 0.4)
    assert inference._kl(p, public["pi_ref"]).mean() == pytest.approx(0.4)
    tilt = np.log(p / public["pi_ref"])
    slope = np.diff(tilt, axis=1) / np.diff(public["reward"], axis=1)
    np.testing.assert_allclose(slope, slope[0, 0], rtol=1e-6)  # 1/beta, the same for all prompts


def test_lookup():
    public, truth = draw("lookup")
    for x, r, c in zip(public["asked"], public["reward"], truth["calibrated"], strict=True):
        z = public["rollouts"][x]
        assert c == pytest.approx((np.sum(z < r) + np.sum(z == r) / 2) / 9)
    assert inference.evaluate(public, truth, {"calibrated": truth["calibrated"]})["calibration_error"] == 0


def test_rollouts_come_from_pi_ref():
    public, _ = draw("rollouts", P=2, A=5, sizes=[5, 20_000])
    share = np.stack([np.bincount(row, minlength=5) / 20_000 for row in public["rollouts"]])
    np.testing.assert_allclose(share, public["pi_ref"], atol=0.02)


def test_columns():
    public, truth = draw("continuum")
    columns = inference.evaluate(public, truth, inference.example(public) | {"note": 3})
    assert columns["note"] == 3 and columns["kl"] == pytest.approx(0.5)
    assert columns["win_rate_best_of_n"] + columns["gap_best_of_n"] == pytest.approx(truth["optimum_best_of_n"])
    assert columns["win_rate_best_of_n"] == pytest.approx(0.7917, abs=1e-3) and columns["gap_worst_of_n"] > 0.01
    public, truth = draw("theorem")
    assert inference.evaluate(public, truth, {"policy": truth["optimum"]})["largest_difference"] == 0
    public, truth = draw("rollouts")
    p, R = public["pi_ref"], public["reward"]
    policies = [inference.policy_at_kl(p, r, 0.4) for r in (-R, np.sign(R), R)]
    columns = inference.evaluate(public, truth, {"policy": np.stack(policies)})
    assert columns["win_rate_K5"] < 0.5 < columns["win_rate_K20"] and columns["loss_K5"] > 0.1
    assert columns["smallest_gain"] == pytest.approx(columns["win_rate_K20"] - columns["win_rate_K5"])
    assert columns["loss_K20"] == pytest.approx(columns["win_rate_exact"] - columns["win_rate_K20"])


@pytest.mark.parametrize("question", SETTINGS)
def test_example_is_scored(question):
    public, truth = draw(question)
    columns = inference.evaluate(public, truth, inference.example(public))
    assert columns and all(isinstance(value, float) and np.isfinite(value) for value in columns.values())


@pytest.mark.parametrize(
    ("question", "change", "message"),
    [
        ("world", lambda p: p[:, :5], r"policy has shape \(6, 5\)"),
        ("world", lambda p: 1.1 * p, "no distribution"),
        ("world", lambda p: -p, "no distribution"),
        ("world", lambda p: np.full_like(p, 1 / 40), "KL of"),
        ("rollouts", lambda p: p[:2], "expected"),
        ("theorem", lambda p: np.nan * p, "no distribution"),
    ],
)
def test_bad_policies(question, change, message):
    public, truth = draw(question)
    with pytest.raises(ValueError, match=message):
        inference.evaluate(public, truth, {"policy": change(inference.example(public)["policy"])})


def test_bad_ranks_and_questions():
    public, truth = draw("lookup")
    with pytest.raises(ValueError, match="calibrated has shape"):
        inference.evaluate(public, truth, {"calibrated": np.zeros(3)})
    with pytest.raises(ValueError, match="question is 'what'; expected one of world"):
        inference.draw({"question": "what"}, seed=0, budget="smoke")
