"""Filtering prompts: half of them are corrupted, and a policy is trained by DPO on the pairs of those that are kept.

A prompt x has a hidden clean form; the policy sees x, or x + N(0, 1) where the prompt is bad, and answers to what it sees.
Answers y ~ N(A x_seen, s^2 I), s = 1, or 1.6 where bad; reward -|y - W x|^2 / k with noise 0.1; better answers are longer.
A solver returns ``keep`` (P,), the prompts to train on. The protocol trains the linear-Gaussian policy N(A x, I) on the
best and the worst answer of each, by DPO with exact log-ratios, and scores its mean answer to fresh clean prompts.

Question "self": instead of answers to given prompts, new prompts are written after the example of eight. A written prompt
is bad with the share of bad ones among its shots. ``write`` is the simulator of writer, policy and reward model; a solver
returns ``shots`` (M, 8), the examples of each written prompt, and ``keep`` (M,), and the protocol writes them again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["draw", "evaluate", "example", "train", "write"]

SIZES = {"smoke": 400, "quick": 4000, "paper": 40000}
SHOTS = 8
BETA, RATE, BATCH, STEPS, TEST = 0.1, 2.0, 64, 300, 4000
BAD_SPREAD, REWARD_NOISE = 1.6, 0.1


def _world(settings: dict[str, Any], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """W (k, d) of the reward and A (k, d) of the reference policy."""
    rng = np.random.default_rng([seed, 26])
    W = rng.normal(size=(settings["k"], settings["d"]))
    return W, 0.4 * W + 0.5 * rng.normal(size=W.shape)


def _answer(settings: dict[str, Any], seed: int, bad: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Prompts as the policy sees them, N answers to each, their rewards and lengths."""
    W, A = _world(settings, seed)
    n, d, N, k = len(bad), settings["d"], settings["N"], settings["k"]
    clean = rng.normal(0, np.sqrt(4 / d), size=(n, d))
    seen = clean + bad[:, None] * rng.normal(size=(n, d))
    y = (seen @ A.T)[:, None] + np.where(bad, BAD_SPREAD, 1.0)[:, None, None] * rng.normal(size=(n, N, k))
    reward = -((y - (clean @ W.T)[:, None]) ** 2).sum(-1) / k + REWARD_NOISE * rng.normal(size=(n, N))
    lengths = np.maximum(1, np.rint(60 + 8 * np.clip(reward + 4, -6, 6) + 12 * rng.normal(size=(n, N))))
    return {"x": seen, "y": y, "scores": reward, "lengths": lengths}


def draw(settings: dict[str, Any], *, seed: int, budget: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw a world, prompts and scored answers.

    Parameters
    ----------
    settings : ``question`` ("world" or "self"), ``bad`` (share of corrupted prompts), ``d`` and ``k`` (dimensions of prompts
        and answers), ``N`` (answers a prompt).
    seed : of all draws.
    budget : sets the number of prompts, and of prompts to write.

    Returns
    -------
    What solvers see: ``scores`` and ``lengths`` (P, N), ``settings_*`` and ``budget`` for `write`; and the truth: ``bad``
    (P,), and for "world" ``x`` (P, d) and ``y`` (P, N, k).
    """
    rng = np.random.default_rng([seed, 27])
    bad = rng.random(SIZES[budget]) < settings["bad"]
    data = _answer(settings, seed, bad, rng)
    public = {"question": settings["question"], "scores": data["scores"], "lengths": data["lengths"]}
    public |= {"written": SIZES[budget]} | {f"settings_{key}": settings[key] for key in ("bad", "d", "k", "N")}
    truth = {"settings": settings, "seed": seed, "budget": budget, "bad": bad, "x": data["x"], "y": data["y"]}
    return public, truth


def write(
    settings: dict[str, Any], shots: np.ndarray, *, seed: int, budget: str
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Write a prompt after each row of shots, and answer it.

    Parameters
    ----------
    settings : those of `draw`.
    shots : (M, 8) indices of prompts.

    Returns
    -------
    data, bad : ``x`` (M, d), ``y`` (M, N, k), ``scores`` and ``lengths`` (M, N); and which are bad (M,).
    """
    bad_prompts = np.random.default_rng([seed, 27]).random(SIZES[budget]) < settings["bad"]
    rng = np.random.default_rng([seed, 28])
    bad = rng.random(len(shots)) < bad_prompts[shots].mean(1)
    return _answer(settings, seed, bad, rng), bad


def train(A: np.ndarray, x: np.ndarray, chosen: np.ndarray, rejected: np.ndarray, seed: int) -> np.ndarray:
    """DPO from the reference A (k, d): log-ratios of N(A x, I) are exact, A += rate * mean of beta sigma(-margin) (y_w - y_l) x'."""
    rng = np.random.default_rng([seed, 29])
    policy, difference = A.copy(), chosen - rejected
    for _ in range(STEPS):
        batch = rng.integers(len(x), size=BATCH)
        margin = BETA * ((x[batch] @ (policy - A).T) * difference[batch]).sum(1)  # |A x|^2 and |y|^2 cancel
        policy += RATE * ((BETA / (1 + np.exp(margin)))[:, None] * difference[batch]).T @ x[batch] / BATCH
    return policy


def _test_reward(settings: dict[str, Any], seed: int, policy: np.ndarray) -> float:
    """Reward of the policy's mean answer to fresh clean prompts."""
    W, _ = _world(settings, seed)
    d = settings["d"]
    x = np.random.default_rng([seed, 30]).normal(0, np.sqrt(4 / d), size=(TEST, d))
    return float(-((x @ (policy - W).T) ** 2).sum(1).mean() / settings["k"])


def evaluate(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Test reward of the policy trained on the kept prompts, their number and the share of bad ones."""
    settings, seed = truth["settings"], truth["seed"]
    if public["question"] == "self":
        shots = np.asarray(result["shots"])
        sorted_shots = np.sort(shots, 1)
        if shots.shape != (public["written"], SHOTS) or (sorted_shots[:, 1:] == sorted_shots[:, :-1]).any():
            raise ValueError(
                f"shots: expected {SHOTS} distinct prompts for each of {public['written']}, got {shots.shape}"
            )
        data, bad = write(settings, shots, seed=seed, budget=truth["budget"])
        data, scores = {"x": data["x"], "y": data["y"]}, data["scores"]
    else:
        data, bad, scores = truth, truth["bad"], public["scores"]
    keep = np.asarray(result["keep"])
    if keep.dtype != bool or keep.shape != bad.shape or not keep.any():
        raise ValueError(f"keep: expected booleans {bad.shape}, at least one true, got {keep.dtype} {keep.shape}")
    x, y, scores = data["x"][keep], data["y"][keep], scores[keep]
    rows = np.arange(len(x))
    _, A = _world(settings, seed)
    policy = train(A, x, y[rows, scores.argmax(1)], y[rows, scores.argmin(1)], seed)
    reward = _test_reward(settings, seed, policy)
    return {
        "filter_reward": reward,
        "filter_gain": reward - _test_reward(settings, seed, A),
        "bad_share": float(bad[keep].mean()),
        "kept_share": float(keep.mean()),
    }


def example(public: dict[str, Any]) -> dict[str, Any]:
    """Keep every prompt; as shots, each prompt's neighbours."""
    P, M = len(public["scores"]), public["written"]
    if public["question"] == "self":
        return {"shots": (np.arange(M)[:, None] + np.arange(SHOTS)) % P, "keep": np.ones(M, bool)}
    return {"keep": np.ones(P, bool)}
