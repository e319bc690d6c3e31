"""The track's metrics against values worked out by hand, and its optimizers against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("benchopt")
pytestmark = pytest.mark.bench

from pathlib import Path  # noqa: E402

from benchopt.benchmark import Benchmark  # noqa: E402

from icml25.modular_duality import bench, norms  # noqa: E402
from icml25.modular_duality.modules import Linear  # noqa: E402
from icml25.modular_duality.track import objective  # noqa: E402
from icml25.modular_duality.track.benchmark_utils import optimizers, problems  # noqa: E402

SPECS = [norms.Linear(), norms.Linear(mass=2.0, sensitivity_after=0.5), norms.Linear()]


def matrices(seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((3, 4), (4, 4), (4, 2))]


def direction(name, g):
    optimizer = optimizers.make(name, lambda _: 1.0, SPECS, 0.0)
    return optimizer.update(g, optimizer.init(g), g)[0]


def test_digits_are_scaled_and_split():
    data = objective.digits(3)
    np.testing.assert_allclose((data["x"] ** 2).mean(1), 1, rtol=1e-5)
    assert data["x"].shape == (1437, 64) and data["x_test"].shape == (360, 64)
    rows = np.concatenate([data["x"], data["x_test"]])
    assert len(np.unique(rows, axis=0)) == len(np.unique(objective.digits(4)["x"], axis=0)) + len(
        np.unique(objective.digits(4)["x_test"], axis=0)
    )
    assert (objective.digits(3)["y"] == data["y"]).all() and (objective.digits(4)["y"] != data["y"]).any()


def test_transfer_by_hand():
    public, _ = objective.Transfer.draw({"scaling": "depth"}, seed=0, budget="quick")
    assert public["sizes"].tolist() == [2, 4, 8]
    loss = np.array([[3, 0.01, 0.2, 1], [3, 0.02, 0.01, np.nan], [1, 0.03, 0.5, 0.001]])
    accuracy = np.linspace(0, 1, 12).reshape(3, 4)
    row = objective.Transfer.evaluate(public, {}, {"loss": loss, "accuracy": accuracy})
    assert row == {"grid_steps": 2.0, "transfers": 0.0, "transferred_loss": 0.03, "accuracy": accuracy[0, 1]}
    row = objective.Transfer.evaluate(public, {}, {"loss": loss[:2], "accuracy": accuracy[:2]})
    assert (row["grid_steps"], row["transfers"]) == (1.0, 1.0)


def test_curve_by_hand():
    evaluate = lambda curve: objective.Curve.evaluate({}, {}, {"curve": np.array(curve), "accuracy": 0.5})  # noqa: E731
    assert evaluate([2, 0.5, 0.1, 0.3]) == {"steps_to_0_1": 3.0, "final_loss": 0.3, "accuracy": 0.5}
    assert evaluate([2, 0.5, np.nan])["steps_to_0_1"] == 4.0


def test_erasure_by_hand():
    public, _ = objective.Erasure.draw({"batch": 8}, seed=0, budget="smoke")
    mask = public["mask"]
    assert mask.shape == (20, 20) and public["params"]["batch"] == 8 and 0.4 < mask.mean() < 0.6
    result = {"before": 2 * mask, "after": 2 - 2 * mask, "loss": 0.5}
    result |= {"gradient_ranks": np.array([1.0, 3.0]), "update_ranks": np.array([10.0])}
    row = objective.Erasure.evaluate(public, {}, result)
    assert row["move"] == pytest.approx(1 / np.sqrt(mask.mean()))
    assert row["mark_before"] == pytest.approx(1) == row["mark_after"]  # its negative shows the letter too
    assert row["gradient_rank"] == pytest.approx(0.1) and row["update_rank"] == pytest.approx(0.5)


def test_text_by_hand():
    public, _ = objective.Text.draw({"corpus": "stdlib"}, seed=0, budget="smoke")
    assert public["held_out"].shape == (2, 65) and public["held_out"].max() < public["params"]["vocabulary"]
    assert len(public["train"]) > 300_000
    assert objective.Text.evaluate(public, {}, {"losses": np.full((2, 64), 1.5)}) == {"validation_loss": 1.5}
    tuning, _ = objective.Text.draw({"corpus": "stdlib", "tuning": True}, seed=0, budget="smoke")
    seen = np.concatenate([tuning["train"], tuning["held_out"].ravel()])
    assert len(tuning["train"]) == len(public["train"]) * 9 // 10 and len(seen) < len(public["train"])
    assert (tuning["held_out"][-1] == public["train"][-65:]).all()  # rates are not chosen on what is reported
    with pytest.raises(ValueError, match="losses must be of shape"):
        objective.Text.evaluate(public, {}, {"losses": np.zeros((2, 63))})


def test_dualizers_by_hand():
    public, _ = objective.Dualizers.draw({}, seed=0, budget="smoke")
    sigma = np.linalg.svd(public["reachable"], compute_uv=False)
    assert sigma.min() / np.linalg.norm(sigma) >= 0.003
    assert np.linalg.cond(public["conditioned"]) == pytest.approx(300)
    result = objective.Dualizers.example(public) | {"reachable": np.diag([1.5, 1]), "svd_512": np.array([8.0, 1, 2])}
    result |= {"dual_512": np.array([2.0, 1, 1]), "muon_1024": np.array([3.0]), "torch_bfloat16": np.array([4.0])}
    row = objective.Dualizers.evaluate(public, {}, result)
    assert row["sigma_error"] == pytest.approx(0.5) and row["sigma_error_condition_300"] == pytest.approx(0)
    assert row["svd_ratio_512"] == 2 and row["svd_ratio_wide"] == 1 and row["optax_ratio"] == 3
    assert row["torch_ratio"] == 0.25 and row["copies"] == row["memory_ratio"] == 1


SHOWN = {  # problem, settings -> solvers, on the first seed and on the others, at the quick budget
    ("transfer", "width"): ({"modular-duality", "Adam"}, {"modular-duality"}),
    ("transfer", "depth"): ({"modular-duality"}, {"modular-duality"}),
    ("curve", None): ({"modular-duality", "SGD", "Adam", "Muon"}, {"modular-duality", "SGD", "Adam"}),
    ("erasure", 128): ({"modular-duality", "spectral"}, {"modular-duality", "spectral"}),
    ("erasure", 8): ({"modular-duality"}, set()),
    ("text", None): ({"modular-duality", "AdamW"}, {"modular-duality", "AdamW"}),
    ("dualizers", None): ({"modular-duality"}, {"modular-duality"}),
}


def test_who_runs_on_what():
    benchmark = Benchmark(Path(objective.__file__).parent)
    solvers = [bench.Solver, *benchmark.get_solvers()]

    def running(problem, budget, **params):
        skipped = {s.name: s.skip(s(), problem=problem, budget=budget, params=params)[0] for s in solvers}
        return {name for name, skip in skipped.items() if not skip}

    for (problem, setting), (first, others) in SHOWN.items():
        params = {"transfer": {"scaling": setting}, "erasure": {"batch": setting}}.get(problem, {})
        assert running(problem, "quick", seed=0, **params) == first, problem
        assert running(problem, "quick", seed=1, **params) == others, problem
    assert running("erasure", "paper", seed=3, batch=8) == {"modular-duality", "spectral"}
    assert running("something else", "quick", seed=0) == set()


def test_control_has_the_norms_but_not_the_singular_values():
    g = matrices()
    ours, control = direction("modular-duality", g), direction("spectral", g)
    for k, spec in enumerate(SPECS):
        assert float(spec.norm(control[k])) == pytest.approx(float(spec.norm(ours[k])), rel=0.01)
        np.testing.assert_allclose(control[k] / jnp.linalg.norm(control[k]), -g[k] / jnp.linalg.norm(g[k]), atol=1e-5)
        full = min(g[k].shape)
        assert float(optimizers.stable_rank(ours[k])) > 0.99 * full > 1.05 * float(optimizers.stable_rank(control[k]))


def test_muon_orthogonalises_hidden_matrices_only():
    moved = direction("Muon", matrices())
    assert np.linalg.svd(moved[1], compute_uv=False).min() > 0.6
    for k in (
        0,
        2,
    ):  # the first step of Adam has the sign only; with Nesterov 1 + 0.09 / 0.19 times as large
        nesterov = 0.9 / 0.19 * 0.1 + 1
        np.testing.assert_allclose(moved[k], -0.1 * nesterov * jnp.sign(matrices()[k]), rtol=0.001)


def test_stable_rank():
    assert float(optimizers.stable_rank(jnp.diag(jnp.asarray([2.0, 2.0, 1.0])))) == pytest.approx(9 / 4)


def test_the_learning_rate_decays_to_zero():
    assert [float(optimizers.linear_decay(0.4, 4)(t)) for t in range(5)] == pytest.approx([0.4, 0.3, 0.2, 0.1, 0])


def test_training_is_that_of_a_loop():
    network, x, y = Linear(3, 3) @ Linear(3, 4), jnp.ones((6, 4)), jnp.arange(6) % 3
    weights = network.init(jax.random.key(0))
    train = optimizers.run("SGD", network, lambda data, step: (data * step, y), 3, measured=lambda data, w, g, u: g[0])
    end, gradients = train(0.5, weights, x)
    w, trace = weights, [jnp.zeros_like(part) for part in weights]
    for step, rate in enumerate((0.5, 0.5 * 2 / 3, 0.5 / 3)):
        g = jax.grad(lambda w: optimizers.cross_entropy(network(w, x * step), y))(w)  # noqa: B023
        np.testing.assert_allclose(gradients[step], g[0], atol=1e-6)
        trace = [a + 0.9 * b for a, b in zip(g, trace, strict=True)]
        w = [a - rate * b for a, b in zip(w, trace, strict=True)]
    for a, b in zip(end, w, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_every_optimizer_has_its_own_tuned_rate():
    for problem, rates in optimizers.TUNED.items():
        assert rates and all(rate in optimizers.GRIDS[name] for name, rate in rates.items()), problem


def test_same_seed_same_curve():
    public, _ = objective.Curve.draw({"width": 8}, seed=1, budget="smoke")
    arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
    params = public["params"] | {"optimizer": "modular-duality"}
    one, two = (problems.curve(arrays, params)["curve"] for _ in range(2))
    assert (one == two).all() and one.shape == (3,)
    assert (problems.curve(arrays, params | {"seed": 2})["curve"] != one).any()
