"""Mechanisms at equilibrium, and shares of many agents, on the track payments."""

from __future__ import annotations

from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

EPSILONS = (1e-2, 1e-4, 1e-6)
CAPACITY = 1e5
METHODS = {
    "digits": ("shap", "none", "bg", "shap-sampled"),
    "random": ("shap", "none", "bg"),
    "homogeneous": ("shap", "none"),
    "scale": ("shap", "re-evaluation"),
}
PEER_LIMIT = 200


def warm_up() -> None:
    """Load what the clock should not see."""
    from icml25.mshap import FLGame, LinearFractional, MShap

    FLGame(LinearFractional([[0.1]]), [0.01], [10.0]).solve(MShap())


def _mechanism(name: str) -> Any:
    from icml25.mshap import MShap, NoPayment, ShapleyEstimator, WelfareBG

    sampled = ShapleyEstimator("permutation", num_pairs=51)
    return {"shap": MShap(), "shap-sampled": MShap(sampled), "none": NoPayment(), "bg": WelfareBG(0.8)}[name]


def equilibria(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Solve each game; M^Shap also by the dynamics, with its steps to each precision."""
    from icml25.mshap import FLGame, LinearFractional

    mechanism, out, steps = _mechanism(params["method"]), {"mechanism": params["method"]}, []
    for k in range(params["games"]):
        game = FLGame(LinearFractional(arrays[f"W_{k}"]), arrays[f"gamma_{k}"], arrays[f"capacity_{k}"])
        eq = game.solve(mechanism)
        out |= {f"contributions_{k}": eq.contributions, f"payments_{k}": eq.payments}
        if params["method"] == "shap":
            out[f"other_{k}"] = game.solve(mechanism, method="dynamics").contributions
        if params["method"] == "shap" and params["problem"] == "random":
            steps.append([game.solve(mechanism, method="dynamics", tol=tol).n_iter for tol in EPSILONS])
    return out | ({"steps": np.array(steps)} if steps else {})


def homogeneous(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Contributions of n agents that are alike, for each n."""
    from icml25.mshap import FLGame, PowerLaw

    out = {"mechanism": params["method"]}
    for k, n in enumerate(arrays["sizes"].tolist()):
        game = FLGame(PowerLaw(params["alpha"], params["beta"]), np.full(n, params["gamma"]), np.full(n, CAPACITY))
        out[f"contributions_{k}"] = game.solve(_mechanism(params["method"])).contributions
    return out


def shares(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Shares and their derivatives along the given permutations."""
    from icml25.mshap import LinearFractional, ShapleyEstimator

    accuracy = LinearFractional(arrays["W"], groups=arrays["groups"])
    estimator = ShapleyEstimator(orders=arrays["orders"])
    return {"shares": estimator.shares(accuracy, arrays["s"]), "slope": estimator.own_gradient(accuracy, arrays["s"])}


def reevaluated_shares(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """The same by re-evaluation: every group's accuracy and slope from all contributions, each time an agent joins."""
    s, n = arrays["s"], len(arrays["s"])
    weights, sizes = arrays["W"][:, arrays["groups"]], np.bincount(arrays["groups"])
    found, slope = np.zeros(n), np.zeros(n)
    for order in arrays["orders"]:
        present, before = np.zeros(n), 0.0
        for agent in order:
            present[agent] = s[agent]
            missed = 1 / (1 + weights @ present)
            after = sizes @ (1 - missed)
            found[agent] += after - before
            slope[agent] += sizes @ (weights[:, agent] * missed**2)
            before = after
    return {"shares": found / len(arrays["orders"]), "slope": slope / len(arrays["orders"])}


class Solver(BaseSolver):
    """M^Shap, exact or along 102 permutations; M^0 (none) and M^BG (bg); shares by re-evaluation."""

    name = "mshap"
    sampling_strategy = "run_once"
    parameters = {"method": ["shap", "none", "bg", "shap-sampled", "re-evaluation"]}  # noqa: RUF012

    def skip(self, problem: str, **arrays: Any) -> tuple[bool, str | None]:
        """Leave out what a problem does not ask about."""
        if self.method == "re-evaluation" and len(arrays.get("s", ())) > PEER_LIMIT:
            return True, "re-evaluation takes minutes"
        return self.method not in METHODS[problem], f"{self.method} is not asked about"

    def set_objective(self, problem: str, budget: str, seed: int, **public: Any) -> None:
        """Note the games."""
        self.arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
        self.params = {key: value for key, value in public.items() if key not in self.arrays}
        self.params |= {
            "method": self.method,
            "problem": problem,
            "games": sum(key.startswith("gamma_") for key in self.arrays),
        }
        of_scale = shares if self.method == "shap" else reevaluated_shares
        self.function = {"scale": of_scale, "homogeneous": homogeneous}.get(problem, equilibria).__name__

    def run(self, _: Any) -> None:
        """Run in a process of its own."""
        self.result = measure(__file__, self.function, self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return contributions and payments, or shares, with seconds and memory."""
        return self.result
