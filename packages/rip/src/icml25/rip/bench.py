"""The filter and Self-RIP on the problem "filter" of the track "preference"; the filter by itself for "alignment"."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

VARIANTS = {
    "world": ("RIP", "RIP without the gap", "random of equal size"),
    "self": ("Self-RIP", "Self-RIP, one filter", "Self-RIP, fitted twice", "Self-Instruct, filtered"),
}
SMOKE = ("RIP", "Self-RIP")


def keep(scores: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Prompts to keep (P,) by scores and lengths (P, n) of their answers."""
    from icml25.rip import RIPFilter

    return RIPFilter(quantile=0.5).fit_arrays(scores, lengths).support_arrays(scores, lengths)


def warm_up() -> None:
    """Import what the clock should not see."""
    import icml25.rip  # noqa: F401


def choose(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Filter the given prompts."""
    from icml25.rip import RIPFilter

    scores, lengths, variant = arrays["scores"], arrays["lengths"], params["variant"]
    quantile = (0.5, 0.5, None) if variant == "RIP without the gap" else 0.5
    kept = RIPFilter(quantile=quantile).fit_arrays(scores, lengths).support_arrays(scores, lengths)
    if variant == "random of equal size":
        kept = np.random.default_rng(params["seed"]).permutation(kept)
    return {"keep": kept}


def choose_written(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Write prompts by the simulator and filter them; prompts are named by numbers, answers are lines of their lengths."""
    import pandas as pd

    from icml25.rip import RIPFilter, self_rip
    from icml25.shared.protocols import preference_filter

    settings = {key.removeprefix("settings_"): value for key, value in params.items() if key.startswith("settings_")}
    variant, shots = params["variant"], []

    def answers(lengths: np.ndarray) -> list[list[str]]:
        return [["x" * int(length) for length in row] for row in lengths]

    def write_fn(texts: list[str]) -> list[str]:
        names = range(len(shots), len(shots) + len(texts))
        shots.extend([int(i) for i in re.findall(r"<prompt>human (\d+)</prompt>", text)] for text in texts)
        return [f"written {i}</prompt>" for i in names]

    scores = np.empty(0)

    def sample_fn(prompts: list[str], n: int) -> list[list[str]]:
        nonlocal scores
        drawn = preference_filter.write(settings, np.array(shots), seed=params["seed"], budget=params["budget"])[0]
        scores = drawn["scores"]
        return answers(drawn["lengths"])

    human = pd.DataFrame(
        {
            "prompt": [f"human {i}" for i in range(len(arrays["scores"]))],
            "responses": answers(arrays["lengths"]),
            "rewards": arrays["scores"].tolist(),
        }
    )
    rip = RIPFilter().fit(human)
    result = self_rip(
        human,
        write_fn,
        sample_fn,
        lambda prompts, responses: scores.tolist(),
        n_prompts=params["written"],
        n_responses=arrays["scores"].shape[1],
        filter=RIPFilter(quantile=0) if variant == "Self-Instruct, filtered" else RIPFilter(),
        seed=params["seed"],
        dedup=False,
        clean=False,
        refit=variant == "Self-RIP, fitted twice",
    )
    kept = np.zeros(params["written"], dtype=bool)
    kept[result.kept.index] = True
    if variant == "Self-Instruct, filtered":
        kept = rip.support(result.frame)
    elif variant == "Self-RIP, one filter":
        kept[:] = True
    return {"shots": np.array(shots), "keep": kept}


class Solver(BaseSolver):
    """R.I.P. with medians as thresholds, and Self-RIP."""

    name = "rip"
    sampling_strategy = "run_once"
    problems = ("filter", "alignment")
    parameters = {"variant": [*VARIANTS["world"], *VARIANTS["self"]]}  # noqa: RUF012

    def skip(self, problem: str, question: str = "", budget: str = "", **_: Any) -> tuple[bool, str | None]:
        """Leave out other problems, and variants of the other question."""
        if problem == "alignment":
            return True, "there every loss has the kept prompts as its parameter `filter`"
        if problem != "filter" or self.variant not in VARIANTS[question]:
            return True, f"{self.variant} is not for {question or problem}"
        return budget == "smoke" and self.variant not in SMOKE, "left out of this budget"

    def set_objective(self, problem: str, question: str = "", **public: Any) -> None:
        """Note the problem."""
        self.function = "choose" if question == "world" else "choose_written"
        self.arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
        self.params = {key: value for key, value in public.items() if isinstance(value, (int, float, str))}
        self.params["variant"] = self.variant

    def run(self, _: Any) -> None:
        """Work in a process of its own."""
        self.result = measure(__file__, self.function, self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return the kept prompts, seconds and memory."""
        return self.result
