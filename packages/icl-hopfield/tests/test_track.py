"""The track's truths, metrics and baselines against values worked out otherwise."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import icml25.icl_hopfield

pytest.importorskip("benchopt")
pytestmark = pytest.mark.bench
close = np.testing.assert_allclose
TRACK = Path(icml25.icl_hopfield.__file__).parent / "track"


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"in_context_{Path(name).stem}", TRACK / name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def track():
    return load("objective.py")


@pytest.fixture(scope="module")
def baselines():
    return load("benchmark_utils/baselines.py")


def solve(function: str, public: dict, **params) -> dict:
    from icml25.icl_hopfield import bench

    arrays = {name: value for name, value in public.items() if isinstance(value, np.ndarray)}
    settings = {name: value for name, value in public.items() if name not in arrays}
    return getattr(bench, function)(
        arrays, settings | {"seed": 1000, "budget": "smoke", "attention": "softmax"} | params
    )


def test_identities(track) -> None:
    public, truth = track.Identities.draw({}, seed=1000, budget="smoke")
    found = solve("identities", public)
    row = track.Identities.evaluate(public, truth, found)
    assert row["identity_error"] < 1e-12 and row["rises"] == 0 and row["ghost_error"] < 1e-12
    for name in ("path", "share", "base", "context", "union"):
        wrong = found | {name: found[name] + 1e-3}
        assert track.Identities.evaluate(public, truth, wrong)["identity_error"] > 1e-4
    flat = found | {"path": found["path"] * 0}
    assert track.Identities.evaluate(public, truth, flat)["rises"] == 10 * 16
    wrong = found | {"ghosts": found["ghosts"] + 0.5}
    close(track.Identities.evaluate(public, truth, wrong)["ghost_error"], 0.5)
    with pytest.raises(ValueError, match="share must be finite and of shape"):
        track.Identities.evaluate(public, truth, found | {"share": found["share"][:3]})


def test_closed_form_is_what_softmax_attention_does(track) -> None:
    rng = np.random.default_rng(1000)
    least, beta = track.best_softmax(3, 64, 0.25)
    x, w, q = rng.normal(size=(20_000, 64, 3)), rng.normal(size=(20_000, 3)), track.sphere(rng, 20_000, 3)
    y = np.einsum("mnd,md->mn", x, w) + 0.5 * rng.normal(size=(20_000, 64))

    def error(beta):
        p = np.exp(beta * np.einsum("mnd,md->mn", x, q))
        return ((((p * y).sum(1) / p.sum(1)) - (w * q).sum(1)) ** 2).mean()

    close(error(beta), least, rtol=0.1)  # first order in 1/n
    assert error(beta) < min(error(0.7 * beta), error(1.3 * beta))


def test_regression(track) -> None:
    public, truth = track.Regression.draw({"dim": 3, "n": 256}, seed=1000, budget="smoke")
    least, beta = track.best_softmax(3, 256, 0.25)
    close(np.linalg.norm(public["q"], axis=1), 1, rtol=1e-5)
    result = {"predictions": truth["targets"] + 0.1, "query_map": 1.2 * beta * np.eye(3)}
    row = track.Regression.evaluate(public, truth, result)
    close([row["mse"], row["mse_ratio"], row["map_error"], row["beta_error"]], [0.01, 0.01 / least, 0, 0.2], atol=1e-9)
    result["query_map"][0, 1] = beta
    off = track.Regression.evaluate(public, truth, result)["map_error"]
    close(off, 1 / np.sqrt(1 + 3 * 1.2**2))


@pytest.mark.parametrize(
    "kind",
    ["softmax", pytest.param("linear", marks=pytest.mark.slow), pytest.param("inverse_gram", marks=pytest.mark.slow)],
)
def test_one_layer(track, kind: str) -> None:
    public, _ = track.Regression.draw({"dim": 3, "n": 20}, seed=1000, budget="smoke")
    found = solve("one_layer", public, attention=kind, steps=3)
    assert found["predictions"].shape == (100,) and ("query_map" in found) == (kind == "softmax")


def test_what_needs_no_other_seeds_runs_once() -> None:
    from icml25.icl_hopfield.bench import Solver

    solver = Solver()
    for kind, problem, budget, seed, skipped in (
        ("softmax", "regression", "quick", 1, False),
        ("linear", "regression", "quick", 0, False),
        ("linear", "regression", "quick", 1, True),
        ("linear", "regression", "paper", 1, False),
        ("softmax", "identities", "quick", 0, False),
        ("softmax", "identities", "quick", 1, True),
        ("linear", "probes", "quick", 0, True),
    ):
        solver.attention = kind
        assert solver.skip(problem, budget, seed)[0] == skipped


@pytest.fixture(scope="module")
def probes(track) -> tuple[dict, dict]:
    return track.Probes.draw({"family": "linear", "dim": 3, "examples": 12}, seed=1000, budget="smoke")


def test_probes(track, probes) -> None:
    public, truth = probes
    assert all((public[name][:, -1] == 0).all() for name in public if name.startswith("y_"))
    x, far = public["x_matched"], public["x_far"]
    assert (far[:, -1] == x[:, -1]).all() and (truth["far"] == truth["matched"]).all()
    close(far[:, :-1] - x[:, :-1], 4, atol=1e-5)
    w = [np.linalg.lstsq(a[:-1], b[:-1])[0] for a, b in zip(x, public["y_matched"], strict=True)]
    close(np.einsum("md,md->m", w, x[:, -1]), truth["matched"], atol=1e-3)
    close(np.einsum("md,mnd->mn", w, far)[:, :-1], public["y_far"][:, :-1], atol=1e-3)
    share = (public["y_flip_30"] == -public["y_matched"])[:, :-1].mean()
    assert 0.25 < share < 0.35 and (truth["flip_30"] == truth["matched"]).all()
    for family in ("tree", "network"):
        others, _ = track.Probes.draw({"family": family, "dim": 2, "examples": 3}, seed=0, budget="smoke")
        assert others["x_far"].shape == (100, 4, 2) and "x_unfamiliar" not in others


def test_metrics_of_probes(track, probes) -> None:
    public, truth = probes
    rng = np.random.default_rng(0)
    sizes = {"matched": 0.3, "far": 1.2, "flip_10": 0.6, "flip_30": 0.9, "flip_50": 1.5, "unfamiliar": 0.6}
    spread = np.sqrt(np.tile([0.5, 1.5], 50)) * rng.choice([-1, 1], 100)  # of mean square 1
    errors = {name: sizes[name] * spread * np.sqrt((y**2).mean()) for name, y in truth.items()}
    row = track.Probes.evaluate(
        public, truth, {name: truth[name] + errors[name] for name in truth} | {"ghosts": 0 * truth["matched"]}
    )
    close(row["base_ratio"], 0.09, rtol=1e-5)
    close(row["similar_log"], np.log10(1.441 / 0.091), rtol=1e-5)
    close(row["familiar_log"], np.log10(0.361 / 0.091), rtol=1e-5)
    close(row["ghost_ratio"], 1)
    assert row["flip_gap"] > 2
    errors["flip_30"] = errors["flip_10"] * 0.9
    assert track.Probes.evaluate(public, truth, {name: truth[name] + errors[name] for name in truth})["flip_gap"] < 0
    row = track.Probes.evaluate(public, truth, {name: 0 * y for name, y in truth.items()})
    close(row["base_ratio"], 1, atol=1e-9)
    assert row["similar_log"] == row["flip_gap"] == row["familiar_log"] == 0


@pytest.mark.slow  # the smoke benchmark does the same
def test_transformer_returns_every_probe(track, probes) -> None:
    public, truth = probes
    found = solve("transformer", public)
    assert set(found) == {*truth, "ghosts"}
    assert track.Probes.evaluate(public, truth, found)["base_ratio"] > 0


def test_stability(track) -> None:
    public, truth = track.Stability.draw({}, seed=1000, budget="smoke")
    row = track.Stability.evaluate(public, truth, solve("stability", public))
    assert row["bound_use"] < 1 and -1.3 < row["slope"] < -0.7
    bound = 4 / (1 + (public["sizes"] - 1) * np.exp(-2))
    row = track.Stability.evaluate(public, truth, {"eps": 2 * bound})
    close(row["bound_use"], 2)
    close(track.Stability.evaluate(public, truth, {"eps": public["sizes"] ** -1.5})["slope"], -1.5)


def test_speed(track) -> None:
    public, _ = track.Speed.draw({}, seed=0, budget="smoke")
    times = {"model_seconds": np.array([1, 1.1, 9]) / 1000, "peer_seconds": np.array([1, 1, 3]) / 1000}
    assert track.Speed.evaluate(public, {}, times) == pytest.approx({"step_ratio": 1.1, "step_ms": 1.1})


def test_baselines(baselines, probes) -> None:
    rng = np.random.default_rng(0)
    x, q = rng.normal(size=(7, 9, 3)), rng.normal(size=(7, 3))
    w = rng.normal(size=(7, 3))
    y = np.einsum("mnd,md->mn", x, w)
    params = {"problem": "regression", "noise": 0.0, "rate": 0.1, "neighbours": 1}
    close(baselines.bayes(x, y, q, params), (w * q).sum(1), atol=1e-4)
    noisy = baselines.bayes(x, y, q, params | {"noise": 0.7})[0]
    from icml25.icl_hopfield import posterior_predict

    close(noisy, posterior_predict(x[0], y[0], q[0], noise_var=0.49)[0], rtol=1e-4)
    close(baselines.neighbours(x, y, x[:, 4], params), y[:, 4])
    step = 0.1 / (x**2).mean() * np.einsum("mnd,mn->md", x, y) / 9
    close(baselines.gradient_step(x, y, q, params), (step * q).sum(1))
    public, truth = probes
    arrays = {name: value for name, value in public.items() if isinstance(value, np.ndarray)}
    found = baselines.fit(arrays, {"method": "bayes", "problem": "probes", "noise": 0.0})
    assert set(found) == set(truth)
    close(found["far"], truth["far"], atol=1e-3)
    assert abs(found["flip_50"] - truth["flip_50"]).max() > 0.1


@pytest.mark.slow
def test_times_are_of_equal_networks() -> None:
    pytest.importorskip("torch")
    found = solve("step_times", {"dim": 3, "examples": 12, "repeats": 1, "steps": 100})
    assert all(found[name].shape == (1,) and (found[name] > 0).all() for name in ("model_seconds", "peer_seconds"))
