"""Bounded memory, by limits that the operating system enforces in a child process."""

import subprocess
import sys

import numpy as np
import pytest

CHILD = """
import resource, sys
import numpy as np
from icml25.joker import JokerRegressor

def data_kb():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1])

path, mode, room_mb = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = np.random.default_rng(0)
options = dict(n_features=64, block_size=1024, max_epochs=1, tol=9.0, max_tr_iter=2, max_cg_iter=5, random_state=0)
JokerRegressor(**options).fit(rng.normal(size=(3000, 128)), rng.normal(size=3000))  # thread pools and code pages
X = np.load(path, mmap_mode="r")
y = X[:, 0].astype(float) ** 2
limit = (data_kb() + room_mb * 1024) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
if mode == "copy":
    X = np.array(X)
model = JokerRegressor(**options).fit(X, y)
print(model.n_iter_)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA leaves file mappings out on Linux only")
@pytest.mark.parametrize(
    "dtype", [np.float32, *(pytest.param(d, marks=pytest.mark.slow) for d in (np.float64, np.int32))]
)
def test_a_file_larger_than_the_memory_allowed_trains(tmp_path, dtype):
    rows = 50_000 if dtype == np.float64 else 100_000
    X = np.lib.format.open_memmap(tmp_path / "X.npy", mode="w+", dtype=dtype, shape=(rows, 128))
    X[:] = np.random.default_rng(1).normal(size=(1000, 128)).repeat(rows // 1000, 0) * 10
    X.flush()  # 49 MiB on disk, above the 32 MiB allowed
    runs = {
        mode: subprocess.run(
            [sys.executable, "-c", CHILD, str(tmp_path / "X.npy"), mode, "32"],
            capture_output=True, text=True, check=False, env={"OMP_NUM_THREADS": "1"},
        )
        for mode in ("map", "copy")
    }  # fmt: skip
    assert runs["map"].returncode == 0, runs["map"].stderr
    assert int(runs["map"].stdout) >= rows // 1024
    assert "MemoryError" in runs["copy"].stderr  # the limit is a real one
