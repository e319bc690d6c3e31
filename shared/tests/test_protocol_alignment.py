"""The protocol of alignment: laws by brute force, closed forms, and results that cannot be."""

from importlib.metadata import EntryPoint
from itertools import product

import numpy as np
import pytest

from icml25.shared.protocols import alignment as protocol

SETTINGS = {"bad": 0.5, "responses": 6, "candidates": 12, "d": 5, "k": 3}


def test_best_and_worst_of_n_by_enumeration() -> None:
    p = np.array([0.1, 0.4, 0.3, 0.2])
    for n, (worst, pick) in product((1, 2, 3), ((False, max), (True, min))):
        law = np.zeros(4)
        for drawn in product(range(4), repeat=n):
            law[pick(drawn)] += p[list(drawn)].prod()
        np.testing.assert_allclose(protocol.of_n(p, n, worst=worst), law, atol=1e-12)


def test_win_rate_by_enumeration() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(5), size=2)
    pairs = sum(p[i] * q[j] * (0.5 if i == j else i > j) for i in range(5) for j in range(5))
    np.testing.assert_allclose(protocol.win_rate(np.stack([p, q]), np.stack([q, q])), [pairs, 0.5], atol=1e-12)


def test_kl_and_its_scale() -> None:
    log_ratio = np.log(np.array([[0.7, 0.2, 0.1]]))
    assert protocol.mean_kl(log_ratio) == pytest.approx(sum(p * np.log(3 * p) for p in (0.7, 0.2, 0.1)))
    scale = protocol.scale_for_kl(log_ratio, 0.5)
    assert protocol.mean_kl(scale * log_ratio) == pytest.approx(0.5, abs=1e-8)
    assert protocol.scale_for_kl(1000 * log_ratio, 0.5) == pytest.approx(scale / 1000)
    assert np.isnan(protocol.scale_for_kl(np.zeros((1, 3)), 0.5))
    assert np.isnan(protocol.scale_for_kl(log_ratio, np.log(3) + 0.1))


def test_the_reference_wins_half_and_the_truth_wins_most() -> None:
    public, truth = protocol.draw(SETTINGS, seed=0, budget="smoke")
    reference = protocol.evaluate(public, truth, protocol.example(public))
    assert reference["kl"] == pytest.approx(0, abs=1e-12)
    for column in ("win_rate", "best_of_4", "worst_of_4"):
        assert reference[column] == pytest.approx(0.5, abs=1e-12)
    assert reference["harmful"] == pytest.approx(truth["harmful"].mean())
    assert reference["reward"] == pytest.approx(truth["reward"].mean())
    assert "win_rate_at_kl" not in reference
    best = protocol.evaluate(public, truth, {"log_ratio": truth["reward"], "prompts_used": 200})
    worst = protocol.evaluate(public, truth, {"log_ratio": -truth["reward"], "prompts_used": 200})
    assert best["win_rate_at_kl"] > 0.7 and worst["win_rate_at_kl"] < 0.3
    assert best["harmful_at_kl"] < reference["harmful"] < worst["harmful_at_kl"]
    assert best["margin"] > 0 > worst["margin"]


def test_rewards_are_those_of_the_answers() -> None:
    public, truth = protocol.draw(SETTINGS | {"bad": 0.0}, seed=1, budget="smoke")
    assert public["y"].shape == (200, 6, 3) and truth["reward"].shape == (40, 12)
    # -|y - W x|^2 / k is quadratic in (x, y): the harmless answers' rewards have an exact fit
    x = np.repeat(public["x_test"], 12, axis=0)
    y = public["y_test"].reshape(-1, 3)
    kept = ~truth["harmful"].ravel()
    terms = np.c_[
        (y**2).sum(1),
        (x[:, :, None] * y[:, None, :]).reshape(len(x), -1),
        (x[:, :, None] * x[:, None, :]).reshape(len(x), -1),
    ]
    fit, *_ = np.linalg.lstsq(terms[kept], truth["reward"].ravel()[kept], rcond=None)
    np.testing.assert_allclose(terms[kept] @ fit, truth["reward"].ravel()[kept], atol=1e-8)
    np.testing.assert_allclose((terms @ fit)[~kept] - truth["reward"].ravel()[~kept], 4, atol=1e-8)


def half(scores: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return scores.min(1) > np.median(scores.min(1))


def test_filters_come_with_a_random_control(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("half", f"{__name__}:half", "icml25.filters")
    monkeypatch.setattr(protocol.importlib.metadata, "entry_points", lambda group: [entry])
    public, _ = protocol.draw(SETTINGS, seed=0, budget="smoke")
    assert public["keep_half"].sum() == public["keep_half_random"].sum() == 100
    assert (public["keep_half"] != public["keep_half_random"]).any()


def test_results_that_cannot_be() -> None:
    public, truth = protocol.draw(SETTINGS, seed=0, budget="smoke")
    for wrong in (np.zeros((40, 11)), np.full((40, 12), np.nan)):
        with pytest.raises(ValueError, match="log_ratio"):
            protocol.evaluate(public, truth, {"log_ratio": wrong, "prompts_used": 1})
