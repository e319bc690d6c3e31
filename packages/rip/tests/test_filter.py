"""The filter: brute force, closed forms, invariances, and input that cannot be."""

import json
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from icml25 import rip as package
from icml25.rip import RIPFilter, StreamingRIP, pair
from icml25.rip.filter import metrics_of_arrays

RULES = ("rejected_reward", "rejected_length", "gap")
reward = st.integers(-3, 3).map(float)
ragged = st.lists(st.lists(st.tuples(reward, st.integers(0, 9)), max_size=6), min_size=1, max_size=20)


def table(n: int = 60, seed: int = 0, n_responses: int = 5) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "prompt": [f"p{i}" for i in range(n)],
            "responses": [["x" * int(k) for k in rng.integers(0, 40, n_responses)] for _ in range(n)],
            "rewards": [rng.normal(size=n_responses).tolist() for _ in range(n)],
            "other": range(n),
        }
    )


def brute(rewards: list[float], lengths: list[float]) -> tuple[float, float, float, int, int] | None:
    if len(rewards) < 2 or max(rewards) == min(rewards):
        return None
    w, loser = rewards.index(max(rewards)), rewards.index(min(rewards))
    return rewards[loser], lengths[loser], rewards[w] - rewards[loser], w, loser


@given(ragged)
def test_metrics_by_brute_force(rows: list[list[tuple[float, int]]]) -> None:
    records = [
        {"prompt": str(i), "responses": ["x" * k for _, k in row], "rewards": [r for r, _ in row]}
        for i, row in enumerate(rows)
    ]
    kind = pa.schema(
        {"prompt": pa.string(), "responses": pa.list_(pa.string()), "rewards": pa.list_(pa.float64())}.items()
    )
    for data in (records, pa.Table.from_pylist(records, kind), pa.Table.from_pylist([{}, *records], kind)[1:]):
        m = RIPFilter().metrics(data)
        for x, row in enumerate(rows):
            expected = brute([r for r, _ in row], [float(k) for _, k in row])
            if expected is None:
                assert m.chosen_idx[x] == m.rejected_idx[x] == -1 and np.isnan(m.m_gap[x]) and m.reason[x] == "no_pair"
            else:
                got = (m.m_rejected_reward[x], m.m_rejected_length[x], m.m_gap[x], m.chosen_idx[x], m.rejected_idx[x])
                assert got == expected and m.reason[x] == ""


@given(ragged, st.integers(1, 7))
def test_streaming_equals_in_memory(rows: list[list[tuple[float, int]]], size: int) -> None:
    records = [
        {"prompt": str(i), "responses": ["x" * k for _, k in row], "rewards": [r for r, _ in row]}
        for i, row in enumerate(rows)
    ]
    streaming = StreamingRIP(0.5)
    for start in range(0, len(records), size):
        streaming.partial_fit(records[start : start + size])
    try:
        whole = RIPFilter(0.5).fit(records)
    except ValueError:
        with pytest.raises(ValueError, match="has a pair"):
            streaming.finalize()
        return
    streamed = streaming.finalize()
    assert streamed.thresholds_ == whole.thresholds_ and streamed.report_ == whole.report_


def test_hand_example() -> None:
    rip = RIPFilter(0.5).fit_arrays(
        np.array([[0.0, 1], [1, 3], [2, 2.5], [4, 4.25]]), np.array([[10, 0], [20, 0], [30, 0], [5, 0]])
    )
    assert rip.thresholds_ == {"rejected_reward": 1.5, "rejected_length": 15.0, "gap": 0.75}
    assert rip.report_["n_kept"] == 1 and rip.report_["n_in"] == 4
    assert rip.report_["dropped"] == {
        "not_finite": 0,
        "no_pair": 0,
        "rejected_reward": 2,
        "rejected_length": 2,
        "gap": 2,
    }
    assert {why: n for why, n in rip.report_["reasons"].items() if n} == {
        "rejected_length": 1,
        "rejected_reward & gap": 1,
        "rejected_reward & rejected_length & gap": 1,
    }
    assert rip.report_["overlap"]["rejected_reward & gap"] == 2


def test_thresholds_are_inclusive_and_absolute() -> None:
    df = pd.DataFrame({"prompt": ["a"], "responses": [["xx", "yyy"]], "rewards": [[1.0, 3.0]]})
    at = {"rejected_reward": 1.0, "rejected_length": 2.0, "gap": 2.0}
    assert RIPFilter(thresholds=at).fit(df).support(df).all()
    for rule, step in (("rejected_reward", 0.1), ("rejected_length", 0.1), ("gap", -0.1)):
        assert not RIPFilter(thresholds=at | {rule: at[rule] + step}).fit(df).support(df).any()


@pytest.mark.parametrize(("shared_cause", "share"), [(False, 0.125), (True, 0.5)])
def test_kept_share(shared_cause: bool, share: float) -> None:
    rng = np.random.default_rng(0)
    low = rng.random(100_000)
    length, gap = (low, 1 - low) if shared_cause else rng.random((2, 100_000))
    rewards = np.stack([low, low + gap + 1], 1)
    lengths = np.stack([length, np.zeros_like(length)], 1)
    kept = RIPFilter(0.5).fit_arrays(rewards, lengths).support_arrays(rewards, lengths).mean()
    assert kept == pytest.approx(share, abs=0.01)


def test_quantiles() -> None:
    df = table()
    assert RIPFilter(0).fit(df).support(df).all()
    assert RIPFilter(None).fit(df).thresholds_ == dict.fromkeys(RULES)
    assert RIPFilter(0.999).fit(df).support(df).sum() <= 1
    for rule in range(3):
        supports = []
        for q in (0.2, 0.5, 0.8):
            quantile = [0.3, 0.3, 0.3]
            quantile[rule] = q
            supports.append(RIPFilter(tuple(quantile)).fit(df).support(df))
        assert (supports[1] <= supports[0]).all() and (supports[2] <= supports[1]).all()
        assert supports[2].sum() < supports[0].sum()


def test_rules_intersect_and_are_not_sequential() -> None:
    df = table(400)
    joint = RIPFilter(0.5).fit(df).support(df)
    single = [RIPFilter(tuple(0.5 if i == j else None for j in range(3))).fit(df).support(df) for i in range(3)]
    assert (joint == np.logical_and.reduce(single)).all()
    for s in single:
        assert 0.45 < s.mean() < 0.55
    m = measured = RIPFilter().metrics(df)
    for name, sign in (("m_rejected_reward", 1), ("m_rejected_length", 1), ("m_gap", -1)):
        m = m[sign * m[name] >= np.median(sign * m[name])]
    assert list(m.index) != list(measured.index[joint])


def test_invariance() -> None:
    rng = np.random.default_rng(3)
    r, size = rng.normal(size=(200, 6)), rng.integers(0, 100, (200, 6))

    def keep(r: np.ndarray, size: np.ndarray) -> np.ndarray:
        return RIPFilter(0.4).fit_arrays(r, size).support_arrays(r, size)

    kept = keep(r, size)
    rows, columns = rng.permutation(200), rng.permutation(6)
    assert (keep(r[rows], size[rows]) == kept[rows]).all()
    assert (keep(r[:, columns], size[:, columns]) == kept).all()
    assert (keep(2 * r + 8, size) == kept).all()
    assert (keep(r / r.std(1, keepdims=True), size) != kept).any()


def test_transform_again() -> None:
    df = table()
    rip = RIPFilter(0.3).fit(df)
    once = rip.transform(df)
    assert 0 < len(once) < len(df)
    assert rip.transform(once).equals(once)
    assert len(RIPFilter(0.3).fit_transform(once)) < len(once)


def test_pairs() -> None:
    df = table()
    df.at[3, "rewards"] = [1.0] * 5
    pairs, metrics = RIPFilter().to_pairs(df), RIPFilter().metrics(df)
    assert len(pairs) == len(df) - 1
    good = metrics[metrics.chosen_idx >= 0]
    assert (pairs.chosen_reward - pairs.rejected_reward).to_numpy() == pytest.approx(good.m_gap.to_numpy())
    assert (good.chosen_idx != good.rejected_idx).all()
    assert pairs.rejected.str.len().tolist() == good.m_rejected_length.tolist()


def test_kinds_of_table_agree() -> None:
    df = table()
    kept = RIPFilter().fit(df).transform(df)
    records, arrow = df.to_dict("records"), pa.Table.from_pandas(df)
    assert RIPFilter().fit(records).transform(records) == kept.to_dict("records")
    assert RIPFilter().fit(arrow).transform(arrow).to_pylist() == kept.to_dict("records")
    assert RIPFilter().fit(arrow).transform(arrow[10:]).num_rows == sum(kept.index >= 10)
    accents = pa.table({"prompt": ["a"], "responses": [["é€", "x"]], "rewards": [[0.0, 1.0]]})
    assert RIPFilter().metrics(accents).m_rejected_length[0] == 2


def test_save_load_clone(tmp_path) -> None:
    df = table()
    rip = RIPFilter((0.5, 0.4, None)).fit(df)
    rip.save(tmp_path / "t.json")
    assert (RIPFilter.load(tmp_path / "t.json").support(df) == rip.support(df)).all()
    with pytest.raises(ValueError, match="measured in 'characters'"):
        RIPFilter.load(tmp_path / "t.json", length_fn=lambda text: 1)
    (tmp_path / "bad.json").write_text(json.dumps({"thresholds": {"x": 1}, "length": "characters"}))
    with pytest.raises(ValueError, match="unknown rules"):
        RIPFilter.load(tmp_path / "bad.json")
    assert clone(rip).get_params() == rip.get_params()
    assert clone(package.GapFilter(keep="large")).keep == "large"


def edited(column: str, value: object) -> list[dict]:
    records = table(4).to_dict("records")
    records[2] |= {column: value}
    return records


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        (edited("rewards", [1.0, 2.0]), ValueError, "row 2: 5 in column 'responses' but 2 in column 'rewards'"),
        (edited("rewards", [1.0, 2, 3, 4, np.nan]), ValueError, "row 2, column 'rewards'"),
        (edited("rewards", [1.0, 2, 3, 4, np.inf]), ValueError, "row 2, column 'rewards'"),
        (edited("responses", ["a", "b", "c", "d", None]), TypeError, "row 2, column 'responses'"),
        (edited("responses", ["a", "b", "c", "d", float("nan")]), TypeError, "row 2, column 'responses'"),
        (edited("responses", "['a', 'b']"), TypeError, "CSV"),
        (edited("rewards", "[1, 2]"), TypeError, "row 2, column 'rewards'"),
        (edited("rewards", ["1", "2", "3", "4", "5"]), TypeError, "row 2, column 'rewards'"),
        (edited("rewards", [1.0, 2.0, 3.0, 4.0, None]), TypeError, "row 2, column 'rewards'"),
        (table().drop(columns="rewards"), KeyError, "missing column.*expected.*found"),
        (table().iloc[:0], ValueError, "no rows"),
        ([{"prompt": "a", "responses": ["x"], "rewards": [1.0]}], ValueError, "none of the 1 rows has a pair"),
    ],
)
def test_bad_tables(bad, error, words) -> None:
    with pytest.raises(error, match=words):
        RIPFilter().fit(bad)


@pytest.mark.parametrize("quantile", [1.0, -0.1, (0.5, 0.5), (0.5, 0.5, 1.0)])
def test_bad_quantile(quantile) -> None:
    with pytest.raises(ValueError, match="quantile"):
        RIPFilter(quantile).fit(table())


def test_other_bad_input() -> None:
    with pytest.raises(NotFittedError):
        RIPFilter().transform(table())
    with pytest.raises(ValueError, match="unknown rules"):
        RIPFilter(thresholds={"length": 3}).fit(table())
    with pytest.raises((ValueError, TypeError)):  # jaxtyping is faster where it looks
        metrics_of_arrays(np.ones((2, 3)), np.ones((2, 4)))
    with pytest.raises(ValueError, match="row 1: a reward is not finite"):
        RIPFilter().fit_arrays(np.array([[1.0, 2], [np.nan, 1]]), np.ones((2, 2)))
    with pytest.raises(ValueError, match="on_nan"):
        RIPFilter(on_nan="keep").fit(table())
    with pytest.raises(ValueError, match="max_rows"):
        StreamingRIP(max_rows=0)
    with pytest.raises(TypeError, match="expected a DataFrame"):
        RIPFilter().fit([1, 2])
    with pytest.warns(UserWarning, match="1 rows repeat"):
        RIPFilter().fit(edited("prompt", "p0"))


def test_dropped_rows_are_counted() -> None:
    records = edited("rewards", [1.0, 2, 3, 4, np.nan])
    records[0] |= {"rewards": [1.0] * 5}
    records[1] |= {"responses": ["", "", "", "", ""]}
    rip = RIPFilter(None, on_nan="drop").fit(records)
    assert rip.support(records).tolist() == [False, True, False, True]
    assert {why: n for why, n in rip.report_["reasons"].items() if n} == {"not_finite": 1, "no_pair": 1}
    rip.fit(records)
    streamed = StreamingRIP(None, on_nan="drop").partial_fit(records).finalize()
    assert streamed.report_ == rip.report_


def test_pairing() -> None:
    rewards = np.array([[3.0, 1, 2, 0, 4], [1, 1, 1, 1, 1], [5, 5, 0, 5, 5]])
    for q, rejected in ((0, 3), (0.25, 1), (0.5, 2), (0.75, 0)):
        w, loser = pair(rewards, "best_bottom_quantile", q=q)
        third = (0, 2) if q == 0 else (-1, -1)  # with q > 0 its other response is as good as the best
        assert w.tolist() == [4, -1, third[0]] and loser.tolist() == [rejected, -1, third[1]]
    assert pair(rewards)[1].tolist() == [3, -1, 2]
    seen = {int(pair(rewards, "best_random", seed=s)[1][0]) for s in range(60)}
    assert seen == {0, 1, 2, 3}
    assert pair(rewards, "best_random", seed=5)[1].tolist() == pair(rewards, "best_random", seed=5)[1].tolist()
    with pytest.raises(ValueError, match="strategy"):
        pair(rewards, "worst")


def test_baselines() -> None:
    df = table(101)
    m = RIPFilter().metrics(df)
    chosen = m.m_rejected_reward + m.m_gap
    for rule, value in (
        (package.RejectedRewardFilter(), m.m_rejected_reward),
        (package.ChosenRewardFilter(), chosen),
        (package.GapFilter(), -m.m_gap),
        (package.GapFilter(keep="large"), m.m_gap),
    ):
        assert (rule.fit(df).support(df) == (value >= np.median(value)).to_numpy()).all()
    assert package.RandomFilter(seed=1).fit(df).support(df).sum() == 51
    words = [["a b c", "a b d"], ["a b", "c d"]]
    similar = pd.DataFrame({"prompt": ["x", "y"], "responses": words, "rewards": [[1.0, 0.0]] * 2})
    jaccard = package.JaccardFilter().fit(similar)
    assert jaccard.threshold_ == 0.25 and jaccard.support(similar).tolist() == [True, False]
    assert package.JaccardFilter(keep="dissimilar").fit(similar).support(similar).tolist() == [False, True]
    with pytest.raises(ValueError, match="keep"):
        package.GapFilter(keep="all").fit(df)


def test_input_is_left_alone() -> None:
    df = table()
    before = df.copy(deep=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RIPFilter().fit_transform(df)
    assert df.equals(before)


def test_a_sample_of_the_stream() -> None:
    """Uniform: the thresholds of samples are those of all rows on average, and every row is drawn equally often."""
    df = table(300)
    exact = RIPFilter().fit(df).thresholds_
    found = [StreamingRIP(max_rows=100, seed=s).partial_fit(df).finalize().thresholds_ for s in range(40)]
    for rule in RULES:
        values = np.array([t[rule] for t in found])
        assert values.std() > 0
        assert abs(values.mean() - exact[rule]) < 4 * values.std() / np.sqrt(len(values)) + 0.02 * abs(exact[rule])
    whole = StreamingRIP(max_rows=300).partial_fit(df[:120]).partial_fit(df[120:]).finalize()
    assert whole.thresholds_ == exact


def test_the_sample_keeps_late_rows_as_often_as_early_ones() -> None:
    df = pd.DataFrame(
        {"prompt": list("abcdef"), "responses": [["x", "y"]] * 6, "rewards": [[float(i), 10.0] for i in range(6)]}
    )
    counts = np.zeros(6)
    for seed in range(150):
        stream = StreamingRIP(max_rows=2, seed=seed).partial_fit(df[:3]).partial_fit(df[3:])
        counts[stream._parts[0][:, 0].astype(int)] += 1
    assert np.abs(counts - 50).max() < 4 * np.sqrt(50 * 2 / 3)


def test_lengths_by_another_unit() -> None:
    df = pd.DataFrame({"prompt": ["a"], "responses": [["one two three", "x"]], "rewards": [[0.0, 1.0]]})

    def words(text: str) -> int:
        return len(text.split())

    for data in (df, pa.Table.from_pandas(df)):
        assert RIPFilter(length_fn=words).metrics(data).m_rejected_length[0] == 3
        assert RIPFilter().metrics(data).m_rejected_length[0] == 13


def test_other_filters_on_texts_and_logprobs() -> None:
    rows = [
        {"prompt": "a", "responses": ["The cat sat", "the CAT ran"], "rewards": [1.0, 0.0]},
        {"prompt": "b", "responses": ["one", "two"], "rewards": [1.0, 0.0]},
        {"prompt": "c", "responses": ["same words", "words same"], "rewards": [1.0, 0.0]},
        {"prompt": "d", "responses": ["same", "same"], "rewards": [1.0, 1.0]},
    ]
    np.testing.assert_allclose(package.JaccardFilter()._scores(rows), [2 / 4, 0, 1, np.nan])
    assert package.JaccardFilter().fit(rows).support(rows).tolist() == [True, False, True, False]
    assert package.JaccardFilter(keep="dissimilar").fit(rows).support(rows).tolist() == [True, True, False, False]
    tokens = pd.DataFrame(
        {
            "chosen_logprobs": [[-1.0, -3.0], [-2.0], [-0.5] * 3, []],
            "chosen_logprobs_alone": [[-4.0, -4.0], [-2.0], [-0.25] * 3, []],
        }
    )
    np.testing.assert_allclose(package.PerplexityFilter()._scores(tokens), [np.exp(2), np.exp(2), np.exp(0.5), np.nan])
    np.testing.assert_allclose(package.IFDFilter()._scores(tokens), [0.5, 1, 2, np.nan])
    assert package.IFDFilter(0.5).fit(tokens).support(tokens).tolist() == [False, True, True, False]
    assert package.PerplexityFilter(0.5).fit(tokens).support(tokens).tolist() == [True, True, False, False]
    with pytest.raises(KeyError, match="chosen_logprobs_alone"):
        package.IFDFilter().fit(tokens[["chosen_logprobs"]])
    with pytest.raises(NotFittedError):
        package.JaccardFilter().transform(rows)
    with pytest.raises(ValueError, match="keep"):
        package.GapFilter(keep="wide").fit(rows)


def test_random_filter() -> None:
    df = table(101)
    keep = package.RandomFilter(0.3, seed=1).fit(df).support(df)
    assert keep.sum() == 71
    assert (keep == package.RandomFilter(0.3, seed=1).fit(df).support(df)).all()
    assert (keep != package.RandomFilter(0.3, seed=2).fit(df).support(df)).any()
