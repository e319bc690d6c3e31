"""Rewards by a language model as judge."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

__all__ = ["JudgeReward"]

QUESTION = """Rate the response to the prompt by how helpful, correct and complete it is. End with "Score: " and a number from 0 to 10.

Prompt:
{prompt}

Response:
{response}"""


class JudgeReward:
    """Mean of a judge's marks from 0 to 10, as a reward function of `self_rip`.

    Parameters
    ----------
    generate : texts -> the judge's answers, sampled anew at each call.
    n_evals : marks that are averaged.
    """

    def __init__(self, generate: Callable[[list[str]], list[str]], n_evals: int = 10) -> None:
        if n_evals < 1:
            raise ValueError(f"n_evals must be at least 1, got {n_evals}")
        self.generate = generate
        self.n_evals = n_evals

    def __call__(self, prompts: list[str], responses: list[list[str]]) -> list[list[float]]:
        """Mark every response; NaN where no answer of the judge holds a mark from 0 to 10."""
        pairs = [(prompt, text) for prompt, row in zip(prompts, responses, strict=True) for text in row]
        questions = [QUESTION.format(prompt=prompt, response=text) for prompt, text in pairs]
        marks: list[list[float]] = [[] for _ in questions]
        for _ in range(self.n_evals):
            for found, answer in zip(marks, self.generate(questions), strict=True):
                if (mark := _mark(answer)) is not None:
                    found.append(mark)
        means = iter(sum(found) / len(found) if found else float("nan") for found in marks)
        return [[next(means) for _ in row] for row in responses]


def _mark(answer: Any) -> float | None:
    numbers = re.findall(r"score:\s*(\d+(?:\.\d+)?)", answer, flags=re.IGNORECASE)
    return float(numbers[-1]) if numbers and float(numbers[-1]) <= 10 else None
