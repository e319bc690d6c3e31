"""A judge's marks."""

import numpy as np
import pytest

from icml25.rip.hf import JudgeReward


def test_marks_are_averaged() -> None:
    asked: list[list[str]] = []
    answers = iter(
        [["Score: 4", "fine, score: 8.5"], ["at first Score: 1, then Score: 6", "no idea"], ["Score: 11", "?"]]
    )

    def generate(texts: list[str]) -> list[str]:
        asked.append(texts)
        return next(answers)

    assert JudgeReward(generate, n_evals=3)(["p"], [["a {x}", "b"]]) == [[5.0, 8.5]]
    assert len(asked) == 3 and asked[0][0].endswith("Response:\na {x}") and "Prompt:\np\n" in asked[0][1]


def test_no_mark_is_not_finite() -> None:
    [[reward]] = JudgeReward(lambda texts: ["none"] * len(texts), 2)(["p"], [["a"]])
    assert np.isnan(reward)
    with pytest.raises(ValueError, match="n_evals"):
        JudgeReward(lambda texts: texts, 0)
