"""The command: every format, thresholds used again, and nothing left of a run that fails."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icml25.rip import RIPFilter, cli
from icml25.rip.cli import main

RNG = np.random.default_rng(0)
ROWS = [
    {
        "prompt": f"p{i}",
        "responses": ["é" * int(k) for k in RNG.integers(0, 30, 4)],
        "rewards": [1.0] * 4 if i == 7 else RNG.normal(size=4).tolist(),
        "id": i,
    }
    for i in range(53)
]
KEPT = RIPFilter(0.3).fit_transform(ROWS)


def write(path: Path, rows: list[dict]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def read(path: Path) -> list[dict]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    data = path.read_bytes()
    return [json.loads(line) for line in (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch) -> None:
    monkeypatch.setattr(cli, "BATCH", 10)


@pytest.mark.parametrize("source", ["in.jsonl", "in.jsonl.gz", "in.parquet"])
@pytest.mark.parametrize("target", ["out.jsonl", "out.jsonl.gz", "out.parquet"])
def test_formats(tmp_path: Path, source: str, target: str) -> None:
    write(tmp_path / source, ROWS)
    report = tmp_path / "report.json"
    arguments = ["filter", str(tmp_path / source), str(tmp_path / target), "--quantile", "0.3"]
    assert main([*arguments, "--report", str(report), "--save-thresholds", str(tmp_path / "t.json")]) == 0
    assert 0 < len(KEPT) < len(ROWS) and read(tmp_path / target) == KEPT
    told = json.loads(report.read_text())
    assert told["n_in"] == 53 and told["n_kept"] == len(KEPT) and told["reasons"]["no_pair"] == 1
    assert sum(told["reasons"].values()) == 53 - len(KEPT)
    expected = RIPFilter(0.3).fit(ROWS)
    assert {key: told[key] for key in expected.report_} == expected.report_
    again = tmp_path / "again.jsonl"
    reuse = ["filter", str(tmp_path / source), str(again), "--thresholds", str(tmp_path / "t.json")]
    assert main([*reuse, "--report", str(report)]) == 0
    assert read(again) == KEPT


@pytest.mark.parametrize("target", ["out.jsonl", "out.parquet"])
def test_errors_name_the_row_and_leave_nothing(tmp_path: Path, target: str, capsys) -> None:
    rows = [dict(row) for row in ROWS]
    rows[41]["rewards"] = [1.0, 2.0, float("nan"), 3.0]
    write(tmp_path / "in.jsonl", rows)
    write(tmp_path / "good.jsonl", ROWS)
    thresholds = tmp_path / "t.json"
    RIPFilter(0.3).fit(ROWS).save(thresholds)
    (tmp_path / target).write_text("before")
    command = ["filter", str(tmp_path / "in.jsonl"), str(tmp_path / target)]
    for arguments in (command, [*command, "--thresholds", str(thresholds)]):
        assert main(arguments) == 1
        assert "row 42, column 'rewards'" in capsys.readouterr().err
        assert (tmp_path / target).read_text() == "before"
        assert {p.name for p in tmp_path.iterdir()} == {"in.jsonl", "good.jsonl", "t.json", target}
    assert main([*command, "--on-nan", "drop", "--report", str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["reasons"]["not_finite"] == 1


def test_other_errors(tmp_path: Path, capsys) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(ROWS[0]) + "\n{")
    assert main(["filter", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")]) == 1
    assert "row 2: not JSON" in capsys.readouterr().err
    assert main(["filter", str(tmp_path / "in.csv"), str(tmp_path / "out.jsonl")]) == 1
    assert "expected a name that ends with" in capsys.readouterr().err
    (tmp_path / "in.jsonl").write_text("")
    assert main(["filter", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")]) == 1
    assert "rows has a pair" in capsys.readouterr().err and not (tmp_path / "out.jsonl").exists()


def test_a_blank_line_does_not_shift_row_numbers(tmp_path: Path, capsys) -> None:
    lines = [json.dumps(row) for row in ROWS[:30]]
    lines[4] = ""
    lines[25] = json.dumps({"prompt": "x", "responses": ["a"]})
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    assert main(["filter", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")]) == 1
    assert "row 26: missing column(s) ['rewards']" in capsys.readouterr().err
    lines[25] = json.dumps(ROWS[25])
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    assert main(["filter", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--quantile", "0.3,none,0"]) == 0
    rest = [row for i, row in enumerate(ROWS[:30]) if i != 4]
    assert read(tmp_path / "out.jsonl") == RIPFilter((0.3, None, 0)).fit_transform(rest)


def test_rows_that_fit_no_parquet_schema(tmp_path: Path, capsys) -> None:
    rows = [dict(row) for row in ROWS]
    for row in rows[:20]:
        row["id"] = None  # a later type is found in the first pass
    write(tmp_path / "in.jsonl", rows)
    assert main(["filter", str(tmp_path / "in.jsonl"), str(tmp_path / "out.parquet")]) == 0
    assert pq.read_schema(tmp_path / "out.parquet").field("id").type == pa.int64()
    rows[45]["id"] = {"a": 1}
    write(tmp_path / "in.jsonl", rows)
    assert main(["filter", str(tmp_path / "in.jsonl"), str(tmp_path / "out.parquet")]) == 1
    assert "rows 41 to 50 do not fit" in capsys.readouterr().err


def test_input_is_not_overwritten(tmp_path: Path, capsys) -> None:
    file = write(tmp_path / "in.jsonl", ROWS)
    assert main(["filter", str(file), str(file)]) == 1
    assert "same file" in capsys.readouterr().err and read(file) == ROWS


def test_summary_goes_to_stderr(tmp_path: Path, capsys) -> None:
    file = write(tmp_path / "in.jsonl", ROWS)
    assert main(["filter", str(file), str(tmp_path / "out.jsonl"), "--max-rows", "40"]) == 0
    shown = capsys.readouterr()
    assert "of 53 prompts" in shown.err and shown.out == ""
    assert main(["filter", str(file), str(tmp_path / "out.jsonl"), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    """The process ends itself by SIGTERM in the middle of the second pass."""
    file = write(tmp_path / "in.jsonl", ROWS)
    (tmp_path / "out.jsonl").write_text("before")
    code = (
        "import os, signal, sys; from icml25.rip import cli; cli.BATCH = 10; write = cli._Writer.write\n"
        "def once(*a): write(*a); os.kill(os.getpid(), signal.SIGTERM)\n"
        f"cli._Writer.write = once; sys.exit(cli.main(['filter', {str(file)!r}, {str(tmp_path / 'out.jsonl')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 143
    assert {p.name for p in tmp_path.iterdir()} == {"in.jsonl", "out.jsonl"}
    assert (tmp_path / "out.jsonl").read_text() == "before"
