"""Alignment for the procedure at inference: which policy wins when it is sampled N times and one sample is served?

On finite response sets everything is exact: T(pi) is the distribution of the best (or the worst) of N samples, and the
win rate of T(pi) over T(pi_ref) counts ties half. Five questions:

- ``world``: P prompts whose rewards differ in location, scale and shape. Solvers return one policy a prompt, of a given KL to
  pi_ref in the mean, and every procedure judges it.
- ``continuum``: one prompt with many equally likely responses; the best win rate at that KL is known from an ordinary
  differential equation.
- ``theorem``: small problems with ties. The policy that maximises W - beta KL is known by direct optimisation.
- ``rollouts``: ``world`` again, but the reward of pi_ref's own samples is known for K of them only.
- ``lookup``: ranks of many rewards among the rollouts of their prompts, for the clock.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

__all__ = ["draw", "evaluate", "example", "policy_at_kl"]

PROCEDURES = ("best_of_n", "worst_of_n")


def draw(settings: dict[str, Any], *, seed: int, budget: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw a question.

    Parameters
    ----------
    settings : question, and: P, A, N, kl (world, rollouts), sizes (rollouts); A, N, kl (continuum); problems (theorem);
        P, K, n (lookup).
    seed : of everything.
    budget : not used; the settings say it all.

    Returns
    -------
    public : question and, for world, continuum and rollouts: pi_ref (P, A), reward (P, A), N, kl; rollouts further
        rollouts (P, largest size), the responses that pi_ref drew, and sizes (S,); theorem: pi_ref (R, 8) and reward (R, 8) with
        unused responses of probability 0, N (R,), worst (R,) bool, beta (R,); lookup: rollouts (P, K) rewards, asked (n,)
        prompts, reward (n,).
    truth : optimum_best_of_n and optimum_worst_of_n (continuum), optimum (R, 8) (theorem), calibrated (n,) (lookup).
    """
    questions = {
        "world": _world,
        "continuum": _continuum,
        "theorem": _theorem,
        "rollouts": _rollouts,
        "lookup": _lookup,
    }
    if (question := settings["question"]) not in questions:
        raise ValueError(f"question is {question!r}; expected one of {', '.join(questions)}")
    public, truth = questions[question](settings, seed)
    return {"question": question, **public}, truth


def _world(settings, seed):
    """reward = a_x + s_x noise, log s_x ~ N(0, 1), noise normal for odd prompts and exponential for even ones."""
    rng = np.random.default_rng(seed)
    P, A = settings["P"], settings["A"]
    location, scale = rng.standard_normal((P, 1)), np.exp(rng.standard_normal((P, 1)))
    noise = np.where(np.arange(P)[:, None] % 2, rng.standard_normal((P, A)), rng.exponential(size=(P, A)))
    public = {"pi_ref": rng.dirichlet(np.ones(A), P), "reward": location + scale * noise}
    return public | {"N": settings["N"], "kl": settings["kl"]}, {}


def _continuum(settings, seed):
    A, N, kl = settings["A"], settings["N"], settings["kl"]
    public = {
        "pi_ref": np.full((1, A), 1 / A),
        "reward": np.random.default_rng(seed).permutation(A)[None].astype(float),
        "N": N,
        "kl": kl,
    }
    return public, {f"optimum_{procedure}": _optimum(N, kl, procedure) for procedure in PROCEDURES}


@cache
def _optimum(N: int, kl: float, procedure: str) -> float:
    """Highest win rate at this KL: shooting for (log f)' = N^2/beta (F u)^(N-1) from the lowest reward on.

    Worst-of-N runs down from the highest: (log f)' = -N^2/beta (S v)^(N-1) with S = 1 - F, v = 1 - u.
    """
    from scipy.integrate import solve_ivp
    from scipy.optimize import root_scalar

    sign = 1 if procedure == "best_of_n" else -1

    def beyond(x, y, *_):
        return y[0] - 2

    beyond.terminal = True  # type: ignore[attr-defined]

    def end(a, beta):
        """F, log f, KL so far and N int F^N u^(N-1) at the other end (or where F = 2)."""

        def slopes(x, y):
            f = np.exp(min(y[1], 700))
            return [f, sign * N**2 / beta * (y[0] * x) ** (N - 1), f * y[1], N * y[0] ** N * x ** (N - 1)]

        path = solve_ivp(slopes, (0, 1), [0, a, 0, 0], method="LSODA", rtol=1e-9, atol=1e-12, events=beyond)
        return path.y[:, -1]

    def solution(beta):
        low, high = (-60.0, 0.01) if sign > 0 else (-0.01, 60.0)
        a = root_scalar(lambda a: end(a, beta)[0] - 1, bracket=(low, high), xtol=1e-12).root
        return end(a, beta)

    bracket = (np.log(0.02), np.log(20))
    beta = np.exp(root_scalar(lambda b: solution(np.exp(b))[2] - kl, bracket=bracket, xtol=1e-9).root)
    integral = solution(beta)[3]
    return float(1 - integral if sign > 0 else integral)


def _theorem(settings, seed):
    arrays = _problems(settings["problems"], seed)
    return {key: arrays[key].copy() for key in ("pi_ref", "reward", "N", "worst", "beta")}, {
        "optimum": arrays["optimum"]
    }


@cache
def _problems(R, seed):
    rng, most = np.random.default_rng(seed), 8
    pi_ref, reward, optimum = np.zeros((R, most)), np.zeros((R, most)), np.zeros((R, most))
    N, worst, beta = rng.integers(2, 5, R), np.arange(R) % 2 == 1, np.exp(rng.uniform(np.log(0.1), np.log(3), R))
    for i in range(R):
        A = rng.integers(4, most + 1)
        pi_ref[i, :A] = rng.dirichlet(np.ones(A))
        reward[i, :A] = rng.integers(0, 4, A)
        optimum[i, :A] = _direct(pi_ref[i, :A], reward[i, :A], N[i], worst[i], beta[i])
    return {"pi_ref": pi_ref, "reward": reward, "N": N, "worst": worst, "beta": beta, "optimum": optimum}


def _direct(pi_ref, reward, N, worst, beta):
    """argmax W - beta KL by quasi-Newton ascent in logits, from pi_ref and from every response alone."""
    from scipy.optimize import minimize

    values = np.unique(-reward if worst else reward)
    upto = (-reward if worst else reward) <= values[:, None]  # best of -r is the worst of r

    def served(p):
        return np.diff((p @ upto.T) ** N, axis=-1, prepend=0)

    q = served(pi_ref)
    C = np.cumsum(q) - q / 2

    def objective(p):
        W = served(p) @ C
        return (1 - W if worst else W) - beta * (p * np.log(p / pi_ref)).sum(-1)

    def loss(z):
        p = np.maximum(np.exp(z - z.max()) / np.exp(z - z.max()).sum(), 1e-200)
        gradient = objective(p + 1e-30j * np.eye(len(p))).imag / 1e-30
        return -objective(p), -p * (gradient - p @ gradient)

    starts = [np.log(pi_ref), *(np.log(pi_ref) + 6 * np.eye(len(pi_ref)))]
    ends = [minimize(loss, z, jac=True, method="BFGS", options={"gtol": 1e-11}) for z in starts]
    z = min(ends, key=lambda end: end.fun).x
    return np.exp(z - z.max()) / np.exp(z - z.max()).sum()


def _rollouts(settings, seed):
    public, truth = _world(settings, seed)
    rng, sizes = np.random.default_rng([seed, 1]), np.array(settings["sizes"])
    rollouts = np.stack([rng.choice(len(p), sizes.max(), p=p) for p in public["pi_ref"]])
    return public | {"rollouts": rollouts, "sizes": sizes}, truth


def _lookup(settings, seed):
    rng = np.random.default_rng(seed)
    P, K, n = settings["P"], settings["K"], settings["n"]
    rollouts, asked = np.round(rng.standard_normal((P, K)), 2), np.sort(rng.integers(P, size=n))
    reward = np.round(rng.standard_normal(n), 2)  # rounded: ties
    calibrated, ends = np.empty(n), np.searchsorted(asked, np.arange(P + 1))
    for z, (start, end) in zip(rollouts, pairwise(ends), strict=True):
        r = reward[start:end, None]
        calibrated[start:end] = ((r > z) + 0.5 * (r == z)).mean(1)
    return {"rollouts": rollouts, "asked": asked, "reward": reward}, {"calibrated": calibrated}


def policy_at_kl(pi_ref: np.ndarray, R: np.ndarray, kl: float) -> np.ndarray:
    """The policies pi_ref e^{R/beta} / Z (P, A) whose KL to pi_ref is kl in the mean over prompts, with one beta for all."""
    from scipy.optimize import root_scalar

    scale = np.ptp(R)

    def policy(log_beta):
        tilt = np.exp((R - R.max(1, keepdims=True)) / (np.exp(log_beta) * scale))
        return pi_ref * tilt / (pi_ref * tilt).sum(1, keepdims=True)

    return policy(root_scalar(lambda b: _kl(policy(b), pi_ref).mean() - kl, bracket=(-12, 8), xtol=1e-12).root)


def _kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    ratio = np.divide(p, q, out=np.ones_like(p), where=p > 0)
    return (p * np.log(ratio)).sum(-1)


def _served(pi: np.ndarray, reward: np.ndarray, N: int, procedure: str) -> np.ndarray:
    """Distribution of the response that is served, one prompt: a tie class takes G^N - G_below^N, shared in proportion."""
    r = reward if procedure == "best_of_n" else -reward
    upto, tied = (r <= r[:, None]) @ pi, (r == r[:, None]) @ pi
    share = np.divide(pi, tied, out=np.zeros_like(pi), where=tied > 0)
    return share * (upto**N - np.maximum(upto - tied, 0) ** N)


def _win_rates(pi: np.ndarray, public: dict[str, Any]) -> dict[str, float]:
    """Mean over prompts of W^T(pi > pi_ref) for one sample, the best of N and the worst of N."""
    N, rates = public["N"], {"win_rate_standard": [], "win_rate_best_of_n": [], "win_rate_worst_of_n": []}
    for p, q, r in zip(pi, public["pi_ref"], public["reward"], strict=True):
        beats = (r[:, None] > r) + 0.5 * (r[:, None] == r)
        rates["win_rate_standard"].append(p @ beats @ q)
        for procedure in PROCEDURES:
            rate = _served(p, r, N, procedure) @ beats @ _served(q, r, N, procedure)
            rates[f"win_rate_{procedure}"].append(rate)
    return {name: float(np.mean(values)) for name, values in rates.items()}


def _checked(policy: Any, shape: tuple[int, ...]) -> np.ndarray:
    policy = np.asarray(policy, dtype=float)
    if policy.shape != shape:
        raise ValueError(f"policy has shape {policy.shape}; expected {shape}")
    if not (policy >= 0).all() or np.abs(policy.sum(-1) - 1).max() > 1e-8:
        raise ValueError("policy is no distribution over the responses")
    return policy


def evaluate(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Judge the policies exactly.

    Parameters
    ----------
    public, truth : of ``draw``.
    result : policy (P, A), for rollouts (S + 1, P, A): with the first K rollouts for each of the sizes, then with all that
        is public, for theorem (R, 8); calibrated (n,) for lookup; scalars.

    Returns
    -------
    world, continuum: win_rate_standard, win_rate_best_of_n, win_rate_worst_of_n, kl; continuum also
    gap_best_of_n and gap_worst_of_n to the optimum. theorem: largest_difference of a probability to the optimum's.
    rollouts: win_rate_K<size> and win_rate_exact under best-of-N, loss_K<size>, and smallest_gain from one size to the next.
    lookup: calibration_error, the largest.

    Raises
    ------
    ValueError: wrong shapes, no distributions, or a KL that is off by more than 1%.
    """
    columns = {key: value for key, value in result.items() if key not in ("policy", "calibrated")}
    question = public["question"]
    if question == "lookup":
        found = np.asarray(result["calibrated"], dtype=float)
        if found.shape != truth["calibrated"].shape:
            raise ValueError(f"calibrated has shape {found.shape}; expected {truth['calibrated'].shape}")
        columns["calibration_error"] = np.abs(found - truth["calibrated"]).max()
    elif question == "theorem":
        policy = _checked(result["policy"], public["pi_ref"].shape)
        columns["largest_difference"] = np.abs(policy - truth["optimum"]).max()
    elif question == "rollouts":
        sizes = public["sizes"]
        policies = _checked(result["policy"], (len(sizes) + 1, *public["pi_ref"].shape))
        rates = [_win_rates(_of_kl(policy, public), public)["win_rate_best_of_n"] for policy in policies]
        for size, rate in zip(sizes, rates, strict=False):
            columns |= {f"win_rate_K{size}": rate, f"loss_K{size}": rates[-1] - rate}
        columns |= {"win_rate_exact": rates[-1], "smallest_gain": np.diff(rates[:-1]).min()}
    else:
        policy = _of_kl(_checked(result["policy"], public["pi_ref"].shape), public)
        columns |= _win_rates(policy, public) | {"kl": _kl(policy, public["pi_ref"]).mean()}
        for procedure in PROCEDURES if question == "continuum" else ():
            columns[f"gap_{procedure}"] = truth[f"optimum_{procedure}"] - columns[f"win_rate_{procedure}"]
    return {name: float(value) for name, value in columns.items()}


def _of_kl(policy: np.ndarray, public: dict[str, Any]) -> np.ndarray:
    """The policy, if its KL is the one asked for: win rates at different KLs are not compared."""
    kl = _kl(policy, public["pi_ref"]).mean()
    if not abs(kl - public["kl"]) <= 0.01 * public["kl"]:
        raise ValueError(f"the policy has a KL of {kl:.4g} to pi_ref; expected {public['kl']:g}")
    return policy


def example(public: dict[str, Any]) -> dict[str, Any]:
    """A result of the right shape: whatever is rewarded, or pi_ref itself where no KL is asked for."""
    if public["question"] == "lookup":
        return {"calibrated": np.full(len(public["reward"]), 0.5)}
    if public["question"] == "theorem":
        return {"policy": public["pi_ref"]}
    policy = policy_at_kl(public["pi_ref"], public["reward"], public["kl"])
    return {"policy": policy if public["question"] != "rollouts" else np.stack([policy] * (len(public["sizes"]) + 1))}
