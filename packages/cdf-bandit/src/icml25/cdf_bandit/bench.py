"""cdf-bandit on the problem "contextual risk" of the track "bandits"."""

import time
from typing import Any

import numpy as np

from icml25.shared.isolated import BaseSolver, measure

VARIANTS = {  # by kind of data set
    "regret": ("IGW 20", "IGW 10", "IGW 1", "greedy", "uniform", "mean FALCON", "finite CDF", "ECDF"),
    "regression": ("regression",),
    "eigenvalues": ("regression",),
    "utilities": ("regression", "mean only"),
    "assembly": ("regression", "loop", "scaling"),
}
VARIED = ("IGW 20", "greedy", "uniform", "mean FALCON")  # of "regret", where the scales differ
SMOKE = ("IGW 20", "mean FALCON", "regression", "mean only", "loop")
# The baselines' settings: the best of gamma 1, 10, 100; atoms 4, 8, 16; ridge 1e-4, 1e-2; exploration 10 to infinity, on
# seeds 1000 to 1002, which are never reported. (Greedy is best for the finite CDF, as it is for the method itself.)
FALCON = {"gamma": 10.0, "exploration": 200.0}
FINITE = {"atoms": 4, "exploration": np.inf}
ECDF = {"exploration": 20.0}


def warm_up() -> None:
    """Load what the clock should not see."""
    from icml25.cdf_bandit import CDFRegressor
    from icml25.cdf_bandit.baselines import MeanRegressor

    x, a, y = np.linspace(0, 1, 8)[:, None], np.arange(8) % 2, np.linspace(0, 1, 8)
    CDFRegressor(_basis(0.45, np.full(2, 0.08)), 2, n_w=4, n_s=4).fit(x, a, y)
    MeanRegressor(2, n_features=4).fit(x, a, y)


def _basis(amplitude: float, scales: np.ndarray) -> Any:
    from icml25.cdf_bandit import LogisticBasis

    A = len(scales)
    return LogisticBasis(
        lambda x, a, w: 0.5 + amplitude * np.sin(2 * np.pi * (w / 2 + x[:, :1] + a[:, None] / A)),
        lambda x, a, w: scales[a][:, None],
    )


def _step_basis() -> Any:
    from icml25.cdf_bandit import CallableBasis

    def cdf(x: Any, a: Any, w: Any, s: Any) -> np.ndarray:
        s = s[:, None, :] if s.ndim == 2 else s[None, None, :]
        return np.broadcast_to((s >= w[None, :, None]).astype(float), (len(x), len(w), s.shape[-1]))

    return CallableBasis(cdf, tail_integral=lambda x, a, w, y: 1 - np.maximum(y[:, None], w))


def _policy(variant: str, basis: Any, A: int, utility: Any, first_epoch: int) -> Any:
    from icml25.cdf_bandit import CDFBandit, CDFRegressor, interval
    from icml25.cdf_bandit.baselines import EmpiricalBandit, MeanFalcon, RidgeCDFRegressor

    if variant == "mean FALCON":
        return MeanFalcon(A, basis.domain, first_epoch=first_epoch, **FALCON)
    if variant == "ECDF":
        return EmpiricalBandit(A, basis.domain, utility, first_epoch=first_epoch, **ECDF)
    if variant == "finite CDF":
        regressor: Any = RidgeCDFRegressor(basis, A, measure=interval(0, 1, FINITE["atoms"]), n_s=32, truncate=False)
        options = {"exploration": FINITE["exploration"], "width": "rank"}
    else:
        regressor = CDFRegressor(basis, A, decay=0.5, n_w=32, n_s=32)
        exploration = {"greedy": np.inf, "uniform": 0.0}.get(variant)
        options = {"exploration": float(variant.removeprefix("IGW ")) if exploration is None else exploration}
    return CDFBandit(basis, A, utility, first_epoch=first_epoch, regressor=regressor, **options)


def play(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Play every run once per utility, looking at the outcome of the action taken only."""
    from icml25.cdf_bandit import CVaR, Expectation

    contexts, outcomes = arrays["contexts"], arrays["outcomes"]
    R, T, A = outcomes.shape
    basis = _basis(params["amplitude"], arrays["scales"])
    utilities = (Expectation(), CVaR(params["cvar_level"]))
    actions = np.empty((len(utilities), R, T), np.int64)
    calls = 0
    for u, utility in enumerate(utilities):
        policy = _policy(params["variant"], basis, A, utility, params["first_epoch"])
        for r, seed in enumerate(np.random.default_rng(params["seed"]).spawn(R)):
            run, t = policy.fresh(seed), 0
            while t < T:
                rows = slice(t, min(t + run.rounds_left_, T))
                X = contexts[r, rows, None]
                a, _ = run.act_batch(X)
                run.update_batch(X, a, outcomes[r, rows][np.arange(len(a)), a])
                actions[u, r, rows], t = a, rows.stop
            calls = max(calls, run.n_fits_)
    return {"actions": actions, "oracle_calls": float(calls)}


def regress(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Fit growing prefixes of each run, by adding the rows that are new, for every gamma."""
    from icml25.cdf_bandit import CDFRegressor

    if params["family"] == "step":
        basis, A = _step_basis(), 1
    else:
        basis, A = _basis(params["amplitude"], arrays["scales"]), params["n_actions"]
    found: dict[str, list[Any]] = {"theta": [], "unprojected": [], "rank": [], "bound": []}
    for x, a, y in zip(arrays["contexts"], arrays["actions"], arrays["outcomes"], strict=True):
        model, start = CDFRegressor(basis, A, n_w=params["n_w"], n_s=params["n_s"]), 0
        for n in arrays["sizes"]:
            model.partial_fit(x[start:n, None], a[start:n], y[start:n])
            start = n
            for gamma in arrays["gammas"]:
                model.set_params(decay=float(gamma))._solve(*model._statistics())
                found["theta"].append(model.theta_)
                found["unprojected"].append(model.theta_unprojected_)
                found["rank"].append(model.rank_)
                found["bound"].append(model.error_bound(0.05))
    return {key: np.array(value) for key, value in found.items()}


def spectra(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """Eigenvalues of both bases, those of the logistic one by both methods."""
    from icml25.cdf_bandit import CDFRegressor

    x, a = arrays["contexts"][:, None], arrays["actions"]
    step, _ = CDFRegressor(_step_basis(), params["n_actions"], n_w=200, n_s=256).eigenvalues(x[:1], a[:1])
    found = {"step": step}
    for method in ("quadrature", "galerkin"):
        basis = _basis(params["amplitude"], arrays["scales"])
        model = CDFRegressor(basis, params["n_actions"], n_w=32, n_s=32, method=method)
        found[method] = model.eigenvalues(x, a)[0]
    return found


def decide(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """One regressor per environment, greedy for every utility; or the mean's greedy action for all of them."""
    from icml25.cdf_bandit import CDFRegressor, CVaR, Entropic, Expectation, MeanVariance
    from icml25.cdf_bandit.baselines import MeanRegressor

    utilities = (Expectation(), MeanVariance(1.0), CVaR(params["cvar_level"]), Entropic(2.0))
    actions = []
    for e, amplitude in enumerate(arrays["amplitude"]):
        train = arrays["contexts"][e, :, None], arrays["actions"][e], arrays["outcomes"][e]
        test = arrays["test_contexts"][e, :, None]
        if params["variant"] == "mean only":
            best = MeanRegressor(params["n_actions"], gamma=FALCON["gamma"]).fit(*train).predict(test).argmax(1)
            actions.append([best] * len(utilities))
        else:
            basis = _basis(amplitude, arrays["scales"][e])
            model = CDFRegressor(basis, params["n_actions"], decay=0.5, n_w=32, n_s=32).fit(*train)
            actions.append([model.predict_utility(test, utility).argmax(1) for utility in utilities])
    return {"actions": np.array(actions)}


def assemble(arrays: dict[str, np.ndarray], params: dict[str, Any]) -> dict[str, Any]:
    """The design operator by chunks or datum by datum; or how the time by chunks grows, medians of five."""
    from icml25.cdf_bandit import interval
    from icml25.cdf_bandit.basis import basis_tensor
    from icml25.cdf_bandit.operator import design_kernel

    basis = _basis(params["amplitude"], arrays["scales"])
    w, m = interval(0, 1, params["n_w"]).points, interval(0, 1, params["n_s"])
    x, a = arrays["contexts"][:, None], arrays["actions"]
    if params["variant"] == "loop":
        kernel = np.zeros((len(w), len(w)))
        for j in range(len(x)):
            phi = basis_tensor(basis, x[j : j + 1], a[j : j + 1], w, m.points)[0]
            kernel += (phi * m.weights) @ phi.T
        return {"operator": kernel / len(x)}
    if params["variant"] == "regression":
        return {"operator": design_kernel(basis, x, a, w, m) / len(x)}
    times = []
    for _ in range(5):
        for n in (len(x) // 8, len(x)):
            start = time.perf_counter()
            kernel = design_kernel(basis, x[:n], a[:n], w, m)
            times.append(time.perf_counter() - start)
    return {"operator": kernel / len(x), "time_ratio": float(np.median(times[1::2]) / np.median(times[::2]))}


FUNCTIONS = {
    "regret": "play",
    "regression": "regress",
    "eigenvalues": "spectra",
    "utilities": "decide",
    "assembly": "assemble",
}


class Solver(BaseSolver):
    """The bandit, its regression, and the baselines that share its epochs."""

    name = "cdf-bandit"
    sampling_strategy = "run_once"
    problems = ("contextual risk",)
    parameters = {  # noqa: RUF012
        "variant": [
            "IGW 20",
            "IGW 10",
            "IGW 1",
            "greedy",
            "uniform",
            "mean FALCON",
            "finite CDF",
            "ECDF",
            "regression",
            "mean only",
            "loop",
            "scaling",
        ]
    }

    def skip(self, problem: str, budget: str = "", kind: str = "", **public: Any) -> tuple[bool, str | None]:
        """Leave out other problems, and variants that another kind of data set is for."""
        if problem != "contextual risk":
            return True, f"not for {problem}"
        if self.variant not in VARIANTS[kind]:
            return True, f"{self.variant} is not for {kind}"
        if public.get("environment") == "varied" and self.variant not in VARIED:
            return True, f"{self.variant} is not for scales that differ"
        if (
            kind == "assembly"
            and len(public["contexts"]) > 10_000
            and self.variant != "regression"
            and budget != "paper"
        ):
            return True, f"{self.variant} is for 10000 rows"
        return budget == "smoke" and self.variant not in SMOKE, "left out of this budget"

    def set_objective(self, problem: str, kind: str, seed: int, **public: Any) -> None:
        """Note the problem."""
        self.function = FUNCTIONS[kind]
        self.arrays = {key: value for key, value in public.items() if isinstance(value, np.ndarray)}
        self.params = {key: value for key, value in public.items() if isinstance(value, (int, float, str))}
        self.params |= {"variant": self.variant, "seed": int(seed)}

    def run(self, _: Any) -> None:
        """Work in a process of its own."""
        self.result = measure(__file__, self.function, self.arrays, self.params)

    def get_result(self) -> dict[str, Any]:
        """Return what the problem asks for, seconds and memory."""
        return self.result
