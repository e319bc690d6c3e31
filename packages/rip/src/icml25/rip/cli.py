"""The command ``icml25-rip``: filter files of scored responses in two passes, in bounded memory."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from icml25.rip.filter import RIPFilter
from icml25.rip.streaming import StreamingRIP
from icml25.rip.tables import select

__all__ = ["main"]

BATCH = 1000
KINDS = (".jsonl", ".jsonl.gz", ".parquet")


def _kind(file: Path) -> str:
    for kind in KINDS:
        if file.name.endswith(kind):
            return kind
    raise ValueError(f"{file}: expected a name that ends with {', '.join(KINDS)}")


def _parquet() -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ValueError("parquet files need pyarrow: pip install 'icml25-rip[parquet]'") from error
    return parquet


def _read_lines(file: Path) -> Iterator[tuple[int, list[dict[str, Any]], list[str]]]:
    """Batches of a JSONL file: the first line's number, rows and lines as they stand. A blank line ends a batch."""
    with (
        gzip.open(file, "rt", encoding="utf-8") if file.name.endswith(".gz") else file.open(encoding="utf-8") as stream
    ):
        rows: list[dict[str, Any]] = []
        lines: list[str] = []
        number = 0
        for number, line in enumerate(stream, 1):
            if line.strip():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise ValueError(f"row {number}: not JSON: {error}") from error
                if not isinstance(row, dict):
                    raise TypeError(f"row {number}: expected an object, got {type(row).__name__}")
                rows.append(row)
                lines.append(line.rstrip("\n") + "\n")
            if rows and (len(rows) == BATCH or not line.strip()):
                yield number - len(rows) + bool(line.strip()), rows, lines
                rows, lines = [], []
        if rows:
            yield number - len(rows) + 1, rows, lines


def _read(file: Path) -> Iterator[tuple[int, Any, list[str] | None]]:
    """Batches of any file: the number of the first row (from 1), the rows, and their lines if it has lines."""
    if _kind(file) != ".parquet":
        yield from _read_lines(file)
        return
    first = 1
    with _parquet().ParquetFile(file) as source:
        for batch in source.iter_batches(batch_size=BATCH):
            yield first, batch, None
            first += batch.num_rows


def _missing_columns(rows: Any, columns: list[str], first_row: int) -> None:
    """KeyError with the first row that lacks a column; tables have theirs checked by the filter."""
    for i, row in enumerate(rows if isinstance(rows, list) else ()):
        if missing := [name for name in columns if name not in row]:
            raise KeyError(f"row {first_row + i}: missing column(s) {missing}; found {list(row)}")


def _schema(file: Path) -> Any:
    """Arrow schema of all rows of a file."""
    import pyarrow as pa

    if _kind(file) == ".parquet":
        return _parquet().read_schema(file)
    found = None
    for first, rows, _ in _read_lines(file):
        try:
            one = pa.Table.from_pylist(rows).schema
            found = one if found is None else pa.unify_schemas([found, one], promote_options="permissive")
        except pa.ArrowException as error:
            raise TypeError(
                f"rows {first} to {first + len(rows) - 1} do not fit one parquet schema: {error}"
            ) from error
    return found


class _Writer:
    """Writes rows to a file beside the target, and renames it at the end; nothing is left where that is not reached."""

    def __init__(self, target: Path, source: Path) -> None:
        self.target, self.kind = target, _kind(target)
        self.beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        self.schema = _schema(source) if self.kind == ".parquet" else None

    stream: Any

    def __enter__(self) -> _Writer:
        if self.kind == ".parquet":
            self.stream = _parquet().ParquetWriter(self.beside, self.schema)
        elif self.kind == ".jsonl.gz":
            self.stream = gzip.open(self.beside, "wt", encoding="utf-8")
        else:
            self.stream = self.beside.open("w", encoding="utf-8")
        return self

    def write(self, rows: Any, lines: list[str] | None, keep: np.ndarray) -> None:
        if self.kind == ".parquet":
            import pyarrow as pa

            kept = select(rows, keep)
            table = pa.Table.from_pylist(kept, self.schema) if isinstance(kept, list) else pa.Table.from_batches([kept])
            self.stream.write_table(table)
            return
        if lines is None:
            kept = select(rows, keep).to_pylist()
            self.stream.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in kept)
        else:
            self.stream.writelines(line for line, good in zip(lines, keep, strict=True) if good)

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            self.stream.close()
            if kind is None:
                self.beside.replace(self.target)
        finally:
            self.beside.unlink(missing_ok=True)


def _write_json(file: Path, content: dict[str, Any]) -> None:
    beside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(json.dumps(content, indent=2) + "\n")
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def _quantile(text: str) -> Any:
    values = [None if part.strip() in ("", "none") else float(part) for part in text.split(",")]
    return values[0] if len(values) == 1 else tuple(values)


def _add(total: dict[str, Any], part: dict[str, Any]) -> None:
    """Sum of the counts of two reports."""
    for key, value in part.items():
        if key == "thresholds":
            total[key] = value
        elif isinstance(value, dict):
            counts = total.setdefault(key, dict.fromkeys(value, 0))
            for name, count in value.items():
                counts[name] += count
        else:
            total[key] = total.get(key, 0) + value


def filter_file(source: Path, target: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Fit on all rows (or take given thresholds), then write the rows that are kept; return the report."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    names = {"prompt_col": options.prompt, "responses_col": options.responses, "rewards_col": options.rewards}
    columns = list(names.values())
    bars = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*bars, console=Console(stderr=True), disable=options.quiet, transient=True) as progress:
        total = None
        if options.thresholds:
            rip = RIPFilter.load(options.thresholds, on_nan=options.on_nan, **names)
        else:
            collect = StreamingRIP(options.quantile, options.max_rows, on_nan=options.on_nan, **names)
            task = progress.add_task("fitting", total=None)
            for first, rows, _ in _read(source):
                _missing_columns(rows, columns, first)
                collect.partial_fit(rows, first)
                progress.update(task, completed=collect.n_seen)
            progress.update(task, total=collect.n_seen)
            rip, total = collect.finalize(), collect.n_seen
        report: dict[str, Any] = {}
        task = progress.add_task("filtering", total=total)
        with _Writer(target, source) as writer:
            for first, rows, lines in _read(source):
                _missing_columns(rows, columns, first)
                keep = rip.support(rows, first)
                writer.write(rows, lines, keep)
                _add(report, rip.report_)
                progress.update(task, advance=len(keep))
            if not report:
                raise ValueError("no rows")
    if options.save_thresholds:
        _write_json(options.save_thresholds, rip.as_json())
    return {"input": str(source), "output": str(target), **report}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("icml25-rip", description="Filter prompts by their scored responses (R.I.P.).")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser(
        "filter", help="drop prompts whose rejected response is bad or short, or whose gap is large"
    )
    one.add_argument(
        "input", type=Path, help="rows with a prompt, a list of responses, a list of rewards: " + ", ".join(KINDS)
    )
    one.add_argument("output", type=Path, help="kept rows: " + ", ".join(KINDS))
    one.add_argument(
        "--quantile", type=_quantile, default=0.5, help="one, or reward,length,gap; none is off (default 0.5)"
    )
    one.add_argument(
        "--thresholds", type=Path, help="JSON of --save-thresholds or RIPFilter.save, used instead of a fit"
    )
    one.add_argument("--save-thresholds", type=Path, help="where to write the thresholds")
    one.add_argument("--report", type=Path, help="where to write the counts as JSON")
    one.add_argument("--on-nan", choices=["raise", "drop"], default="raise", help="rewards that are not finite")
    one.add_argument("--max-rows", type=int, help="fit on a random sample of so many prompts")
    one.add_argument("--prompt", default="prompt", help="name of the column")
    one.add_argument("--responses", default="responses", help="name of the column")
    one.add_argument("--rewards", default="rewards", help="name of the column")
    one.add_argument("--quiet", action="store_true", help="no progress, no summary")
    return parser


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"kept {report['n_kept']} of {report['n_in']} prompts")
    for name in ("rule", "threshold", "dropped", "by it only"):
        table.add_column(name, justify="left" if name == "rule" else "right")
    for rule, count in report["dropped"].items():
        tau = report["thresholds"].get(rule)
        table.add_row(rule, "" if tau is None else f"{tau:g}", str(count), str(report["reasons"][rule]))
    Console(stderr=True).print(table)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, 1 for bad input, 2 for bad options.

    Parameters
    ----------
    arguments : of the command line; None takes those of the process.
    """
    options = _parser().parse_args(arguments)
    source, target = options.input, options.output
    with contextlib.suppress(ValueError):  # a signal handler can be set in the main thread only
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if source.resolve() == target.resolve():
            raise ValueError(f"{target}: output and input are the same file")
        _kind(target)  # before the work rather than after it
        report = filter_file(source, target, options)
        if options.report:
            _write_json(options.report, report)
    except (ValueError, TypeError, KeyError, OSError, EOFError) as error:
        text = error.args[0] if isinstance(error, KeyError) else error
        print(f"icml25-rip: {source}: {text}", file=sys.stderr)
        return 1
    if not options.quiet:
        _show(report)
    return 0
