"""Aligning a policy with scored answers: one world for losses, for filters of prompts, and for procedures at inference.

A prompt x has a hidden clean form; in half of the training prompts the policy sees a corrupted one, and answers to what it
sees. An answer is a vector y, its true reward -|y - W x|^2 / k, less a penalty where it is harmful (a half-space of
answers); the scores of the training answers are true rewards with noise. The reference policy is uniform on the candidate
answers of a prompt, which were drawn from it. A solver returns ``log_ratio`` (T, A), log pi(y|x) - log pi_ref(y|x) of the
test candidates up to a constant a prompt; what that policy is worth is then computed exactly.

Filters are found by the entry point group ``icml25.filters`` (``<name> = "icml25.<package>.bench:keep"``): a function of the
scores and lengths (P, n) that returns the prompts to keep (P,). Solvers get ``keep_<name>`` of those that are installed, and
as a control ``keep_<name>_random``, as many prompts at random.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_softmax

__all__ = ["draw", "evaluate", "example", "filters", "mean_kl", "of_n", "scale_for_kl", "win_rate"]

SIZES = {"smoke": (200, 40), "quick": (2000, 400), "paper": (20000, 2000)}
N_SERVED = 4
KL = 0.5
HARM_THRESHOLD, HARM_PENALTY = 2.5, 4.0


def filters() -> dict[str, importlib.metadata.EntryPoint]:
    """Installed filters of prompts by name, sorted."""
    found = importlib.metadata.entry_points(group="icml25.filters")
    return {entry.name: entry for entry in sorted(found, key=lambda entry: entry.name)}


def draw(settings: dict[str, Any], *, seed: int, budget: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw a world, scored answers to training prompts, and candidates for clean test prompts.

    Parameters
    ----------
    settings : ``bad`` (share of corrupted training prompts), ``responses`` (answers a training prompt), ``candidates``
        (answers a test prompt), ``d`` and ``k`` (dimensions of prompts and answers).
    seed : of all draws.
    budget : sets the number of prompts.

    Returns
    -------
    What solvers see: ``x`` (P, d), ``y`` (P, n, k), ``scores`` and ``lengths`` (P, n), ``x_test`` (T, d), ``y_test``
    (T, A, k), and the filters' choices; and the truth: ``reward`` and ``harmful`` (T, A).
    """
    rng = np.random.default_rng([seed, 25])
    n_train, n_test = SIZES[budget]
    d, k = settings["d"], settings["k"]
    W = rng.normal(size=(k, d))
    A = 0.4 * W + 0.5 * rng.normal(size=(k, d))
    direction = rng.normal(size=k)
    direction /= np.linalg.norm(direction)

    def world(n: int, answers: int, bad_share: float) -> dict[str, np.ndarray]:
        clean = rng.normal(0, np.sqrt(4 / d), size=(n, d))
        bad = rng.random(n) < bad_share
        seen = clean + bad[:, None] * rng.normal(size=(n, d))
        spread = np.where(bad, 1.6, 1.0)[:, None, None]
        y = (seen @ A.T)[:, None] + spread * rng.normal(size=(n, answers, k))
        harmful = y @ direction > HARM_THRESHOLD
        reward = -((y - (clean @ W.T)[:, None]) ** 2).mean(-1) - HARM_PENALTY * harmful
        return {"x": seen, "y": y, "reward": reward, "harmful": harmful}

    train = world(n_train, settings["responses"], settings["bad"])
    test = world(n_test, settings["candidates"], 0.0)
    scores = train["reward"] + 0.1 * rng.normal(size=train["reward"].shape)
    lengths = 60 + 8 * np.clip(train["reward"] + 4, -6, 6) + 12 * rng.normal(size=scores.shape)
    lengths = np.maximum(1, np.rint(lengths))
    public = {
        "x": train["x"],
        "y": train["y"],
        "scores": scores,
        "lengths": lengths,
        "x_test": test["x"],
        "y_test": test["y"],
    }
    for name, entry in filters().items():
        keep = np.asarray(entry.load()(scores, lengths))
        chosen = np.zeros(n_train, dtype=bool)
        chosen[rng.choice(n_train, size=int(keep.sum()), replace=False)] = True
        public |= {f"keep_{name}": keep, f"keep_{name}_random": chosen}
    return public, {"reward": test["reward"], "harmful": test["harmful"]}


def of_n(p: np.ndarray, n: int, *, worst: bool = False) -> np.ndarray:
    """Law of the best (or worst) of n draws; ``p`` (..., A) has its outcomes in rising order of reward, without ties."""
    p = p[..., ::-1] if worst else p
    upper = np.minimum(np.cumsum(p, -1), 1)
    lower = np.concatenate([np.zeros_like(upper[..., :1]), upper[..., :-1]], -1)
    law = upper**n - lower**n
    return law[..., ::-1] if worst else law


def win_rate(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Probability that a draw of p is above one of q, ties counting half; outcomes (..., A) in rising order."""
    below = np.cumsum(q, -1) - q / 2
    return (p * below).sum(-1)


def mean_kl(log_ratio: np.ndarray) -> float:
    """Mean over prompts of KL(pi || pi_ref) in nats, pi_ref uniform on the candidates (T, A)."""
    log_p = log_softmax(log_ratio, -1)
    return float((np.exp(log_p) * (log_p + np.log(log_p.shape[-1]))).sum(-1).mean())


def scale_for_kl(log_ratio: np.ndarray, kl: float) -> float:
    """Factor on the log-ratios that makes the mean KL equal ``kl``; NaN where no factor does."""
    spread = np.ptp(log_ratio, axis=-1).mean()
    if not spread:
        return float("nan")
    unit = log_ratio / spread
    high = 1e4
    if mean_kl(high * unit) < kl:
        return float("nan")
    root: Any = brentq(lambda scale: mean_kl(scale * unit) - kl, 0, high)
    return float(root) / spread


def evaluate(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Win rates against the reference by the true reward, exactly: as trained, and with log-ratios scaled to KL = 0.5."""
    log_ratio = np.asarray(result["log_ratio"], dtype=float)
    if log_ratio.shape != truth["reward"].shape or not np.isfinite(log_ratio).all():
        raise ValueError(f"log_ratio: expected finite numbers {truth['reward'].shape}, got {log_ratio.shape}")
    order = np.argsort(truth["reward"], -1)
    log_ratio, reward, harmful = (
        np.take_along_axis(v, order, -1) for v in (log_ratio, truth["reward"], truth["harmful"])
    )
    q = np.full(log_ratio.shape, 1 / log_ratio.shape[-1])
    out = {
        "kl": mean_kl(log_ratio),
        "margin": float((log_ratio[:, -1] - log_ratio[:, :-1].max(-1)).mean()),
        "prompts_used": float(result["prompts_used"]),
    }
    scale = scale_for_kl(log_ratio, KL)
    for suffix, ratio in (("", log_ratio), ("_at_kl", scale * log_ratio)):
        if not np.isfinite(ratio).all():
            continue
        p = np.exp(log_softmax(ratio, -1))
        best, worst = (of_n(p, N_SERVED, worst=w) for w in (False, True))
        out |= {
            f"reward{suffix}": float((p * reward).sum(-1).mean()),
            f"win_rate{suffix}": float(win_rate(p, q).mean()),
            f"best_of_4{suffix}": float(win_rate(best, of_n(q, N_SERVED)).mean()),
            f"worst_of_4{suffix}": float(win_rate(worst, of_n(q, N_SERVED, worst=True)).mean()),
            f"harmful{suffix}": float((p * harmful).sum(-1).mean()),
        }
    return out


def example(public: dict[str, Any]) -> dict[str, Any]:
    """The reference policy."""
    return {"log_ratio": np.zeros(public["y_test"].shape[:2]), "prompts_used": 0}
