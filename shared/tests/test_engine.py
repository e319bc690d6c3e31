"""The benchmark command: caching, seeds, faults, resume."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest
from conftest import Toy, install_toy

METRICS = ["dataset_name", "objective_name", "solver_name", "score"]


def rows(toy: Toy, budget: str = "smoke", seed: int | None = None) -> pd.DataFrame:
    files = sorted((toy.folder / "icml25-results" / budget / "toy").glob("*.parquet"))
    table = pd.concat([pd.read_parquet(file) for file in files])
    if seed is not None:
        table = table[table["p_obj_seed"] == seed]
    return table[METRICS].sort_values(METRICS[:3], ignore_index=True)


def test_a_seed_gives_the_same_numbers_whatever_else_runs(toy: Toy) -> None:
    assert toy.run("run", "toy", "--budget", "smoke", "--seeds", "0", "1", "2").returncode == 0
    three = rows(toy, seed=2)
    assert len(three) == 4 and toy.computed == 12
    shutil.rmtree(toy.folder / "cache")
    assert toy.run("run", "toy", "--budget", "smoke", "--seeds", "2").returncode == 0
    pd.testing.assert_frame_equal(rows(toy, seed=2), three, check_exact=True)
    shutil.rmtree(toy.folder / "cache")
    for order in (["Base", "Toy"], ["Toy", "Base"]):
        assert toy.run("run", "toy", "--budget", "smoke", "--seeds", "2", "--solvers", *order).returncode == 0
        pd.testing.assert_frame_equal(rows(toy, seed=2), three, check_exact=True)
    before = toy.computed
    again = toy.run("run", "toy", "--budget", "smoke", "--seeds", "2", "--solvers", "Toy", "Base")
    assert "0 units computed, 4 from the cache" in again.stdout
    assert toy.computed == before


def test_changed_code_is_measured_again_and_only_that(toy: Toy) -> None:
    toy.run("run")
    assert toy.computed == 4
    (toy.package / "core.py").write_text("x = 1\n")
    toy.run("run")
    assert toy.computed == 6  # the method's two variants, not the baseline's
    bench = toy.package / "bench.py"
    bench.write_text(bench.read_text().replace("1.0", "2.0"))
    toy.run("run")
    assert rows(toy)["score"].max() > 3


def test_a_solver_that_raises_is_reported_and_the_others_go_on(toy: Toy) -> None:
    done = toy.run("run", TOY_RAISES="Toy")
    assert done.returncode == 1
    assert "ZeroDivisionError: the toy divides by zero" in done.stderr
    assert set(rows(toy)["solver_name"]) == {"Base[scale=0.01]", "Base[scale=0.02]"}
    failures = toy.run_json()["failures"]
    assert len(failures) == 2 and all("Traceback" in Path(toy.folder / f["file"]).read_text() for f in failures)
    assert "the toy divides by zero" in (toy.folder / "icml25-results" / "report.html").read_text()
    assert toy.run("run").returncode == 0
    assert toy.run_json()["failures"] == []


def test_a_solver_file_that_cannot_be_imported_fails_its_package_only(toy: Toy) -> None:
    (toy.package / "bench.py").write_text("import no_such_module\n" + (toy.package / "bench.py").read_text())
    done = toy.run("run")
    assert done.returncode == 1
    assert "no_such_module" in "".join(f["traceback"] for f in toy.run_json()["failures"])
    assert len(rows(toy)) == 2


def test_a_solver_that_kills_its_process_is_reported(toy: Toy) -> None:
    bench = toy.package / "bench.py"
    bench.write_text(
        bench.read_text().replace("self.result = measure", "os.kill(os.getpid(), 9); self.result = measure")
    )
    done = toy.run("run")
    assert done.returncode == 1 and "killed by signal 9" in done.stdout + done.stderr
    assert len(rows(toy)) == 2


def test_a_damaged_data_set_is_named_and_the_others_run(tmp_path: Path) -> None:
    toy = install_toy(tmp_path, '["broken", "line"]')
    done = toy.run("run")
    assert done.returncode == 1
    assert "file.npz is damaged" in done.stderr
    assert len(rows(toy)) == 4


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_goes_on_where_it_was(toy: Toy, ending: signal.Signals) -> None:
    slow = {"TOY_SECONDS": "1.0"}
    started = subprocess.Popen(
        toy.command("run", "toy", "--budget", "smoke", "--seeds", "0", "1"),
        cwd=toy.folder,
        env=toy.environment | slow,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job's shell has it ignored
    )
    deadline = time.monotonic() + 60
    while toy.computed < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(started.pid, ending) if ending == signal.SIGKILL else os.killpg(started.pid, ending)
    _, errors = started.communicate(timeout=60)
    if ending == signal.SIGINT:
        assert started.returncode == 130 and "goes on from there" in errors
        assert len(rows(toy)) >= 1  # what was finished is readable without running again
    time.sleep(1.5)  # the orphans of a killed run notice and end
    stopped_at = toy.computed
    assert 2 <= stopped_at < 8
    assert toy.run("run", "toy", "--budget", "smoke", "--seeds", "0", "1").returncode == 0
    assert toy.computed <= 8 + 1  # at most the unit that was under way is computed twice
    resumed = rows(toy)
    shutil.rmtree(toy.folder / "cache")
    toy.run("run", "toy", "--budget", "smoke", "--seeds", "0", "1")
    pd.testing.assert_frame_equal(rows(toy), resumed, check_exact=True)


def test_dask_gives_the_same_numbers(toy: Toy) -> None:
    pytest.importorskip("distributed")
    toy.run("run", "toy", "--budget", "smoke", "--seeds", "0", "1")
    alone = rows(toy)
    shutil.rmtree(toy.folder / "cache")
    config = toy.folder / "dask.yml"
    config.write_text("backend: dask\ndask_n_workers: 2\ndask_threads_per_worker: 1\ndask_dashboard_address: null\n")
    done = toy.run("run", "toy", "--budget", "smoke", "--seeds", "0", "1", "--parallel-config", str(config))
    assert done.returncode == 0, done.stderr
    assert toy.computed == 16
    pd.testing.assert_frame_equal(rows(toy), alone, check_exact=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "toi"], "unknown package or track 'toi'; did you mean: toy"),
        (["run", "toy", "--budget", "huge"], "no budget 'huge'; it has smoke, quick"),
        (["run", "toy", "--budget", "smoke", "--solvers", "Bass"], "no solver named 'Bass'; did you mean: Base"),
        (["run", "toy", "--parallel-config", "no.yml"], "no.yml is not a file"),
        (["run", "toy", "--write", "--seeds", "1"], "--write stores a whole quick run"),
        (["claims", "toi"], "unknown package or track 'toi'"),
        (["report"], "no results in icml25-results"),
    ],
)
def test_wrong_use_is_one_clear_line(toy: Toy, arguments: list[str], message: str) -> None:
    done = toy.run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unwritable_results_folder_is_one_clear_line(toy: Toy) -> None:
    (toy.folder / "file").write_text("")
    done = toy.run("run", "--results", "file/results")
    assert done.returncode == 2
    assert done.stderr == "error: file/results/smoke/logs: Not a directory\n"


def test_a_full_disk_is_one_clear_line(toy: Toy) -> None:
    full = toy.folder / "full"
    full.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(full)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        done = toy.run("run", "--results", str(full / "results"))
    finally:
        subprocess.run(["umount", str(full)], check=True)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_list_shows_backend_and_track(toy: Toy) -> None:
    done = toy.run("list")
    assert done.returncode == 0
    line = next(line for line in done.stdout.splitlines() if "toy" in line)
    assert "numpy" in line and "0.1" in line and "A toy" in line
