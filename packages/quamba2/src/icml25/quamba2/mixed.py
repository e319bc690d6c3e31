"""W4AX: which blocks of a W4A8 model should run with 16-bit activations (Sec. 4.2, App. D)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["search_mixed"]


def search_mixed(
    model: Any,
    score_fn: Callable[[Any], float],
    n_a16: int,
    population: int = 40,
    generations: int = 5,
    *,
    seed: int = 0,
    callback: Callable[[int, tuple[bool, ...], float], None] | None = None,
) -> tuple[bool, ...]:
    """Evolutionary search over the blocks that get 16-bit activations, a fixed number of them.

    Each generation keeps the better half, and adds mutations (an A16 and an A8 block swap) and crossovers (the union of
    two parents, trimmed at random) in equal parts. Scores are remembered, so no mask is scored twice; weights are
    never quantized again.

    Parameters
    ----------
    model : a W4A8 ``QuambaForCausalLM``; it is left with the mask found (see ``set_a16_blocks``).
    score_fn : takes the model and returns a finite number, larger is better (a task's score, or minus the perplexity on
        validation text).
    n_a16 : blocks with 16-bit activations, 0 to all (paper: 14 of 56).
    population : masks per generation (40), at least 4.
    generations : rounds of selection (5).
    seed : of the search.
    callback : called after each generation with its number, the best mask and its score.

    Returns
    -------
    Mask with one bool per block, True for 16 bits.

    Raises
    ------
    TypeError: no quantized model. ValueError: n_a16, population or generations out of range, a score that is not finite, or a model of another mode.
    """
    if not hasattr(model, "set_a16_blocks"):
        raise TypeError(f"model must be a QuambaForCausalLM, got {type(model).__name__}")
    blocks = len(model.layers)
    for name, value in (("n_a16", n_a16), ("population", population), ("generations", generations)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise ValueError(f"{name} must be an integer, got {value!r}")
    if not 0 <= n_a16 <= blocks:
        raise ValueError(f"n_a16 must be in 0..{blocks} (blocks of the model), got {n_a16}")
    if population < 4 or generations < 0:
        raise ValueError(
            f"population must be at least 4 and generations at least 0, got {population} and {generations}"
        )
    rng = np.random.default_rng(seed)
    scores: dict[tuple[bool, ...], float] = {}

    def score(mask: tuple[bool, ...]) -> float:
        if mask not in scores:
            model.set_a16_blocks(mask)
            scores[mask] = float(score_fn(model))
            if not np.isfinite(scores[mask]):
                raise ValueError(f"score_fn returned {scores[mask]} for mask {mask}; expected a finite number")
        return scores[mask]

    def masked(chosen: np.ndarray) -> tuple[bool, ...]:
        mask = np.zeros(blocks, dtype=bool)
        mask[chosen] = True
        return tuple(mask.tolist())

    def mutate(mask: tuple[bool, ...]) -> tuple[bool, ...]:
        child = np.array(mask)
        if 0 < n_a16 < blocks:
            child[rng.choice(np.flatnonzero(child))], child[rng.choice(np.flatnonzero(~child))] = False, True
        return tuple(child.tolist())

    def cross(one: tuple[bool, ...], other: tuple[bool, ...]) -> tuple[bool, ...]:
        union = np.flatnonzero(np.array(one) | np.array(other))
        return masked(rng.choice(union, n_a16, replace=False))

    alive = [masked(rng.choice(blocks, n_a16, replace=False)) for _ in range(population)]
    for generation in range(generations + 1):
        alive = sorted(dict.fromkeys(alive), key=score, reverse=True)[: population // 2]
        if callback:
            callback(generation, alive[0], scores[alive[0]])
        if generation < generations:
            parents = [alive[i] for i in rng.integers(len(alive), size=population // 4)]
            pairs = rng.integers(len(alive), size=(population - population // 2 - population // 4, 2))
            alive = [*alive, *map(mutate, parents), *(cross(alive[i], alive[j]) for i, j in pairs)]
    model.set_a16_blocks(alive[0])
    return alive[0]
