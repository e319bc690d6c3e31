"""The protocol "continual" of the track control against closed forms."""

import numpy as np
import pytest

from icml25.shared.protocols import continual_control as protocol

WORLD = {"env": "pendulum", "steps": 100, "replicates": 2, "num_envs": 4}
SETTINGS = {
    "changing": WORLD | {"kind": "changing", "factors": "1+0.5", "period": 50},
    "stationary": WORLD | {"kind": "stationary", "env": "cartpole"},
    "events": WORLD | {"kind": "events"},
    "digits": {"kind": "digits", "tasks": 7, "epochs": 2, "batch": 64},
    "speed": WORLD | {"kind": "speed"},
}


@pytest.mark.parametrize("kind", protocol.KINDS)
def test_example_is_scored(kind):
    public, truth = protocol.draw(SETTINGS[kind], seed=0, budget="smoke")
    assert truth == {}
    columns = protocol.evaluate(public, truth, protocol.example(public))
    assert columns and all(isinstance(value, float) for value in columns.values())


def test_digits_tasks():
    public, _ = protocol.draw(SETTINGS["digits"], seed=1, budget="smoke")
    again, _ = protocol.draw(SETTINGS["digits"], seed=1, budget="quick")
    other, _ = protocol.draw(SETTINGS["digits"], seed=2, budget="smoke")
    n = len(public["y"])
    assert public["X"].shape == (n, 64) and public["X"].dtype == np.float32
    assert public["rows"].shape == (7, 2 * (n // 64), 64)
    first_epoch = public["rows"][3, : n // 64].ravel()
    assert len(np.unique(first_epoch)) == len(first_epoch)
    assert all(sorted(pixels) == list(range(64)) for pixels in public["pixels"])
    assert np.array_equal(public["rows"], again["rows"]) and not np.array_equal(public["pixels"], other["pixels"])


def test_returns():
    public, truth = protocol.draw(SETTINGS["changing"], seed=0, budget="smoke")
    assert public["factors"].tolist() == [1.0, 0.5]
    returns = np.array([[-100.0, np.nan, -50, -40, -20], [-10, -20, -30, -40, -50]])
    episodes = np.array([[1, 0, 2, 1, 4], [1, 1, 1, 1, 1]])
    out = protocol.evaluate(public, truth, {"returns": returns, "episodes": episodes, "cycles": 2, "seconds_each": 3})
    first = (-100 - 2 * 50 - 40 - 4 * 20) / 8
    assert out["mean_return"] == pytest.approx((first - 30) / 2)
    assert out["score"] == pytest.approx((first - 30) / 2 / 1200)
    assert out["last_return"] == pytest.approx((4 * -20 - 50) / 5)
    assert out["return_low"] <= out["return_iqm"] <= out["return_high"]
    assert out["seconds_each"] == 3.0
    with pytest.raises(ValueError, match="one shape"):
        protocol.evaluate(public, truth, {"returns": returns, "episodes": episodes[:1]})
    with pytest.raises(ValueError, match="without any episode"):
        protocol.evaluate(public, truth, {"returns": returns * np.nan, "episodes": episodes})
    with pytest.raises(ValueError, match="not finite: extra"):
        protocol.evaluate(public, truth, {"returns": returns, "episodes": episodes, "extra": np.nan})


def test_events():
    public, truth = protocol.draw(SETTINGS["events"], seed=0, budget="smoke")
    result = {"before": [-100.0, -120.0], "reset": [-300.0, -320.0], "after": [-110.0, -130.0]}
    result |= {"distance": [0.005, 0.02], "threshold": 0.01, "unit_resets": [[2, 2], [2, 3]], "cycles": 2}
    out = protocol.evaluate(public, truth, result)
    assert out["drop_reset"] == 200 and out["drop_after"] == 10 and out["drop_ratio"] == 0.05
    assert out["within_threshold"] == 0.5 and out["reset_miss"] == 1


def test_accuracy():
    public, truth = protocol.draw(SETTINGS["digits"], seed=0, budget="smoke")
    accuracy = np.zeros(public["rows"].shape[:2])
    accuracy[2:] = 0.8
    out = protocol.evaluate(public, truth, {"accuracy": accuracy, "weight_norm": 2.0})
    assert out["last_accuracy"] == pytest.approx(0.8) and out["accuracy"] == pytest.approx(0.8 * 5 / 7)
    assert out["weight_norm"] == 2.0
    with pytest.raises(ValueError, match="accuracy must be"):
        protocol.evaluate(public, truth, {"accuracy": accuracy + 0.5, "weight_norm": 2.0})


def test_interquartile_mean():
    values = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0])
    mean, low, high = protocol.iqm_interval(values)
    assert mean == 3.5 and low < 3.5 < high
    assert protocol.iqm_interval(values) == (mean, low, high)
    assert protocol.iqm_interval(np.array([7.0])) == (7.0, 7.0, 7.0)


def test_unknown_kind():
    with pytest.raises(ValueError, match="kind"):
        protocol.draw({"kind": "chess"}, seed=0, budget="smoke")
