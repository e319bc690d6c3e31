"""The process that runs one group: one benchopt run, told as JSON lines on standard output.

It is started by the engine with ``python -c`` rather than ``python -m``: what is sent to Dask's workers refers to this
module by name, which it could not as ``__main__``.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import benchopt.runner
import pandas as pd
from benchopt.benchmark import Benchmark, _list_parametrized_classes
from benchopt.utils.terminal_output import TerminalOutput

from icml25.shared.isolated import exit_with_parent

__all__ = ["main"]


class Terminal(TerminalOutput):
    """benchopt's terminal, which also tells the engine of every unit."""

    tell: ClassVar[Callable[..., None] | None] = None  # set in the process that collects the results, and only there

    def show_status(
        self, status: str, reason: Any = None, dataset: bool = False, objective: bool = False, cached: bool = False
    ) -> None:
        """Called by benchopt as a unit ends."""
        super().show_status(status, reason=reason, dataset=dataset, objective=objective, cached=cached)
        if Terminal.tell is not None:
            key = {"dataset": str(self.dataset), "objective": str(self.objective), "solver": str(self.solver)}
            Terminal.tell("unit", unit={**key, "status": status, "cached": cached, "reason": str(reason or "")})


def main() -> None:
    """Run the job given as JSON in the first argument."""
    exit_with_parent()
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever anyone prints goes to the log

    def tell(event: str, **content: Any) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        print(json.dumps({"event": event, "log": os.fstat(2).st_size, **content}), file=events, flush=True)

    Terminal.tell = tell
    benchopt.runner.TerminalOutput = Terminal
    error = ""
    try:
        _run(json.loads(sys.argv[1]), tell)
    except Exception:
        error = traceback.format_exc()
        print(error, file=sys.stderr)
    tell("end", error=error)


def _run(job: dict[str, Any], tell: Callable[..., None]) -> None:
    benchmark = Benchmark(job["track"])
    objective = f"{benchmark.get_benchmark_objective().name}[budget={job['budget']},seed={list(job['seeds'])}]"
    solvers = _variants(benchmark.check_solver_patterns(job["patterns"]))
    company = _variants(benchmark.check_solver_patterns(job["company"])) if job["company"] else solvers
    wanted = [problems for group in (solvers, company) if (problems := _problems(group))]
    datasets = [
        pattern
        for pattern in job["datasets"]
        if all(_usable(dataset, wanted, tell) for dataset in _variants(benchmark.check_dataset_patterns([pattern])))
    ]
    tell("total", units=len(solvers) * len(datasets) * len(job["seeds"]))
    if not datasets:
        return
    output = Path(job["output"])
    part = output.with_suffix(".part.parquet")
    part.unlink(missing_ok=True)
    try:
        benchopt.run_benchmark(
            job["track"],
            solver_names=list(job["patterns"]),
            dataset_names=datasets,
            objective_filters=[objective],
            n_repetitions=1,
            max_runs=1,
            timeout=job["timeout"],
            parallel_config=job["parallel_config"],
            collect=job["collect"],
            plot_result=False,
            show_progress=False,
            output_file=str(part),
        )
    except RuntimeError as error:
        if "Benchmark failed" not in str(error):  # benchopt's word for a run without any result
            raise
        output.unlink(missing_ok=True)
    else:
        frame = pd.read_parquet(part)
        part.unlink()
        metrics = {c: c.removeprefix("objective_") for c in frame if c != "objective_name"}  # benchopt's prefix
        frame = frame.rename(columns=metrics)
        others = [pattern for pattern in job["datasets"] if pattern not in datasets]
        if job["company"] and others and output.exists():  # keep what another package's run asked for
            names = [str(dataset) for dataset in _variants(benchmark.check_dataset_patterns(others))]
            before = pd.read_parquet(output)
            frame = pd.concat([frame, before.loc[before["dataset_name"].isin(names), :]])
        order = ["dataset_name", "objective_name", "solver_name"]
        frame.sort_values(order, ignore_index=True).to_parquet(part)
        part.replace(output)


def _variants(selected: Any) -> list[Any]:
    """Instances of benchopt classes, one per combination of their parameters."""
    return [instance for instance, _ in _list_parametrized_classes(*selected)]


def _problems(solvers: Sequence[Any]) -> set[str]:
    """The problems that some of these solvers solve; empty when one of them does not say."""
    named = [set(getattr(solver, "problems", ())) for solver in solvers]
    return set().union(*named) if all(named) else set()


def _usable(dataset: Any, wanted: Sequence[set[str]], tell: Callable[..., None]) -> bool:
    """Whether a data set can be had, which is reported when not, and its problem is in each of these sets."""
    try:
        data = dataset.get_data()
    except Exception as error:
        traceback.print_exc()
        unit = {"dataset": str(dataset), "objective": "", "solver": "", "status": "error", "cached": False}
        tell("unit", unit={**unit, "reason": str(error)})
        return False
    return all(data.get("problem") in problems for problems in wanted)
