"""Measured gaps, covering numbers and bounds, and what they cost.

Solvers return losses, covering numbers, bounds or seconds; the trends and comparisons are worked out here.
"""

import numpy as np

from icml25.ntp_bounds import MarkovChain
from icml25.ntp_bounds.sources import split_text
from icml25.shared.datasets import load
from icml25.shared.problems import ProblemObjective

MARGIN = 1e-12  # of rounding, relative


def _ratio(small, large):
    """Of gaps; infinite where the larger one isn't there, so that noise of both signs passes for nothing."""
    return small / large if large > 0 else np.inf


class Gap:
    """Train decoders at each of ``n_sequences``, ``seq_len``, ``dim``, ``steps`` (k,); return ``gap`` (k, replicates).

    Sequences are windows of ``train_text`` and ``test_text``, characters as numbers below ``vocab``. And ``foretold`` (k,): sqrt(log N / n_sequences), with the covering number of decoders of these sizes.
    """

    AXES = {  # noqa: RUF012  (values, and whether the gap grows with them)
        "sequences": ((32, 128, 512), False),
        "parameters": ((8, 32, 128), True),
        "length": ((8, 32, 128), False),
    }

    @staticmethod
    def draw(settings, *, seed, budget):
        """N = 128, m = 32, d = 32 and 400 steps, one of them varied; for lengths also at equal tokens seen."""
        axis = settings["axis"]
        values, _ = Gap.AXES[axis]
        steps, replicates = {"smoke": (2, 1), "quick": (400, 1), "paper": (400, 10)}[budget]
        sizes = {name: np.full(3, size) for name, size in (("n_sequences", 128), ("seq_len", 32), ("dim", 32))}
        sizes[{"sequences": "n_sequences", "parameters": "dim", "length": "seq_len"}[axis]] = np.array(values)
        sizes["steps"] = np.full(3, steps)
        if axis == "length":
            again = sizes | {"steps": np.maximum(steps * 32 // np.array(values), 1)}
            sizes = {name: np.concatenate([value, again[name][[0, 2]]]) for name, value in sizes.items()}
        corpus = split_text(load(settings["corpus"]).text, settings["corpus"])
        text = {"train_text": corpus.train, "test_text": corpus.test, "vocab": corpus.vocab}
        return {"axis": axis, "replicates": replicates, **text, **sizes}, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Mean gaps, their changes in the direction foretold, and the ratio of smallest to largest."""
        gap = result["gap"]
        if gap.shape != (len(public["steps"]), public["replicates"]) or not np.isfinite(gap).all():
            raise ValueError(f"gap must be finite, a row for each of {len(public['steps'])} sizes, got {gap.shape}")
        means, foretold = gap.mean(1), result["foretold"]
        out = {f"gap_{k + 1}": float(means[k]) for k in range(3)}
        order = [0, 1, 2] if Gap.AXES[public["axis"]][1] else [2, 1, 0]  # from the smallest foretold to the largest
        small, middle, large = means[order]
        out["step_1"], out["step_2"] = (
            (middle - small, large - middle) if order[0] == 0 else (large - middle, middle - small)
        )
        out |= {"end_ratio": _ratio(small, large), "middle_ratio": _ratio(middle, large)}
        out["foretold_ratio"] = foretold[order[0]] / foretold[order[2]]
        if public["axis"] == "length":
            out["end_ratio_tokens"] = _ratio(means[4], means[3])
        return {name: float(value) for name, value in out.items()}

    @staticmethod
    def example(public):
        """A gap that is the same for all."""
        k = len(public["steps"])
        return {"gap": np.ones((k, public["replicates"])), "foretold": np.ones(k)}


class Cover:
    """Return ``log_cover`` (masks, classes, radii) by the route of the mask, and ``joint`` and ``parts`` (classes, sizes)."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """Sizes of classes of decoders, radii, numbers of sequences, a window."""
        return {
            "seq_len": np.array([8, 64, 512]),
            "n_layers": np.array([1, 4, 12]),
            "eps": np.geomspace(1e-3, 10, 9),
            "n_sequences": 10.0 ** np.arange(2, 19, 2),
            "window": 4,
        }, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Smallest differences between masks; the joint integral against the sum of its parts'."""
        full, causal, window = result["log_cover"]
        return {
            "full_less_causal": float((full - causal).min()),
            "causal_less_window": float((causal - window).min()),
            "mask_gain": float((1 - causal / full).max()),
            "joint_over_sum": float((result["joint"] / result["parts"]).max() - MARGIN),
        }

    @staticmethod
    def example(public):
        """Ones."""
        classes = len(public["seq_len"])
        shape = (classes, len(public["n_sequences"]))
        return {
            "log_cover": np.ones((3, classes, len(public["eps"]))),
            "joint": np.ones(shape),
            "parts": np.ones(shape),
        }


class Bounds:
    """Return ``bound`` (n,): the bound at each of ``n_sequences`` for the class that ``seed_of_norms`` draws."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """A decoder of one layer, and numbers of sequences up to 10^20."""
        return {"n_sequences": 10.0 ** np.arange(1, 20.5, 0.5), "vocab": 64, "seed_of_norms": 1000, "delta": 0.05}, {}

    @staticmethod
    def evaluate(public, truth, result):
        """The first N whose bound says more than log v, and the bound at 10^12."""
        bound, n = result["bound"], public["n_sequences"]
        if bound.shape != n.shape or not np.isfinite(bound).all():
            raise ValueError(f"bound must be finite and of shape {n.shape}, got {bound.shape}")
        useful = bound < np.log(public["vocab"])
        first = float(np.log10(n[useful.argmax()])) if useful.any() else 99.0
        return {"first_log10": first, "gap_12": float(bound[np.isclose(n, 1e12)][0])}

    @staticmethod
    def example(public):
        """One nat."""
        return {"bound": np.ones_like(public["n_sequences"])}


class Markov:
    """For each of ``transition`` (r, v, v): the largest ``gap`` between the exact risk and that on ``n_sequences``, and its ``bound``.

    ``counts`` (r, v^(m + 1)) says how often each sequence was drawn, in the order of ``MarkovChain.enumerate``.
    """

    @staticmethod
    def draw(settings, *, seed, budget):
        """Chains of two symbols that stay with probabilities drawn from U(0.05, 0.95), so many sequences that bounds say something."""
        runs, steps = {"smoke": (2, 5), "quick": (17, 40), "paper": (50, 400)}[budget]
        rng, n, m = np.random.default_rng([seed, 0]), 10**7, 6
        stay = rng.uniform(0.05, 0.95, (runs, 2))
        transition = np.stack([np.array([[a, 1 - a], [1 - b, b]]) for a, b in stay])
        weights = [MarkovChain(P).enumerate(m + 1)[1] for P in transition]
        counts = np.stack([rng.multinomial(n, weight / weight.sum()) for weight in weights])
        sizes = {"n_sequences": n, "seq_len": m, "steps": steps, "delta": 0.05}
        return {"transition": transition, "counts": counts, **sizes}, {}

    @staticmethod
    def evaluate(public, truth, result):
        """How often the bound exceeds the gap and says more than log v, and how loose it is."""
        gap, bound, log_v = result["gap"], result["bound"], np.log(public["transition"].shape[-1])
        runs = (len(public["counts"]),)
        if gap.shape != runs or bound.shape != runs or not np.isfinite([gap, bound]).all():
            raise ValueError(f"gap and bound must be finite and of shape {runs}, got {gap.shape} and {bound.shape}")
        return {
            "valid_share": float(((gap <= bound) & (bound < log_v)).mean()),
            "bound_ratio": float((gap / bound).max()),
            "gap_largest": float(gap.max()),
        }

    @staticmethod
    def example(public):
        """A valid bound."""
        runs = len(public["counts"])
        return {"gap": np.zeros(runs), "bound": np.ones(runs)}


class Speed:
    """Return seconds of repeats: ``bound``, ``sweep``, ``finite``, and in turns ``model`` and ``peer``."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """Layers of the bound, classes of the sweep, points of the finite class, repeats."""
        small = budget == "smoke"
        return {
            "layers": 100,
            "classes": 20 if small else 1000,
            "points": 1000 if small else 100_000,
            "repeats": 2 if small else 9,
        }, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Medians over repeats."""
        return {
            "bound_ms": 1000 * float(np.median(result["bound_seconds"])),
            "sweep_s": float(np.median(result["sweep_seconds"])),
            "finite_s": float(np.median(result["finite_seconds"])),
            "training_ratio": float(np.median(result["model_seconds"] / result["peer_seconds"])),
        }

    @staticmethod
    def example(public):
        """Ones."""
        return {f"{name}_seconds": np.ones(1) for name in ("bound", "sweep", "finite", "model", "peer")}


class Objective(ProblemObjective):
    """Gaps and bounds."""

    name = "Generalization bounds"
    problems = {"gap": Gap, "cover": Cover, "bounds": Bounds, "markov": Markov, "speed": Speed}  # noqa: RUF012
