"""Seconds and peak memory of one epoch on a memory map of 1e5, 3e5 and 1e6 rows, into scaling.json and scaling.svg.

Each size runs in a process of its own. Pages of the file that the system keeps in memory are not counted (it takes them
back when anyone needs them): memory is RssAnon, sampled every 5 ms, over its value before the fit.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROWS, COLUMNS, FEATURES = (100_000, 300_000, 1_000_000), 20, 2_048
HERE = Path(__file__).parent


def write_rows(path, n):
    """Write Friedman's first function, with noise, in slices."""
    X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(n, COLUMNS))
    y = np.empty(n)
    for start in range(0, n, 100_000):
        rng = np.random.default_rng(start)
        rows = rng.random((min(100_000, n - start), COLUMNS))
        X[start : start + len(rows)] = rows
        wave = 10 * np.sin(np.pi * rows[:, 0] * rows[:, 1]) + 20 * (rows[:, 2] - 0.5) ** 2
        y[start : start + len(rows)] = wave + 10 * rows[:, 3] + 5 * rows[:, 4] + rng.normal(size=len(rows))
    X.flush()
    return (y - y.mean()) / y.std()


def child(folder):
    """Fit one epoch and print seconds and memory growth in MiB."""
    import threading
    import time

    from icml25.joker import JokerRegressor

    def anonymous():
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) / 1024

    X, y = np.load(f"{folder}/X.npy", mmap_mode="r"), np.load(f"{folder}/y.npy")
    options = {"n_features": FEATURES, "max_epochs": 1, "tol": 1e3, "random_state": 0}
    JokerRegressor(**options).fit(np.asarray(X[:2000]), y[:2000])
    before, peak, done = anonymous(), 0.0, threading.Event()

    def sample():
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, anonymous() - before)

    watcher = threading.Thread(target=sample)
    watcher.start()
    start = time.perf_counter()
    JokerRegressor(**options).fit(X, y)
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    print(json.dumps({"rows": len(y), "file_mb": X.nbytes / 2**20, "seconds": seconds, "peak_memory_mb": peak}))


def main():
    """Measure the sizes and draw them."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    results = []
    for n in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            np.save(f"{folder}/y.npy", write_rows(f"{folder}/X.npy", n))
            done = subprocess.run([sys.executable, __file__, folder], capture_output=True, text=True, check=True)
        results.append(json.loads(done.stdout))
        print(results[-1], flush=True)
    (HERE / "scaling.json").write_text(
        json.dumps({"load_average": os.getloadavg()[0], "runs": results}, indent=1) + "\n"
    )
    rows = np.array([r["rows"] for r in results])
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 2.5), layout="constrained")
    left.plot(rows, [r["seconds"] for r in results], "o-")
    left.set(xlabel="rows", ylabel="seconds per epoch, with gap")
    right.plot(rows, rows * FEATURES * 4 / 2**20, "--", color="0.6", label="features of all rows")
    right.plot(rows, [r["file_mb"] for r in results], ":", color="0.4", label="the file")
    right.plot(rows, [r["peak_memory_mb"] for r in results], "o-", label="peak memory growth")
    right.set(xlabel="rows", ylabel="MiB", yscale="log")
    right.legend(fontsize=7)
    figure.savefig(HERE / "scaling.svg")


if __name__ == "__main__":
    child(sys.argv[1]) if len(sys.argv) > 1 else main()
