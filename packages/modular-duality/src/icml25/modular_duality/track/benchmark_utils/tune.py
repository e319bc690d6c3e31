"""Choose the learning rates of ``TUNED``, each method on its own grid, by the mean over seeds that are not reported."""

import numpy as np

from icml25.modular_duality.track import objective
from icml25.modular_duality.track.benchmark_utils import problems
from icml25.modular_duality.track.benchmark_utils.optimizers import GRIDS

SEEDS = (1000, 1001, 1002)
SEARCHES = (  # problem, settings, metric, methods, part of the grid
    ("curve", {"width": 128}, "steps_to_0_1", ("modular-duality", "SGD", "Adam", "AdamW", "Muon"), slice(5)),
    ("erasure", {"batch": 128}, "final_loss", ("modular-duality", "spectral"), slice(5)),
    ("text", {"corpus": "stdlib", "tuning": True}, "validation_loss", ("modular-duality", "AdamW"), slice(5)),
)


def search():
    """Print the mean metric of each learning rate, and the best."""
    for problem, settings, metric, methods, part in SEARCHES:
        of = objective.Objective.problems[problem]
        for method in methods:
            found = {}
            for learning_rate in GRIDS[method][part]:
                values = []
                for seed in SEEDS:
                    public, truth = of.draw(settings, seed=seed, budget="quick")
                    arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
                    params = public["params"] | {"optimizer": method, "learning_rate": learning_rate}
                    values.append(of.evaluate(public, truth, getattr(problems, problem)(arrays, params))[metric])
                found[learning_rate] = float(np.mean(values))
            print(problem, method, min(found, key=lambda rate: found[rate]), found, flush=True)


if __name__ == "__main__":
    search()
