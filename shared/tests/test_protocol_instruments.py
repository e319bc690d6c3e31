"""The protocol of instruments of unknown validity, against closed forms."""

import numpy as np
import pytest

from icml25.shared.protocols import instruments

SETTINGS = {
    "dataset": "case1",
    "scenario": "case1",
    "sizes": [50, 100, 4000],
    "replicates": 4,
    "noise": "Uniform",
    "covariates": False,
}


def draw(seed: int = 0, **changes: object) -> tuple[dict, dict]:
    return instruments.draw(SETTINGS | changes, seed=seed, budget="quick")


def candidates(public: dict, truth: dict) -> np.ndarray:
    """Z in the order of the model."""
    return np.stack([z[:, np.argsort(c)] for z, c in zip(public["Z"], truth["columns"], strict=True)])


def as_public(values: np.ndarray, truth: dict) -> np.ndarray:
    """A support (S, R, p) in the order of the columns."""
    return np.stack([values[:, r][:, c] for r, c in enumerate(truth["columns"])], axis=1)


def test_shapes_and_what_is_kept_back() -> None:
    public, truth = draw()
    assert public["Z"].shape == (4, 4000, 5) and public["x"].shape == public["y"].shape == (4, 4000)
    assert public["sizes"].tolist() == [50, 100, 4000] and public["n_valid"] == 2 and "W" not in public
    assert truth["valid"].tolist() == [True, True, False, False, False] and truth["decoy"] is None
    assert len(set(truth["beta"])) == 4 and (np.abs(truth["beta"]) <= 1.5).all()
    assert not {"beta", "columns", "valid", "decoy"} & public.keys()
    assert draw(covariates=True)[0]["W"].shape == (4, 4000, 2)


def test_equations_of_the_first_case() -> None:
    public, truth = draw(seed=1)
    for z, x, y, beta in zip(candidates(public, truth), public["x"], public["y"], truth["beta"], strict=True):
        x_rest = x - (z[:, :3] ** 3).sum(1) - np.cos(z[:, 3:]).sum(1) - np.prod(z[:, 2:], axis=1) ** 3
        y_rest = y - beta * x - z[:, 2] ** 3 - 1.5 * z[:, 3] ** 3 - z[:, 4] ** 3
        assert np.abs(z[:, 4] - z[:, 3] ** 3).max() <= 0.3
        assert np.abs(x_rest).max() <= 1.3 and np.abs(y_rest).max() <= 1.3
        assert np.cov(x_rest, y_rest)[0, 1] == pytest.approx(1 / 7, rel=0.2)  # the confounder's U^3
        assert x_rest.var() == pytest.approx(1 / 7 + 0.09 / 3, rel=0.2)
        assert np.abs(np.corrcoef(np.column_stack([z[:, :4], x_rest]).T)[-1, :-1]).max() < 0.08


def test_covariates_enter_everything() -> None:
    public, truth = draw(seed=2, covariates=True)
    for r, z in enumerate(candidates(public, truth)):
        design = np.column_stack([np.ones(4000), public["W"][r]])
        coefficients = np.linalg.lstsq(design, z, rcond=None)[0]
        assert (np.abs(coefficients[1:, :4]) > 0.1).sum() >= 5 and np.abs(coefficients[1:, :4]).max() < 1.6
        residual = z[:, :4] - design @ coefficients[:, :4]
        np.testing.assert_allclose(residual.var(0), 1 / 3, rtol=0.1)


def test_proportional_candidates_look_valid_with_another_effect() -> None:
    public, truth = draw(seed=3, scenario="proportional", sizes=[20_000])
    assert truth["decoy"].tolist() == [False, False, True, True]
    for r in range(4):
        z, x, y = candidates(public, truth)[r], public["x"][r], public["y"][r]
        valid = instruments.two_stage_least_squares(z[:, :2], x, y, None)
        decoy = instruments.two_stage_least_squares(z[:, 2:], x, y, None)
        assert valid == pytest.approx(truth["beta"][r], abs=0.15) and decoy == pytest.approx(
            truth["beta"][r] + 1, abs=0.15
        )


def test_many() -> None:
    public, truth = draw(scenario="many", p=12, sizes=[60], noise="t")
    assert public["Z"].shape == (4, 60, 12) and truth["valid"].sum() == public["n_valid"] == 3


def test_noise_families_take_turns() -> None:
    public, truth = draw(noise="Uniform+Gaussian+Gamma+t")
    first = candidates(public, truth)[:, :, 0]
    low = first.min(1)
    assert -1 <= low[0] < -0.95 and low[1] < -2.5 and 0 <= low[2] < 0.2
    assert first[2].mean() == pytest.approx(1, abs=0.06)
    assert (first[3] ** 4).mean() > 15  # the fourth moment of t with 3 degrees does not exist
    with pytest.raises(ValueError, match=r"noise has \['Cauchy'\]"):
        draw(noise="Uniform+Cauchy")


def test_large_and_small_outputs_are_brought_into_range() -> None:
    np.testing.assert_allclose(instruments._in_range(np.array([150.0, -3])), [0.15, -0.003])
    np.testing.assert_allclose(instruments._in_range(np.array([0.005])), [500])
    np.testing.assert_array_equal(instruments._in_range(np.array([100.0, 0])), [100, 0])
    np.testing.assert_array_equal(instruments._in_range(np.zeros(1)), [0])


def test_two_stage_least_squares_with_one_instrument_is_a_ratio() -> None:
    rng = np.random.default_rng(0)
    z, x, y, w = rng.normal(size=(4, 50))
    ratio = np.cov(y, z)[0, 1] / np.cov(x, z)[0, 1]
    assert instruments.two_stage_least_squares(z[:, None], x, y, None) == pytest.approx(ratio)
    x, y = 2 * z + w, 3 * (2 * z + w) + 5 * w + 1  # exact given w
    assert instruments.two_stage_least_squares(z[:, None], x, y, w[:, None]) == pytest.approx(3)


def test_columns() -> None:
    public, truth = draw()
    truth = truth | {"beta": np.array([1.0, -1, 2, 0.5])}
    support = np.zeros((3, 4, 5), dtype=bool)
    support[0, 0, :2] = True  # 1 of 4 correct at 50 rows
    support[1, :3, :2] = True  # 3 of 4 at 100
    support[2, :2, :2] = True  # 2 of 4 at 4000: two exact, one with an invalid third, one empty
    support[2, 2, :3] = True
    effect = np.tile(truth["beta"], (3, 1))
    effect[1] += [0.1, -0.1, 0.1, -0.1]
    effect[2] += [0.2, 0, -0.4, np.nan]
    support = as_public(support, truth)
    out = instruments.evaluate(public, truth, {"support": support, "effect": effect, "passes": 7})
    expected = {
        "correct_selection_rate": 0.5,
        "correct_selection_rate_n50": 0.25,
        "correct_selection_rate_n100": 0.75,
        "smallest_gain": -0.25,
        "precision": (1 + 1 + 2 / 3 + 0) / 4,
        "recall": 3 / 4,
        "answered_rate": 0.75,
        "mse": (0.04 + 0.16 + 0.25) / 4,  # no answer is an effect of 0
        "rmse": np.sqrt(0.45 / 4),
        "relative_rmse": np.sqrt(0.45 / 6.25),
        "mse_n50": 0,
        "mse_n100": 0.01,
        "passes": 7,
    }
    assert {k: out[k] for k in expected} == pytest.approx(expected)
    oracle = [
        instruments.two_stage_least_squares(candidates(public, truth)[r][:, :2], public["x"][r], public["y"][r], None)
        for r in range(4)
    ]
    assert out["mse_over_oracle"] == pytest.approx((0.45 / 4) / np.mean((oracle - truth["beta"]) ** 2))
    assert "decoy_rate" not in out and "valid_score_ratio" not in out


def test_the_oracle_scores_one() -> None:
    public, truth = draw(covariates=True)
    effect = [
        [
            instruments.two_stage_least_squares(z[:n, :2], x[:n], y[:n], w[:n])
            for z, x, y, w in zip(candidates(public, truth), *(public[k] for k in "xyW"), strict=True)
        ]
        for n in public["sizes"]
    ]
    support = as_public(np.tile(truth["valid"], (3, 4, 1)), truth)
    out = instruments.evaluate(public, truth, {"support": support, "effect": effect})
    assert (
        out["mse_over_oracle"] == pytest.approx(1) and out["correct_selection_rate"] == 1 and out["smallest_gain"] == 0
    )


def test_decoy_and_pair_scores() -> None:
    public, truth = draw(scenario="proportional", sizes=[50, 100])
    support = np.zeros((2, 4, 4), dtype=bool)
    support[1, :3, 2:] = True
    scores = np.ones((2, 4, 4, 4))
    scores[0, :, 0, 1] = [0.1, 0.4, 0.4, 9]
    scores[1, :, 0, 1] = [0.1, 0.1, 0.1, 9]
    scores[1, :, 1, 3] = [0.3, 0.3, 0.3, 0]
    support = as_public(support, truth)
    scores = np.stack([scores[:, r][:, c][:, :, c] for r, c in enumerate(truth["columns"])], axis=1)
    out = instruments.evaluate(public, truth, {"support": support, "effect": np.zeros((2, 4)), "pair_scores": scores})
    assert out["decoy_rate"] == 0.75 and out["correct_selection_rate"] == 0
    assert out["valid_score_ratio"] == pytest.approx(0.25) and out["invalid_score_min"] == pytest.approx(0.3)


def test_no_answer_is_an_effect_of_zero() -> None:
    public, truth = draw()
    empty = instruments.example(public)
    out = instruments.evaluate(public, truth, empty | {"effect": np.full((3, 4), np.nan)})
    assert out["answered_rate"] == 0 and out["relative_rmse"] == pytest.approx(1)
    assert out["mse"] == pytest.approx(np.mean(truth["beta"] ** 2)) and out["mse_over_oracle"] > 1
    zero = instruments.evaluate(public, truth, empty)
    assert {k: out[k] for k in out if k != "answered_rate"} == {k: zero[k] for k in zero if k != "answered_rate"}
    assert instruments.evaluate(public, truth, empty)["correct_selection_rate"] == 0


def test_wrong_shapes_are_refused() -> None:
    public, truth = draw()
    with pytest.raises(ValueError, match=r"expected \(3, 4, 5\), \(3, 4\)"):
        instruments.evaluate(public, truth, {"support": np.zeros((3, 4, 4)), "effect": np.zeros((3, 4))})


def test_the_seed_decides() -> None:
    one, same, other = draw(seed=5)[0], draw(seed=5)[0], draw(seed=6)[0]
    np.testing.assert_array_equal(one["y"], same["y"])
    assert (one["y"] != other["y"]).all()


def test_the_place_of_a_candidate_says_nothing() -> None:
    _, truth = draw(replicates=500, sizes=[2])
    columns = truth["columns"]
    assert (np.sort(columns, axis=1) == np.arange(5)).all()
    share = np.array([(columns[:, k] == j).mean() for k in range(5) for j in range(5)])
    assert np.abs(share - 0.2).max() < 4 * np.sqrt(0.2 * 0.8 / 500)
    first_two = [(np.sort(c[:2]) == [0, 1]).all() for c in columns]  # the valid pair, for one who takes the first two
    assert abs(np.mean(first_two) - 0.1) < 4 * np.sqrt(0.09 / 500)


def test_solvers_do_not_share_the_stream_of_the_draw() -> None:
    public, truth = draw(seed=7, noise="Uniform", sizes=[50])
    drawn = np.concatenate([truth["beta"] / 1.5, public["Z"].ravel()])
    assert not np.isin(np.random.default_rng(7).uniform(-1, 1, 2000), drawn).any()
