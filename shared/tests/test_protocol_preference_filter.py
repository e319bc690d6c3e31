"""The protocol of filters: the world's moments, DPO's step by finite differences, and results that cannot be."""

import numpy as np
import pytest

from icml25.shared.protocols import preference_filter as protocol

SETTINGS = {"question": "world", "bad": 0.5, "N": 16, "d": 16, "k": 8}
WRITTEN = SETTINGS | {"question": "self"}


def draw(settings=SETTINGS, seed=1000, budget="smoke"):
    return protocol.draw(settings, seed=seed, budget=budget)


def test_draw_repeats_and_hides_the_truth() -> None:
    (public, truth), (again, _) = draw(), draw()
    assert not {"bad", "x", "y"} & set(public)
    assert (public["scores"] == again["scores"]).all()
    assert (public["scores"] != draw(seed=1001)[0]["scores"]).any()
    assert public["scores"].shape == public["lengths"].shape == (400, 16)
    assert 0.4 < truth["bad"].mean() < 0.6 and public["lengths"].min() >= 1


def test_corrupted_prompts_and_answers_have_more_spread() -> None:
    _, truth = draw(budget="quick")
    spread = truth["y"].std(1).mean(1)
    for bad, scale, variance in ((False, 1.0, 0.25), (True, 1.6, 1.25)):
        rows = truth["bad"] == bad
        assert spread[rows].mean() == pytest.approx(scale * np.sqrt(15 / 16), rel=0.03)
        assert truth["x"][rows].var() == pytest.approx(variance, rel=0.03)


def test_a_step_of_dpo_is_the_gradient_of_its_loss(monkeypatch) -> None:
    """Log densities of N(A x, I) written out; the loss differentiated by central differences."""
    rng = np.random.default_rng(0)
    A, x, w, loser = rng.normal(size=(2, 3)), rng.normal(size=(1, 3)), rng.normal(size=(1, 2)), rng.normal(size=(1, 2))

    def loss(policy: np.ndarray) -> float:
        def log_ratio(y: np.ndarray) -> float:
            return (((y - x @ A.T) ** 2).sum() - ((y - x @ policy.T) ** 2).sum()) / 2

        return float(np.log1p(np.exp(-protocol.BETA * (log_ratio(w) - log_ratio(loser)))))

    def slope(policy: np.ndarray) -> np.ndarray:
        out = np.zeros_like(policy)
        for index in np.ndindex(policy.shape):
            step = np.zeros_like(policy)
            step[index] = 1e-5
            out[index] = (loss(policy + step) - loss(policy - step)) / 2e-5
        return out

    monkeypatch.setattr(protocol, "STEPS", 1)
    one = protocol.train(A, x, w, loser, 0)
    np.testing.assert_allclose(one, A - protocol.RATE * slope(A), atol=1e-7)
    monkeypatch.setattr(protocol, "STEPS", 2)
    np.testing.assert_allclose(protocol.train(A, x, w, loser, 0), one - protocol.RATE * slope(one), atol=1e-7)


def test_clean_prompts_train_better_policies() -> None:
    public, truth = draw(budget="quick")
    clean, bad = (protocol.evaluate(public, truth, {"keep": keep}) for keep in (~truth["bad"], truth["bad"]))
    assert clean["bad_share"] == 0 and bad["bad_share"] == 1
    assert clean["kept_share"] == pytest.approx(1 - truth["bad"].mean())
    assert clean["filter_reward"] > bad["filter_reward"] + 0.5


def shots(rows: np.ndarray, written: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack([rng.choice(np.flatnonzero(rows), 8, replace=False) for _ in range(written)])


def test_written_prompts_are_as_bad_as_their_shots() -> None:
    public, truth = draw(WRITTEN, budget="quick")
    bad = truth["bad"]
    rewards = []
    for rows, share in ((~bad, 0.0), (np.ones(4000, dtype=bool), bad.mean()), (bad, 1.0)):
        out = protocol.evaluate(public, truth, {"shots": shots(rows, 4000), "keep": np.ones(4000, dtype=bool)})
        assert out["bad_share"] == pytest.approx(share, abs=0.03) and out["kept_share"] == 1
        rewards.append(out["filter_reward"])
    assert rewards[0] > rewards[1] + 0.5 > rewards[2] + 1


def test_the_simulator_answers_as_the_protocol_sees_it() -> None:
    public, truth = draw(WRITTEN)
    chosen = shots(~truth["bad"], 400)
    settings = {key.removeprefix("settings_"): value for key, value in public.items() if key.startswith("settings_")}
    data, bad = protocol.write(settings, chosen, seed=1000, budget="smoke")
    again, _ = protocol.write(settings, chosen, seed=1000, budget="smoke")
    assert not bad.any() and (data["scores"] == again["scores"]).all()
    assert data["scores"].shape == data["lengths"].shape == (400, 16)
    W, A = protocol._world(SETTINGS, 1000)
    residual = data["y"] - (data["x"] @ A.T)[:, None]
    assert residual.std() == pytest.approx(1, abs=0.02)
    expected = -((data["y"] - (data["x"] @ W.T)[:, None]) ** 2).mean(-1)
    assert (data["scores"] - expected).std() == pytest.approx(0.1, rel=0.05)


def test_test_reward_is_that_of_the_mean_answer() -> None:
    """-E|x' (B - W)'|^2 / k = -(4 / d) |B - W|^2 / k."""
    W, A = protocol._world(SETTINGS, 1000)
    assert protocol._test_reward(SETTINGS, 1000, W) == 0
    assert protocol._test_reward(SETTINGS, 1000, A) == pytest.approx(-(4 / 16) * ((A - W) ** 2).sum() / 8, rel=0.05)


def test_results_that_cannot_be() -> None:
    public, truth = draw()
    for keep in (np.ones(3, dtype=bool), np.ones(400), np.zeros(400, dtype=bool)):
        with pytest.raises(ValueError, match="keep: expected"):
            protocol.evaluate(public, truth, {"keep": keep})
    public, truth = draw(WRITTEN)
    for bad_shots in (np.zeros((400, 8), dtype=int), np.arange(8)[None]):
        with pytest.raises(ValueError, match="shots: expected"):
            protocol.evaluate(public, truth, {"shots": bad_shots, "keep": np.ones(400, dtype=bool)})


def test_example() -> None:
    for settings in (SETTINGS, WRITTEN):
        public, truth = draw(settings)
        assert protocol.evaluate(public, truth, protocol.example(public))["kept_share"] == 1
