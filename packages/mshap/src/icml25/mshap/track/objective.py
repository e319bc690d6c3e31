"""Agents give data to a federation under payments: is the outcome an equilibrium, balanced, and fair to each?

Nothing that a solver says of itself is believed: payments are compared with the mechanism's rule, shares are recomputed
over all coalitions, and each agent's best deviation is searched for here.
"""

import math
from functools import cache

import numpy as np
from benchopt import BaseObjective
from scipy.ndimage import rotate
from scipy.optimize import brentq, curve_fit
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

ANGLES = (10, 90, 180)
REFUND = 0.8
ROUNDS, LOCAL_STEPS, RATE = 10, 10, 2.0


@cache
def federation(seed, agents, images):
    """Images and labels of each agent, (agents, images, 65) and (agents, images), and test sets rotated by each angle."""
    X, y = load_digits(return_X_y=True)
    pictures = X.reshape(-1, 8, 8) / 16
    turned = [rotate(pictures, angle, axes=(1, 2), reshape=False, order=1).reshape(-1, 64) for angle in ANGLES]
    turned = np.stack([np.column_stack([t, np.ones(len(t))]) for t in turned])
    train, test = train_test_split(np.arange(len(y)), train_size=agents * images, stratify=y, random_state=seed)
    rows = np.random.default_rng([seed, 0]).permutation(train).reshape(agents, images)
    groups = np.arange(agents) % len(ANGLES)
    return turned[groups[:, None], rows], y[rows], turned[:, test], y[test]


def train_together(X, y, samples):
    """FedAvg of multinomial logistic regressions, agents weighted by the samples they give: weights (65, 10)."""
    used = (np.arange(X.shape[1]) < samples[:, None]) / np.maximum(samples, 1)[:, None]
    labels, share, model = np.eye(10)[y], samples / max(samples.sum(), 1), np.zeros((X.shape[2], 10))
    for _ in range(ROUNDS):
        local = np.repeat(model[None], len(X), axis=0)
        for _ in range(LOCAL_STEPS):
            scores = X @ local
            p = np.exp(scores - scores.max(2, keepdims=True))
            p /= p.sum(2, keepdims=True)
            local -= RATE * X.transpose(0, 2, 1) @ (used[..., None] * (p - labels))
        model = np.tensordot(share, local, 1) + (1 - share.sum()) * model
    return model


def group_accuracies(seed, agents, images, samples):
    """Test accuracy of each group of the model that these samples train."""
    X, y, X_test, y_test = federation(seed, agents, images)
    model = train_together(X, y, np.asarray(samples))
    return ((X_test @ model).argmax(2) == y_test).mean(1)


@cache
def fitted_game(seed, agents, images, levels):
    """Group-by-group weights of a_k = 1 - 1/(1 + W_k · s), fitted on a grid of group contributions."""
    grid = np.round(np.linspace(0, images, levels)).astype(int)
    points = np.stack(np.meshgrid(*[grid] * len(ANGLES), indexing="ij"), axis=-1).reshape(-1, len(ANGLES))
    groups = np.arange(agents) % len(ANGLES)
    measured = np.array([group_accuracies(seed, agents, images, point[groups]) for point in points])
    pools = points * np.bincount(groups)
    rows = [
        curve_fit(lambda Z, *w: 1 - 1 / (1 + Z @ np.array(w)), pools, a, p0=[1e-2] * len(ANGLES), bounds=(0, np.inf))[0]
        for a in measured.T
    ]
    error = np.mean([np.abs(1 - 1 / (1 + pools @ w) - a).mean() for w, a in zip(rows, measured.T, strict=True)])
    return np.array(rows)[np.ix_(groups, groups)], float(error)


class Game:
    """One game, computed without any method package: a_k(S) and A over all coalitions."""

    def __init__(self, accuracy, gamma, capacity):
        self.accuracy, self.gamma, self.capacity = accuracy, gamma, capacity
        n = len(gamma)
        self.masks = (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(float)
        size = self.masks.sum(1).astype(int)
        self.weight = np.array([1 / (n * math.comb(n - 1, k)) if k < n else 0.0 for k in range(n + 1)])[size]

    def gains(self, s):
        """Accuracies less those without data."""
        return self.accuracy(s[None])[0] - self.accuracy(np.zeros((1, len(s))))[0]

    def share(self, i, s):
        """Shapley share of agent i at s: the definition."""
        out = self.masks[:, i] == 0
        rows = self.masks[out] * s
        joined = rows.copy()
        joined[:, i] = s[i]
        return self.weight[out] @ (self.accuracy(joined) - self.accuracy(rows)).sum(1)

    def shares(self, s):
        """Shapley shares of all agents."""
        return np.array([self.share(i, s) for i in range(len(s))])

    def payments(self, mechanism, s):
        """What the rule of a mechanism pays at s."""
        cost, n = self.gamma * s, len(s)
        if mechanism == "shap":
            return self.shares(s) - self.gains(s)
        return REFUND * (cost - (cost.sum() - cost) / (n - 1)) if mechanism == "bg" else np.zeros(n)

    def utility(self, mechanism, i, s):
        """Utility of agent i at s."""
        cost = self.gamma * s
        if mechanism == "shap":
            return self.share(i, s) - cost[i]
        others = (cost.sum() - cost[i]) / (len(s) - 1)
        return self.gains(s)[i] + (REFUND * (cost[i] - others) if mechanism == "bg" else 0.0) - cost[i]

    def best_deviation(self, mechanism, s):
        """Most that one agent gains by another contribution: 13 points of its range, and a zoom into the best, three times."""
        most = 0.0
        for i in range(len(s)):
            low, high, now = 0.0, self.capacity[i], self.utility(mechanism, i, s)
            for _ in range(3):
                points = np.linspace(low, high, 13)
                values = [self.utility(mechanism, i, np.where(np.arange(len(s)) == i, t, s)) for t in points]
                best = int(np.argmax(values))
                most = max(most, values[best] - now)
                low, high = points[max(best - 1, 0)], points[min(best + 1, 12)]
        return float(most)


def pooled(W):
    """a_k = 1 - 1/(1 + W_k · s)."""
    return lambda S: 1 - 1 / (1 + S @ W.T)


class Objective(BaseObjective):
    """Fairness, balance, stability and data of contributions and payments."""

    name = "Payments"
    parameters = {"budget": ["smoke"], "seed": [0]}  # noqa: RUF012
    sampling_strategy = "run_once"

    def set_data(self, problem, **settings):
        """Draw the games of a problem."""
        self.problem, self.settings = problem, settings
        rng = np.random.default_rng([self.seed, 1])
        self.public, self.fit_error = {}, math.nan
        if problem == "digits":
            agents, images = settings["agents"], settings["images"]
            W, self.fit_error = fitted_game(self.seed, agents, images, settings["levels"])
            prices = rng.uniform(0, 1e-3, (settings["prices"], agents))
            drawn = [(W, gamma, np.full(agents, float(images))) for gamma in prices]
        elif problem == "random":
            sizes = [n for n in settings["sizes"] for _ in range(settings["games"])]
            drawn = [(rng.uniform(0, 0.2, (n, n)), rng.uniform(0, 0.01, n), np.full(n, 100.0)) for n in sizes]
        elif problem == "homogeneous":
            self.public = {key: settings[key] for key in ("alpha", "beta", "gamma")}
            self.public["sizes"] = np.array(settings["sizes"])
            return
        else:
            n, groups = settings["n"], settings["groups"]
            ids = np.arange(n) % groups
            self.public = {
                "W": rng.uniform(0, 0.05, (groups, groups)),
                "groups": ids,
                "s": rng.uniform(0, 110, n),
                "orders": np.array([rng.permutation(n) for _ in range(round(n * math.log(n)))]),
            }
            return
        self.games = [Game(pooled(W), gamma, capacity) for W, gamma, capacity in drawn]
        for k, arrays in enumerate(drawn):
            self.public |= {f"{name}_{k}": a for name, a in zip(("W", "gamma", "capacity"), arrays, strict=True)}

    def get_objective(self):
        """Hand out the games."""
        return {"problem": self.problem, "budget": self.budget, "seed": self.seed, **self.public}

    def evaluate_result(self, seconds, peak_memory_mb, mechanism="shap", **result):
        """Check what was claimed."""
        check = {"homogeneous": self.closed_form, "scale": self.large_shares}.get(self.problem, self.equilibria)
        return {**check(mechanism, **result), "seconds": seconds, "peak_memory_mb": peak_memory_mb}

    def equilibria(self, mechanism, **arrays):
        """``contributions_k``, ``payments_k``, optionally ``other_k`` (a second solver's) and ``steps`` (games, 3)."""
        rule = mechanism.removesuffix("-sampled")
        rng, rows = np.random.default_rng([self.seed, 2]), []
        for k, game in enumerate(self.games):
            s, p = arrays[f"contributions_{k}"], arrays[f"payments_{k}"]
            shares, gains, cost = game.shares(s), game.gains(s), game.gamma * s
            nothing = 1e-12 * max(np.abs(shares).max(), np.abs(gains + p).max())
            gives = shares > nothing
            taken = (~gives & (gains + p < -nothing)).any()  # from an agent that gives nothing
            ratios = (gains + p)[gives] / shares[gives]
            welfare = (gains - cost).sum()
            more = s + rng.random((1000, len(s))) * (game.capacity - s)
            beyond = (game.accuracy(more) - game.accuracy(np.zeros((1, len(s)))) - game.gamma * more).sum(1)
            other = arrays.get(f"other_{k}", np.full(len(s), math.nan))
            rows.append(
                {
                    "reciprocity": -math.inf if taken else ratios.min() if gives.any() else math.nan,
                    "budget_residual": abs(p.sum()),
                    "payment_error": np.abs(p - game.payments(rule, s)).max(),
                    "exploitability": game.best_deviation(rule, s),
                    "disagreement": np.max(np.abs(other - s) / np.maximum(s, 1e-6 * game.capacity)),
                    "total_data": s.sum(),
                    "data_share": s.sum() / game.capacity.sum(),
                    "accuracy": game.accuracy(s[None]).mean(),
                    "welfare": welfare,
                    "least_utility": (gains + p - cost).min(),
                    "richer_beyond": (beyond > welfare + 1e-9).mean(),
                    "free_riders": float((~gives).sum()),
                    "feasible": float(((s >= 0) & (s <= game.capacity)).all()),
                }
            )
        table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        worst = {name: float(table[name].max()) for name in ("budget_residual", "payment_error", "exploitability")}
        out = {name: float(table[name].mean()) for name in table} | worst
        out["reciprocity_gap"] = float(np.abs(table["reciprocity"] - 1).max())
        taxed = np.isneginf(table["reciprocity"])  # their mean would hide all other games
        out["reciprocity"] = float(table["reciprocity"][~taxed].mean()) if not taxed.all() else math.nan
        out["taxed_games"] = float(taxed.mean())
        out["unfair_games"] = float((table["reciprocity"] < 0.95).mean())
        out["disagreement"] = float(table["disagreement"].max())
        for name in ("least_utility", "feasible"):
            out[name] = float(table[name].min())
        out["step_ratio"] = math.nan
        if "steps" in arrays:
            first, second = np.diff(arrays["steps"].mean(0))
            out["step_ratio"] = float(max(first / second, second / first))
        if self.problem == "digits":
            measured = []
            for k in range(len(self.games)):
                samples = np.rint(arrays[f"contributions_{k}"]).astype(int)
                by_group = group_accuracies(self.seed, self.settings["agents"], self.settings["images"], samples)
                measured.append(by_group[np.arange(len(samples)) % len(ANGLES)].mean())
            out |= {"measured_accuracy": float(np.mean(measured)), "fit_error": self.fit_error}
        return out

    def closed_form(self, mechanism, **arrays):
        """``contributions_k`` per size against the root of the first-order condition."""
        alpha, beta, gamma = (self.settings[key] for key in ("alpha", "beta", "gamma"))
        alone = (alpha * beta / gamma) ** (1 / (beta + 1)) - 1
        errors, gains, totals = [], [], []
        for k, n in enumerate(self.settings["sizes"]):
            s, sizes = arrays[f"contributions_{k}"], np.arange(1, n + 1)
            if mechanism == "none":  # only the total is determined
                root, found = alone, s.sum()
            else:
                found = s
                root = brentq(
                    lambda x, j=sizes: (alpha * beta * (j * x + 1) ** (-beta - 1)).sum() - gamma, 0, 1e6, xtol=1e-12
                )
            errors.append(np.abs(found - root).max() / root)
            gains.append((s.sum() + 1) / (alone + 1) / n ** (1 / (beta + 1)))
            totals.append(s.sum())
        return {
            "closed_form_error": float(max(errors)),
            "gain_over_bound": float(min(gains)),
            "total_data": float(np.mean(totals)),
        }

    def large_shares(self, mechanism, shares, **_):
        """``shares`` (n,) along the given permutations: they add up, and agent 0's is recomputed by itself."""
        W, groups, s, orders = (self.public[key] for key in ("W", "groups", "s", "orders"))
        accuracy = pooled(W[np.ix_(groups, groups)])
        position = np.argsort(orders, axis=1)
        before = (position < position[:, :1]) * s
        joined = before.copy()
        joined[:, 0] = s[0]
        own = (accuracy(joined) - accuracy(before)).sum(1).mean()
        return {
            "efficiency_error": float(abs(shares.sum() - accuracy(s[None]).sum())),
            "share_error": float(abs(shares[0] - own)),
        }

    def get_one_result(self):
        """Return a result of the right shape."""
        out = {"seconds": 0.0, "peak_memory_mb": 0.0}
        if self.problem == "scale":
            return out | {"shares": np.ones(self.settings["n"])}
        if self.problem == "homogeneous":
            return out | {f"contributions_{k}": np.ones(n) for k, n in enumerate(self.settings["sizes"])}
        for k, game in enumerate(self.games):
            out |= {f"contributions_{k}": np.ones(len(game.gamma)), f"payments_{k}": np.zeros(len(game.gamma))}
        return out
