"""Draw docs/overview.svg: a landscape before and after examples, and a small GPT-2's errors along a prompt and under the probes.

The model is trained as in the track at its quick budget, on a seed that no claim reports.
"""

import importlib.util
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import icml25.icl_hopfield
from icml25.icl_hopfield import LinearRegressionTask, Memory, evaluate_prefix, posterior_prefix
from icml25.icl_hopfield.bench import train_transformer, transformer

SEED = 1000
TRACK = Path(icml25.icl_hopfield.__file__).parent / "track"
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#999999"


def load(name: str):
    spec = importlib.util.spec_from_file_location(Path(name).stem, TRACK / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


plt.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "icl-hopfield"})
figure, (before, after, along, probes) = plt.subplots(1, 4, figsize=(10.4, 2.7), layout="constrained")

base = Memory(np.array([[-1.0, -0.6], [-0.9, 0.9], [0.2, -1.1]]), beta=6.0)
examples = Memory(np.array([[1.0, 0.7], [0.8, 0.9], [1.1, 0.9]]), beta=6.0)
axis = np.linspace(-1.8, 1.8, 61)
grid = np.stack(np.meshgrid(axis, axis), -1)
landscapes = [np.asarray(memory.energy(grid)) for memory in (base, base.condition(examples))]
levels = np.linspace(min(map(np.min, landscapes)), 1.2, 15)
for axes, energy, title in zip(
    (before, after), landscapes, ("Energy of three memories", "with three examples"), strict=True
):
    axes.contourf(axis, axis, energy, levels, cmap="Blues_r", extend="max")
    axes.plot(*base.keys.T, "o", c="white", mec="black", ms=5)
    axes.set(title=title, aspect="equal", xticks=[], yticks=[])
after.plot(*examples.keys.T, "^", c=ORANGE, mec="black", ms=5)

public, truth = load("objective.py").Probes.draw(
    {"family": "linear", "dim": 3, "examples": 12}, seed=SEED, budget="quick"
)
arrays = {name: value for name, value in public.items() if isinstance(value, np.ndarray)}
params = {"budget": "quick", "seed": SEED, "family": "linear", "dim": 3, "examples": 12}
x, y = LinearRegressionTask(3).sample(jax.random.key(SEED + 1), 1000, 13)
exact = np.asarray(((posterior_prefix(x, y, noise_var=1e-4)[0] - y) ** 2).mean(0))
scale = (np.asarray(y) ** 2).mean()
lines = {"small GPT-2": (evaluate_prefix(train_transformer(params), x, y), BLUE), "posterior mean": (exact, ORANGE)}
for label, (errors, colour) in lines.items():
    along.plot(range(13), errors / scale, "o-", c=colour, ms=3, label=label)
along.set(
    title="Error along a prompt", xlabel="examples seen", ylabel="error / predicting zero", yscale="log", ylim=(1e-3, 2)
)

found = {"small GPT-2": transformer(arrays, params)}
found["posterior mean"] = load("benchmark_utils/baselines.py").fit(
    arrays, {"method": "bayes", "problem": "probes", "noise": 0.0}
)
names = ["matched", "far", "flip_10", "flip_30", "flip_50", "unfamiliar"]
labels = ["matched", "far\ninputs", "10%", "30%\nlabels\nflipped", "50%", "other\ntasks"]
for shift, (label, result) in zip((-0.2, 0.2), found.items(), strict=True):
    values = [((result[n] - truth[n]) ** 2).mean() / (truth[n] ** 2).mean() for n in names]
    print(label, dict(zip(names, np.round(values, 4), strict=True)))
    probes.bar(np.arange(6) + shift, np.maximum(values, 1e-3), 0.4, bottom=0, color=lines[label][1])
probes.axhline(1, c=GREY, lw=0.8, ls=":")
probes.set(title="Error under the probes", yscale="log", ylim=(1e-3, 10))
probes.set_xticks(range(6), labels, fontsize=6)
for axes in (along, probes):
    axes.spines[["top", "right"]].set_visible(False)
along.legend(frameon=False, loc="lower left")
figure.savefig(Path(__file__).with_name("overview.svg"), metadata={"Date": None})
