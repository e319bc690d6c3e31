"""The levels of the theory on the track feature-learning."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

FUNCTIONS = {"scales": "all_scales", "pairs": "all_scales", "nonlinear": "against_langevin", "speed": "times"}


def warm_up() -> None:
    """Load what the clock should not see."""
    import icml25.feature_scales  # noqa: F401


def all_scales(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Means, overlaps and variances at each chi, and the mean by the adapted weights' covariance."""
    from icml25.feature_scales import TwoLayer, anneal, kernel

    out: dict[str, list[Any]] = {}
    for name, times in (("", 1), ("_double", 2)):
        if f"X{name}" not in arrays:
            continue
        X, y, X_test = (arrays[f"{part}{name}"] for part in ("X", "y", "X_test"))
        width = times * params["width"]
        net = TwoLayer(width, "linear", params["g_w"], params["g_v"], params["noise"])
        for theory in anneal(net, X, y, np.geomspace(1, width, 5).tolist(), params["level"]):
            row = {
                "train": theory.mean(X),
                "test": theory.mean(X_test),
                "overlap": y @ theory.hidden_kernel() @ y / len(y) ** 2,
                "variance": y @ theory.output_covariance() @ y / len(y),
            }
            if params["level"] == "tree":
                Sigma, (variance, noise) = theory.weight_covariance(), theory.net.effective()
                j = np.linalg.solve(noise * np.eye(len(y)) + variance * kernel("linear", X, Sigma), y)
                row["adapted"] = variance * kernel("linear", X_test, Sigma, X) @ j
            for key, value in row.items():
                out.setdefault(f"{key}{name}", []).append(value)
    return {key: np.array(values) for key, values in out.items()}


def against_langevin(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Train discrepancies of an erf network at chi = 1, 5, 50 by three levels and by MALA."""
    import jax

    from icml25.feature_scales import TwoLayer, langevin, solve

    X, y = arrays["X"], arrays["y"]
    out: dict[str, list[float]] = {}
    for chi in (1.0, 5.0, 50.0):
        net = TwoLayer(params["width"], "erf", params["g_w"], params["g_v"], params["noise"], chi)
        row = {level: solve(net, X, y, level).train_discrepancy for level in ("nngp", "tree", "one_loop")}
        chain = {"ensembles": params["chains"], "steps": params["steps"], "burn_in": params["steps"] // 3}
        samples = langevin(net, X, y, jax.random.key(params["seed"]), eps=0.02, method="mala", **chain)
        chains = (y * (y - samples.f_train_chains)).mean(1)
        row |= {"langevin": chains.mean(), "langevin_error": chains.std(ddof=1) / np.sqrt(len(chains))}
        for key, value in (row | {"rhat": samples.rhat.max()}).items():
            out.setdefault(key, []).append(float(value))
    return {key: np.array(values) for key, values in out.items()}


def times(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a sweep, and of Langevin steps (erf, 50 chains, P = 100, D = N = 100) in jax and in torch, in turns.

    Compilation is excluded. Both run on as many threads as the process has.
    """
    import jax
    import torch

    from icml25.feature_scales import TwoLayer, anneal, langevin, teacher_task

    X, y = teacher_task(jax.random.key(params["seed"]), params["points"], params["points"] // 4)
    linear = TwoLayer(100, "linear", 1.0, 1.0, 0.5)
    chis = np.geomspace(1, 100, params["chis"]).tolist()

    def sweep() -> None:
        for level in ("nngp", "tree", "one_loop", "rescaling", "exact"):
            anneal(replace(linear, width=10 * params["points"]), X, y, chis, level)

    steps, net = params["langevin_steps"], TwoLayer(100, "erf", 1.0, 1.0, 0.3, 5.0)
    points, targets = teacher_task(jax.random.key(params["seed"]), 100, 100)
    variance, noise = net.effective()
    H, t = torch.as_tensor(points / 10, dtype=torch.float32), torch.as_tensor(targets, dtype=torch.float32)
    eps, readout = 0.001, (variance / 100) ** 0.5

    def ours() -> None:
        langevin(
            net, points, targets, jax.random.key(0), ensembles=50, steps=steps, burn_in=0, thin=steps // 4, eps=eps
        )

    def peer() -> None:
        A, b = torch.randn(50, 100, 100, requires_grad=True), torch.randn(50, 100, requires_grad=True)
        for _ in range(steps):
            f = readout * torch.einsum("en,enp->ep", b, torch.erf(A @ H.T))
            potential = ((t - f) ** 2).sum() / (2 * noise) + (A**2).sum() / 2 + (b**2).sum() / 2
            gradients = torch.autograd.grad(potential, (A, b))
            with torch.no_grad():
                for parameter, gradient in zip((A, b), gradients, strict=True):
                    parameter.add_(gradient, alpha=-eps).add_(torch.randn_like(parameter), alpha=(2 * eps) ** 0.5)

    import warnings

    seconds: dict[str, list[float]] = {"sweep": [], "ours": [], "peer": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # four draws tell nothing of convergence
        for repeat in range(4):
            for name, job in (("ours", ours), ("peer", peer)):
                start = time.perf_counter()
                job()
                if repeat:  # the first one compiles
                    seconds[name].append(time.perf_counter() - start)
    start = time.perf_counter()
    sweep()
    seconds["sweep"].append(time.perf_counter() - start)
    return {name: np.array(values) for name, values in seconds.items()}


class Solver(BaseSolver):
    """One level of the theory; "one_loop" also runs the comparison of all levels with Langevin, and the timings."""

    name = "feature-scales"
    sampling_strategy = "run_once"
    parameters = {"level": ["tree", "one_loop", "rescaling"]}  # noqa: RUF012

    def skip(self, problem: str, budget: str, **_: Any) -> tuple[bool, str | None]:
        """Run once what does not depend on the level, and leave out what no claim asks for outside the paper budget."""
        if problem not in FUNCTIONS:
            return True, "not a problem of this theory"
        if problem == "pairs" and budget != "paper" and self.level != "rescaling":
            return True, "at the paper budget"
        return self.level != "one_loop" and FUNCTIONS[problem] != "all_scales", "does not depend on the level"

    def set_objective(self, problem: str, budget: str, seed: int, **public: Any) -> None:
        """Note the problem."""
        self.arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
        self.params = {key: value for key, value in public.items() if key not in self.arrays}
        self.params |= {"seed": int(seed), "level": self.level}
        self.function = FUNCTIONS[problem]

    def run(self, _: Any) -> None:
        """Measure in a process of its own."""
        self.result = measure(__file__, self.function, self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """What the function returned, with seconds and peak_memory_mb."""
        return self.result
