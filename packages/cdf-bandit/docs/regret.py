"""Draw regret.svg: regret against rounds, error against sample size, and the eigenvalues of two design operators."""

from pathlib import Path

import matplotlib
import numpy as np

from icml25.cdf_bandit import (
    CallableBasis,
    CDFBandit,
    CDFRegressor,
    CVaR,
    LogisticBasis,
    MixtureEnvironment,
    estimate_decay,
    simulate,
)

matplotlib.use("svg")
matplotlib.rcParams.update(
    {"svg.hashsalt": "cdf-bandit", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
)
import matplotlib.pyplot as plt  # noqa: E402

A, HORIZON, RUNS = 5, 4032, 3
BLUE, ORANGE, GREY, GREEN = "#2f6db3", "#d97a1e", "#8a8a8a", "#3d8b57"


def location(x, a, w):
    return 0.5 + 0.45 * np.sin(2 * np.pi * (0.5 * w + x[:, :1] + a[:, None] / A))


def theta(w):
    return 6 * w * (1 - w)


def step_cdf(x, a, w, s):
    s = s[:, None, :] if s.ndim == 2 else s[None, None, :]
    return np.broadcast_to((s >= w[None, :, None]).astype(float), (len(x), len(w), s.shape[-1]))


basis = LogisticBasis(location, 0.08)
step = CallableBasis(step_cdf, tail_integral=lambda x, a, w, y: 1 - np.maximum(y[:, None], w))
env = MixtureEnvironment(basis, theta, lambda n, rng: rng.random((n, 1)), A, seed=0)
figure, axes = plt.subplots(1, 3, figsize=(10, 3.1), layout="constrained")

policies = {
    "uniform": (0.0, GREY),
    "c = 1": (1.0, GREEN),
    "c = 10": (10.0, ORANGE),
    "c = 20": (20.0, BLUE),
    "greedy": (np.inf, "black"),
}
for name, (exploration, colour) in policies.items():
    regressor = CDFRegressor(basis, A, decay=0.5, n_w=32, n_s=32)
    bandit = CDFBandit(basis, A, CVaR(0.25), exploration=exploration, regressor=regressor)
    rounds, regret = simulate(bandit, env, HORIZON, RUNS, seed=1)
    axes[0].loglog(rounds, regret.mean(0), "o-", ms=3, color=colour, label=name)
axes[0].set(xlabel="rounds", title="Regret in CVaR(0.25)")
axes[0].legend(frameon=False)

sizes = np.array([100, 400, 1600, 6400, 25_600])
rng = np.random.default_rng(2)
for label, family, gamma, colour in (("logistic", basis, 0.1, BLUE), ("step", step, 0.5, ORANGE)):
    nodes = {"n_w": 32, "n_s": 32} if family is basis else {"n_w": 200, "n_s": 1024}
    error = np.zeros(len(sizes))
    for _ in range(RUNS):
        if family is basis:
            X = env.context(sizes[-1], rng)
            actions = rng.integers(A, size=len(X))
            y = env.reward(X, actions, rng)
        else:
            X, actions, y = np.zeros((sizes[-1], 1)), np.zeros(sizes[-1], int), rng.beta(2, 2, sizes[-1])
        model = CDFRegressor(family, A, decay=gamma, **nodes)
        for i, n in enumerate(sizes):
            error[i] += model.fit(X[:n], actions[:n], y[:n]).design_error(theta) ** 2 / RUNS
    axes[1].loglog(sizes, error, "o-", ms=3, color=colour, label=label)
    known = model.eigenvalues_[:12]
    decay = estimate_decay(model.eigenvalues_, int(sizes[-1]))
    axes[2].semilogy(np.arange(1, 13), known, "o-", ms=3, color=colour, label=f"{label}: estimated γ = {decay:.2f}")
axes[1].loglog(sizes, 0.05 / sizes, "--", color=GREY, label="1/n")
axes[1].set(xlabel="rows", title="Mean squared CDF error")
axes[1].legend(frameon=False)
axes[2].set(xlabel="k", title="Eigenvalues of the design operator", ylim=(1e-9, 1))
axes[2].legend(frameon=False)
figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
