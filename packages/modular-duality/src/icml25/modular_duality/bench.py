"""Modular duality on the track optimizers, and its orthogonalisation against an SVD, optax and a matrix product."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

PROBLEMS = Path(__file__).parent / "track" / "benchmark_utils" / "problems.py"


def beside_torch(matrix: np.ndarray, repeats: int) -> dict[str, np.ndarray]:
    """Seconds of Muon's five steps here and in torch.optim.Muon, both in bfloat16, in turns after a first call of each."""
    import jax
    import jax.numpy as jnp
    import torch

    from icml25.modular_duality import orthogonalize

    weight = torch.nn.Parameter(torch.zeros(matrix.shape))
    weight.grad = torch.from_numpy(matrix)
    theirs = torch.optim.Muon([weight], lr=1.0, momentum=0.0, nesterov=False, weight_decay=0.0)
    ours = jnp.asarray(matrix)
    jobs = {
        "muon_bfloat16": lambda: jax.block_until_ready(orthogonalize(ours, "muon", dtype=jnp.bfloat16)),
        "torch_bfloat16": theirs.step,
    }
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - start)
    return {name: np.array(values[1:]) for name, values in seconds.items()}


def dualizers(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Singular values by six steps; seconds in turns, all compiled and the short ones called once before."""
    import jax
    import jax.numpy as jnp
    from optax.contrib import _muon

    from icml25.modular_duality import SCHEDULES, orthogonalize

    out: dict[str, Any] = {k: np.asarray(orthogonalize(jnp.asarray(m, jnp.float32))) for k, m in arrays.items()}
    rng = np.random.default_rng(params["seed"])
    shrink = 16 if params["small"] else 1
    shapes = {"512": (512, 512), "1024": (1024, 1024), "wide": (256, 1024)}
    matrices = {
        name: jnp.asarray(rng.normal(size=(m // shrink, n // shrink)), jnp.float32) for name, (m, n) in shapes.items()
    }
    muon = jnp.asarray(SCHEDULES["muon"][0])
    large = matrices["1024"]
    maps: dict[str, Any] = {f"dual_{name}": (orthogonalize, m) for name, m in matrices.items()}
    maps |= {
        "muon_1024": (lambda m: orthogonalize(m, "muon"), large),
        "optax_1024": (lambda m: _muon.orthogonalize_via_newton_schulz(m, muon, 5, "frobenius", 1e-7), large),
        "matmul": (lambda m: m @ m, large),
    }
    maps |= {f"svd_{name}": (lambda m: orthogonalize(m, "svd"), m) for name, m in matrices.items()}
    jobs = {name: (jax.jit(function).lower(m).compile(), m) for name, (function, m) in maps.items()}
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(params["repeats"] + 1):
        for name, (job, m) in jobs.items():
            long = name == "svd_1024"  # seconds: once will do
            if long and turn:
                continue
            start = time.perf_counter()
            jax.block_until_ready(job(m))
            if long or turn:
                seconds[name].append(time.perf_counter() - start)
    times = {name: np.array(values) for name, values in seconds.items()}
    for name in ("muon_1024", "optax_1024"):  # beside input and result, in copies of the matrix
        times[f"copies_{name}"] = np.array([jobs[name][0].memory_analysis().temp_size_in_bytes / large.nbytes])
    times |= beside_torch(np.array(large), params["repeats"])
    return out | times | {"matmul_share": 18 * times["matmul"] / times["dual_1024"]}  # six steps of three products


class Solver(BaseSolver):
    """Momentum, then the duality map of the network."""

    name = "modular-duality"
    sampling_strategy = "run_once"
    problems = ("transfer", "curve", "erasure", "text", "dualizers")

    def skip(self, problem: str, budget: str, params: dict[str, Any], **_: Any) -> tuple[bool, str | None]:
        """Solve what the track poses; the small batch, which no claim is about, on one seed outside the paper budget."""
        if params.get("batch") == 8 and budget != "paper" and params["seed"] != 0:
            return True, "no claim is about it"
        return problem not in self.problems, "not a problem of optimizers"

    def set_objective(self, problem: str, **public: Any) -> None:
        """Note the problem."""
        self.problem = problem
        self.arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
        self.params = {"optimizer": self.name, **public["params"]}
        self.params["seed"] = int(self.params["seed"])

    def run(self, _: Any) -> None:
        """Train, or orthogonalise, in a process of its own."""
        file = __file__ if self.problem == "dualizers" else PROBLEMS
        self.result = measure(file, self.problem, self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return losses, matrices, or times."""
        return self.result
