"""The reward function for trainers."""

import numpy as np
import pytest

from icml25.infalign import Calibrator, CTRLReward, exponential, identity

RNG = np.random.default_rng(0)
CHAT = [{"role": "user", "content": "hello"}]


def length(prompts, completions, **columns):
    return [float(len(completion)) for completion in completions]


def calibrator():
    return Calibrator.fit(["a", "b"], RNG.integers(0, 9, (2, 20)).astype(float))


@pytest.mark.parametrize("transform", [identity(), exponential(10), exponential(-5)], ids=lambda t: t.name)
def test_transform_of_calibrated(transform):
    table = calibrator()
    reward = CTRLReward(length, table, transform)
    prompts, completions = ["a", "b"] * 9, ["x" * (i // 2) for i in range(18)]
    found = reward(prompts=prompts, completions=completions)
    C = table.calibrate(prompts, [len(c) for c in completions])
    assert found == transform(C).tolist() and all(type(x) is float for x in found)
    assert (np.diff(found[::2]) >= 0).all() and (np.diff(found[1::2]) >= 0).all() and found[0] < found[-2]
    assert reward.__name__ == "ctrl_length"


def test_columns_are_passed_on_and_none_stays():
    seen = {}

    def partial(prompts, completions, answer, **columns):
        seen.update(columns, answer=answer)
        return [1.0 if a else None for a in answer]

    reward = CTRLReward(partial, calibrator(), identity())
    found = reward(["a", "unknown"], ["x", "y"], answer=[True, False], trainer_state="state")
    assert found[0] is not None and found[1] is None  # and its prompt needs no rollouts
    assert seen == {"answer": [True, False], "trainer_state": "state"}
    assert reward(["a"], ["x"], answer=[False]) == [None]


def test_chat():
    table = Calibrator.fit([CHAT], [np.arange(10.0)])
    reward = CTRLReward(lambda prompts, completions: [4.5], table, identity())
    assert reward([CHAT], [[{"role": "assistant", "content": "hi"}]]) == [0.0]
    assert reward.__name__ == "ctrl_<lambda>"


def test_bad_rewards():
    def short(prompts, completions):
        return [1.0]

    with pytest.raises(ValueError, match="short returned 1 rewards for 2 completions"):
        CTRLReward(short, calibrator(), identity())(["a", "b"], ["x", "y"])
    with pytest.raises(ValueError, match="is nan"):
        CTRLReward(lambda prompts, completions: [np.nan], calibrator(), identity())(["a"], ["x"])
    with pytest.raises(KeyError, match="'c'"):
        CTRLReward(length, calibrator(), identity())(["c"], ["x"])
