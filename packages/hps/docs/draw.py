"""Draws overview.svg: margins against gamma and against the number of answers, and what a step costs. Seed 1000, not a claim."""

import importlib.util
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from icml25.hps import bench
from icml25.shared import registry
from icml25.shared.protocols import preference_ranking as protocol
from icml25.shared.tracks.preference.ranking_model import rank

SEED = 1000
WORLD = {"world": "gaussian", "prompts": 512, "answers": 10, "dimensions": 16, "test": 1000, "worlds": 3}
COST = {"world": "cost", "prompts": 8, "tokens": 24, "vocabulary": 1000, "repeats": 5}
GAMMAS = [-5, -3, -1, 0, 1, 2, 3, 5]
ANSWERS = [2, 5, 10, 20, 50]
BLUE, RED, GREY, GREEN = "#1f77b4", "#d62728", "#7f7f7f", "#2ca02c"


def rival(name, **params):
    file = registry.tracks()["preference"].folder / "solvers" / f"ranking_{name}.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda arrays, given: module.fit(arrays, given | params)


def hps(**variant):
    return lambda arrays, given: rank(arrays, given, bench.hps(**variant))


def margin(fit, answers=10):
    public, truth = protocol.draw(WORLD | {"answers": answers}, seed=SEED, budget="figure")
    arrays = {name: value for name, value in public.items() if isinstance(value, np.ndarray)}
    result = fit(arrays, {"world": "gaussian", "seed": SEED, "budget": "quick"})
    return protocol.evaluate(public, truth, result)["ranking_margin"]


def seconds(answers):
    """Median processor time of a step of HPS and of Plackett-Luce, in turns."""
    public, _ = protocol.draw(COST | {"answers": answers}, seed=SEED, budget="figure")
    tokens = {name: torch.from_numpy(public[name]) for name in ("prompt_ids", "answer_ids")}
    scores = torch.from_numpy(public["answer_scores"])
    steps = [make(**tokens, scores=scores, params=public)[0] for make in (bench._pair_step, bench._list_step)]
    spent = [[], []]
    for repeat in range(COST["repeats"] + 1):
        for step, times in zip(steps, spent, strict=True):
            start = time.process_time()
            step()
            if repeat:
                times.append(time.process_time() - start)
    return np.median(spent, axis=1)


def main():
    torch.set_num_threads(1)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(8.4, 2.6), layout="constrained")
    left.plot(GAMMAS, [margin(hps(gamma=g)) for g in GAMMAS], "o-", color=BLUE, markersize=3, label="HPS")
    without = [margin(hps(gamma=g, log_n=False)) for g in GAMMAS]
    left.plot(GAMMAS, without, "s--", color=BLUE, markersize=3, linewidth=1, label="without log N")
    for name, fit, colour in (("PL", rival("pl"), RED), ("BT, random", rival("bt", negative="random"), GREEN)):
        left.axhline(margin(fit), color=colour, linestyle=":", label=name)
    left.set(title="margin, 10 answers", xlabel="gamma")
    for name, fit, style in (
        ("HPS, gamma 3", hps(gamma=3.0), {"color": BLUE}),
        ("PL", rival("pl"), {"color": RED}),
        ("BT, random", rival("bt", negative="random"), {"color": GREEN}),
        ("BT, worst", rival("bt", negative="worst"), {"color": GREY}),
    ):
        middle.plot(ANSWERS, [margin(fit, n) for n in ANSWERS], "o-", markersize=3, label=name, **style)
    middle.set(title="margin", xlabel="answers a prompt", xscale="log", xticks=ANSWERS, xticklabels=ANSWERS)
    middle.minorticks_off()
    sizes = [2, 4, 8, 16]
    for times, name, colour in zip(np.transpose([seconds(n) for n in sizes]), ("HPS", "PL"), (BLUE, RED), strict=True):
        right.plot(sizes, 1000 * times, "o-", color=colour, markersize=3, label=name)
    right.set(title="step of a small Llama (ms)", xlabel="answers a prompt", xticks=sizes, ylim=(0, None))
    for axis in (left, middle, right):
        axis.legend(frameon=False, fontsize=7)
    figure.savefig(Path(__file__).with_name("overview.svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
