"""DFE, its ablations and its baselines on the problem "fair matching" of the track "bandits"."""

import time
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

VARIANTS = {  # by kind of data set
    "shi2021": (
        "free",
        "collision",
        "no elimination",
        "musical chairs",
        "uniform",
        "explore 250",
        "explore 500",
        "explore 1000",
        "explore 2000",
        "explore 8000",
        "phased CUCB",
        "packets",
        "one run",
        "one run by rounds",
    ),
    "horizons": ("free", "collision"),
    "gaps": ("free",),
    "sizes": ("free",),
    "random": ("free",),
}
SMOKE = ("free", "collision", "explore 250")
ABLATION, ABLATION_HORIZON = ("free", "no elimination"), 10**5
PAPER_ONLY = ("explore 8000",)
MORE_RUNS = {"explore": 25, "gaps": 4}  # times the protocol's runs: milliseconds each, and their regret varies widely
# The best of (25, 20), (50, 5), (50, 20), (100, 5), (100, 10), (200, 5) over 48 runs of seed 2000, never reported.
PACKETS = {"c1": 50, "c2": 5}


def warm_up() -> None:
    """Load what the clock should not see."""
    from icml25.dfe import DFE, MaxMinBandit, gap_instance, simulate

    simulate(DFE(communication="collision"), MaxMinBandit(gap_instance(2, 3, 0.3)), 1000, seed=0)


def _policy(variant: str) -> Any:
    from icml25.dfe import DFE, ExploreThenCommit, PacketRandomMatching, PhasedCUCB, UniformMatching

    if variant.startswith("explore "):
        return ExploreThenCommit(int(variant.removeprefix("explore ")))
    return {
        "collision": lambda: DFE(communication="collision"),
        "no elimination": lambda: DFE(eliminate=False),
        "musical chairs": lambda: DFE(init="musical_chairs"),
        "uniform": UniformMatching,
        "phased CUCB": PhasedCUCB,
        "packets": lambda: PacketRandomMatching(**PACKETS),
    }.get(variant, DFE)()


def _runs(variant: str, kind: str, n_runs: int, **_: Any) -> int:
    if variant == "one run":
        return 1
    return n_runs * MORE_RUNS.get(kind, 1) * MORE_RUNS.get(variant.split()[0], 1)


def play(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Simulate every problem; the growth of the time is that of the last problem over the first."""
    from icml25.dfe import DFE, MaxMinBandit, simulate

    out: dict[str, Any] = {}
    seconds = []
    for i, horizon in enumerate(params["horizons"]):
        env, checkpoints = MaxMinBandit(arrays[f"means{i}"]), arrays[f"checkpoints{i}"]
        rng = np.random.default_rng([params["seed"], i])
        start = time.perf_counter()
        if params["variant"] == "one run by rounds":
            out |= _round_by_round(env, horizon, rng, checkpoints, i)
            continue
        runs = _runs(**params)
        policy = _policy(params["variant"])
        result = simulate(policy, env, horizon, runs, rng, checkpoints)
        seconds.append(time.perf_counter() - start)
        out |= {f"regret{i}": result.regret, f"pulls{i}": result.pulls}
        if isinstance(policy, DFE):  # the others eliminate nothing
            out[f"active{i}"] = result.final_active
        out[f"comm_rounds{i}"] = result.comm_rounds
    if params["kind"] == "horizons" and seconds:
        out["time_growth"] = seconds[-1] / seconds[0]
    return out


def _round_by_round(env: Any, horizon: int, rng: np.random.Generator, checkpoints: np.ndarray, i: int) -> dict:
    """One run of DFE in a plain simulator: each round draws its rewards and adds its regret, as simulators in use do."""
    from icml25.dfe import DFE, Episode

    n, k = env.means.shape
    means, pulls, value = env.means.tolist(), np.zeros((n, k), dtype=np.int64), env.max_min_value
    wanted, curve, total, t = set(checkpoints.tolist()), [], 0.0, 0
    episode = Episode(n, k, horizon, rng)
    script, sums = DFE().segments(episode), None
    while t < horizon:
        segment = script.send(sums)
        sums = np.zeros(segment.actions.shape)
        for r, actions in enumerate(segment.actions.tolist()):
            gained, start = [0.0] * n, t
            for _ in range(min(segment.rounds, horizon - start)):
                draws, worst = rng.random(n).tolist(), 1.0
                for player, arm in enumerate(actions):
                    mean = 0.0 if actions.count(arm) > 1 else means[player][arm]
                    gained[player] += draws[player] < mean
                    worst = min(worst, mean)
                total += max(value - worst, 0.0)
                t += 1
                if t in wanted:
                    curve.append(total)
            pulls[range(n), actions] += min(segment.rounds, horizon - start)
            sums[r] = gained
    return {f"regret{i}": np.array([curve]), f"pulls{i}": pulls[None], f"active{i}": episode.active[None]}


class Solver(BaseSolver):
    """DFE and other max-min fair learners."""

    name = "DFE"
    sampling_strategy = "run_once"
    problems = ("fair matching",)
    parameters = {"variant": list(VARIANTS["shi2021"])}  # noqa: RUF012

    def skip(self, problem: str, budget: str, kind: str = "", horizons: Any = (), **_: Any) -> tuple[bool, str | None]:
        """Leave out the other problem, and what a data set or budget does not need."""
        if problem != "fair matching":
            return True, "players that share arms only"
        if self.variant not in VARIANTS[kind]:
            return True, f"{self.variant} is not run on {kind}"
        if kind == "shi2021" and max(horizons) == ABLATION_HORIZON and self.variant not in ABLATION:
            return True, "only the ablation is run at this horizon"
        if budget == "smoke":
            return self.variant not in SMOKE, "left out of this budget"
        return budget != "paper" and self.variant in PAPER_ONLY, "left out of this budget"

    def set_objective(
        self,
        problem: str,
        budget: str,
        seed: int,
        kind: str,
        n_problems: int,
        horizons: Any,
        n_runs: int,
        **arrays: Any,
    ) -> None:
        """Note the problems."""
        self.arrays = {name: np.asarray(array) for name, array in arrays.items()}
        self.params = {
            "variant": self.variant,
            "kind": kind,
            "seed": int(seed),
            "n_runs": int(n_runs),
            "horizons": [int(horizon) for horizon in horizons],
        }

    def run(self, _: Any) -> None:
        """Simulate in a process of its own."""
        self.result = measure(__file__, "play", self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return curves, pulls, active pairs, seconds and memory."""
        return self.result
