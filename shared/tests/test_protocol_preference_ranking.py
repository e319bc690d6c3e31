"""The protocol "ranking": worlds, and scores against hand counts."""

import numpy as np
import pytest

from icml25.shared.protocols import preference_ranking as protocol

GAUSSIAN = {"world": "gaussian", "prompts": 30, "answers": 5, "dimensions": 4, "test": 200, "worlds": 2}
GRADIENTS = {"world": "gradients", "sizes": "4+8+16", "rows": 10}
COST = {"world": "cost", "prompts": 2, "answers": 3, "tokens": 6, "vocabulary": 20, "repeats": 3}


def drawn(settings, seed=3, budget="quick"):
    return protocol.draw(settings, seed=seed, budget=budget)


@pytest.mark.parametrize("settings", [GAUSSIAN, GRADIENTS, COST], ids=lambda s: s["world"])
def test_draw_is_reproducible(settings):
    public, again, other = (drawn(settings, seed)[0] for seed in (3, 3, 4))
    for name, value in public.items():
        np.testing.assert_array_equal(value, again[name])
    changed = [name for name, value in public.items() if isinstance(value, np.ndarray) and (value != other[name]).any()]
    assert len(changed) == (3 if settings["world"] == "cost" else len(public) - 1 - (settings["world"] == "gradients"))


def test_gaussian_world():
    public, truth = drawn(GAUSSIAN)
    assert public["features"].shape == (2, 30, 5, 4) and public["features"].dtype == np.float32
    assert public["scores"].shape == (2, 30, 5) and truth["test_scores"].shape == (2, 200, 5)
    assert "test_scores" not in public
    for world in range(2):  # linear, with weights of norm 2, on train and test alike
        x, y = public["features"][world].reshape(-1, 4), public["scores"][world].ravel()
        weights = np.linalg.lstsq(x, y, rcond=None)[0]
        assert np.linalg.norm(weights) == pytest.approx(2, rel=1e-5)
        np.testing.assert_allclose(public["test_features"][world] @ weights, truth["test_scores"][world], atol=1e-4)
    assert abs(public["test_features"].mean()) < 0.05 and public["test_features"].std() == pytest.approx(1, abs=0.05)


def test_smoke_is_small():
    public, truth = drawn(GAUSSIAN | {"prompts": 512, "test": 1000}, budget="smoke")
    assert public["scores"].shape == (1, 64, 5) and truth["test_scores"].shape == (1, 100, 5)
    assert drawn(COST | {"repeats": 9}, budget="smoke")[0]["repeats"] == 2
    assert drawn(GRADIENTS | {"rows": 500}, budget="smoke")[0]["rewards_8"].shape == (20, 8)


def test_margins_by_hand():
    public, truth = {"world": "gaussian"}, {"test_scores": np.array([[[3.0, 1, 2], [0, 5, 4]], [[1, 2, 3], [9, 8, 7]]])}
    rewards = np.array([[[2.0, 0, 1], [0, 4, 1]], [[5, 0, 4], [1, 1, 1]]])
    found = protocol.evaluate(public, truth, {"rewards": rewards})
    assert found["ranking_margin"] == pytest.approx(((1 + 3) / 2 + (-1 + 0) / 2) / 2)
    assert found["ranking_accuracy"] == pytest.approx(2 / 4)  # a tie doesn't tell the best
    spread = [rewards[w].std() for w in range(2)]
    assert found["ranking_margin_normalized"] == pytest.approx((2 / spread[0] - 0.5 / spread[1]) / 2)


def test_scale_moves_the_margin_alone():
    public, truth = drawn(GAUSSIAN)
    right, doubled = (protocol.evaluate(public, truth, {"rewards": k * truth["test_scores"]}) for k in (1, 2))
    assert right["ranking_accuracy"] == 1 and right["ranking_margin"] > 0
    assert doubled["ranking_margin"] == pytest.approx(2 * right["ranking_margin"])
    assert doubled["ranking_margin_normalized"] == pytest.approx(right["ranking_margin_normalized"])
    blind = protocol.evaluate(public, truth, protocol.example(public))
    assert blind == {"ranking_margin": 0, "ranking_margin_normalized": 0, "ranking_accuracy": 0}
    noise = protocol.evaluate(public, truth, {"rewards": np.random.default_rng(0).normal(size=(2, 200, 5))})
    assert noise["ranking_accuracy"] == pytest.approx(0.2, abs=0.08) and noise["ranking_margin"] < 0


def test_growth_of_gradients():
    public, truth = drawn(GRADIENTS)
    flat = {f"gradient_{n}": np.full((10, n), 2 / n) for n in (4, 8, 16)}
    found = protocol.evaluate(public, truth, flat)
    assert found["gradient_slope"] == pytest.approx(0, abs=1e-12) and found["gradient_growth"] == pytest.approx(0)
    found = protocol.evaluate(public, truth, protocol.example(public))  # a norm of n
    assert found["gradient_slope"] == pytest.approx(1) and found["gradient_growth"] == pytest.approx(3)


def test_costs():
    public, truth = drawn(COST)
    assert public["prompt_ids"].shape == (2, 6) and public["answer_ids"].shape == (2, 3, 6)
    assert public["answer_ids"].min() >= 3 and public["answer_ids"].max() < 20
    times = {"step_seconds": np.array([1.0, 9, 2]), "pl_step_seconds": np.array([8.0, 4, 1])}
    found = protocol.evaluate(public, truth, {**times, "activations": 10, "pl_activations": 40, "pairs_per_second": 7})
    assert found["step_over_pl"] == 0.5 and found["activations_over_pl"] == 0.25 and found["pairs_per_second"] == 7
    assert "step_over_dpo" not in found
    trainers = {"trainer_seconds": np.full(3, 3.0), "dpo_trainer_seconds": np.full(3, 2.0)}
    assert protocol.evaluate(public, truth, trainers) == {"step_over_dpo": 1.5}
    assert protocol.evaluate(public, truth, protocol.example(public))["step_over_dpo"] == 1


def test_bad_input():
    with pytest.raises(ValueError, match="world is 'uniform'; expected"):
        drawn(GAUSSIAN | {"world": "uniform"})
    public, truth = drawn(GAUSSIAN)
    with pytest.raises(ValueError, match="rewards is missing"):
        protocol.evaluate(public, truth, {})
    with pytest.raises(ValueError, match=r"rewards has shape \(2, 3\); expected finite numbers \(2, 200, 5\)"):
        protocol.evaluate(public, truth, {"rewards": np.zeros((2, 3))})
    with pytest.raises(ValueError, match="expected finite numbers"):
        protocol.evaluate(public, truth, {"rewards": np.full((2, 200, 5), np.nan)})
    with pytest.raises(ValueError, match="gradient_8 is missing"):
        protocol.evaluate(*drawn(GRADIENTS), {"gradient_4": np.zeros((10, 4))})
    with pytest.raises(ValueError, match=r"step_seconds has shape \(2,\)"):
        protocol.evaluate(*drawn(COST), {"step_seconds": np.ones(2)})
