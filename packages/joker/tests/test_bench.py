"""The smoke benchmark: Joker's solver measured in a process of its own."""

import numpy as np
import pytest

pytestmark = pytest.mark.bench


@pytest.mark.parametrize(("loss", "kernel"), [("huber", "exact"), ("squared_hinge", "features")])
def test_the_solver_measures_itself(loss, kernel):
    pytest.importorskip("icml25.shared")
    from icml25.joker.bench import Solver

    X = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    y = X[:, 0] if loss == "huber" else (X[:, 0] > 0).astype(int)
    problem = {
        "X_train": X[:150], "y_train": y[:150], "X_test": X[150:], "task": "regression" if loss == "huber" else "binary",
        "gamma": 0.1, "C_squared": 1.0, "C_margin": 1.0, "n_features": 64, "conditioning": False, "budget": "smoke", "seed": 0,
    }  # fmt: skip
    solver = Solver(loss=loss, kernel=kernel)
    solver.loss, solver.kernel = loss, kernel
    assert not solver.skip(**problem)[0]
    solver.set_objective(**problem)
    solver.run(None)
    result = solver.get_result()
    assert result["prediction"].shape == (50,)
    assert result["relative_gap"] <= 1e-2
    assert result["seconds"] > 0
    assert result["peak_memory_mb"] >= 0
    if loss == "huber":
        assert np.corrcoef(result["prediction"], y[150:])[0, 1] > 0.9
    else:
        assert (result["prediction"] == y[150:]).mean() > 0.9


def test_combinations_that_make_no_sense_are_skipped():
    pytest.importorskip("icml25.shared")
    from icml25.joker.bench import Solver

    solver = Solver()
    solver.loss, solver.kernel = "hinge", "exact"
    X = np.zeros((100, 2))
    assert solver.skip(task="regression", X_train=X, conditioning=False, budget="quick")[0]
    assert solver.skip(task="multiclass", X_train=X, conditioning=False, budget="quick")[0]
    assert not solver.skip(task="binary", X_train=X, conditioning=False, budget="quick")[0]
