"""The command ``icml25``: list, run, claims, report."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from icml25.shared import engine, registry, report
from icml25.shared.claims import ClaimError, Verdict, render_table
from icml25.shared.datasets import DataError
from icml25.shared.engine import GroupResult, Unit

__all__ = ["main"]

_COLOURS = {"holds": "green", "fails": "red", "not shown": "yellow"}
_ERRORS = (engine.SelectionError, registry.RegistryError, ClaimError, DataError, OSError)
console = Console()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status (0 done, 1 something failed to run, 2 wrong use or input)."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        return arguments.function(arguments)
    except _ERRORS as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept, and the same command goes on from there", file=sys.stderr)
        return 130


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'results'}: {error.strerror}"
    return str(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="icml25", description="Benchmarks of ICML 2025 methods, one package per paper."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="papers, their backends and tracks")
    listing.set_defaults(function=_list)

    run = commands.add_parser("run", help="run benchmarks, then print leaderboards and claims and write the report")
    run.add_argument("names", nargs="*", metavar="NAME", help="packages and tracks; all of them when none is named")
    run.add_argument(
        "--budget", help="smoke (seconds), quick (minutes) or paper; default: quick for named ones, else smoke"
    )
    run.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="instead of the budget's own seeds")
    run.add_argument(
        "--solvers", nargs="+", default=[], metavar="SOLVER", help='only these, such as "Name[parameter=value]"'
    )
    run.add_argument("--no-baselines", action="store_true", help="only the packages' own solvers")
    run.add_argument("--parallel-config", type=Path, metavar="FILE", help="benchopt's YAML file for Dask or SLURM")
    run.add_argument(
        "--write", action="store_true", help="store results/quick.json and the README's claims table (checkout)"
    )
    run.set_defaults(function=_run)

    claims = commands.add_parser("claims", help="verdicts on the papers' claims from the results at hand")
    claims.add_argument("names", nargs="*", metavar="NAME", help="packages; all of them when none is named")
    claims.set_defaults(function=_claims)

    page = commands.add_parser("report", help="write the HTML report of the results at hand")
    page.add_argument("--output", type=Path, metavar="FILE", help="default: report.html in the results folder")
    page.set_defaults(function=_report)

    for command in (run, claims, page):
        command.add_argument(
            "--results", type=Path, default=Path("icml25-results"), metavar="FOLDER", help="default: %(default)s"
        )
    return parser


def _list(_: argparse.Namespace) -> int:
    table = Table("package", "backend", "tracks", "version", "what it does")
    methods = [(m, m.version) for m in registry.methods().values()]
    methods += [(m, "not installed") for m in registry.uninstalled(Path.cwd())]
    for method, version in sorted(methods, key=lambda pair: pair[0].name):
        table.add_row(method.name, method.backend, ", ".join(method.solvers), version, method.summary)
    console.print(table)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    budget = arguments.budget or ("quick" if arguments.names else "smoke")
    groups = engine.plan(
        arguments.names, budget, arguments.seeds, arguments.solvers, baselines=not arguments.no_baselines
    )
    packages = sorted({group.package for group in groups} - {engine.BASELINES})
    if arguments.write and (budget != "quick" or arguments.seeds or arguments.solvers or arguments.no_baselines):
        raise engine.SelectionError(
            "--write stores a whole quick run; leave out --seeds, --solvers and --no-baselines, and take --budget quick"
        )
    if arguments.parallel_config and not arguments.parallel_config.is_file():
        raise engine.SelectionError(f"--parallel-config {arguments.parallel_config} is not a file")
    results: Path = arguments.results
    folder = results / budget
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    run = report.environment()

    start = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    outcomes: list[GroupResult] = []
    with Progress(*columns, console=console) as progress:
        whole = progress.add_task("all groups", total=len(groups))
        for group in groups:
            task = progress.add_task(f"{group.track.name}: {group.package}", total=None)

            def show(unit: Unit, task: Any = task) -> None:
                progress.advance(task)
                if not unit.cached:
                    progress.console.print(_unit_line(unit), highlight=False)

            outcomes.append(
                engine.run_group(
                    group,
                    folder,
                    parallel_config=arguments.parallel_config,
                    on_total=lambda total, task=task: progress.update(task, total=total),
                    on_unit=show,
                )
            )
            progress.update(task, visible=False)
            progress.advance(whole)
    seconds = time.perf_counter() - start

    tables = {budget: report.read_results(results, budget)}
    judged = report.verdicts(packages, tables)
    failures = _save_failures(outcomes, folder)
    failures += [
        {"what": f"{name}: claims", "reason": error, "file": "", "traceback": error}
        for name, error in judged.errors.items()
    ]
    _merge_run(
        folder / "run.json", run | {"budget": budget, "seconds": round(seconds, 1), "failures": failures}, packages
    )
    shown = {group.track.name for group in groups}
    _print_boards(report.boards({name: table for name, table in tables[budget].items() if name in shown}))
    measured = {name: [v for v in found if v.claim.budget == budget] for name, found in judged.verdicts.items()}
    if any(measured.values()):
        _print_claims(measured)
    else:
        _print_recorded_claims(judged)
    computed = sum(not unit.cached for outcome in outcomes for unit in outcome.units)
    console.print(
        f"{computed} units computed, {sum(len(o.units) for o in outcomes) - computed} from the cache, {seconds:.0f} s"
    )
    console.print(f"Report: {report.write_report(results, results / 'report.html')}", highlight=False, soft_wrap=True)
    if arguments.write:
        for name in judged.verdicts:
            _write_results(name, judged.verdicts[name], run | {"budget": budget}, tables[budget])
    for failure in failures:
        where = f"; traceback in {failure['file']}" if failure["file"] else ""
        print(f"failed: {failure['what']}: {failure['reason']}{where}", file=sys.stderr)
    return 1 if failures else 0


def _unit_line(unit: Unit) -> Text:
    colour = "green" if unit.done else "yellow" if unit.status == "skip" else "red"
    what = " · ".join(filter(None, (unit.dataset, _seed(unit.objective), unit.solver)))
    reason = unit.reason.strip().splitlines()
    return Text.assemble("  ", what, ": ", (unit.status, colour), f" ({reason[0]})" if reason else "")


def _seed(objective: str) -> str:
    match = re.search(r"seed=(\d+)", objective)
    return f"seed {match[1]}" if match else ""


def _save_failures(outcomes: Sequence[GroupResult], folder: Path) -> list[dict[str, str]]:
    """One traceback file per failed unit; returns what the report says of them."""
    failures = []
    for outcome in outcomes:
        where = f"{outcome.group.track.name}-{outcome.group.package}"
        failed = [(unit, unit.reason, _traceback(unit.log)) for unit in outcome.failures]
        if outcome.error:
            headline = outcome.error.splitlines()[0]
            ended = "" if headline.startswith("Traceback") else headline
            failed.append((Unit("", "", "", "error"), ended, _traceback(outcome.error)))
        for number, (unit, reason, text) in enumerate(failed):
            file = folder / "failures" / f"{where}-{number}.txt"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text + "\n")
            what = " · ".join(filter(None, (where, unit.dataset, _seed(unit.objective), unit.solver)))
            reason = reason.splitlines()[0] if reason else text.rpartition("\n")[2]
            failures.append({"what": what, "reason": reason, "file": str(file), "traceback": text})
    return failures


def _traceback(log: str) -> str:
    """What was printed while a unit ran, from its traceback on and without benchopt's coloured status lines."""
    lines = [line.rstrip() for line in log.splitlines() if "\x1b[" not in line]
    start = next((i for i, line in enumerate(lines) if line.startswith("Traceback")), 0)
    return "\n".join(lines[start:]).strip()


def _merge_run(file: Path, run: dict[str, Any], packages: Sequence[str]) -> None:
    """Write run.json; failures of packages that did not run this time stay."""
    if file.is_file():
        kept = json.loads(file.read_text())["failures"]
        ran = tuple(f"-{package} " for package in [*packages, engine.BASELINES])
        run["failures"] += [f for f in kept if not any(package in f["what"] + " " for package in ran)]
    file.write_text(json.dumps(run, indent=2) + "\n")


def _print_boards(found: Sequence[report.Board]) -> None:
    for board in found:
        table = Table(title=f"{board.track.title}: {board.dataset}", title_justify="left", title_style="bold")
        table.add_column("solver", overflow="fold")
        metrics = [metric for metric in board.metrics if not metric.detail]
        for metric in metrics:
            arrow = "↑" if metric.higher_is_better else "↓"
            table.add_column(f"{metric.label}{f' ({metric.unit})' if metric.unit else ''} {arrow}", justify="right")
        for solver, cells in board.rows:
            styled = [
                Text(str(cells.get(m.column, "-")), style="bold" if board.best(m) == solver else "") for m in metrics
            ]
            table.add_row(Text(solver), *styled)
        console.print(table)


def _print_claims(found: dict[str, list[Verdict]]) -> None:
    table = Table("package", "claim", "measured", "verdict", title="Claims", title_justify="left", title_style="bold")
    for name, entries in found.items():
        for v in entries:
            measured = "\n".join(f"{c.test.split()[0]} {c} ({c.test.split(' ', 1)[1]})" for c in v.comparisons) or "-"
            verdict = Text.assemble((v.verdict, _COLOURS[v.verdict]), f"\n{v.why}" if v.why else "")
            table.add_row(name, v.claim.id, Text(measured), verdict)
    if table.row_count:
        console.print(table)


def _print_recorded_claims(judged: report.Judged) -> None:
    """Counts of the verdicts that the packages record, where this budget measures none."""
    table = Table(
        "package", *_COLOURS, "measured", title="Claims, as recorded", title_justify="left", title_style="bold"
    )
    for name in judged.verdicts:
        recorded = registry.methods()[name].recorded
        if recorded:
            counts = Counter(claim["verdict"] for claim in recorded["claims"])
            table.add_row(name, *(str(counts[verdict]) for verdict in _COLOURS), recorded["date"])
        else:
            table.add_row(name, *("-" for _ in _COLOURS), f"icml25 run {name}")
    console.print(table)
    console.print("`icml25 run NAME` measures a package's claims at the quick budget", highlight=False)


def _write_results(name: str, found: Sequence[Verdict], run: dict[str, Any], tables: dict[str, Any]) -> None:
    """Store a package's measured claims beside its sources and render its README's table."""
    root = registry.methods()[name].checkout
    if root is None:
        raise engine.SelectionError(f"--write: {name} is not installed from a checkout (editable)")
    used = [table for track, table in tables.items() if track in registry.methods()[name].solvers]
    rows = [table[table["package"].isin([name, engine.BASELINES])] for table in used]
    results = {
        "package": registry.methods()[name].distribution,
        "version": registry.methods()[name].version,
        **{key: run[key] for key in ("commit", "date", "machine", "versions", "budget")},
        "seconds": round(float(sum(table["time"].sum() for table in rows)), 1),
        "seeds": sorted({int(seed) for table in rows for seed in table["p_obj_seed"]}),
        "claims": [verdict.as_json() for verdict in found],
    }
    file = root / "results" / "quick.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    readme = root / "README.md"
    text, count = re.subn(
        r"(<!-- claims -->\n).*?(<!-- /claims -->)",
        lambda match: f"{match[1]}{render_table(results)}\n{match[2]}",
        readme.read_text(),
        flags=re.DOTALL,
    )
    if count != 1:
        raise registry.RegistryError(f"{readme} must hold one '<!-- claims -->' and '<!-- /claims -->' pair of lines")
    readme.write_text(text)
    console.print(f"Wrote {file} and the claims table of {readme}", highlight=False, soft_wrap=True)


def _claims(arguments: argparse.Namespace) -> int:
    names = arguments.names or list(registry.methods())
    for name in names:
        if name not in registry.methods():
            engine.plan([name])  # raises with the close matches
            raise engine.SelectionError(f"{name} is a track; claims belong to packages")
    budgets = [path.name for path in arguments.results.glob("*") if path.is_dir()]
    tables = {budget: report.read_results(arguments.results, budget) for budget in budgets}
    judged = report.verdicts(names, tables)
    _print_claims(judged.verdicts)
    for name, error in judged.errors.items():
        print(f"failed: {name}: {error}", file=sys.stderr)
    return 1 if judged.errors else 0


def _report(arguments: argparse.Namespace) -> int:
    output = arguments.output or arguments.results / "report.html"
    console.print(f"Report: {report.write_report(arguments.results, output)}", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
