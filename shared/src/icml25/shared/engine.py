"""Run tracks with benchopt: every package's solvers in a process of their own, cached and resumed unit by unit.

A *unit* is one (data set, seed, solver). Its seed is a parameter of the track's objective rather than the number of a
benchopt repetition, so that seed 2 gives the same numbers whichever other seeds run. Each group of units (a track's
baselines, or one package's solvers on it) has a cache that is named by a hash of its code: changed code is measured
again, unchanged code never.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from icml25.shared import registry
from icml25.shared.registry import Budget, Method, Track

__all__ = ["BASELINES", "Group", "GroupResult", "SelectionError", "Unit", "cache_folder", "plan", "run_group"]

BASELINES = "baselines"
_HERE = Path(__file__).parent
_DONE = ("done", "max_runs", "timeout")


class SelectionError(ValueError):
    """A name, budget or solver that does not exist."""


@dataclass(frozen=True)
class Group:
    """Solvers of one package (or a track's own baselines) on one track.

    Attributes
    ----------
    patterns : benchopt selectors, a solver file with optional parameters in brackets.
    company : solver files of packages; only data sets whose problem one of them solves are run. Empty: all data sets.
    """

    track: Track
    package: str
    patterns: tuple[str, ...]
    budget: str
    seeds: tuple[int, ...]
    company: tuple[str, ...] = ()

    @property
    def datasets(self) -> tuple[str, ...]:
        """benchopt data set patterns of the budget."""
        return self.track.budgets[self.budget].datasets

    def fingerprint(self) -> str:
        """Hash of all code that decides the numbers of this group."""
        paths = [
            self.track.folder,
            _HERE / "protocols",
            _HERE / "datasets.py",
            _HERE / "isolated.py",
            _HERE / "problems.py",
        ]
        method = registry.methods().get(self.package)
        if method is None:
            return registry.fingerprint(paths, "icml25-shared")
        return registry.fingerprint([method.folder, *paths], method.distribution)


@dataclass(frozen=True)
class Unit:
    """What became of one (data set, seed, solver)."""

    dataset: str
    objective: str
    solver: str
    status: str
    cached: bool = False
    reason: str = ""
    log: str = ""

    @property
    def done(self) -> bool:
        """Whether it has a result."""
        return self.status in _DONE


@dataclass
class GroupResult:
    """What became of a group: its units, and an error that ended it early (a traceback)."""

    group: Group
    units: list[Unit] = field(default_factory=list)
    error: str = ""

    @property
    def failures(self) -> list[Unit]:
        """Units that raised; a solver that cannot be imported fails its package, but not the track's baselines."""
        bad = {"error", "diverged"} | ({"not installed"} if self.group.package != BASELINES else set())
        return [unit for unit in self.units if unit.status in bad]


def cache_folder() -> Path:
    """Where finished units are kept: ``ICML25_CACHE``, else the user's cache folder."""
    if folder := os.environ.get("ICML25_CACHE"):
        return Path(folder).absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("icml25", appauthor=False)) / "benchmarks"


def plan(
    names: Sequence[str] = (),
    budget: str = "smoke",
    seeds: Sequence[int] | None = None,
    solvers: Sequence[str] = (),
    baselines: bool = True,
) -> list[Group]:
    """Groups to run for packages and tracks by name; for all of them without names.

    Parameters
    ----------
    names : packages (their tracks, with the tracks' baselines on the problems that they solve) and tracks (with all
        packages on them).
    budget : "smoke", "quick" or "paper".
    seeds : instead of the budget's own.
    solvers : keep only these solvers, by name with optional parameters in brackets.
    baselines : whether the tracks' own solvers run too.

    Raises
    ------
    SelectionError: unknown name (close matches are listed), or nothing to run.
    """
    methods, tracks = registry.methods(), registry.tracks()
    for name in names:
        if name not in methods and name not in tracks:
            close = difflib.get_close_matches(name, [*methods, *tracks], n=3) or [*methods, *tracks]
            raise SelectionError(f"unknown package or track {name!r}; did you mean: {', '.join(close)}?")
    groups = []
    for track in tracks.values():
        packages = [m for m in methods.values() if track.name in m.solvers and _wanted(m, track, names)]
        if not packages and track.name not in names:
            continue
        if budget not in track.budgets:
            raise SelectionError(f"track {track.name} has no budget {budget!r}; it has {', '.join(track.budgets)}")
        settings: Budget = track.budgets[budget]
        files = ({BASELINES: track.baselines} if baselines else {}) | {
            m.name: [m.solvers[track.name]] for m in packages
        }
        company = () if track.name in names or not names else tuple(str(m.solvers[track.name]) for m in packages)
        for package, paths in files.items():
            patterns = tuple(_select(paths, solvers)) if solvers else tuple(map(str, paths))
            if patterns:
                groups.append(Group(track, package, patterns, budget, tuple(seeds or settings.seeds), company))
    if not groups:
        known = sorted({name for track in tracks.values() for name in _solver_names(track, methods)})
        close = [match for solver in solvers for match in difflib.get_close_matches(solver, known, n=3)] or known
        raise SelectionError(f"no solver named {', '.join(map(repr, solvers))}; did you mean: {', '.join(close)}?")
    return groups


def _wanted(method: Method, track: Track, names: Sequence[str]) -> bool:
    return not names or method.name in names or track.name in names


def _solver_names(track: Track, methods: dict[str, Method]) -> Iterator[str]:
    for path in [*track.baselines, *(m.solvers[track.name] for m in methods.values() if track.name in m.solvers)]:
        yield _solver_name(path)


def _solver_name(path: Path) -> str:
    """The literal ``name`` of the file's class ``Solver``, without importing it."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == "Solver":
            for item in node.body:
                if isinstance(item, ast.Assign) and [ast.unparse(t) for t in item.targets] == ["name"]:
                    return str(ast.literal_eval(item.value))
    raise registry.RegistryError(f"{path} defines no class Solver with a literal name")


def _select(paths: Sequence[Path], solvers: Sequence[str]) -> Iterator[str]:
    for path in paths:
        for solver in solvers:
            name, bracket, parameters = solver.partition("[")
            if name.casefold() == _solver_name(path).casefold():
                yield f"{path}{bracket}{parameters}"


def run_group(
    group: Group,
    results: Path,
    *,
    parallel_config: Path | None = None,
    on_total: Callable[[int], None] = lambda total: None,
    on_unit: Callable[[Unit], None] = lambda unit: None,
) -> GroupResult:
    """Run a group in a process of its own and write ``<results>/<track>/<package>.parquet``.

    Parameters
    ----------
    group : what to run.
    results : folder of this budget's results; the log goes to its ``logs``.
    parallel_config : benchopt's YAML file for Dask or SLURM.
    on_total, on_unit : told how many units there are, and of each one as it ends.

    Raises
    ------
    KeyboardInterrupt: after the results that were finished are written.
    OSError: the results folder cannot be written.
    """
    folder = results / group.track.name
    folder.mkdir(parents=True, exist_ok=True)
    log = results / "logs" / f"{group.track.name}-{group.package}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    job = {
        "track": str(group.track.folder),
        "patterns": group.patterns,
        "company": group.company,
        "datasets": group.datasets,
        "budget": group.budget,
        "seeds": group.seeds,
        "timeout": group.track.budgets[group.budget].timeout,
        "output": str((folder / f"{group.package}.parquet").absolute()),
        "parallel_config": str(parallel_config.absolute()) if parallel_config else None,
        "collect": False,
    }
    result = GroupResult(group)
    env = {
        **os.environ,
        "BENCHOPT_CACHE": str(cache_folder() / group.track.name / f"{group.package}-{group.fingerprint()}"),
        "ICML25_TIMEOUT": str(job["timeout"]),
        "PYTHONUNBUFFERED": "1",
        "MPLBACKEND": "agg",
    }
    if env.get("PYTHONDONTWRITEBYTECODE"):  # every unit starts a process: compile once, in our own folder
        env |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(cache_folder() / "bytecode")}
    collect = {**job, "collect": True, "parallel_config": None}
    try:
        _run_child(job, env, log, result, on_total, on_unit)
    except KeyboardInterrupt:
        _run_child(collect, env, log.with_suffix(".collect.log"), GroupResult(group))
        raise
    if result.error:
        _check_writable(folder)
        _run_child(collect, env, log.with_suffix(".collect.log"), GroupResult(group))
    return result


def _check_writable(folder: Path) -> None:
    """Raise the OSError that made a run end, when it was a full or unwritable disk."""
    probe = folder / ".probe"
    probe.write_bytes(bytes(2**16))
    probe.unlink()


def _run_child(
    job: dict[str, Any],
    env: dict[str, str],
    log: Path,
    result: GroupResult,
    on_total: Callable[[int], None] = lambda total: None,
    on_unit: Callable[[Unit], None] = lambda unit: None,
) -> None:
    command = [sys.executable, "-c", "from icml25.shared.worker import main; main()", json.dumps(job)]
    with log.open("wb") as stream:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, env=env, text=True)
    assert child.stdout is not None
    read = 0
    ended = False
    try:
        for line in child.stdout:
            event = json.loads(line)
            with log.open("rb") as stream:
                stream.seek(read)
                text = stream.read(event["log"] - read).decode(errors="replace")
            read = event["log"]
            if event["event"] == "total":
                on_total(event["units"])
            elif event["event"] == "unit":
                unit = Unit(**event["unit"], log=text)
                result.units.append(unit)
                on_unit(unit)
            elif event["event"] == "end":
                ended = True
                result.error = event["error"]
        child.wait()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(timeout=10)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            child.kill()
            child.wait()
        raise
    if not ended:
        ending = (
            f"was killed by signal {-child.returncode}" if child.returncode < 0 else f"ended with {child.returncode}"
        )
        result.error = f"the process {ending}\n" + log.read_text(errors="replace")[read:]
