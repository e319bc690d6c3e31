"""Pairs drawn once from lists of responses, and what is refused."""

import gzip
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare

datasets = pytest.importorskip("datasets")

from icml25.hps import GammaSchedule, to_preference_pairs  # noqa: E402

DATA = Path(os.environ.get("ICML25_DATA", Path(__file__).parents[3] / "shared" / "data"))
ROWS = {
    "prompt": ["p0", "p1", "p2"],
    "responses": [["a", "b", "c", "d"], ["e", "f"], ["g", "h", "i"]],
    "scores": [[3.0, 2.0, -1.0, 0.5], [0.0, 1.0], [2.0, 2.0, 1.0]],
}
pytestmark = pytest.mark.filterwarnings("ignore:.*rows skipped:UserWarning")


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def lists(**changes):
    return datasets.Dataset.from_dict(ROWS | changes)


def test_pairs_of_a_small_table():
    pairs = to_preference_pairs(lists(), gamma=50.0, resamples=2)
    assert pairs.column_names == ["prompt", "chosen", "rejected", "num_negatives", "chosen_score", "rejected_score"]
    first = {
        "prompt": ["p0", "p1", "p2"],
        "chosen": ["a", "f", "g"],  # the first of two best
        "rejected": ["b", "e", "i"],
        "num_negatives": [3, 1, 1],
        "chosen_score": [3.0, 1.0, 2.0],
        "rejected_score": [2.0, 0.0, 1.0],
    }
    assert pairs.to_dict() == {name: values * 2 for name, values in first.items()}
    assert to_preference_pairs(lists(), gamma=-50.0, resamples=1)["rejected"][:] == ["c", "e", "i"]


def test_draws_follow_the_weights_and_the_seed():
    many = datasets.Dataset.from_dict({name: values[:1] * 20_000 for name, values in ROWS.items()})
    pairs = to_preference_pairs(many, gamma=0.7, resamples=1, seed=5)
    weights = np.exp(0.7 * np.array([2.0, -1.0, 0.5]))
    counts = np.unique(pairs["rejected"][:], return_counts=True)[1]
    assert chisquare(counts, 20_000 * weights / weights.sum()).pvalue > 1e-3
    assert to_preference_pairs(many, gamma=0.7, resamples=1, seed=5)["rejected"][:] == pairs["rejected"][:]
    assert to_preference_pairs(many, gamma=0.7, resamples=1, seed=6)["rejected"][:] != pairs["rejected"][:]
    twice = to_preference_pairs(many, gamma=0.7, resamples=2, seed=5)["rejected"][:]
    assert twice[:20_000] == pairs["rejected"][:] and twice[20_000:] != pairs["rejected"][:]


def test_schedule_goes_by_the_place_in_the_result():
    many = datasets.Dataset.from_dict({name: values[:1] * 5_000 for name, values in ROWS.items()})
    scores = np.array(
        to_preference_pairs(many, schedule=GammaSchedule("stages", -9, 9), resamples=2)["rejected_score"][:]
    )
    means = scores.reshape(5, -1).mean(1)
    weights = np.exp(np.outer([-9, -5.4, -1.8, 1.8, 5.4], [2.0, -1.0, 0.5]))
    np.testing.assert_allclose(means, (weights / weights.sum(1, keepdims=True)) @ [2.0, -1.0, 0.5], atol=0.08)
    default = np.array(to_preference_pairs(many)["rejected_score"][:]).reshape(10, -1).mean(1)
    assert default[0] < -0.9 and default[-1] > 1.9


def test_standardised_scores():
    far = lists(scores=[[300.0, 200.0, -100.0, 50.0], [0.0, 1.0], [2.0, 2.0, 1.0]])
    many = datasets.Dataset.from_dict({name: values[:1] * 2_000 for name, values in far.to_dict().items()})
    assert set(to_preference_pairs(many, gamma=0.5)["rejected"][:]) == {"b"}
    assert set(to_preference_pairs(many, gamma=0.5, normalize="std")["rejected"][:]) == {"b", "c", "d"}


def test_chat_prompts_get_chat_answers():
    chats = lists(prompt=[[{"role": "user", "content": p}] for p in ("p0", "p1", "p2")])
    row = to_preference_pairs(chats, gamma=50.0)[0]
    assert row["prompt"] == [{"role": "user", "content": "p0"}]
    assert row["chosen"] == [{"role": "assistant", "content": "a"}]
    assert row["rejected"] == [{"role": "assistant", "content": "b"}]


def test_integers_are_scores():
    whole = lists(scores=[[3, 2, -1, 0], [0, 1], [2, 2, 1]])
    assert to_preference_pairs(whole, gamma=50.0, resamples=1)["rejected"][:] == ["b", "e", "i"]


def test_rows_without_a_preference_are_skipped_and_counted():
    rows = lists(responses=[["a"], ["b", "c"], ["d", "e", "f"]], scores=[[1.0], [1.0, 1.0], [0.0, 1.0, 0.0]])
    with pytest.warns(UserWarning, match="2 of 3 rows skipped"):
        pairs = to_preference_pairs(rows, resamples=1)
    assert pairs["prompt"][:] == ["p2"] and pairs["num_negatives"][:] == [2]
    with pytest.raises(ValueError, match="none of 3 rows has two or more responses with different scores"):
        to_preference_pairs(lists(scores=[[1.0] * 4, [0.0] * 2, [2.0] * 3]))
    with pytest.raises(ValueError, match="none of 0 rows"):
        to_preference_pairs(lists().select([]))


def test_empty_responses_are_warned_of():
    with pytest.warns(UserWarning, match="1 responses are empty"):
        to_preference_pairs(lists(responses=[["a", "", "c", "d"], ["e", "f"], ["g", "h", "i"]]), gamma=1.0)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"scores": [[3.0, 2.0, -1.0, 0.5], [0.0], [1.0, 2.0, 3.0]]}, ValueError, "row 1: 2 responses but 1 scores"),
        (
            {"scores": [[3.0, math.nan, 0, 0.5], [0.0, 1.0], [0, 1.0, 0]]},
            ValueError,
            "row 0, response 1: scores has nan",
        ),
        (
            {"scores": [[3.0, 1, 0, 0.5], [0.0, -math.inf], [0, 1.0, 0]]},
            ValueError,
            "row 1, response 1: scores has -inf",
        ),
        ({"scores": [[3.0, 1, 0, 0.5], [0.0, None], [0, 1.0, 0]]}, ValueError, "row 1, response 1: scores has nan"),
        ({"scores": [[3.0, 1, 0, 0.5], None, [0, 1.0, 0]]}, ValueError, "row 1: scores is missing"),
        (
            {"responses": [["a", "b", "c", "d"], ["e", None], ["g", "h", "i"]]},
            ValueError,
            "row 1, response 1: responses",
        ),
        ({"prompt": ["p", "", "q"]}, ValueError, "row 1: prompt is empty"),
        ({"prompt": ["p", None, "q"]}, ValueError, "row 1: prompt is empty"),
        (
            {"scores": [["3", "1", "0", "1"], ["0", "1"], ["0", "1", "0"]]},
            TypeError,
            "scores are list<.*string>; expected lists of numbers",
        ),
        ({"scores": [[True, False, False, True], [False, True], [True] * 3]}, TypeError, "scores are list<.*bool>"),
        ({"scores": [1.0, 2.0, 3.0]}, TypeError, "scores are double; expected lists"),
        (
            {"responses": [[1, 2, 3, 4], [5, 6], [7, 8, 9]]},
            TypeError,
            "responses are list<.*int64>; expected lists of texts",
        ),
        ({"prompt": [1, 2, 3]}, TypeError, "prompt is int64; expected text or a list of chat messages"),
    ],
    ids=str,
)
def test_bad_rows(changes, error, match):
    with pytest.raises(error, match=match):
        to_preference_pairs(lists(**changes))


def test_bad_arguments():
    with pytest.raises(
        ValueError,
        match=r"dataset has no responses; expected \['prompt', 'responses', 'scores'\], found \['prompt', 'scores'\]",
    ):
        to_preference_pairs(lists().remove_columns("responses"))
    with pytest.raises(ValueError, match="gamma and schedule are both given"):
        to_preference_pairs(lists(), gamma=1.0, schedule=GammaSchedule())
    with pytest.raises(ValueError, match="resamples is 0"):
        to_preference_pairs(lists(), resamples=0)
    with pytest.raises(ValueError, match="start and end are nan"):
        to_preference_pairs(lists(), gamma=math.nan)


def read(name):
    file = DATA / name
    if not file.is_file():
        pytest.skip(f"{file} is not there")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.realdata
def test_lists_with_many_ties():
    rows = read("gsm8k/model_solutions.jsonl.gz")
    models = [name for name in rows[0] if name not in ("question", "ground_truth")]
    answers = [[row[model] for model in models] for row in rows]
    table = datasets.Dataset.from_dict(
        {
            "prompt": [row["question"] for row in rows],
            "responses": [[answer["solution"] for answer in row] for row in answers],
            "scores": [[float(answer["is_correct"]) for answer in row] for row in answers],
        }
    )
    right = np.array([[answer["is_correct"] for answer in row] for row in answers]).sum(1)
    tied = int(np.isin(right, (0, 4)).sum())
    with pytest.warns(UserWarning, match=f"{tied} of 1319 rows skipped"):
        pairs = to_preference_pairs(table, gamma=3.0, resamples=1)
    assert len(pairs) == 1319 - tied and 0.4 < tied / 1319 < 0.5
    assert set(pairs["chosen_score"][:]) == {1.0} and set(pairs["rejected_score"][:]) == {0.0}
    assert pairs["num_negatives"][:] == (4 - right[(right > 0) & (right < 4)]).tolist()


@pytest.mark.realdata
def test_real_pairs_stay_as_they_are():
    rows = read("preferences/hh_harmless_filtered.jsonl.gz")
    table = datasets.Dataset.from_dict(
        {
            "prompt": [row["prompt"] for row in rows],
            "responses": [[row["rejected"], row["chosen"]] for row in rows],
            "scores": [[0, 1]] * len(rows),
        }
    )
    for gamma in (-5.0, 5.0):
        pairs = to_preference_pairs(table, gamma=gamma, resamples=1)
        for column in ("prompt", "chosen", "rejected"):
            assert pairs[column][:] == [row[column] for row in rows]
        assert set(pairs["num_negatives"][:]) == {1}
