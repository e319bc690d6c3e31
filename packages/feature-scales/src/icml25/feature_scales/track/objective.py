"""What theories say of trained two-layer networks, against the exact posterior and against Langevin sampling.

`scales` draws a linear network's task twice, at one size and at the double. A solver returns at each chi its mean outputs,
the overlap y^T H y/P^2 of its hidden kernel with the targets and the variance of its outputs along them. `pairs` asks the
same of two classes of images, at one size.
"""

import hashlib
from dataclasses import asdict

import jax
import numpy as np

from icml25.feature_scales import TwoLayer, ising_task, solve
from icml25.shared.datasets import DataError, data_folder, load
from icml25.shared.problems import ProblemObjective

SIZES = {  # width, features, training points, test points
    "smoke": (20, 40, 16, 40),
    "quick": (100, 200, 80, 200),
    "paper": (1000, 1000, 500, 1000),
}
STEPS = {"smoke": (40, 400), "quick": (20, 6000), "paper": (100, 100000)}  # chains, Langevin steps
SWEEPS = {"smoke": (60, 3), "quick": (2000, 50), "paper": (2000, 50)}  # training points, values of chi
PARTS = (("", 1), ("_double", 2))  # suffix of the arrays, and how much larger
NETWORK = {"g_w": 0.5, "g_v": 0.5, "noise": 1.0}
MNIST = "3ba302235efdc3e7e4e84db9ce6a6d6cbc9dd1162d4e79dd0b6a606afc745423"  # sha256


def chis_of(width):
    """Five scalings from standard to mean-field."""
    return np.geomspace(1, width, 5)


def summary(theory, X_test):
    """Means, overlap and variance along the targets of one theory, as arrays of one chi."""
    y = theory.y
    return {
        "train": theory.mean(theory.X),
        "test": theory.mean(X_test),
        "overlap": y @ theory.hidden_kernel() @ y / len(y) ** 2,
        "variance": y @ theory.output_covariance() @ y / len(y),
    }


class Scales:
    """Linear networks: all levels against the exact integral."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """Ising tasks at one size and the double, with the network's settings."""
        width, features, train, test = SIZES[budget]
        public, truth = {**NETWORK, "width": width}, {}
        for name, times in PARTS:
            key = jax.random.fold_in(jax.random.key(seed), times)
            X, y = ising_task(key, times * (train + test), times * features, settings["dp"])
            public |= {
                f"X{name}": X[: times * train],
                f"y{name}": y[: times * train],
                f"X_test{name}": X[times * train :],
            }
            truth[f"y_test{name}"] = y[times * train :]
        return public, truth

    @staticmethod
    def evaluate(public, truth, result):
        """Errors relative to the exact posterior."""
        row = {}
        for name, times in PARTS:
            if f"X{name}" not in public:
                continue
            X, y, X_test, y_test = (
                public[f"X{name}"],
                public[f"y{name}"],
                public[f"X_test{name}"],
                truth[f"y_test{name}"],
            )
            width = times * public["width"]
            network = TwoLayer(width, "linear", public["g_w"], public["g_v"], public["noise"])
            errors, variances = [], []
            for k, chi in enumerate(chis_of(width)):
                net = TwoLayer(**(asdict(network) | {"chi": float(chi)}))
                exact = summary(solve(net, X, y, "exact"), X_test)
                found = {quantity: result[f"{quantity}{name}"][k] for quantity in exact}
                for quantity, value in found.items():
                    if np.shape(value) != np.shape(exact[quantity]) or not np.isfinite(value).all():
                        raise ValueError(
                            f"{quantity}{name}[{k}] must be finite and of shape {np.shape(exact[quantity])}"
                        )
                errors.append(
                    [
                        abs(targets @ (found[part] - exact[part])) / abs(targets @ (targets - exact[part]))
                        for part, targets in (("train", y), ("test", y_test))
                    ]
                )
                rescaled = summary(solve(net, X, y, "rescaling"), X_test)["variance"]
                variances.append(abs(found["variance"] - exact["variance"]) / abs(rescaled - exact["variance"]))
            if name:
                row["halving"] = max(errors[-1]) / row["error_mean_field"]
                continue
            row |= {
                "error": max(map(max, errors)),
                "error_mean_field": max(errors[-1]),
                "standard_to_mean_field": max(errors[0]) / max(errors[-1]),
                "overlap_error": abs(found["overlap"] / exact["overlap"] - 1),
                "variance_to_rescaling": max(variances),
            }
            if "adapted" in result:
                gap = np.linalg.norm(result["adapted"] - result["test"], axis=1)
                row["adapted_gap"] = (gap / np.linalg.norm(result["test"], axis=1)).max()
        return row

    @staticmethod
    def example(public):
        """Ones."""
        out = {}
        for name, _ in PARTS:
            if f"X{name}" not in public:
                continue
            for quantity, count in (("train", len(public[f"X{name}"])), ("test", len(public[f"X_test{name}"]))):
                out[f"{quantity}{name}"] = np.ones((5, count))
            out |= {f"overlap{name}": np.ones(5), f"variance{name}": np.ones(5)}
        return out


def images_of(source):
    """Two classes of images, flat, with targets 1 and -1: scikit-learn's digits 0 and 1, or MNIST's 0 and 3."""
    if source == "digits":
        digits, other = load("digits"), 1
        X, labels = digits.X, digits.y
    else:
        path, other = data_folder() / "mnist" / "mnist_t10k.npz", 3
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != MNIST:
            raise DataError(f"{path} is absent or damaged: expected sha256 {MNIST}; see ICML25_DATA")
        with np.load(path) as file:
            X, labels = file["x"].reshape(-1, 784).astype(float), file["y"]
    chosen = np.isin(labels, (0, other))
    return X[chosen], np.where(labels[chosen] == 0, 1.0, -1.0)


class Pairs(Scales):
    """Linear networks on two classes of images."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """Images without the mean image of the training set, scaled to unit variance."""
        width, _, train, test = SIZES[budget]
        X, y = images_of(settings["source"])
        chosen = np.random.default_rng(seed).permutation(len(y))[: train + test]
        X, y = X[chosen] - X[chosen[:train]].mean(0), y[chosen]
        X /= X[:train].std()
        public = {**NETWORK, "width": width, "X": X[:train], "y": y[:train], "X_test": X[train:]}
        return public, {"y_test": y[train:]}


class Nonlinear:
    """An erf network: discrepancies (of chi = 1, 5, 50) of three levels and of Langevin sampling."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """A small Ising task."""
        X, y = ising_task(jax.random.key(seed), 20, 20, settings["dp"])
        chains, steps = STEPS[budget]
        public = {"X": X, "y": y, "width": 50, "g_w": 1.0, "g_v": 1.0, "noise": 0.3, "chains": chains, "steps": steps}
        return public, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Differences to Langevin sampling."""
        gaps = {level: abs(result[level] - result["langevin"]) for level in ("nngp", "tree", "one_loop")}
        return {
            "tree_gap": gaps["tree"][1:].max(),
            "nngp_gap": gaps["nngp"][1:].min(),
            "one_loop_to_tree": gaps["one_loop"][0] / gaps["tree"][0],
            "langevin_error": result["langevin_error"].max(),
            "rhat": result["rhat"].max(),
        }

    @staticmethod
    def example(public):
        """Numbers."""
        levels = {
            level: np.array([0.1, 0.2, 0.3]) * k for k, level in enumerate(("nngp", "tree", "one_loop", "langevin"))
        }
        return {**levels, "langevin_error": np.ones(3), "rhat": np.ones(3)}


class Speed:
    """A sweep over chi with all linear levels, and Langevin steps against the same loop in torch."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """Sizes; the solver draws the arrays, which are not the point."""
        points, chis = SWEEPS[budget]
        return {"points": points, "chis": chis, "langevin_steps": 50 if budget == "smoke" else 120}, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Median seconds of the sweep, median ratio of neighbouring runs."""
        return {
            "sweep_seconds": float(np.median(result["sweep"])),
            "langevin_ratio": float(np.median(result["ours"] / result["peer"])),
        }

    @staticmethod
    def example(public):
        """Ones."""
        return {"sweep": np.ones(3), "ours": np.ones(3), "peer": np.ones(3)}


class Objective(ProblemObjective):
    """Theories of trained networks."""

    name = "Feature learning"
    url = "https://arxiv.org/abs/2502.03210"
    problems = {"scales": Scales, "pairs": Pairs, "nonlinear": Nonlinear, "speed": Speed}  # noqa: RUF012
