"""Transformations of the calibrated reward on the problems "inference" and "alignment" of the track "preference".

On "alignment" the calibrated reward of an answer is its rank among the answers of its prompt, which are samples of pi_ref.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure
from icml25.shared.protocols.alignment import filters

TRANSFORMS = ("u", "log(u)", "exp(5u)", "exp(10u)", "-exp(-5u)", "-exp(-10u)", "power", "worst power")
OPTIMA = ("optimum for best-of-N", "optimum for worst-of-N")
ALIGNED = {"u": ("u", "none"), "exp(10u)": ("exp(10u)", "none")} | {
    f"exp(10u) after {name}": ("exp(10u)", name) for name in filters()
}
WORLD = ("u", "log(u)", "exp(10u)", "-exp(-10u)")
VARIANTS = {
    "world": WORLD,
    "continuum": TRANSFORMS + OPTIMA,
    "theorem": ("optimum",),
    "rollouts": ("exp(10u)",),
    "lookup": ("calibrator", "percentileofscore"),
    "alignment": tuple(ALIGNED),
}
QUICK = {0.5: ("u", "log(u)", "exp(5u)", "exp(10u)", "-exp(-10u)", *OPTIMA)}  # by KL; at others the claimed two
SMOKE = ("u", "exp(10u)", "optimum", "calibrator")
ALIGNMENT = {"beta": 0.1, "lr": 0.1}  # the best of the grid that every loss of the problem has
FUNCTIONS = {
    "world": "align",
    "continuum": "align",
    "theorem": "solve",
    "rollouts": "align_by_rollouts",
    "lookup": "look_up",
    "alignment": "train_policy",
}


def warm_up() -> None:
    """Import what the clock should not see."""
    import scipy.stats  # noqa: F401

    import icml25.infalign  # noqa: F401


def _transform(variant: str, N: int, kl: float) -> Any:
    from icml25.infalign import (
        BestOf,
        WorstOf,
        exponential,
        from_grid,
        identity,
        logarithm,
        optimum_at_kl,
        power,
        worst_power,
    )

    if variant in OPTIMA:
        best = optimum_at_kl((BestOf if variant == OPTIMA[0] else WorstOf)(N), kl)
        return from_grid(best.u, best.phi)
    return {
        "u": identity,
        "log(u)": lambda: logarithm(np.inf),
        "exp(5u)": lambda: exponential(5),
        "exp(10u)": lambda: exponential(10),
        "-exp(-5u)": lambda: exponential(-5),
        "-exp(-10u)": lambda: exponential(-10),
        "power": lambda: power(2 * N - 1),
        "worst power": lambda: worst_power(2 * N - 1),
    }[variant]()


def align(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Algorithm 1 with the exact calibrated reward, at the KL asked for."""
    from icml25.infalign import calibrated_reward, policy_at_kl

    transform = _transform(params["variant"], params["N"], params["kl"])
    C = calibrated_reward(arrays["pi_ref"], arrays["reward"])
    return {"policy": policy_at_kl(arrays["pi_ref"], transform(C), params["kl"])[0]}


def align_by_rollouts(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Algorithm 1 with the empirical calibrated reward of the first K rollouts, for each K, and with the exact one."""
    from icml25.infalign import Calibrator, calibrated_reward, policy_at_kl

    transform = _transform(params["variant"], params["N"], params["kl"])
    p, r = arrays["pi_ref"], arrays["reward"]
    drawn = np.take_along_axis(r, arrays["rollouts"], 1)
    keys = [str(x) for x in range(len(r))]
    asked = np.repeat(keys, r.shape[1]).tolist()
    C = [Calibrator.fit(keys, drawn[:, :K]).calibrate(asked, r.ravel()).reshape(r.shape) for K in arrays["sizes"]]
    C.append(calibrated_reward(p, r))
    return {"policy": np.stack([policy_at_kl(p, transform(c), params["kl"])[0] for c in C])}


def solve(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """The optimal policy of each problem by the coupled equations."""
    from icml25.infalign import BestOf, WorstOf, optimal_policy

    problems = zip(*(arrays[key] for key in ("pi_ref", "reward", "N", "worst", "beta")), strict=True)
    policies = [
        optimal_policy(p, r, (WorstOf if worst else BestOf)(int(N)), float(beta)) for p, r, N, worst, beta in problems
    ]
    return {"policy": np.stack(policies)}


def look_up(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Sort the rollouts and rank the rewards: by this package, or prompt by prompt with scipy."""
    rollouts, asked, reward = arrays["rollouts"], arrays["asked"], arrays["reward"]
    if params["variant"] == "calibrator":
        from icml25.infalign import Calibrator

        keys = [f"prompt {x}" for x in range(len(rollouts))]
        calibrator = Calibrator.fit(keys, rollouts)
        return {"calibrated": calibrator.calibrate([keys[x] for x in asked], reward)}
    from scipy.stats import percentileofscore

    out = np.empty(len(reward))
    ends = np.searchsorted(asked, np.arange(len(rollouts) + 1))
    for x, (start, end) in enumerate(pairwise(ends)):
        out[start:end] = percentileofscore(rollouts[x], reward[start:end], kind="mean") / 100
    return {"calibrated": out}


def train_policy(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Algorithm 1 on a policy that is trained: KL-RL with the transformed calibrated reward."""
    import torch

    from icml25.infalign import calibrated_reward
    from icml25.shared.tracks.preference.aligning import kl_regularised, train

    variant, kept = ALIGNED[params["variant"]]
    transform = _transform(variant, 4, 0.5)

    def reward(scores: torch.Tensor) -> torch.Tensor:
        uniform = np.full(scores.shape, 1 / scores.shape[1])
        return torch.as_tensor(transform(calibrated_reward(uniform, scores.numpy())), dtype=torch.float32)

    params = params | ALIGNMENT | {"filter": kept}
    return train(arrays, params, kl_regularised(params, reward))


class Solver(BaseSolver):
    """KL-RL with transformed calibrated rewards at equal KL, and the optimum for a procedure."""

    name = "infalign"
    sampling_strategy = "run_once"
    problems = ("inference", "alignment")
    parameters = {  # noqa: RUF012
        "variant": [*dict.fromkeys(variant for variants in VARIANTS.values() for variant in variants)],
    }

    def skip(
        self, problem: str, budget: str = "", question: str = "", kl: float = 0.0, **_: Any
    ) -> tuple[bool, str | None]:
        """Leave out other problems, and variants that another question is for."""
        if problem not in self.problems:
            return True, f"not for {problem}"
        question = question or problem
        if self.variant not in VARIANTS[question]:
            return True, f"{self.variant} is not for {question}"
        wanted = VARIANTS[question]
        if question == "continuum" and budget == "quick":
            wanted = QUICK.get(kl, ("exp(5u)", "exp(10u)"))
        return self.variant not in (SMOKE if budget == "smoke" else wanted), "left out of this budget"

    def set_objective(self, problem: str, question: str = "", **public: Any) -> None:
        """Note the problem."""
        self.function = FUNCTIONS[question or problem]
        self.arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
        self.params = {key: value for key, value in public.items() if isinstance(value, (int, float, str))}
        self.params["variant"] = self.variant

    def run(self, _: Any) -> None:
        """Work in a process of its own."""
        self.result = measure(__file__, self.function, self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return what the question asks for, seconds and memory."""
        return self.result
