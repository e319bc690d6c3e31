"""The CAT condition and its rivals on the problem "instruments" of the track "causal"."""

from __future__ import annotations

from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

RIVALS = ("Sargan", "sisVIVE", "TSHT")  # AIT permutes for minutes
SCORED = ("CAT", "CAT F>10", "CAT unadjusted", "CAT n x n")  # the others select by linear models


def warm_up() -> None:
    """Load what the clock should not see (but for scikit-learn's lasso path, which only sisVIVE needs)."""
    from icml25.cat_iv import make_anlce

    s = make_anlce(50, seed=0)
    arrays = {"Z": s.Z[None], "x": s.x[None], "y": s.y[None], "sizes": np.array([50])}
    for method in ("CAT", "Sargan"):
        select(arrays, {"method": method, "n_valid": 2, "seed": 0})


def select(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Select and estimate in every replicate at every size."""
    from icml25.cat_iv import residualise

    method, sizes = params["method"], arrays["sizes"]
    replicates, _, p = arrays["Z"].shape
    shape = (len(sizes), replicates)
    support, effect, pair_scores = (
        np.zeros((*shape, p), dtype=bool),
        np.full(shape, np.nan),
        np.full((*shape, p, p), np.nan),
    )
    adjust = "W" in arrays and method != "CAT unadjusted"
    degrees = arrays["W"].shape[2] if adjust else 0
    rng = np.random.default_rng(params["seed"])
    for k, r in np.ndindex(shape):
        n = sizes[k]
        columns = np.column_stack([arrays["x"][r, :n], arrays["y"][r, :n], arrays["Z"][r, :n]])
        columns -= columns.mean(0)
        if adjust:
            columns = residualise(columns, arrays["W"][r, :n])
        x, y, Z = columns[:, 0], columns[:, 1], columns[:, 2:]
        if method in SCORED:
            support[k, r], effect[k, r], pair_scores[k, r] = _cat(method, Z, x, y, params["n_valid"], degrees)
        else:
            support[k, r], effect[k, r] = _rival(method, Z, x, y, params["n_valid"], rng)
    out = {"support": support, "effect": effect}
    return out | {"pair_scores": pair_scores} if method in SCORED else out


def _cat(method: str, Z: np.ndarray, x: np.ndarray, y: np.ndarray, n_valid: int, degrees: int) -> tuple[Any, ...]:
    """What CATSelector does, without the import of scikit-learn."""
    from icml25.cat_iv import best_subsets, first_stage_f, pair_scores, two_stage_least_squares

    p = Z.shape[1]
    strong = np.flatnonzero(first_stage_f(Z, x, degrees) >= (10 if method == "CAT F>10" else 0))
    support, scores = np.zeros(p, dtype=bool), np.full((p, p), np.nan)
    if len(strong) < n_valid:
        return support, np.nan, scores
    score = _scores_by_distance_matrices if method == "CAT n x n" else pair_scores
    scores[np.ix_(strong, strong)] = D = score(Z[:, strong], x, y)
    support[strong[list(best_subsets(D, n_valid)[0][0])]] = True
    return support, two_stage_least_squares(Z[:, support], x, y), scores


def _scores_by_distance_matrices(Z: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The peer: the definition with n x n matrices, pair by pair, as energy::dcor in the official R code."""
    from icml25.cat_iv import auxiliary

    def centred(v: np.ndarray) -> np.ndarray:
        a = np.abs(v[:, None] - v)
        mean = a.mean(0)
        a -= mean
        a -= mean[:, None]
        a += mean.mean()
        return a

    def distance_correlation(u: np.ndarray, v: np.ndarray) -> float:
        a, b = centred(u), centred(v)
        return float(np.sqrt(np.vdot(a, b) / np.sqrt(np.vdot(a, a) * np.vdot(b, b))))

    A, _ = auxiliary(Z, x, y)
    p = Z.shape[1]
    C = np.array([[0.0 if i == j else distance_correlation(A[:, i], Z[:, j]) for j in range(p)] for i in range(p)])
    return C + C.T


def _rival(method: str, Z: np.ndarray, x: np.ndarray, y: np.ndarray, n_valid: int, rng: np.random.Generator) -> Any:
    from icml25.cat_iv import baselines

    if method == "Sargan":
        return baselines.sargan_min(Z, x, y, n_valid)
    if method == "AIT":
        return baselines.ait_each(Z, x, y, seed=rng)
    return {"sisVIVE": baselines.sisvive, "TSHT": baselines.tsht}[method](Z, x, y)


class Solver(BaseSolver):
    """The CAT condition as it is, with a screen, without adjustment, by n x n matrices; and selectors for linear models."""

    name = "cat-iv"
    sampling_strategy = "run_once"
    problems = ("instruments",)
    parameters = {  # noqa: RUF012
        "method": ["CAT", "CAT F>10", "CAT unadjusted", "CAT n x n", "Sargan", "sisVIVE", "TSHT", "AIT"]
    }

    def skip(
        self, problem: str, budget: str, dataset: str = "", W: np.ndarray | None = None, **_: Any
    ) -> tuple[bool, str | None]:
        """Leave out what a data set is not about, and what the budget has no time for."""
        if problem != "instruments":
            return True, "selects no instruments there"
        if self.method == "CAT unadjusted" and W is None:
            return True, "there are no covariates"
        if self.method == "CAT n x n" and dataset != "speed":
            return True, "only for the clock"
        if budget == "paper":
            return False, None
        wanted = {
            "case1": (*RIVALS, "CAT unadjusted") if W is not None else (*RIVALS, "CAT F>10"),
            "proportional": ("TSHT",),
            "speed": ("CAT n x n",),
        }
        return self.method not in ("CAT", *wanted.get(dataset, RIVALS)), "left out of this budget"

    def set_objective(self, n_valid: int, seed: int, **problem: Any) -> None:
        """Note the problem."""
        self.arrays = {k: problem[k] for k in ("Z", "x", "y", "W", "sizes") if k in problem}
        self.params = {"method": self.method, "n_valid": int(n_valid), "seed": int(seed)}

    def run(self, _: Any) -> None:
        """Select and estimate in a process of its own."""
        self.result = measure(__file__, "select", self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return sets, effects, scores, seconds and memory."""
        return self.result
