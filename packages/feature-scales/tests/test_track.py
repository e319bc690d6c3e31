"""The track's metrics and baseline against values worked out otherwise."""

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import icml25.feature_scales
from icml25.feature_scales import TwoLayer, solve

pytest.importorskip("benchopt")
pytestmark = pytest.mark.bench
TRACK = Path(icml25.feature_scales.__file__).parent / "track"
PARTS = (("", 1), ("_double", 2))
MNIST = (Path(os.environ.get("ICML25_DATA", "/nonexistent")) / "mnist" / "mnist_t10k.npz").is_file()


def load(name):
    spec = importlib.util.spec_from_file_location(f"feature_learning_{Path(name).stem}", TRACK / name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def track():
    return load("objective.py")


@pytest.fixture(scope="module")
def scales(track):
    return track.Scales.draw({"dp": 0.1}, seed=1000, budget="smoke")


def answers(track, public, level):
    """What a solver of this level returns."""
    out = {}
    for name, times in PARTS:
        if f"X{name}" not in public:
            continue
        width = times * public["width"]
        for chi in track.chis_of(width).tolist():
            net = TwoLayer(width, "linear", public["g_w"], public["g_v"], public["noise"], chi)
            theory = solve(net, public[f"X{name}"], public[f"y{name}"], level)
            for key, value in track.summary(theory, public[f"X_test{name}"]).items():
                out.setdefault(f"{key}{name}", []).append(value)
    return {key: np.array(values) for key, values in out.items()}


def test_tasks(track, scales):
    public, truth = scales
    width, features, train, test = track.SIZES["smoke"]
    for name, times in PARTS:
        assert public[f"X{name}"].shape == (times * train, times * features)
        assert public[f"X_test{name}"].shape == (times * test, times * features)
        assert len(truth[f"y_test{name}"]) == times * test
    assert "y_test" not in public and public["width"] == width
    again, _ = track.Scales.draw({"dp": 0.1}, seed=1000, budget="smoke")
    other, _ = track.Scales.draw({"dp": 0.1}, seed=1001, budget="smoke")
    np.testing.assert_array_equal(again["X"], public["X"])
    assert (other["X"] != public["X"]).any()
    np.testing.assert_allclose(track.chis_of(16), [1, 2, 4, 8, 16])


def test_exact_answers_have_no_error_and_rescaling_is_the_unit_of_variance(track, scales):
    public, truth = scales
    result = answers(track, public, "exact")
    # halve one discrepancy of each size at chi = N, so that the ratios are defined: y (y - f) grows by one half
    for name, _ in PARTS:
        y = public[f"y{name}"]
        result[f"train{name}"][-1] -= (y - result[f"train{name}"][-1]) / 2
    row = track.Scales.evaluate(public, truth, result | {"adapted": 1.25 * result["test"]})
    assert row["error"] == pytest.approx(0.5) and row["error_mean_field"] == pytest.approx(0.5)
    assert row["halving"] == pytest.approx(1) and row["standard_to_mean_field"] == pytest.approx(0, abs=1e-12)
    assert row["overlap_error"] == row["variance_to_rescaling"] == pytest.approx(0, abs=1e-12)
    assert row["adapted_gap"] == pytest.approx(0.25)
    rescaled = track.Scales.evaluate(public, truth, answers(track, public, "rescaling"))
    assert rescaled["variance_to_rescaling"] == pytest.approx(1) and "adapted_gap" not in rescaled


@pytest.mark.parametrize(
    "source",
    ["digits", pytest.param("mnist", marks=[pytest.mark.realdata, pytest.mark.skipif(not MNIST, reason="no MNIST")])],
)
def test_pairs_of_classes(track, source):
    public, truth = track.Pairs.draw({"source": source}, seed=1000, budget="smoke")
    X, y = public["X"], public["y"]
    assert X.shape == (16, {"digits": 64, "mnist": 784}[source]) and len(public["X_test"]) == len(truth["y_test"]) == 40
    assert set(y) == {-1, 1} and "X_double" not in public
    np.testing.assert_allclose(X.mean(0), 0, atol=1e-12)
    assert (X**2).mean() == pytest.approx(1)
    row = track.Pairs.evaluate(public, truth, answers(track, public, "rescaling"))
    assert row["error"] < 0.1 and row["variance_to_rescaling"] == pytest.approx(1) and "halving" not in row
    track.Pairs.evaluate(public, truth, track.Pairs.example(public))


def test_absent_images_are_an_error(track, tmp_path, monkeypatch):
    monkeypatch.setenv("ICML25_DATA", str(tmp_path))
    with pytest.raises(track.DataError, match=r"mnist_t10k\.npz is absent or damaged"):
        track.Pairs.draw({"source": "mnist"}, seed=0, budget="smoke")
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "mnist_t10k.npz").write_bytes(b"half")
    with pytest.raises(track.DataError, match="absent or damaged"):
        track.Pairs.draw({"source": "mnist"}, seed=0, budget="smoke")


def test_wrong_answers_are_refused(track, scales):
    public, truth = scales
    result = track.Scales.example(public)
    track.Scales.evaluate(public, truth, result)
    with pytest.raises(ValueError, match=r"train\[0\] must be finite"):
        track.Scales.evaluate(public, truth, result | {"train": np.full_like(result["train"], np.nan)})
    with pytest.raises(ValueError, match=r"test_double\[0\] must be finite and of shape"):
        track.Scales.evaluate(public, truth, result | {"test_double": result["test"]})


def test_the_baseline_is_the_lazy_limit(track, scales):
    public, _ = scales
    arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
    found = load("solvers/nngp.py").predict(arrays, {key: public[key] for key in ("g_w", "g_v", "noise", "width")})
    expected = answers(track, public, "nngp")
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-7, atol=1e-9)


def test_gaps_to_langevin(track):
    public, truth = track.Nonlinear.draw({"dp": 0.2}, seed=1000, budget="smoke")
    assert public["X"].shape == (20, 20)
    result = track.Nonlinear.example(public) | {
        "langevin": np.array([0.30, 0.20, 0.10]),
        "nngp": np.array([0.30, 0.26, 0.25]),
        "tree": np.array([0.26, 0.19, 0.13]),
        "one_loop": np.array([0.29, 0.20, 0.10]),
        "rhat": np.array([1.01, 1.03, 1.02]),
    }
    row = track.Nonlinear.evaluate(public, truth, result)
    assert row["tree_gap"] == pytest.approx(0.03) and row["nngp_gap"] == pytest.approx(0.06)
    assert row["one_loop_to_tree"] == pytest.approx(0.25) and row["rhat"] == 1.03


def test_speed_is_the_median_of_neighbouring_runs(track):
    times = {"sweep": np.array([3.0]), "ours": np.array([1.0, 2.0, 9.0]), "peer": np.array([2.0, 2.0, 3.0])}
    assert track.Speed.evaluate({}, {}, times) == {"sweep_seconds": 3.0, "langevin_ratio": 1.0}
