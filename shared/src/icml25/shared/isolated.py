"""Measure one function in a fresh process: its seconds and the growth of its peak memory.

Two methods timed in one long-lived process disturb each other (thread pools, allocator caches, a peak that was
reached before). Here every measurement starts a new interpreter, loads the inputs, imports and warms up, and only then
starts the clock and resets the peak.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

__all__ = ["BaseSolver", "MeasurementError", "exit_with_parent", "measure"]

_MEASURING = "ICML25_MEASURING"

if TYPE_CHECKING or _MEASURING not in os.environ:
    from benchopt import BaseSolver
else:

    class BaseSolver:
        """Stands in for benchopt's class in a measuring process, which never runs a solver (its import costs a second)."""


class MeasurementError(RuntimeError):
    """The measured function raised, was killed or ran out of time."""


def measure(
    file: str | Path,
    function: str,
    arrays: Mapping[str, np.ndarray],
    params: Mapping[str, Any] | None = None,
    *,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Call ``function(arrays, params)`` of a Python file in a fresh process and measure it.

    Parameters
    ----------
    file : path of the Python file that defines the function (a solver passes ``__file__``). Its optional function
        ``warm_up()`` runs before the clock starts.
    function : name of the function; it returns a dict of arrays and numbers.
    arrays : name -> ndarray (no object dtype), loaded before the baseline memory is read.
    params : JSON-able values, passed as a dict.
    timeout : seconds after which the process is killed; None takes ``ICML25_TIMEOUT``, else waits.

    Returns
    -------
    dict: what the function returned, with ``seconds`` (wall time of the call, s) and ``peak_memory_mb`` (growth of the
        peak resident set over the resident set before the call, MiB).

    Raises
    ------
    MeasurementError: with the traceback of the child, or the signal or time limit that ended it.
    """
    for name, array in arrays.items():
        if np.asarray(array).dtype.hasobject:
            raise TypeError(f"arrays[{name!r}] has dtype object; expected numbers, booleans or fixed-width text")
    if timeout is None and (limit := os.environ.get("ICML25_TIMEOUT")):
        timeout = float(limit)
    with tempfile.TemporaryDirectory(prefix="icml25-") as folder:
        work = Path(folder)
        for index, array in enumerate(arrays.values()):
            np.save(work / f"in{index}.npy", np.asarray(array))
        call = {"file": str(file), "function": function, "arrays": list(arrays), "params": dict(params or {})}
        (work / "call.json").write_text(json.dumps(call))
        env = {**os.environ, _MEASURING: "1"}
        command = [sys.executable, "-m", "icml25.shared.isolated", folder]
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"{function} of {file} was killed after its time limit of {timeout:g} s") from None
        if done.returncode < 0:
            raise MeasurementError(f"{function} of {file} was killed by signal {-done.returncode}\n{done.stderr}")
        if done.returncode > 0:
            raise MeasurementError(f"{function} of {file} failed\n{done.stderr}")
        sys.stderr.write(done.stderr)
        values = json.loads((work / "out.json").read_text())
        out = {
            key: np.load(work / f"out{value['array']}.npy") if isinstance(value, dict) else value
            for key, value in values.items()
        }
    return out


def exit_with_parent() -> None:
    """End this process soon after its parent ends, so that a killed run leaves nothing behind (POSIX)."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _load_file(file: Path) -> ModuleType:
    """Import a module of a package by its name, and a track's file (which belongs to none) by its path."""
    track = file.parent.parent
    if not (track / "track.toml").is_file():
        for root in importlib.import_module("icml25").__path__:
            if file.is_relative_to(root):
                return importlib.import_module(".".join(("icml25", *file.relative_to(root).with_suffix("").parts)))
    sys.path.insert(0, str(track))  # a track's solvers import `benchmark_utils`
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


class _PeakMemory:
    """Growth of the peak resident set inside a ``with`` block, in MiB."""

    def __enter__(self) -> _PeakMemory:
        gc.collect()
        self.growth_mb = 0.0
        self._exact = False
        with contextlib.suppress(OSError):  # Linux: the kernel keeps the peak, and resets it on request
            Path("/proc/self/clear_refs").write_text("5")
            self._exact = True
        if not self._exact:
            self._start_sampling()
        else:
            self._before = self._status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        if self._exact:
            self.growth_mb = (self._status("VmHWM") - self._before) / 1024
        else:
            self._stop.set()
            self._sampler.join()

    @staticmethod
    def _status(key: str) -> int:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
        return int(line.split()[1])

    def _start_sampling(self) -> None:
        import psutil

        process = psutil.Process()
        before, self._stop = process.memory_info().rss, threading.Event()

        def sample() -> None:
            while True:
                self.growth_mb = max(self.growth_mb, (process.memory_info().rss - before) / 2**20)
                if self._stop.wait(0.002):
                    return

        self._sampler = threading.Thread(target=sample, daemon=True)
        self._sampler.start()


def _main(folder: str) -> None:
    exit_with_parent()
    work = Path(folder)
    call = json.loads((work / "call.json").read_text())
    module = _load_file(Path(call["file"]).resolve())
    if hasattr(module, "warm_up"):
        module.warm_up()
    arrays = {name: np.load(work / f"in{index}.npy") for index, name in enumerate(call["arrays"])}
    function = getattr(module, call["function"])
    with _PeakMemory() as memory:
        start = time.perf_counter()
        out = dict(function(arrays, call["params"]))
        seconds = time.perf_counter() - start
    out |= {"seconds": seconds, "peak_memory_mb": memory.growth_mb}
    values: dict[str, Any] = {}
    for index, (key, value) in enumerate(out.items()):
        if isinstance(value, np.ndarray) and value.ndim:
            np.save(work / f"out{index}.npy", value, allow_pickle=False)
            values[key] = {"array": index}
        elif isinstance(value, (str, bool, int)) or value is None:
            values[key] = value
        else:
            values[key] = float(value)
    (work / "out.json").write_text(json.dumps(values))


if __name__ == "__main__":
    _main(sys.argv[1])
