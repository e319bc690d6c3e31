"""Training small networks: does the learning rate transfer, how many steps does it take, what becomes of the weights?

A solver returns outputs only: losses, matrices, singular values, seconds.
"""

import numpy as np

from icml25.shared.datasets import load
from icml25.shared.problems import ProblemObjective

REACHED = 0.1  # training loss whose step is counted
LETTER = """
..######..
.##....##.
.##....##.
.##....##.
.########.
.##....##.
.##....##.
.##....##.
.##....##.
.##....##."""
SHAPES = {"512": (512, 512), "1024": (1024, 1024), "wide": (256, 1024)}


def digits(seed):
    """scikit-learn's digits with rows of unit RMS: 1437 to train on, 360 to test."""
    data = load("digits")
    x = np.asarray(data.X, dtype=np.float32)
    x = x / np.sqrt(np.mean(x**2, axis=1, keepdims=True))
    order = np.random.default_rng([seed, 0]).permutation(len(x))
    train, test = order[:1437], order[1437:]
    y = np.asarray(data.y).astype(np.int32)
    return {"x": x[train], "y": y[train], "x_test": x[test], "y_test": y[test]}


def settings_of(seed, budget, **more):
    """Parameters of the runs; steps are few at the smoke budget."""
    steps = {"smoke": 3, "quick": more.pop("steps", 150), "paper": more.pop("paper_steps", 1000)}[budget]
    return {"seed": seed, "batch": 128, "steps": steps} | more


class Transfer:
    """Return ``loss`` and ``accuracy`` (sizes, learning rates) of a network at several ``sizes``, on an own grid."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """Widths of a perceptron, or numbers of residual blocks."""
        sizes = {"width": [32, 128, 512], "depth": [2, 4, 8]}[settings["scaling"]]
        if budget == "smoke":
            sizes = sizes[:1]
        public = digits(seed) | {"sizes": np.array(sizes)}
        return public | {
            "params": settings_of(seed, budget, steps=150, paper_steps=150, scaling=settings["scaling"])
        }, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Grid steps between the best learning rates of the sizes, whether it is at most one, and the loss at the smallest's."""
        loss = np.nan_to_num(result["loss"], nan=np.inf)
        best = loss.argmin(1)
        steps = best.max() - best.min()
        return {
            "grid_steps": float(steps),
            "transfers": float(steps <= 1),
            "transferred_loss": float(loss[:, best[0]].max()),
            "accuracy": float(result["accuracy"][:, best[0]].min()),
        }

    @staticmethod
    def example(public):
        """Ones."""
        return {name: np.ones((len(public["sizes"]), 4)) for name in ("loss", "accuracy")}


class Curve:
    """Return ``curve`` (steps,), the training loss after each step, and ``accuracy`` on the test rows."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """One width."""
        return digits(seed) | {"params": settings_of(seed, budget, paper_steps=150, width=settings["width"])}, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Steps until the training loss is 0.1 (all steps and one, where it never is), and the last loss."""
        curve = np.nan_to_num(result["curve"], nan=np.inf)
        reached = np.flatnonzero(curve <= REACHED)
        steps = int(reached[0]) + 1 if len(reached) else len(curve) + 1
        return {"steps_to_0_1": float(steps), "final_loss": float(curve[-1]), "accuracy": float(result["accuracy"])}

    @staticmethod
    def example(public):
        """Ones."""
        return {"curve": np.ones(public["params"]["steps"]), "accuracy": 1.0}


class Erasure:
    """Return the hidden matrix ``before`` and ``after``, stable ranks ``gradient_ranks`` and ``update_ranks``, ``loss``."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """A letter over the whole hidden matrix, whose entries are tripled under it at first."""
        width = 20 if budget == "smoke" else 160
        picture = np.array([[mark == "#" for mark in row] for row in LETTER.split()])
        mask = np.kron(picture, np.ones((width // 10, width // 10))).astype(np.float32)
        public = digits(seed) | {"mask": mask}
        params = settings_of(seed, budget, steps=100) | {"batch": settings["batch"]}
        return public | {"params": params}, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Relative move, the letter's correlation with absolute weights, stable ranks over the smaller side."""
        before, after, mask = result["before"], result["after"], public["mask"]
        marked = lambda w: float(np.corrcoef(np.abs(w).ravel(), mask.ravel())[0, 1])  # noqa: E731
        return {
            "move": float(np.linalg.norm(after - before) / np.linalg.norm(before)),
            "mark_before": marked(before),
            "mark_after": abs(marked(after)),
            "gradient_rank": float(result["gradient_ranks"].mean() / min(mask.shape)),
            "update_rank": float(result["update_ranks"].mean() / min(mask.shape)),
            "final_loss": float(result["loss"]),
        }

    @staticmethod
    def example(public):
        """The letter before and after."""
        ranks = {"gradient_ranks": np.ones(2), "update_ranks": np.ones(2), "loss": 1.0}
        return {"before": public["mask"], "after": public["mask"] + 1e-3} | ranks


class Text:
    """Return ``losses`` (windows, length): of each next symbol of ``held_out`` (windows, length + 1)."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """Characters of a corpus: the first nine tenths to train on, windows of the last tenth; all from the former to tune."""
        text = load(settings["corpus"]).text
        symbols = sorted(set(text))
        codes = np.array([{c: k for k, c in enumerate(symbols)}[c] for c in text], dtype=np.int32)
        if settings.get("tuning"):
            codes = codes[: len(codes) * 9 // 10]
        cut = len(codes) * 9 // 10
        windows = {"smoke": 2, "quick": 64, "paper": 512}[budget]
        starts = np.linspace(cut, len(codes) - 65, windows).astype(int)
        d, heads, blocks = {"smoke": (8, 2, 1), "quick": (64, 4, 2), "paper": (128, 4, 4)}[budget]
        sizes = {"vocabulary": len(symbols), "d": d, "heads": heads, "blocks": blocks}
        params = settings_of(seed, budget, steps=300, paper_steps=2001, **sizes) | {"batch": 12}
        return {"train": codes[:cut], "held_out": codes[starts[:, None] + np.arange(65)], "params": params}, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Mean loss."""
        shape = (len(public["held_out"]), public["held_out"].shape[1] - 1)
        if result["losses"].shape != shape:
            raise ValueError(f"losses must be of shape {shape}, got {result['losses'].shape}")
        return {"validation_loss": float(result["losses"].mean())}

    @staticmethod
    def example(public):
        """Zeros."""
        return {"losses": np.zeros((len(public["held_out"]), public["held_out"].shape[1] - 1))}


class Dualizers:
    """Orthogonalise ``reachable`` and ``conditioned``; time the map, an SVD and others on matrices of ``SHAPES`` in turns."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """Singular values of at least 0.003 of the Frobenius norm; and of condition 300, in equal steps of their logarithm."""
        rng = np.random.default_rng([seed, 0])
        basis = lambda: np.linalg.qr(rng.normal(size=(64, 64)))[0]  # noqa: E731
        reached = np.append(np.geomspace(0.0032, 0.1, 63), 1)  # one large value: the Frobenius norm is nearly it
        reachable = (basis() * reached) @ basis()
        conditioned = (basis() * np.geomspace(1 / 300, 1, 64)) @ basis()
        params = {"seed": seed, "repeats": {"smoke": 1, "quick": 3, "paper": 9}[budget], "small": budget == "smoke"}
        return {"reachable": reachable, "conditioned": conditioned, "params": params}, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Largest error of a singular value, and medians over turns of ratios of times."""
        error = lambda m: float(np.abs(np.linalg.svd(m, compute_uv=False) - 1).max())  # noqa: E731
        out = {"sigma_error": error(result["reachable"]), "sigma_error_condition_300": error(result["conditioned"])}
        for name in SHAPES:
            out[f"svd_ratio_{name}"] = float(np.median(result[f"svd_{name}"]) / np.median(result[f"dual_{name}"]))
        out["copies"] = float(result["copies_muon_1024"][0])
        out["memory_ratio"] = float(result["copies_muon_1024"][0] / result["copies_optax_1024"][0])
        out["optax_ratio"] = float(np.median(result["muon_1024"] / result["optax_1024"]))
        out["torch_ratio"] = float(np.median(result["muon_bfloat16"] / result["torch_bfloat16"]))
        out["matmul_share"] = float(np.median(result["matmul_share"]))
        return out

    @staticmethod
    def example(public):
        """Ones."""
        times = {f"{kind}_{name}": np.ones(1) for kind in ("svd", "dual") for name in SHAPES}
        peers = ("muon_1024", "optax_1024", "muon_bfloat16", "torch_bfloat16", "matmul_share")
        peers += ("copies_muon_1024", "copies_optax_1024")
        more = {name: np.ones(1) for name in peers}
        return {"reachable": np.eye(3), "conditioned": np.eye(3), **times, **more}


class Objective(ProblemObjective):
    """Learning rates, steps, weights and times of optimizers of small networks."""

    name = "Optimizers"
    problems = {  # noqa: RUF012
        "transfer": Transfer,
        "curve": Curve,
        "erasure": Erasure,
        "text": Text,
        "dualizers": Dualizers,
    }
