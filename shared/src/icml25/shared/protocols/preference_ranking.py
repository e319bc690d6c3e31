"""Fitting a reward to ranked answers: how far is the best above the others, is it found, and what does a step cost?

``world`` says what is asked. "gaussian": answers are vectors x ~ N(0, I), their score is a linear function whose weights have norm 2,
and a small network is fitted to the scores of training prompts; what it says of other prompts is judged by their true scores. A
margin is partly scale, so it is also given in standard deviations of the rewards. "gradients": for lists of n answers with random
rewards and scores, the gradient of a loss with respect to the rewards is returned, and the growth of its l1 norm with n
is found. "cost": random texts, on which a solver times its steps and a peer's in turns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["draw", "evaluate", "example"]

SHRUNK = {"prompts": 64, "test": 100, "worlds": 1, "rows": 20, "repeats": 2}
COSTS = ("step_seconds", "pl_step_seconds", "trainer_seconds", "dpo_trainer_seconds")


def draw(settings: dict[str, Any], *, seed: int, budget: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw answers and scores.

    Parameters
    ----------
    settings : ``world`` and, for "gaussian", ``prompts``, ``answers``, ``dimensions``, ``test`` (number of test prompts) and ``worlds``
        (replicates); for "gradients", ``sizes`` (numbers of answers, as "16+32") and ``rows``; for "cost", ``prompts``, ``answers``,
        ``tokens`` (of a prompt and an answer, each), ``vocabulary`` and ``repeats``.
    seed : of all draws.
    budget : "smoke" makes prompts, test, worlds, rows and repeats small.

    Returns
    -------
    public : ``world`` and, for "gaussian", ``features`` (W, m, n, d) float32, ``scores`` (W, m, n) float32 and ``test_features``
        (W, T, n, d) float32; for "gradients", ``rewards_<n>`` and ``scores_<n>`` (rows, n); for "cost", ``prompt_ids`` (m, L),
        ``answer_ids`` (m, n, L), ``answer_scores`` (m, n), ``vocabulary`` and ``repeats``.
    truth : for "gaussian", ``test_scores`` (W, T, n).

    Raises
    ------
    ValueError: an unknown world.
    """
    world = settings["world"]
    if world not in ("gaussian", "gradients", "cost"):
        raise ValueError(f"world is {world!r}; expected 'gaussian', 'gradients' or 'cost'")
    if budget == "smoke":
        settings = settings | {name: min(settings[name], small) for name, small in SHRUNK.items() if name in settings}
    rng = np.random.default_rng([seed, 8])
    if world == "gaussian":
        d, shape = settings["dimensions"], (settings["worlds"], -1, settings["answers"])
        weights = rng.normal(size=(settings["worlds"], d))
        weights *= 2 / np.linalg.norm(weights, axis=1, keepdims=True)
        count = settings["worlds"] * settings["answers"]
        train, test = (rng.normal(size=(count * settings[name], d)) for name in ("prompts", "test"))
        train, test = (x.reshape(*shape, d) for x in (train, test))
        scores, test_scores = (np.einsum("wmnd,wd->wmn", x, weights) for x in (train, test))
        arrays = {"features": train, "scores": scores, "test_features": test}
        return {"world": world, **{k: v.astype(np.float32) for k, v in arrays.items()}}, {"test_scores": test_scores}
    if world == "gradients":
        sizes = [int(n) for n in settings["sizes"].split("+")]
        lists = {f"{kind}_{n}": rng.normal(size=(settings["rows"], n)) for n in sizes for kind in ("rewards", "scores")}
        return {"world": world, "sizes": np.array(sizes), **lists}, {}
    m, n, length, vocabulary = (settings[name] for name in ("prompts", "answers", "tokens", "vocabulary"))
    public = {
        "prompt_ids": rng.integers(3, vocabulary, (m, length)),
        "answer_ids": rng.integers(3, vocabulary, (m, n, length)),
        "answer_scores": rng.normal(size=(m, n)),
    }
    return {"world": world, "vocabulary": vocabulary, "repeats": settings["repeats"], **public}, {}


def evaluate(public: dict[str, Any], truth: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """Judge rewards, gradients or times.

    Parameters
    ----------
    public, truth : of ``draw``.
    result : for "gaussian", ``rewards`` (W, T, n) of the test answers; for "gradients", ``gradient_<n>`` (rows, n) for each
        size; for "cost", some of ``step_seconds`` and ``pl_step_seconds``, ``trainer_seconds`` and ``dpo_trainer_seconds``
        (repeats,), and ``activations`` and ``pl_activations`` (bytes). Other numbers are passed on.

    Returns
    -------
    "gaussian": ``ranking_margin`` (mean over prompts of the reward of the best answer less the highest of the others), the same over
    the standard deviation of all rewards, ``ranking_margin_normalized``, and ``ranking_accuracy`` (share of prompts whose best
    answer has the highest reward), means over worlds. "gradients": ``gradient_slope`` (of the log of the mean l1 norm on log n) and
    ``gradient_growth`` (the largest mean norm over the smallest, less 1). "cost": ``step_over_pl`` and ``step_over_dpo`` (ratios of
    medians) and ``activations_over_pl``.

    Raises
    ------
    ValueError: naming the field that is missing, of another shape, or not finite.
    """
    if public["world"] == "gaussian":
        return _ranking(_field(result, "rewards", truth["test_scores"].shape), truth["test_scores"])
    if public["world"] == "gradients":
        sizes = public["sizes"]
        norms = [np.abs(_field(result, f"gradient_{n}", public[f"scores_{n}"].shape)).sum(1).mean() for n in sizes]
        slope = np.polyfit(np.log(sizes), np.log(norms), 1)[0]
        return {"gradient_slope": float(slope), "gradient_growth": float(max(norms) / min(norms) - 1)}
    columns = {name: float(value) for name, value in result.items() if np.ndim(value) == 0}
    medians = {name: np.median(_field(result, name, (public["repeats"],))) for name in COSTS if name in result}
    for column, mine, peer in (("step_over_pl", *COSTS[:2]), ("step_over_dpo", *COSTS[2:])):
        if mine in medians:
            columns[column] = float(medians[mine] / medians[peer])
    if "activations" in result:
        columns["activations_over_pl"] = float(result["activations"] / result["pl_activations"])
    return columns


def _ranking(rewards: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    best = scores.argmax(-1)[..., None]
    chosen = np.take_along_axis(rewards, best, -1)[..., 0]
    others = rewards.copy()
    np.put_along_axis(others, best, -np.inf, -1)
    margin = (chosen - others.max(-1)).mean(-1)
    spread = rewards.std((-2, -1))
    return {
        "ranking_margin": float(margin.mean()),
        "ranking_margin_normalized": float((margin / np.where(spread > 0, spread, 1)).mean()),
        "ranking_accuracy": float((chosen > others.max(-1)).mean()),
    }


def _field(result: dict[str, Any], name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name not in result:
        raise ValueError(f"{name} is missing")
    values = np.asarray(result[name], dtype=np.float64)
    if values.shape != shape or not np.isfinite(values).all():
        raise ValueError(f"{name} has shape {values.shape}; expected finite numbers {shape}")
    return values


def example(public: dict[str, Any]) -> dict[str, Any]:
    """A result of the right shape: nothing is told apart."""
    if public["world"] == "gaussian":
        return {"rewards": np.zeros(public["test_features"].shape[:3])}
    if public["world"] == "gradients":
        return {f"gradient_{n}": np.ones_like(public[f"scores_{n}"]) for n in public["sizes"]}
    return {name: np.ones(public["repeats"]) for name in COSTS} | {"activations": 1, "pl_activations": 1}
