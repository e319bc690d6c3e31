"""In-context regression: identities of the landscape, softmax layers against their closed form, probes of trained models.

Solvers return predictions (and energies, or times) only, so any model can join, of any library.
"""

import dataclasses
import itertools

import numpy as np

from icml25.shared.problems import ProblemObjective

FLIPS = (0.1, 0.3, 0.5)  # share of the context's labels with the wrong sign
FAR_TASK = 3.0  # mean of the weights of unfamiliar tasks
FLOOR = 1e-3  # of the mean squared label, added to errors before they are compared: exact solvers have none
TRAINED = 0.3  # of the zero predictor's error, above which a probe of the model says nothing


def sphere(rng, *shape):
    """Uniform unit vectors."""
    x = rng.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def check(result, name, shape):
    """A finite array of this shape."""
    array = np.asarray(result[name])
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite and of shape {shape}, got {array.shape}")
    return array


class Identities:
    """Per set: ``path`` (n + 1), energies as examples come; ``base``, ``context``, ``union`` (d,), retrieved; ``share``.

    And ``ghosts``: predictions at ``q`` from contexts ``keys`` whose labels are <prior_mean, key>, by exact regression with that prior.
    """

    @staticmethod
    def draw(settings, *, seed, budget):
        """Sets of 8 memories, 16 examples and a query in 4 dimensions."""
        rng, sets = np.random.default_rng(seed), {"smoke": 10, "quick": 200, "paper": 2000}[budget]
        memories, keys, q = (rng.normal(size=shape) for shape in ((sets, 8, 4), (sets, 16, 4), (sets, 4)))
        return {"memories": memories, "keys": keys, "q": q, "prior_mean": rng.normal(size=4), "beta": 1.5}, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Largest deviation from the formulas written out in float64, and how often an example does not deepen the well."""
        memories, keys, q, beta = (public[name] for name in ("memories", "keys", "q", "beta"))
        sets, n, d = keys.shape
        every = np.concatenate([memories, keys], 1)
        weights = np.exp(beta * np.einsum("snd,sd->sn", every, q))[..., None]
        first = memories.shape[1]
        lse = np.stack([np.log(weights[:, : first + t].sum((1, 2))) for t in range(n + 1)], 1)
        parts = {"base": slice(first), "context": slice(first, None), "union": slice(None)}
        path, share = check(result, "path", (sets, n + 1)), check(result, "share", (sets,))
        found = {name: check(result, name, (sets, d)) for name in parts}
        errors = [
            path - ((q**2).sum(1, keepdims=True) / 2 - lse / beta),
            share - (1 - np.exp(lse[:, 0] - lse[:, -1])),
            found["union"] - (1 - share[:, None]) * found["base"] - share[:, None] * found["context"],
        ]
        for name, part in parts.items():
            errors.append(found[name] - (weights * every)[:, part].sum(1) / weights[:, part].sum(1))
        ghosts = check(result, "ghosts", (sets,))
        return {
            "identity_error": float(max(abs(error).max() for error in errors)),
            "rises": float((np.diff(path, axis=1) >= 0).sum()),
            "ghost_error": float(abs(ghosts - q @ public["prior_mean"]).max()),
        }

    @staticmethod
    def example(public):
        """Zeros."""
        sets, n, d = public["keys"].shape
        vectors = {name: np.zeros((sets, d)) for name in ("base", "context", "union")}
        return vectors | {"path": np.zeros((sets, n + 1)), "share": np.zeros(sets), "ghosts": np.zeros(sets)}


def best_softmax(dim, n, noise_var):
    """Least error of softmax(beta K q) v on n standard normal keys, q on the unit sphere, w ~ N(0, I); and its beta.

    (1 - beta)^2 E<w, q>^2 + exp(beta^2) (s2 + E|w|^2 + beta^2 E<w, q>^2) / n
    """
    beta = np.linspace(0, 2, 20001)
    error = (1 - beta) ** 2 + np.exp(beta**2) * (noise_var + dim + beta**2) / n
    return error.min(), beta[error.argmin()]


class Regression:
    """Train on prompts of your own of these sizes; return ``predictions`` (m,) of <w, q>; of one layer also ``query_map``."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """Contexts of standard normal keys, a query on the unit sphere."""
        prompts, steps = {"smoke": (100, 20), "quick": (4000, 1500), "paper": (20_000, 1500)}[budget]
        n, dim, noise = settings["n"], settings["dim"], 0.5
        rng = np.random.default_rng(seed)
        x, w, q = rng.normal(size=(prompts, n, dim)), rng.normal(size=(prompts, dim)), sphere(rng, prompts, dim)
        y = np.einsum("mnd,md->mn", x, w) + noise * rng.normal(size=(prompts, n))
        public = {"x": x.astype(np.float32), "y": y.astype(np.float32), "q": q.astype(np.float32)}
        return public | {"dim": dim, "n": n, "noise": noise, "steps": steps}, {"targets": (w * q).sum(1)}

    @staticmethod
    def evaluate(public, truth, result):
        """Squared error, over the closed form's least; how far the query map is from the closed form's."""
        targets = truth["targets"]
        least, beta = best_softmax(public["dim"], public["n"], public["noise"] ** 2)
        mse = float(((check(result, "predictions", targets.shape) - targets) ** 2).mean())
        out = {"mse": mse, "mse_ratio": float(mse / least)}
        if "query_map" in result:
            found = check(result, "query_map", (public["dim"], public["dim"]))
            scale = np.trace(found) / public["dim"]  # the nearest multiple of the identity
            out["map_error"] = float(np.linalg.norm(found - scale * np.eye(public["dim"])) / np.linalg.norm(found))
            out["beta_error"] = float(abs(scale / beta - 1))
        return out

    @staticmethod
    def example(public):
        """Zeros."""
        return {"predictions": np.zeros(len(public["x"]))}


class Probes:
    """Train on the matched prompts' distribution; return ``matched`` (m,), predictions of the last label, and so for each probe.

    Probes: ``far``, ``flip_10``, ...; ``unfamiliar`` for linear tasks. Their inputs and labels are ``x_far``, ``y_far`` and so on;
    the last label in y is zero. ``ghosts`` (m,), which trained models add: labels replaced by what the model predicts without context.
    """

    @staticmethod
    def draw(settings, *, seed, budget):
        """Prompts of a familiar family, and the three probes on them: other inputs, wrong labels, other tasks."""
        import jax

        from icml25.icl_hopfield import DecisionTreeTask, LinearRegressionTask, ReLUNetTask, flip_labels

        family, dim, examples = settings["family"], settings["dim"], settings["examples"]
        prompts = {"smoke": 100, "quick": 1000, "paper": 10_000}[budget]
        make = {"linear": LinearRegressionTask, "tree": DecisionTreeTask, "network": ReLUNetTask}[family]
        task = make(dim, centres=(-2.0, 2.0))
        key = jax.random.fold_in(jax.random.key(seed), 1)
        x, y = task.sample(key, prompts, examples + 1)
        x_far, y_far = dataclasses.replace(task, mixture=(0.0, 1.0)).sample(key, prompts, examples + 1)
        arrays = {"x_matched": x, "y_matched": y}
        arrays |= {"x_far": x_far.at[:, -1].set(x[:, -1]), "y_far": y_far.at[:, -1].set(y[:, -1])}
        for rho in FLIPS:
            flipped = flip_labels(y, rho, jax.random.fold_in(key, 2))
            arrays |= {f"x_flip_{rho * 100:.0f}": x, f"y_flip_{rho * 100:.0f}": flipped.at[:, -1].set(y[:, -1])}
        if family == "linear":
            unfamiliar = dataclasses.replace(task, task_mean=FAR_TASK).sample(key, prompts, examples + 1)
            arrays |= dict(zip(("x_unfamiliar", "y_unfamiliar"), unfamiliar, strict=True))
        arrays = {name: np.array(array) for name, array in arrays.items()}
        truth = {name[2:]: array[:, -1].copy() for name, array in arrays.items() if name[0] == "y"}
        for name, array in arrays.items():
            if name[0] == "y":
                array[:, -1] = 0
        return arrays | {"family": family, "dim": dim, "examples": examples}, truth

    @staticmethod
    def evaluate(public, truth, result):
        """Errors over that of predicting zero, and log10 of each probe's over the matched prompts' (ratios are skewed)."""
        errors = {name: (check(result, name, y.shape) - y) ** 2 for name, y in truth.items()}
        relative = {name: errors[name].mean() / (truth[name] ** 2).mean() + FLOOR for name in truth}
        out = {"base_ratio": float(relative["matched"] - FLOOR)}
        probes = ["similar_log", "flip_gap"]
        probes += ["familiar_log"] * ("unfamiliar" in truth) + ["ghost_ratio"] * ("ghosts" in result)
        if out["base_ratio"] > TRAINED:  # no probe counts
            return out | dict.fromkeys(probes, 0.0)
        levels = [errors["matched"], *(errors[f"flip_{rho * 100:.0f}"] for rho in FLIPS)]
        gaps = [after - before for before, after in itertools.pairwise(levels)]
        out["similar_log"] = np.log10(relative["far"] / relative["matched"])
        out["flip_gap"] = min(gap.mean() / (gap.std(ddof=1) / np.sqrt(len(gap))) for gap in gaps)
        if "unfamiliar" in truth:
            out["familiar_log"] = np.log10(relative["unfamiliar"] / relative["matched"])
        if "ghosts" in result:
            y = truth["matched"]
            out["ghost_ratio"] = ((check(result, "ghosts", y.shape) - y) ** 2).mean() / (y**2).mean()
        return {name: float(value) for name, value in out.items()}

    @staticmethod
    def example(public):
        """Zeros."""
        return {name[2:]: np.zeros(len(public[name])) for name in public if name.startswith("y_")}


class Stability:
    """Return ``eps``, per size the largest change of softmax attention when one of so many examples is any of the pool's."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """Keys and queries on the unit sphere, labels in [-1, 1], beta 1."""
        largest, others = {"smoke": (64, 4), "quick": (1024, 16), "paper": (4096, 64)}[budget]
        rng = np.random.default_rng(seed)
        public = {"x": sphere(rng, largest, 3), "y": rng.uniform(-1, 1, largest), "q": sphere(rng, 8, 3)}
        public |= {"pool_x": sphere(rng, others, 3), "pool_y": rng.uniform(-1, 1, others), "beta": 1.0}
        return public | {"sizes": 2 ** np.arange(3, int(np.log2(largest)) + 1)}, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Largest share of the bound that is used, and the slope of log eps in log n."""
        sizes = public["sizes"]
        eps = check(result, "eps", sizes.shape)
        bound = 4 / (1 + (sizes - 1) * np.exp(-2 * public["beta"]))
        return {"bound_use": float((eps / bound).max()), "slope": float(np.polyfit(np.log(sizes), np.log(eps), 1)[0])}

    @staticmethod
    def example(public):
        """Of the right order."""
        return {"eps": 1 / public["sizes"]}


class Speed:
    """Return seconds per training step, in turns with a peer: ``model_seconds``, ``peer_seconds``."""

    @staticmethod
    def draw(settings, *, seed, budget):
        """A GPT-2 of two layers, width 32, on prompts of 12 examples and a query in 3 dimensions."""
        repeats = {"smoke": 1, "quick": 5, "paper": 30}[budget]
        return {"dim": 3, "examples": 12, "repeats": repeats, "steps": 100}, {}

    @staticmethod
    def evaluate(public, truth, result):
        """Median over turns."""
        model, peer = result["model_seconds"], result["peer_seconds"]
        return {"step_ratio": float(np.median(model / peer)), "step_ms": float(1000 * np.median(model))}

    @staticmethod
    def example(public):
        """Ones."""
        return {"model_seconds": np.ones(1), "peer_seconds": np.ones(1)}


class Objective(ProblemObjective):
    """Identities, predictions and probes of in-context regression."""

    name = "In-context regression"
    problems = {  # noqa: RUF012
        "identities": Identities,
        "regression": Regression,
        "probes": Probes,
        "stability": Stability,
        "speed": Speed,
    }
