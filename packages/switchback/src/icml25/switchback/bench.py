"""Estimators, designs and the workflow on the track "causal", problem "switchback"."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

ESTIMATORS = ("OLS", "LSTD", "DRL")


def warm_up() -> None:
    """Import what the clock should not see."""
    from icml25.switchback import OLS, paper_mdp, uniform_random

    panel = paper_mdp(T=2, p=1).simulate(uniform_random(8, 2, seed=1), seed=0)
    OLS().fit(panel)


def _estimator(name: str) -> Any:
    from icml25.switchback import DRL, LSTD, OLS

    return {"OLS": OLS, "LSTD": LSTD, "DRL": DRL}[name]()


def _estimates(name: str, panels: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    import warnings

    from icml25.switchback import OverlapWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverlapWarning)  # poor overlap under frequent switching is what is studied
        return _estimator(name).estimate(*panels)


def estimate(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """ATE of every replicate, all at once."""
    return {"estimates": _estimates(params["estimator"], (arrays["states"], arrays["actions"], arrays["rewards"]))}


def estimate_with_intervals(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """OLS with 95% intervals by the jackknife over pairs of days."""
    from icml25.switchback import OLS, Panel

    out = estimate(arrays, params)
    panels = [Panel(*one) for one in zip(arrays["states"], arrays["actions"], arrays["rewards"], strict=True)]
    intervals = np.array([OLS().fit(panel).conf_int(method="jackknife") for panel in panels])
    return out | {"low": intervals[:, 0], "high": intervals[:, 1]}


def baseline(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Difference in means or inverse probabilities, replicate by replicate."""
    from icml25.switchback import Panel, difference_in_means, ipw_switchback

    function = {
        "DIM": difference_in_means,
        "DIM after 1": partial(difference_in_means, burn_in=1),  # of the three points of a block
        "IPW": ipw_switchback,
    }[params["estimator"]]
    panels = zip(arrays["states"], arrays["actions"], arrays["rewards"], strict=True)
    return {"estimates": np.array([function(Panel(*one)) for one in panels])}


def loop(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """OLS as one writes it down: a loop over replicates and time points, numpy.linalg.lstsq at each."""
    S, A, Y = arrays["states"], arrays["actions"], arrays["rewards"]
    R, n, T, p = S.shape
    out = np.empty(R)
    for r in range(R):
        total, effect = 0.0, np.zeros(p)
        for t in range(T):
            X = np.column_stack([np.ones(n), S[r, :, t], A[r, :, t]])
            targets = Y[r, :, t, None] if t == T - 1 else np.column_stack([Y[r, :, t], S[r, :, t + 1]])
            coef = np.linalg.lstsq(X, targets, rcond=None)[0]
            total += coef[p + 1, 0] + coef[1 : p + 1, 0] @ effect
            effect = coef[1 : p + 1, 1:].T @ effect + coef[p + 1, 1:]
        out[r] = total / T
    return {"estimates": out}


def every_design(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Each of the three estimators under each design."""
    panels = [tuple(arrays[f"{kind}_{d}"] for kind in ("states", "actions", "rewards")) for d in params["designs"]]
    estimates = np.array([[_estimates(name, panel) for panel in panels] for name in ESTIMATORS])
    return {"estimates": estimates, "estimators": "+".join(ESTIMATORS)}


def predict(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """OLS under each design, and the mean squared error that Eqs. (2)-(3) foresee."""
    from icml25.switchback import weak_carryover_mse

    panels = [tuple(arrays[f"{kind}_{d}"] for kind in ("states", "actions", "rewards")) for d in params["designs"]]
    n = panels[0][0].shape[1]
    predicted = [weak_carryover_mse(arrays["error_covariance"], n, _design(d)) for d in params["designs"]]
    return {"estimates": np.array([_estimates("OLS", panel) for panel in panels]), "predicted_mse": np.array(predicted)}


def advise(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Which design the workflow advises after each pilot."""
    from icml25.switchback import Panel, recommend_design

    candidates = [_design(d) for d in params["designs"]]
    pilots = zip(arrays["states_pilot"], arrays["actions_pilot"], arrays["rewards_pilot"], strict=True)
    advice = []
    for index, one in enumerate(pilots):
        options: dict[str, Any] = {"n_days": one[0].shape[0], "candidates": candidates}
        report = recommend_design(pilot=Panel(*one), seed=1000 * params["seed"] + index, **options)
        advice.append(candidates.index(report.best))
    return {"recommended": np.array(advice)}


def _design(name: str) -> Any:
    from icml25.switchback import Design

    return Design("AT", int(name.removeprefix("AT"))) if name.startswith("AT") else Design(name)


class Solver(BaseSolver):
    """An estimator under one design, or a study over all designs of a data set."""

    name = "switchback"
    sampling_strategy = "run_once"
    problems = ("switchback",)
    parameters = {  # noqa: RUF012
        "estimator, design": [
            ("OLS", "AD"),
            ("OLS", "AT1"),
            ("LSTD", "AD"),
            ("LSTD", "AT1"),
            ("DRL", "AD"),
            ("DRL", "AT1"),
            ("OLS", "AT3"),
            ("DIM", "AT3"),
            ("DIM after 1", "AT3"),
            ("IPW", "AT3"),
            ("OLS", "AT6"),
            ("OLS in a loop", "AT6"),
            ("DIM", "AD"),
            ("DIM", "AT1"),
            ("all three", "every"),
            ("OLS", "predicted"),
            ("OLS", "recommended"),
        ],
    }

    def skip(
        self, problem: str, budget: str, designs: Any = (), n: int = 0, p: int = 0, **public: Any
    ) -> tuple[bool, str | None]:
        """Leave out other problems, and designs that the data set does not have."""
        if problem != "switchback":
            return True, "estimates treatment effects of switchback experiments"
        pilots, ranking = "rewards_pilot" in public, len(designs) > 2 and p > 0
        compared = budget == "quick" and len(designs) == 2 and len(public[f"rewards_{designs[0]}"]) <= 500
        studies = {"every": (ranking and not pilots) or compared, "recommended": pilots, "predicted": p == 0}
        if self.design in studies:
            return not studies[self.design], "not a data set for this study"
        if pilots or ranking or p == 0 or self.design not in designs:
            return True, f"the data set has no experiments of its own under {self.design}"
        if self.estimator == "OLS in a loop" and public[f"rewards_{self.design}"].size > 10**6:
            return True, "would take minutes"
        if budget == "smoke" and self.design != "AT1":
            return True, "one design will do"
        if budget != "paper" and (self.estimator == "IPW" or (self.estimator == "DIM" and self.design != "AT3")):
            return True, "left out of this budget"
        if budget == "quick" and self.estimator in ("LSTD", "DRL"):
            return True, "in the row of all three"
        one_estimator = len(public[f"rewards_{self.design}"]) > 500 and self.design != "AT3"
        return one_estimator and self.estimator != "OLS", "many replicates, for OLS"

    def set_objective(self, problem: str, budget: str, seed: int, designs: Any, **public: Any) -> None:
        """Take the panels of the design, or of all designs."""
        self.params = {"estimator": self.estimator, "designs": list(designs), "seed": int(seed)}
        study = {"every": "every_design", "predicted": "predict", "recommended": "advise"}.get(self.design)
        if study:
            self.arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
            self.function = study
            return
        self.arrays = {kind: public[f"{kind}_{self.design}"] for kind in ("states", "actions", "rewards")}
        by_name = {"DIM": "baseline", "DIM after 1": "baseline", "IPW": "baseline", "OLS in a loop": "loop"}
        small = self.estimator == "OLS" and self.design in ("AD", "AT1") and len(self.arrays["rewards"]) <= 100
        self.function = by_name.get(self.estimator, "estimate_with_intervals" if small else "estimate")

    def run(self, _: Any) -> None:
        """Measure in a process of its own."""
        self.result = measure(__file__, self.function, self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Estimates, with what the study adds, seconds and memory."""
        return self.result
