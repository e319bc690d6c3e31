"""Claims: parsing, intervals, verdicts, the README's table."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icml25.shared.claims import ClaimError, Verdict, evaluate, from_record, interval, read_claims, render_table

PAPER = '[paper]\ntitle = "T"\nauthors = "A"\nvenue = "ICML 2025"\nurl = "https://example.org"\n'
CLAIM = {
    "id": "c",
    "statement": "is better",
    "source": "abstract",
    "track": "toy",
    "dataset": "data[n=60000]",
    "metric": "accuracy",
    "method": "Ours[loss=hinge]",
    "baseline": "Base",
    "test": "difference >= 0.1",
    "kind": "quality",
    "budget": "quick",
}


def write(tmp_path: Path, **changes: object) -> Path:
    entries = {key: value for key, value in (CLAIM | changes).items() if value is not None}
    lines = [f"{key} = {value!r}" for key, value in entries.items()]
    file = tmp_path / "claims.toml"
    file.write_text(PAPER + "[[claim]]\n" + "\n".join(lines).replace("True", "true") + "\n")
    return file


def table(ours: list[float], base: list[float], metric: str = "accuracy") -> pd.DataFrame:
    rows = []
    for solver, loss, values in (
        ("Ours[loss=hinge]", "hinge", ours),
        ("Ours[loss=squared]", "squared", [0.0] * len(ours)),
        ("Base", None, base),
        ("Worse", None, [v - 1 for v in base]),
    ):
        for seed, value in enumerate(values):
            rows.append(
                {
                    "solver_name": solver,
                    "p_solver_loss": loss,
                    "dataset_name": "data[n=60000,target=y]",
                    "p_dataset_n": 60000.0,
                    "p_dataset_target": "y",
                    "p_obj_seed": seed,
                    metric: value,
                }
            )
    return pd.DataFrame(rows)


def judge(tmp_path: Path, ours: list[float], base: list[float], up: bool = True, **changes: object) -> Verdict:
    _, [claim] = read_claims(write(tmp_path, **changes))
    return evaluate(claim, table(ours, base), up)


def test_a_clear_difference_holds(tmp_path: Path) -> None:
    verdict = judge(tmp_path, [0.90, 0.91, 0.92], [0.70, 0.71, 0.72])
    assert verdict.verdict == "holds"
    [comparison] = verdict.comparisons
    assert comparison.mean == pytest.approx(0.2) and comparison.baseline == "Base" and comparison.seeds == (0, 1, 2)


def test_pairing_by_seed_removes_what_seeds_share(tmp_path: Path) -> None:
    assert judge(tmp_path, [0.3, 0.6, 0.9], [0.1, 0.4, 0.7]).verdict == "holds"


def test_a_clear_miss_fails(tmp_path: Path) -> None:
    verdict = judge(tmp_path, [0.70, 0.71, 0.72], [0.70, 0.71, 0.72])
    assert verdict.verdict == "fails"
    assert "against difference >= 0.1 (Base)" in verdict.why


def test_an_interval_across_the_bound_is_not_shown(tmp_path: Path) -> None:
    verdict = judge(tmp_path, [0.80, 0.81, 0.92], [0.70, 0.71, 0.72])
    assert verdict.verdict == "not shown"
    assert "reaches across the bound" in verdict.why


def test_two_seeds_are_too_few(tmp_path: Path) -> None:
    verdict = judge(tmp_path, [0.9, 0.9], [0.7, 0.7])
    assert verdict.verdict == "not shown"
    assert "3 are needed" in verdict.why
    assert judge(tmp_path, [0.9], [0.7], kind="identity").verdict == "holds"


def test_the_best_of_several_baselines_is_the_bar(tmp_path: Path) -> None:
    verdict = judge(tmp_path, [0.9, 0.9, 0.9], [0.7, 0.7, 0.7], baseline=["Worse", "Base"])
    assert verdict.comparisons[0].baseline == "Base"
    lower = judge(tmp_path, [0.9, 0.9, 0.9], [0.7, 0.7, 0.7], up=False, baseline=["Worse", "Base"])
    assert lower.comparisons[0].baseline == "Worse"


def test_ratios_are_geometric_means(tmp_path: Path) -> None:
    [comparison] = judge(tmp_path, [1.0, 4.0, 2.0], [1.0, 1.0, 1.0], test="ratio <= 9").comparisons
    assert comparison.mean == pytest.approx(2.0)
    assert comparison.low * comparison.high == pytest.approx(4.0)
    undefined = judge(tmp_path, [1.0, 1.0, 1.0], [0.0, 1.0, 1.0], test="ratio <= 9")
    assert undefined.verdict == "not shown" and "not all positive" in undefined.why


def test_every_test_data_set_and_method_must_hold(tmp_path: Path) -> None:
    both = ["value >= 0.5", "difference >= 0.5"]
    verdict = judge(tmp_path, [0.9, 0.9, 0.9], [0.7, 0.7, 0.7], test=both)
    assert verdict.verdict == "fails" and len(verdict.comparisons) == 2
    missing = judge(tmp_path, [0.9, 0.9, 0.9], [0.7, 0.7, 0.7], dataset=["data", "other"])
    assert missing.verdict == "not shown" and "on other" in missing.why


def test_an_ambiguous_method_is_not_shown(tmp_path: Path) -> None:
    verdict = judge(tmp_path, [0.9, 0.9, 0.9], [0.7, 0.7, 0.7], method="Ours")
    assert verdict.verdict == "not shown" and "2 variants match" in verdict.why


def test_without_results_the_claim_says_what_it_takes(tmp_path: Path) -> None:
    _, [claim] = read_claims(write(tmp_path, needs="a GPU and a day"))
    verdict = evaluate(claim, None, True)
    assert (verdict.verdict, verdict.why) == ("not shown", "a GPU and a day")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test": "ratio is 3"}, "claim 'c': key 'test' must be like 'ratio <= 0.25'"),
        ({"test": []}, "claim 'c': key 'test' is empty"),
        ({"metric": None}, "claim 'c': key 'metric' is missing"),
        ({"baselines": "Base"}, "claim 'c': unknown key 'baselines', did you mean 'baseline'?"),
        ({"kind": "fast"}, "claim 'c': key 'kind' must be one of quality, speed, memory, identity, got 'fast'"),
        ({"dataset": 3}, "claim 'c': key 'dataset' must be text or a list of texts, got 3"),
        ({"metric": 3}, "claim 'c': key 'metric' must be text, got 3"),
        ({"baseline": None}, "claim 'c': key 'test' is a difference, so key 'baseline' is needed"),
        ({"id": None}, "claim 'number 1': key 'id' is missing"),
    ],
)
def test_malformed_claims_name_file_claim_and_key(tmp_path: Path, changes: dict, message: str) -> None:
    file = write(tmp_path, **changes)
    with pytest.raises(ClaimError) as raised:
        read_claims(file)
    assert str(raised.value).startswith(str(file)) and message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("[[claim", "not TOML"), ("[paper]\n", "[paper]"), (PAPER, "at least one [[claim]]"), ("", "[paper]")],
)
def test_malformed_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "claims.toml").write_text(text)
    with pytest.raises(ClaimError, match=r"claims\.toml") as raised:
        read_claims(tmp_path / "claims.toml")
    assert message in str(raised.value)
    with pytest.raises(ClaimError, match="No such file"):
        read_claims(tmp_path / "absent.toml")


def test_interval_is_students() -> None:
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert (mean, high - mean) == (2.0, pytest.approx(4.302652729911275 / math.sqrt(3)))
    assert mean - low == pytest.approx(high - mean)
    with pytest.raises(ValueError, match="finite"):
        interval([1.0, math.nan])
    with pytest.raises(ValueError, match="at least one"):
        interval([])


def test_interval_covers_the_mean_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0).normal(size=(4000, 3)).tolist()
    covered = np.mean([low <= 0 <= high for _, low, high in map(interval, draws)])
    assert abs(covered - 0.95) < 0.015


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8))
def test_interval_holds_its_mean(values: list[float]) -> None:
    mean, low, high = interval(values)
    assert low <= mean <= high


def test_the_table_shows_value_interval_and_bound(tmp_path: Path) -> None:
    verdict = judge(tmp_path, [0.90, 0.91, 0.93], [0.70, 0.71, 0.72])
    machine = {"processor": "P", "cores": 2}
    results = {
        "claims": [verdict.as_json()],
        "machine": machine,
        "date": "d",
        "commit": "c",
        "seeds": [0, 1],
        "seconds": 3.4,
    }
    text = render_table(results)
    assert (
        "| `c` | is better (abstract) | difference to Base 0.2033 [0.189, 0.218] (>= 0.1) | quick | **holds** |" in text
    )
    assert "at commit `c`: P, 2 cores, seeds 0, 1, 3 s in all" in text


def test_a_record_gives_the_verdict_back_unless_the_claim_changed(tmp_path: Path) -> None:
    verdict = judge(tmp_path, [0.90, 0.91, 0.93], [0.70, 0.71, 0.72])
    results = {"claims": [verdict.as_json()], "date": "d", "commit": "c"}
    again = from_record(verdict.claim, results)
    assert again is not None
    assert (again.verdict, again.why, again.comparisons) == ("holds", "recorded on d at c", verdict.comparisons)
    _, [stricter] = read_claims(write(tmp_path, test="difference >= 0.2"))
    assert from_record(stricter, results) is None
