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


def test_shapes_and_what_is_kept_back() -> None:
    public, truth = draw()
    assert public["Z"].shape == (4, 4000, 5) and public["x"].shape == public["y"].shape == (4, 4000)
    assert public["sizes"].tolist() == [50, 100, 4000] and public["n_valid"] == 2 and "W" not in public
    assert truth["valid"].tolist() == [True, True, False, False, False] and truth["decoy"] is None
    assert len(set(truth["beta"])) == 4 and (np.abs(truth["beta"]) <= 1.5).all()
    assert not {"beta", "valid", "decoy"} & public.keys()
    assert draw(covariates=True)[0]["W"].shape == (4, 4000, 2)


def test_equations_of_the_first_case() -> None:
    public, truth = draw(seed=1)
    for z, x, y, beta in zip(public["Z"], public["x"], public["y"], truth["beta"], strict=True):
        x_rest = x - (z[:, :3] ** 3).sum(1) - np.cos(z[:, 3:]).sum(1) - np.prod(z[:, 2:], axis=1) ** 3
        y_rest = y - beta * x - z[:, 2] ** 3 - 1.5 * z[:, 3] ** 3 - z[:, 4] ** 3
        assert np.abs(z[:, 4] - z[:, 3] ** 3).max() <= 0.3
        assert np.abs(x_rest).max() <= 1.3 and np.abs(y_rest).max() <= 1.3
        assert np.cov(x_rest, y_rest)[0, 1] == pytest.approx(1 / 7, rel=0.2)  # the confounder's U^3
        assert x_rest.var() == pytest.approx(1 / 7 + 0.09 / 3, rel=0.2)
        assert np.abs(np.corrcoef(np.column_stack([z[:, :4], x_rest]).T)[-1, :-1]).max() < 0.08


def test_covariates_enter_everything() -> None:
    public, _ = draw(seed=2, covariates=True)
    for r in range(4):
        design = np.column_stack([np.ones(4000), public["W"][r]])
        coefficients = np.linalg.lstsq(design, public["Z"][r], rcond=None)[0]
        assert (np.abs(coefficients[1:, :4]) > 0.1).sum() >= 5 and np.abs(coefficients[1:, :4]).max() < 1.6
        residual = public["Z"][r][:, :4] - design @ coefficients[:, :4]
        np.testing.assert_allclose(residual.var(0), 1 / 3, rtol=0.1)


def test_proportional_candidates_look_valid_with_another_effect() -> None:
    public, truth = draw(seed=3, scenario="proportional", sizes=[20_000])
    assert truth["decoy"].tolist() == [False, False, True, True]
    for r in range(4):
        z, x, y = public["Z"][r], public["x"][r], public["y"][r]
        valid = instruments.two_stage_least_squares(z[:, :2], x, y, None)
        decoy = instruments.two_stage_least_squares(z[:, 2:], x, y, None)
        assert valid == pytest.approx(truth["beta"][r], abs=0.15) and decoy == pytest.approx(
            truth["beta"][r] + 1, abs=0.15
        )


def test_many() -> None:
    public, truth = draw(scenario="many", p=12, sizes=[60], noise="t")
    assert public["Z"].shape == (4, 60, 12) and truth["valid"].sum() == public["n_valid"] == 3


def test_noise_families_take_turns() -> None:
    public, _ = draw(noise="Uniform+Gaussian+Gamma+t")
    low = public["Z"][:, :, 0].min(1)
    assert -1 <= low[0] < -0.95 and low[1] < -2.5 and 0 <= low[2] < 0.2
    assert public["Z"][2, :, 0].mean() == pytest.approx(1, abs=0.06)
    assert (public["Z"][3, :, 0] ** 4).mean() > 15  # the fourth moment of t with 3 degrees does not exist
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
    out = instruments.evaluate(public, truth, {"support": support, "effect": effect, "passes": 7})
    expected = {
        "correct_selection_rate": 0.5,
        "correct_selection_rate_n50": 0.25,
        "correct_selection_rate_n100": 0.75,
        "smallest_gain": -0.25,
        "precision": (1 + 1 + 2 / 3 + 0) / 4,
        "recall": 3 / 4,
        "answered_rate": 0.75,
        "mse": (0.04 + 0.16) / 3,
        "rmse": np.sqrt(0.2 / 3),
        "relative_rmse": np.sqrt(0.2 / 3 / 2),
        "mse_n50": 0,
        "mse_n100": 0.01,
        "passes": 7,
    }
    assert {k: out[k] for k in expected} == pytest.approx(expected)
    oracle = [
        instruments.two_stage_least_squares(public["Z"][r][:, :2], public["x"][r], public["y"][r], None)
        for r in range(3)
    ]
    assert out["mse_over_oracle"] == pytest.approx((0.2 / 3) / np.mean((oracle - truth["beta"][:3]) ** 2))
    assert "decoy_rate" not in out and "valid_score_ratio" not in out


def test_the_oracle_scores_one() -> None:
    public, truth = draw(covariates=True)
    effect = [
        [
            instruments.two_stage_least_squares(z[:n, :2], x[:n], y[:n], w[:n])
            for z, x, y, w in zip(*(public[k] for k in "ZxyW"), strict=True)
        ]
        for n in public["sizes"]
    ]
    out = instruments.evaluate(public, truth, {"support": np.tile(truth["valid"], (3, 4, 1)), "effect": effect})
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
    out = instruments.evaluate(public, truth, {"support": support, "effect": np.zeros((2, 4)), "pair_scores": scores})
    assert out["decoy_rate"] == 0.75 and out["correct_selection_rate"] == 0
    assert out["valid_score_ratio"] == pytest.approx(0.25) and out["invalid_score_min"] == pytest.approx(0.3)


def test_no_answer_at_all_is_nan() -> None:
    public, truth = draw()
    empty = instruments.example(public)
    out = instruments.evaluate(public, truth, empty | {"effect": np.full((3, 4), np.nan)})
    assert (
        out["answered_rate"] == 0
        and np.isnan(out["mse"])
        and np.isnan(out["mse_over_oracle"])
        and np.isnan(out["rmse"])
    )
    assert instruments.evaluate(public, truth, empty)["correct_selection_rate"] == 0


def test_wrong_shapes_are_refused() -> None:
    public, truth = draw()
    with pytest.raises(ValueError, match=r"expected \(3, 4, 5\), \(3, 4\)"):
        instruments.evaluate(public, truth, {"support": np.zeros((3, 4, 4)), "effect": np.zeros((3, 4))})


def test_the_seed_decides() -> None:
    one, same, other = draw(seed=5)[0], draw(seed=5)[0], draw(seed=6)[0]
    np.testing.assert_array_equal(one["y"], same["y"])
    assert (one["y"] != other["y"]).all()
