"""Result tables, leaderboards, and one self-contained HTML page."""

from __future__ import annotations

import datetime
import importlib.metadata
import io
import json
import math
import os
import platform
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from icml25.shared import registry
from icml25.shared.claims import Claim, ClaimError, Paper, Verdict, evaluate, from_record, interval, read_claims
from icml25.shared.registry import Metric, Track

__all__ = ["Board", "Cell", "Judged", "boards", "environment", "read_results", "verdicts", "write_report"]

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Cell:
    """A metric of one solver: mean and 95% interval over seeds."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if not math.isfinite(self.mean):
            return f"{self.mean}"
        digits = max(0, 3 - len(str(int(abs(self.mean))))) if abs(self.mean) >= 1 else 4
        half = (self.high - self.low) / 2
        return f"{self.mean:.{digits}f}" + (f" ± {half:.{digits}f}" if half else "")


@dataclass(frozen=True)
class Board:
    """A leaderboard: the solvers on one data set of a track, best first."""

    track: Track
    dataset: str
    metrics: tuple[Metric, ...]
    rows: tuple[tuple[str, dict[str, Cell]], ...]
    seeds: tuple[int, ...]

    def best(self, metric: Metric) -> str:
        """Name of the solver with the best mean."""
        having = {name: cells[metric.column].mean for name, cells in self.rows if metric.column in cells}
        return (max if metric.higher_is_better else min)(having, key=having.__getitem__)


@dataclass(frozen=True)
class Judged:
    """Papers and verdicts by package, and what is wrong with a claims.toml that cannot be read."""

    papers: dict[str, Paper] = field(default_factory=dict)
    verdicts: dict[str, list[Verdict]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def read_results(results: Path, budget: str) -> dict[str, pd.DataFrame]:
    """Result rows by track, of all packages that ran at this budget."""
    tables = {}
    for track in registry.tracks():
        files = sorted((results / budget / track).glob("*.parquet"))
        if frames := [pd.read_parquet(file).assign(package=file.stem) for file in files if ".part" not in file.name]:
            tables[track] = pd.concat(frames, ignore_index=True)
    return tables


def boards(tables: Mapping[str, pd.DataFrame]) -> list[Board]:
    """Leaderboards of all tracks and data sets, solvers sorted by the track's first primary metric that applies."""
    out = []
    for name, table in tables.items():
        track = registry.tracks()[name]
        for dataset, rows in table.groupby("dataset_name"):
            metrics = tuple(m for c, m in track.metrics.items() if c in rows and bool(rows[c].notna().to_numpy().any()))
            lines = {
                str(solver): {
                    m.column: _cell(values.tolist()) for m in metrics if len(values := group[m.column].dropna())
                }
                for solver, group in rows.groupby("solver_name")
            }
            primary = next((track.metrics[c] for c in track.primary if track.metrics[c] in metrics), None)
            ordered = sorted(lines.items(), key=lambda line: _rank(line[1], primary))
            seeds = tuple(sorted({int(seed) for seed in rows["p_obj_seed"]}))
            out.append(Board(track, str(dataset), metrics, tuple(ordered), seeds))
    return out


def _cell(values: list[float]) -> Cell:
    """Mean and interval of a column over seeds; an infinite value leaves no interval."""
    if all(map(math.isfinite, values)):
        return Cell(*interval(values))
    mean = sum(values) / len(values)
    return Cell(mean, mean, mean)


def _rank(cells: Mapping[str, Cell], metric: Metric | None) -> float:
    if metric is None or metric.column not in cells:
        return float("inf")
    return -cells[metric.column].mean if metric.higher_is_better else cells[metric.column].mean


def verdicts(names: Iterable[str], tables: Mapping[str, Mapping[str, pd.DataFrame]], recorded: bool = False) -> Judged:
    """Verdicts on the claims of packages, from the result tables by budget and track.

    With ``recorded``, a claim whose budget has no results here takes the verdict that its package records, if any.
    """
    judged = Judged()
    for name in names:
        try:
            judged.papers[name], claims = read_claims(registry.methods()[name].claims_file)
            record = registry.methods()[name].recorded if recorded else None
            judged.verdicts[name] = [_judge(claim, tables, record) for claim in claims]
        except ClaimError as error:
            judged.errors[name] = str(error)
    return judged


def _judge(claim: Claim, tables: Mapping[str, Mapping[str, pd.DataFrame]], record: Mapping[str, Any] | None) -> Verdict:
    if claim.track not in registry.tracks():
        raise ClaimError(f"claim {claim.id!r}: key 'track': there is no track {claim.track!r}")
    table = tables.get(claim.budget, {}).get(claim.track)
    if table is None and record is not None and (verdict := from_record(claim, record)):
        return verdict
    metric = registry.tracks()[claim.track].metrics.get(claim.metric)
    return evaluate(claim, table, metric is None or metric.higher_is_better)


def environment() -> dict[str, Any]:
    """Date, commit, machine and versions, for whoever reads a result later."""
    import psutil

    interesting = ["benchopt", "jax", "numpy", "pandas", "scikit-learn", "scipy", "torch", "transformers"]
    ours = ["icml25-shared", *(m.distribution for m in registry.methods().values())]
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {"python": platform.python_version()}
        | {name: v for name in interesting + ours if (v := _version(name))},
    }


def _commit() -> str:
    """The commit, marked when a file has changed since that is not itself a record of results."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()

    commit = git("describe", "--always", "--abbrev=12")
    records = (":(top,exclude)packages/*/results/*", ":(top,exclude)packages/*/README.md")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", *records)
    return f"{commit}{'-dirty' if changed else ''}" or "unknown"


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def write_report(results: Path, output: Path) -> Path:
    """Write one HTML page, with everything inside it, of all budgets in a results folder.

    Raises
    ------
    FileNotFoundError: the folder has no results.
    """
    import jinja2

    budgets = [path.parent.name for path in sorted(results.glob("*/run.json"))]
    if not budgets:
        raise FileNotFoundError(f"no results in {results}; `icml25 run` makes them")
    tables = {budget: read_results(results, budget) for budget in budgets}
    runs = {budget: json.loads((results / budget / "run.json").read_text()) for budget in budgets}
    sections = [
        (budget, runs[budget], [(board, _figure(board)) for board in boards(tables[budget])]) for budget in budgets
    ]
    environment_ = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    page = environment_.get_template("report.html.j2").render(
        sections=sections, judged=verdicts(registry.methods(), tables)
    )
    output.write_text(page, encoding="utf-8")
    return output


def _figure(board: Board) -> str:
    """Dot plot with intervals, one panel per primary metric, as inline SVG."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    metrics = [m for c in board.track.primary if (m := board.track.metrics[c]) in board.metrics]
    if not metrics:
        return ""
    names = [name for name, _ in board.rows][::-1]
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "svg.hashsalt": board.dataset,
    }
    with plt.rc_context(style):
        figure, axes = plt.subplots(
            1, len(metrics), figsize=(7.2, 0.8 + 0.26 * len(names)), sharey=True, squeeze=False, layout="constrained"
        )
        for axis, metric in zip(axes[0], metrics, strict=True):
            for position, name in enumerate(names):
                cell = dict(board.rows)[name].get(metric.column)
                if cell is not None and math.isfinite(cell.mean):
                    error = [[cell.mean - cell.low], [cell.high - cell.mean]]
                    axis.errorbar(cell.mean, position, xerr=error, fmt="o", markersize=4, capsize=2, color="#20639b")
            label = metric.label + (f" ({metric.unit})" if metric.unit else "")
            axis.set_xlabel(textwrap.fill(label, 100 // len(metrics)))
            axis.grid(axis="x", alpha=0.3)
            axis.spines[["top", "right", "left"]].set_visible(False)
        axes[0, 0].set_yticks(range(len(names)), names)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
        plt.close(figure)
    svg = stream.getvalue()
    return svg[svg.index("<svg") :]
