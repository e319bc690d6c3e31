"""Rows as they come: four solutions of a problem with a true reward of 0 or 1, and pairs of an assistant's answers."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from icml25.rip import RIPFilter, StreamingRIP
from icml25.rip.cli import main

pytestmark = pytest.mark.realdata
MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")


def lines(name: str) -> list[dict]:
    file = Path(os.environ.get("ICML25_DATA", "")) / name
    if not os.environ.get("ICML25_DATA") or not file.is_file():
        pytest.skip(f"ICML25_DATA has no {name}")
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def test_gsm8k_has_ties_and_rows_without_a_pair() -> None:
    rows = [
        {
            "prompt": row["question"],
            "responses": [row[model]["solution"] for model in MODELS],
            "rewards": [row[model]["is_correct"] for model in MODELS],
        }
        for row in lines("gsm8k/model_solutions.jsonl.gz")
    ]
    m = RIPFilter().metrics(rows)
    right = np.array([sum(row["rewards"]) for row in rows])
    mixed = (right > 0) & (right < 4)
    assert 0 < mixed.sum() < len(rows)
    assert ((m.reason == "no_pair").to_numpy() == ~mixed).all()
    assert (m.m_gap[mixed] == 1).all() and (m.m_rejected_reward[mixed] == 0).all()
    for x in np.flatnonzero(mixed):
        rejected = next(y for y, good in zip(rows[x]["responses"], rows[x]["rewards"], strict=True) if not good)
        assert m.m_rejected_length[x] == len(rejected)
    rip = RIPFilter().fit(rows)  # ties everywhere but in length: the rule of length decides, at its median
    assert rip.report_["dropped"]["no_pair"] == (~mixed).sum()
    assert rip.report_["n_kept"] == (m.m_rejected_length >= m.m_rejected_length.median()).sum()


def test_a_preference_file_by_the_command(tmp_path: Path) -> None:
    rows = lines("preferences/hh_harmless_filtered.jsonl.gz")
    scored = [
        {"prompt": row["prompt"], "responses": [row["chosen"], row["rejected"]], "rewards": [1.0, 0.0]} for row in rows
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scored), encoding="utf-8")
    arguments = ["filter", str(tmp_path / "in.jsonl"), str(tmp_path / "out.parquet"), "--quiet"]
    assert main([*arguments, "--quantile", "none,0.5,none"]) == 0
    kept = pd.read_parquet(tmp_path / "out.parquet")
    lengths = np.array([len(row["rejected"]) for row in rows])
    assert kept["prompt"].tolist() == [
        row["prompt"] for row, long in zip(rows, lengths >= np.median(lengths), strict=True) if long
    ]
    stream = StreamingRIP((None, 0.5, None))
    for start in range(0, len(scored), 100):
        stream.partial_fit(scored[start : start + 100])
    assert stream.finalize().thresholds_["rejected_length"] == np.median(lengths)
