"""The lazy limit: Gaussian process regression with the network's kernel, which feature learning leaves as it is."""

from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure


def predict(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Mean and variance by scikit-learn, the hidden kernel of the prior."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct

    out: dict[str, list[Any]] = {}
    for name, times in (("", 1), ("_double", 2)):
        if f"X{name}" not in arrays:
            continue
        X, y, X_test = (arrays[f"{part}{name}"] for part in ("X", "y", "X_test"))
        for chi in np.geomspace(1, times * params["width"], 5):
            scale = params["g_w"] * params["g_v"] / (chi * X.shape[1])
            kernel = ConstantKernel(scale, "fixed") * DotProduct(0.0, "fixed")
            model = GaussianProcessRegressor(kernel, alpha=params["noise"] / chi, optimizer=None).fit(X, y)
            mean, covariance = model.predict(X, return_cov=True)
            row = {
                "train": mean,
                "test": model.predict(X_test),
                "overlap": params["g_v"] / X.shape[1] * ((X.T @ y) ** 2).sum() / len(y) ** 2,
                "variance": y @ covariance @ y / len(y),
            }
            for key, value in row.items():
                out.setdefault(f"{key}{name}", []).append(value)
    return {key: np.array(values) for key, values in out.items()}


class Solver(BaseSolver):
    """The lazy limit: Gaussian process regression with the network's kernel."""

    name = "NNGP"
    sampling_strategy = "run_once"

    def skip(self, problem, **_):
        """Only linear networks here."""
        return problem not in ("scales", "pairs"), "only linear networks"

    def set_objective(self, problem, budget, seed, **public):
        """Note the problem."""
        self.arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
        self.params = {key: value for key, value in public.items() if key not in self.arrays}

    def run(self, _):
        """Measure all scalings."""
        self.result = measure(__file__, "predict", self.arrays, self.params)

    def get_result(self):
        """Return outputs, seconds and memory."""
        return self.result
