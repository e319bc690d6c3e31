"""Real answers: exact ties (GSM8K, right or wrong) and human preferences (HH harmless), with rewards known or simple."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from icml25.infalign import (
    BestOf,
    Calibrator,
    CTRLReward,
    Standard,
    WorstOf,
    best_of_n,
    calibrated_reward,
    inference_win_rate,
    kl_rl,
    tilt_weights,
    win_rate,
    worst_of_n,
)

pytestmark = pytest.mark.realdata
MODELS = ["6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"]


def rows(name):
    folder = os.environ.get("ICML25_DATA")
    if not folder or not (file := Path(folder) / name).is_file():
        pytest.skip(f"ICML25_DATA has no {name}")
    with gzip.open(file, "rt") as stream:
        return [json.loads(line) for line in stream]


@pytest.mark.filterwarnings("ignore::icml25.infalign.FewRolloutsWarning")
def test_gsm8k_ties():
    """1319 questions, four answers each, right or wrong: ranks of tied rewards, and best-of-N by the mean of a hypergeometric."""
    data = rows("gsm8k/model_solutions.jsonl.gz")
    reward = np.array([[float(row[m]["is_correct"]) for m in MODELS] for row in data])
    questions = [row["question"] for row in data]
    table = Calibrator.fit(questions, reward)
    C = table.calibrate(np.repeat(questions, 4).tolist(), reward.ravel()).reshape(-1, 4)
    np.testing.assert_allclose(C.mean(1), 0.5, atol=1e-15)
    right = reward.sum(1)
    np.testing.assert_allclose(
        C[reward == 1], ((4 - right)[:, None] + right[:, None] / 2).repeat(4, 1)[reward == 1] / 4
    )
    np.testing.assert_allclose(C, calibrated_reward(np.full(reward.shape, 0.25), reward))
    judge = np.full_like(reward, 0.5)  # beaten by right answers only
    for N in (1, 2, 3, 4):
        wrong_only = np.array(
            [[1, 1 - k / 4, (4 - k) * (3 - k) / 12, (4 - k) * (3 - k) * (2 - k) / 24, 1.0 * (k == 0)] for k in range(5)]
        )
        pass_at_N = 1 - wrong_only[right.astype(int), N].mean()
        assert inference_win_rate(reward, judge, BestOf(N)).mean == pytest.approx(pass_at_N, abs=1e-12)
    assert inference_win_rate(reward, judge, Standard()).mean == pytest.approx(0.3793, abs=2e-3)
    for transform, procedure in ((best_of_n(4), BestOf(4)), (worst_of_n(4), WorstOf(4))):
        weights = tilt_weights(C, transform, 0.2)
        base = np.full_like(weights, 0.25)
        np.testing.assert_allclose(weights, kl_rl(base, transform(C), 0.2), atol=1e-14)
        W = win_rate(procedure.apply(weights, reward), procedure.apply(base, reward), reward)
        mixed = (right > 0) & (right < 4)
        assert (W[mixed] > 0.5).all() and W[~mixed] == pytest.approx(0.5, abs=1e-12)


def test_preferences_as_rollouts():
    """The reward of a chosen answer is calibrated against pooled answers where a prompt has two only: not an error, but asked for."""
    data = rows("preferences/hh_harmless_filtered.jsonl.gz")
    answers = [row[kind] for row in data for kind in ("chosen", "rejected")]

    def brevity(prompts, completions):
        return [-float(len(completion)) for completion in completions]

    table = Calibrator.fit(["all"], [brevity(None, answers)], on_missing="global")
    reward = CTRLReward(brevity, table, worst_of_n(4))
    prompts = [row["prompt"] for row in data for _ in range(2)]
    found = np.array(reward(prompts, answers))
    order = np.argsort([len(answer) for answer in answers], kind="stable")
    assert (np.diff(found[order]) <= 0).all() and np.ptp(found) == pytest.approx(1, abs=0.02)
    assert table.calibrate(prompts, brevity(None, answers)).mean() == pytest.approx(0.5, abs=1e-12)
